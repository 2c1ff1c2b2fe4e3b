//! Reading an artifact again and comparing every file with its record.

use std::collections::BTreeMap;
use std::path::PathBuf;

use b70_store::{Error, Progress, RelPath, Sha256, Trust};

use super::artifact::Found;
use super::record::{record_faults, recorded_files};
use super::{Registry, RegistryVerdict};
use crate::error::AdmissionError;

impl Registry {
    /// Reads the artifact again and compares every file with the record.
    pub fn verify(&self, key: &Sha256, progress: &Progress<'_>) -> Result<RegistryVerdict, AdmissionError> {
        let start = std::time::Instant::now();
        let record = self.show(key)?;
        let path = PathBuf::from(&record.artifact.path);
        let mut verdict = RegistryVerdict {
            status: "failed",
            key: *key,
            artifact: path.clone(),
            changed: Vec::new(),
            missing: Vec::new(),
            added: Vec::new(),
            details: Vec::new(),
            record_faults: record_faults(&record, key),
            checked_files: 0,
            checked_bytes: 0,
            seconds: 0.0,
            trust: None,
        };
        // Why not is already among the record's faults.
        let Ok(listed) = recorded_files(&record) else { return Ok(verdict) };
        match Found::look(&path) {
            Ok(found) => compare(&found, listed, progress, &mut verdict)?,
            Err(Error::Missing { .. }) => {
                verdict.missing = listed.into_keys().map(|name| name.as_path().to_path_buf()).collect();
                verdict.details.push(format!("{} is gone", path.display()));
            }
            Err(e) => return Err(e.into()),
        }
        let clean = verdict.changed.is_empty() && verdict.missing.is_empty() && verdict.added.is_empty();
        if clean && verdict.record_faults.is_empty() {
            verdict.status = "admitted";
            verdict.trust = Some(Trust::Sha256);
        }
        verdict.seconds = start.elapsed().as_secs_f64();
        Ok(verdict)
    }
}

fn compare(
    found: &Found,
    mut listed: BTreeMap<RelPath, (Sha256, u64)>,
    progress: &Progress<'_>,
    verdict: &mut RegistryVerdict,
) -> Result<(), AdmissionError> {
    for (name, result) in found.hash(progress)? {
        let path = name.as_path().to_path_buf();
        match (listed.remove(&name), result) {
            (None, _) => {
                verdict.details.push(format!("{name} is new"));
                verdict.added.push(path);
            }
            (Some(_), Err(why)) => {
                verdict.details.push(format!("{name}: {why}"));
                verdict.changed.push(path);
            }
            (Some((sha256, size)), Ok((read, read_size))) => {
                verdict.checked_files += 1;
                verdict.checked_bytes += read_size;
                if size != read_size {
                    verdict.details.push(format!("{name} has {read_size} bytes, expected {size}"));
                    verdict.changed.push(path);
                } else if sha256 != read {
                    verdict.details.push(format!("{name} has SHA-256 {read}, expected {sha256}"));
                    verdict.changed.push(path);
                }
            }
        }
    }
    for (path, what) in &found.faults {
        let recorded = RelPath::new(path).ok().and_then(|name| listed.remove(&name));
        verdict.details.push(format!("{}: {what}", path.display()));
        if recorded.is_some() { &mut verdict.changed } else { &mut verdict.added }.push(path.clone());
    }
    for name in listed.into_keys() {
        verdict.details.push(format!("{name} is missing"));
        verdict.missing.push(name.as_path().to_path_buf());
    }
    Ok(())
}
