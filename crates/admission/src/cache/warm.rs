//! Bringing an admitted copy's pages in, and counting them.

use std::path::PathBuf;
use std::time::Instant;

use b70_store::{HashOptions, Sha256};
use serde::Serialize;

use super::folder::ModelCache;
use super::residency::Residency;
use crate::error::AdmissionError;

/// Outcome of [`ModelCache::warm`]. It states residency at this moment and nothing else: pages in memory can be swapped
/// out again, and a resident file says nothing of how fast a model generates.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Warmed {
    /// Role of the model.
    pub role: Option<String>,
    /// SHA-256 of the model.
    pub key: Sha256,
    /// Each file.
    pub files: Vec<WarmedFile>,
    /// Bytes of the model.
    pub size_bytes: u64,
    /// Bytes in memory before.
    pub resident_before_bytes: u64,
    /// Bytes in memory after, by `mincore`.
    pub resident_bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// One file of [`Warmed`].
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WarmedFile {
    /// Its path.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub path: PathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes in memory after.
    pub resident_bytes: u64,
}

impl ModelCache {
    /// Maps the admitted copy, brings every page in and counts what is resident.
    ///
    /// [`AdmissionError::NotAdmitted`] when the entry is not admitted: what is not known to be the model is not warmed.
    pub fn warm(&self, key: &Sha256, how: &HashOptions<'_>) -> Result<Warmed, AdmissionError> {
        let status = self.status(key, how)?;
        if !status.valid {
            return Err(AdmissionError::NotAdmitted { path: self.entry_path(key), reason: status.reason });
        }
        let opened = match self.open_entry(key)? {
            Ok(opened) => opened,
            Err(reason) => return Err(AdmissionError::NotAdmitted { path: self.entry_path(key), reason }),
        };
        let start = Instant::now();
        let mut warmed = Warmed {
            role: status.role,
            key: *key,
            files: Vec::new(),
            size_bytes: status.size_bytes,
            resident_before_bytes: 0,
            resident_bytes: 0,
            seconds: 0.0,
        };
        for expected in &opened.files {
            let path = opened.folder.join(&expected.name);
            let file = opened.folder.open_file(&expected.name)?;
            let residency = Residency::map(&file, &path)?;
            warmed.resident_before_bytes += residency.resident()?;
            residency.touch(&file, &how.progress)?;
            let resident_bytes = residency.resident()?;
            warmed.resident_bytes += resident_bytes;
            warmed.files.push(WarmedFile { path: path.clone(), size_bytes: expected.size, resident_bytes });
        }
        warmed.seconds = start.elapsed().as_secs_f64();
        Ok(warmed)
    }
}
