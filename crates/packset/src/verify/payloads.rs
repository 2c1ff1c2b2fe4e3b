//! The parts of a verification that read every payload.

use std::collections::HashMap;
use std::path::PathBuf;

use b70_manifest::Sha256Hex;
use b70_manifest::pack::{PackSet, TensorPack};
use b70_store::{HashOptions, ReceiptReason, RelPath};

use super::outcome::Failures;
use crate::error::PackError;
use crate::layout::Layout;
use crate::model::Model;
use crate::pack::compare_with_source;
use crate::set::SetDir;
use crate::trust::{SetSubject, reasons_text, store};

/// What reading every payload gave.
pub(super) struct DeepRead {
    pub(super) bytes: u64,
    /// Path of the receipt that was written.
    pub(super) receipt: Option<PathBuf>,
    /// Why there is none.
    pub(super) reasons: Vec<String>,
}

/// Rehashes every payload, and stores a receipt of it when nothing at all is wrong with the set.
pub(super) fn check_payload_digests(
    set: &SetDir,
    document: &PackSet,
    manifest: &[u8],
    how: &HashOptions<'_>,
    failures: &mut Failures,
) -> Result<DeepRead, PackError> {
    let code = |tensor: &TensorPack| format!("payload-sha256:{}", tensor.identity.tensor_name);
    // Only what has a name beneath the set can be read. A wrong size has its own code; here the bytes that are there count.
    let mut readable = document.clone();
    readable.tensors.retain_mut(|tensor| match RelPath::new(&tensor.payload.path) {
        Ok(name) => {
            tensor.payload.size_bytes = set.root().stat(&name).map_or(tensor.payload.size_bytes, |found| found.size);
            true
        }
        Err(error) => {
            failures.add(code(tensor), error.to_string());
            false
        }
    });
    let subject = SetSubject::new(&readable, Sha256Hex::of(manifest))?;
    let admission = subject.read_all(set.root(), how)?;
    let changed: HashMap<_, _> = admission.changed.iter().map(|changed| (&changed.path, &changed.what)).collect();
    let found: HashMap<_, _> = admission.files.iter().map(|(name, content)| (name, content.blake3)).collect();
    for (tensor, file) in readable.tensors.iter().zip(subject.files()) {
        if let Some(what) = changed.get(&set.root().join(&file.name)) {
            failures.add(code(tensor), what.as_str());
        }
        if let (Some(found), Some(stated)) = (found.get(&file.name), tensor.payload.blake3) {
            failures.equal(&code(tensor), "the payload's BLAKE3", found, &stated);
        }
    }
    let mut read = DeepRead { bytes: admission.bytes_read, receipt: None, reasons: Vec::new() };
    if failures.is_empty() {
        read.receipt = store(&admission, set.root())?;
        if read.receipt.is_none() {
            let why = admission.reasons.iter().filter(|reason| !matches!(reason, ReceiptReason::ReceiptMissing { .. }));
            read.reasons = reasons_text(&why.cloned().collect::<Vec<_>>());
        }
    }
    Ok(read)
}

/// Unpacks every payload and compares it with the model's blocks; returns the payload bytes compared.
pub(super) fn check_against(
    set: &SetDir,
    document: &PackSet,
    layout: &dyn Layout,
    model: &Model,
    how: &HashOptions<'_>,
    failures: &mut Failures,
) -> Result<u64, PackError> {
    let found = model.sha256(&how.progress.silent())?;
    failures.equal("model-sha256", "the model's SHA-256", &found, &document.source_model.sha256);
    let mut bytes = 0;
    for tensor in &document.tensors {
        let name = &tensor.identity.tensor_name;
        let code = format!("payload-against:{name}");
        let Some(source) = model.tensors().iter().find(|candidate| candidate.name == name.as_bytes()) else {
            failures.add(code, "the model has no such tensor");
            continue;
        };
        if source.shape != tensor.identity.tensor_shape || source.ggml_type != layout.source_type() {
            failures.add(code, format!("the model's tensor is {} {:?}", source.ggml_type.name(), source.shape));
            continue;
        }
        match compare_with_source(set.root(), tensor, layout, model, source, &how.progress) {
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
