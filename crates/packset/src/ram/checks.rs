//! What a validation of a stage looks at beside the payloads' receipt.

use b70_manifest::Sha256Hex;
use b70_manifest::pack::{PackSet, RamStage};
use b70_store::{DigestKind, Job, Source, hash_many};

use super::{MAX_STAGE_FILE_BYTES, StageOptions, StageReport, stage_format, write_stage_file};
use crate::error::PackError;
use crate::index::payload_table_sha256;
use crate::layout::Layout;
use crate::set::{SetDir, rel};
use crate::trust::{STAGE_FILE, SetSubject};
use crate::verify::{Failures, implied_index, same_tensor};

/// Compares the stage's own document with the staged manifest, and both with the source where it is at hand. A damaged
/// document is written again only when the source's manifest proves that the staged one is the original.
pub(super) fn check_stage_file(
    stage: &SetDir,
    document: &PackSet,
    manifest: &[u8],
    source: Option<(&SetDir, &[u8])>,
    report: &mut StageReport,
    failures: &mut Failures,
) -> Result<(), PackError> {
    if let Some((set, original)) = source
        && original != manifest
    {
        failures.add("ram-manifest", format!("it is not the manifest of {}", set.path().display()));
        return Ok(());
    }
    let problem = match read_stage_file(stage) {
        Ok(found) => stage_file_problem(&found, document, manifest)?,
        Err(problem) => Some(problem),
    };
    match (problem, source) {
        (None, _) => {}
        (Some(problem), Some((set, _))) => {
            report.reasons.push(format!("{STAGE_FILE} was written again: {problem}"));
            write_stage_file(stage.root(), set.path(), document, manifest)?;
        }
        (Some(problem), None) => failures.add("ram-stage-receipt", problem),
    }
    Ok(())
}

fn read_stage_file(stage: &SetDir) -> Result<RamStage, String> {
    let bytes = stage.root().read(&rel(STAGE_FILE), MAX_STAGE_FILE_BYTES).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{STAGE_FILE}: {error}"))
}

fn stage_file_problem(found: &RamStage, document: &PackSet, manifest: &[u8]) -> Result<Option<String>, PackError> {
    let rows = [
        ("format", found.format.clone(), stage_format(document)),
        ("schema_version", found.schema_version.to_string(), "1".to_owned()),
        ("status", found.status.clone(), "ready".to_owned()),
        ("set_key", found.set_key.to_string(), document.key.to_string()),
        ("source_manifest_sha256", found.source_manifest_sha256.to_string(), Sha256Hex::of(manifest).to_string()),
        (
            "payload_table_sha256",
            found.payload_table_sha256.to_string(),
            payload_table_sha256(&document.tensors)?.to_string(),
        ),
        ("payload_size_bytes", found.payload_size_bytes.to_string(), document.payload_size_bytes.to_string()),
        ("tensor_count", found.tensor_count.to_string(), document.tensor_count.to_string()),
    ];
    Ok(rows
        .into_iter()
        .find(|(_, found, expected)| found != expected)
        .map(|(field, found, expected)| format!("{field} is {found}, expected {expected}")))
}

/// A stage is opened as a set, so its sidecars must be those of its manifest.
pub(super) fn check_stage_sidecars(stage: &SetDir, document: &PackSet, failures: &mut Failures) {
    for tensor in &document.tensors {
        let problem = match stage.read_sidecar(tensor.key) {
            Ok(sidecar) if same_tensor(&sidecar, tensor) => continue,
            Ok(_) => "the sidecar describes another payload".to_owned(),
            Err(error) => error.to_string(),
        };
        failures.add(format!("ram-sidecar:{}", tensor.identity.tensor_name), problem);
    }
}

pub(super) fn check_stage_index(
    stage: &SetDir,
    document: &PackSet,
    layout: &dyn Layout,
    failures: &mut Failures,
) -> Result<(), PackError> {
    let bytes = match stage.read_index() {
        Ok(bytes) => bytes,
        Err(error) => {
            failures.add("ram-runtime-index", error.to_string());
            return Ok(());
        }
    };
    let expected = implied_index(document, layout)?;
    if bytes != expected.as_bytes() {
        failures.add("ram-runtime-index", "it is not the index the manifest implies");
    }
    if Sha256Hex::of(&bytes) != document.runtime_index.sha256 {
        failures.add("ram-runtime-index-sha256", "it does not have the digest the manifest records");
    }
    Ok(())
}

/// Rehashes every staged payload by SHA-256; returns the bytes read.
pub(super) fn check_deep(
    stage: &SetDir,
    document: &PackSet,
    options: &StageOptions<'_>,
    failures: &mut Failures,
) -> Result<u64, PackError> {
    let mut bytes = 0;
    let subject = SetSubject::new(document, Sha256Hex::EMPTY)?;
    let jobs: Vec<Job<'_>> = subject
        .files()
        .iter()
        .map(|expected| Job { source: Source::Beneath(stage.root(), &expected.name), size: Some(expected.size) })
        .collect();
    let results = hash_many(&jobs, DigestKind::Sha256, &options.progress);
    for (tensor, result) in document.tensors.iter().zip(results) {
        let name = &tensor.identity.tensor_name;
        match result.map_err(PackError::from) {
            Ok(digests) => {
                bytes += digests.size;
                if digests.sha256 != Some(tensor.payload.sha256) {
                    failures.add(format!("ram-payload-sha256:{name}"), "the bytes have another SHA-256");
                }
            }
            Err(PackError::Cancelled) => return Err(PackError::Cancelled),
            Err(error @ PackError::Store(b70_store::Error::Size { .. } | b70_store::Error::Missing { .. })) => {
                failures.add(format!("ram-payload-size:{name}"), error.to_string());
            }
            Err(error) => failures.add(format!("ram-payload-sha256:{name}"), error.to_string()),
        }
    }
    Ok(bytes)
}
