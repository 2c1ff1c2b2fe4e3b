//! Importing a capture.

use std::path::{Path, PathBuf};

use b70_manifest::EvidenceClass;
use b70_store::{
    DirOutcome, Error as StoreError, HiddenDir, OnExisting, RelPath, Sha256, json_bytes, open_or_create, open_source,
    publish_bytes,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::store::{CAPTURES, DOCUMENT, TENSOR, case_folder, read_capture};
use super::{Capture, read_tensor};
use crate::error::GoldenError;

/// The largest metadata document.
const MAX_META: u64 = 4 << 20;

/// What an import did.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(title = "Golden import")]
pub struct ImportReport {
    /// Version of this document, 1.
    pub schema_version: u64,
    /// Always `diagnostic-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: bool,
    /// `admitted`, or `kept` when the very same capture was there.
    pub status: String,
    /// The case.
    pub case: String,
    /// The tensor's part in the case.
    pub role: String,
    /// Width of the run.
    pub width: u64,
    /// Folder of the capture.
    pub capture: PathBuf,
    /// SHA-256 of the tensor's bytes.
    pub sha256: Sha256,
    /// Size of the tensor's bytes.
    pub size_bytes: u64,
}

/// Admits a capture: reads the tensor the metadata names out of `tensor`, holds shape, type and digest against the
/// metadata, and publishes both below `<root>/captures/<case>/<id>`, the id being the canonical hash of the metadata.
///
/// # Errors
/// [`GoldenError::Capture`] with every fault at once: metadata incomplete or contradictory, or a tensor that is another.
pub fn import(
    root: &Path,
    case: &str,
    cases: &[String],
    tensor: &Path,
    meta: &Path,
) -> Result<ImportReport, GoldenError> {
    let refuse = |faults: Vec<String>| GoldenError::Capture { path: meta.to_path_buf(), faults };
    if !cases.iter().any(|known| known == case) {
        return Err(refuse(vec![format!("no case is called {case:?}; the corpus requires {}", cases.join(", "))]));
    }
    let folder = case_folder(case)?;
    let text = read_bounded(meta)?;
    let capture: Capture =
        serde_json::from_slice(&text).map_err(|e| refuse(vec![format!("the metadata is not complete: {e}")]))?;
    let mut faults = capture.faults();
    if capture.case != case {
        faults.push(format!("the metadata is of case {:?}, the import of case {case:?}", capture.case));
    }
    let found = read_tensor(tensor, &capture.tensor.name)?;
    let expected = &capture.tensor;
    match expected.dtype.bytes(&expected.shape) {
        None => {
            faults
                .push(format!("tensor.shape {:?} is not a whole number of {} blocks", expected.shape, expected.dtype));
        }
        Some(size) if size != found.bytes.len() as u64 => faults.push(format!(
            "tensor.shape {:?} of {} needs {size} bytes, the file has {} ({} {:?})",
            expected.shape,
            expected.dtype,
            found.bytes.len(),
            found.dtype,
            found.shape
        )),
        Some(_) if expected.dtype.is_block() && found.dtype == super::Dtype::U8 => {}
        Some(_) if found.dtype != expected.dtype || found.shape != expected.shape => faults.push(format!(
            "the file's tensor is {} {:?}, the metadata says {} {:?}",
            found.dtype, found.shape, expected.dtype, expected.shape
        )),
        Some(_) => {}
    }
    let sha256 = Sha256::of(&found.bytes);
    if sha256 != expected.sha256 {
        faults.push(format!("tensor.sha256 is {}, the file's bytes have {sha256}", expected.sha256));
    }
    if !faults.is_empty() {
        return Err(refuse(faults));
    }
    let id = b70_manifest::canonical_sha256(&capture).map_err(|e| refuse(vec![e.to_string()]))?;
    let parent = open_or_create(&root.join(CAPTURES).join(folder.as_path()), 0o755)?;
    let staging = HiddenDir::create(&parent)?;
    let document = json_bytes(staging.root().path(), &capture)?;
    publish_bytes(staging.root(), &RelPath::new(TENSOR)?, &found.bytes, 0o444, OnExisting::Fail)?;
    publish_bytes(staging.root(), &RelPath::new(DOCUMENT)?, &document, 0o444, OnExisting::Fail)?;
    let outcome = staging.commit(&RelPath::new(id.to_string())?, 0o755, |there| match read_capture(there) {
        Ok(_) => Ok(None),
        Err(why) => Ok::<_, StoreError>(Some(why)),
    })?;
    let status = if matches!(outcome, DirOutcome::Kept(_)) { "kept" } else { "admitted" };
    Ok(ImportReport {
        schema_version: 1,
        evidence_class: EvidenceClass::DiagnosticOnly,
        promotion_eligible: false,
        status: status.to_owned(),
        case: case.to_owned(),
        role: capture.role.word().to_owned(),
        width: capture.width,
        capture: outcome.root().path().to_path_buf(),
        sha256,
        size_bytes: found.bytes.len() as u64,
    })
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, GoldenError> {
    let io = |e: std::io::Error| GoldenError::Io { action: "read", path: path.to_path_buf(), source: e };
    let file = open_source(path)?;
    let size = file.metadata().map_err(io)?.len();
    if size > MAX_META {
        let why = format!("{size} bytes; metadata has at most {MAX_META}");
        return Err(GoldenError::BadFile { path: path.to_path_buf(), why });
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_META), &mut bytes).map_err(io)?;
    Ok(bytes)
}
