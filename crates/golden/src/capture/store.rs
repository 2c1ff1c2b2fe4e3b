//! Captures on disk.

use std::path::{Path, PathBuf};

use b70_store::{DigestKind, EntryKind, Error as StoreError, Job, Progress, RelPath, Root, Source, hash_file};

use super::Capture;
use crate::error::GoldenError;

/// Folder of captures below the artifact root.
pub(super) const CAPTURES: &str = "captures";
/// The metadata within a capture's folder.
pub(super) const DOCUMENT: &str = "capture.json";
/// The tensor's bytes within a capture's folder.
pub(super) const TENSOR: &str = "tensor.bin";

/// A capture that was found: sound, or the reason why it does not count.
#[derive(Debug)]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// The capture, or what is wrong with it.
    pub capture: Result<Capture, String>,
}

/// The folder of a case below that of all captures. A case's name comes from a document or a command line, so it must be
/// the name of one folder and nothing else.
pub(super) fn case_folder(case: &str) -> Result<RelPath, GoldenError> {
    let name = RelPath::new(case)?;
    if name.parent().is_some() || case.starts_with('.') {
        return Err(GoldenError::Parameter {
            name: "the case",
            found: case.to_owned(),
            expected: "the name of one folder, not hidden".to_owned(),
        });
    }
    Ok(name)
}

/// Every capture of a case, its bytes rehashed.
///
/// # Errors
/// The case is not the name of a folder, or the folder cannot be listed. No folder means no captures.
pub(crate) fn captures_of(root: &Path, case: &str) -> Result<Vec<Found>, GoldenError> {
    let folder = match Root::open(root.join(CAPTURES).join(case_folder(case)?.as_path())) {
        Ok(folder) => folder,
        Err(StoreError::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    for entry in folder.list()? {
        let is_temporary = entry.name.as_bytes().starts_with(b".");
        if entry.kind != EntryKind::Directory || is_temporary {
            continue;
        }
        let there = folder.dir(&entry.name)?;
        let capture = read_capture(&there).and_then(|capture| {
            let id = b70_manifest::canonical_sha256(&capture).map_err(|e| e.to_string())?;
            let named = entry.name.as_str().unwrap_or_default();
            if capture.case != case {
                Err(format!("it is of case {:?}", capture.case))
            } else if named != id.to_string() {
                Err(format!("its metadata has the id {id}"))
            } else {
                Ok(capture)
            }
        });
        found.push(Found { path: there.path().to_path_buf(), capture });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads a capture back: document sound, bytes as it says.
pub(super) fn read_capture(folder: &Root) -> Result<Capture, String> {
    let name = |text: &str| RelPath::new(text).map_err(|e| e.to_string());
    let bytes = folder.read(&name(DOCUMENT)?, 4 << 20).map_err(|e| e.to_string())?;
    let capture: Capture = serde_json::from_slice(&bytes).map_err(|e| format!("{DOCUMENT}: {e}"))?;
    let faults = capture.faults();
    if !faults.is_empty() {
        return Err(format!("{DOCUMENT}: {}", faults.join("; ")));
    }
    let tensor = name(TENSOR)?;
    let size = capture.tensor.dtype.bytes(&capture.tensor.shape);
    let job = Job { source: Source::Beneath(folder, &tensor), size };
    let found = hash_file(job, DigestKind::Sha256, &Progress::NONE).map_err(|e| e.to_string())?;
    match found.sha256 {
        Some(sha256) if sha256 == capture.tensor.sha256 => Ok(capture),
        other => Err(format!(
            "{TENSOR} has SHA-256 {}, expected {}",
            other.map_or("none".to_owned(), |d| d.to_string()),
            capture.tensor.sha256
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_leads_out_of_the_captures() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let root = scratch.path().join("root");
        std::fs::create_dir_all(root.join(CAPTURES)).expect("made");
        std::fs::create_dir_all(scratch.path().join("outside")).expect("made");
        for case in ["../../outside", "..", ".", "", "/", "a/b", ".hidden", "a\nb"] {
            assert!(captures_of(&root, case).is_err(), "{case:?}");
        }
        assert!(captures_of(&root, "full_attention_qkv").expect("none yet").is_empty());
    }
}
