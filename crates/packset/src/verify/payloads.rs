//! The parts of a verification that read every payload.

use b70_manifest::pack::PackSet;
use b70_store::{Job, RelPath, Source, What, hash_many};

use super::{Failures, VerifyOptions};
use crate::error::PackError;
use crate::layout::Layout;
use crate::model::{Model, cancelled};
use crate::pack::compare_with_source;
use crate::set::SetDir;

/// Rehashes every payload; returns the bytes read.
pub(super) fn check_payload_digests(
    set: &SetDir,
    document: &PackSet,
    options: &VerifyOptions<'_>,
    failures: &mut Failures,
) -> Result<u64, PackError> {
    let mut paths = Vec::new();
    for tensor in &document.tensors {
        match RelPath::new(&tensor.payload.path) {
            Ok(path) => paths.push((tensor, path)),
            Err(error) => failures.add(format!("payload-sha256:{}", tensor.identity.tensor_name), error.to_string()),
        }
    }
    let jobs: Vec<Job<'_>> =
        paths.iter().map(|(_, path)| Job { source: Source::Beneath(set.root(), path), size: None }).collect();
    let mut bytes = 0;
    for ((tensor, _), result) in paths.iter().zip(hash_many(&jobs, What::Sha256, options.pool, &options.progress)) {
        let code = format!("payload-sha256:{}", tensor.identity.tensor_name);
        match result.map_err(cancelled) {
            Ok(digests) => {
                bytes += digests.size;
                let found = digests.sha256.expect("SHA-256 was asked for");
                failures.equal(&code, "the payload's SHA-256", &found, &tensor.payload.sha256);
            }
            Err(PackError::Cancelled) => return Err(PackError::Cancelled),
            Err(error) => failures.add(code, error.to_string()),
        }
    }
    Ok(bytes)
}

/// Unpacks every payload and compares it with the model's blocks; returns the payload bytes compared.
pub(super) fn check_against(
    set: &SetDir,
    document: &PackSet,
    layout: &dyn Layout,
    model: &Model,
    options: &VerifyOptions<'_>,
    failures: &mut Failures,
) -> Result<u64, PackError> {
    let found = model.sha256(&options.progress.silent())?;
    failures.equal("model-sha256", "the model's SHA-256", &found, &document.source_model.sha256);
    let mut bytes = 0;
    for tensor in &document.tensors {
        let name = &tensor.identity.tensor_name;
        let code = format!("payload-against:{name}");
        let Some(source) = model.tensors().iter().find(|candidate| candidate.name == *name) else {
            failures.add(code, "the model has no such tensor");
            continue;
        };
        if source.shape != tensor.identity.tensor_shape || source.type_id != layout.source_type().id {
            failures.add(code, format!("the model's tensor is {} {:?}", source.type_name, source.shape));
            continue;
        }
        match compare_with_source(set.root(), tensor, layout, model, source, options.pool, &options.progress) {
            Ok(None) => bytes += tensor.payload.size_bytes,
            Ok(Some(row)) => {
                failures.add(code, format!("the unpacked blocks differ from the model's, first in row {row}"));
            }
            Err(PackError::Cancelled) => return Err(PackError::Cancelled),
            Err(error) => failures.add(code, error.to_string()),
        }
    }
    Ok(bytes)
}
