//! The folder of records: reading, registering, listing, collecting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::model_pack::Revision;
use b70_manifest::{EvidenceClass, NeverEligible, UnixTime};
use b70_store::{
    EntryKind, Error, LockGuard, Progress, RelPath, Result, Root, Sha256, json_bytes, lock, open_or_create,
    replace_bytes, sweep_orphans,
};
use serde_json::Map;

use super::artifact::Artifact;
use super::outcome::{GcPlan, GcRecord, Listed, RegisterOutcome, Registered};
use super::record::{BINDING, REGISTRY_FORMAT, pack_key, record_faults, same_but_for_time};
use crate::documents::{RegisteredArtifact, RegistryRecord};
use crate::error::AdmissionError;

/// Name of a record's document.
const RECORD_NAME: &str = "manifest.json";

/// The largest record that is read: some 200 000 files.
const MAX_RECORD_BYTES: u64 = 64 << 20;

fn constant(name: &str) -> RelPath {
    RelPath::new(name).expect("the constant follows the grammar")
}

/// What to register.
#[derive(Debug, Clone)]
pub struct RegisterRequest<'a> {
    /// The artifact.
    pub artifact: &'a Artifact,
    /// SHA-256 of the model it was made from.
    pub source_model_sha256: Sha256,
    /// Revision of the packer.
    pub packer_revision: &'a str,
    /// Name of the layout.
    pub layout: &'a str,
    /// Name of the kernel interface.
    pub kernel_abi: &'a str,
    /// Fingerprint of the build it was made for.
    pub build_fingerprint_sha256: Option<Sha256>,
}

/// A folder of records, `<root>/packs/<key>/manifest.json`.
#[derive(Debug)]
pub struct Registry {
    packs: Root,
    path: PathBuf,
}

impl Registry {
    /// Opens a registry, creating its folders (0755).
    pub fn create(path: &Path) -> Result<Self> {
        let root = open_or_create(path, 0o755)?;
        let packs = root.create_dir_durable(&constant("packs"), 0o755)?;
        Ok(Self { packs, path: path.to_path_buf() })
    }

    /// Opens an existing registry.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { packs: Root::open(path)?.dir(&constant("packs"))?, path: path.to_path_buf() })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a record.
    pub fn record_path(&self, key: &Sha256) -> PathBuf {
        self.packs.path().join(key.to_string()).join(RECORD_NAME)
    }

    fn lock(&self, holder: &str, wait: Duration) -> Result<Option<LockGuard>> {
        lock(&self.packs, &constant(".lock"), holder, wait, &Progress::NONE)
    }

    fn folder(&self, key: &Sha256) -> Result<Root, AdmissionError> {
        match self.packs.dir(&constant(&key.to_string())) {
            Err(Error::Missing { .. }) => {
                Err(AdmissionError::NotFound { what: format!("the key {key}"), root: self.path.clone() })
            }
            other => Ok(other?),
        }
    }

    /// Reads a record.
    ///
    /// [`AdmissionError::NotFound`] without one, [`AdmissionError::Document`] when it cannot be read as one.
    pub fn show(&self, key: &Sha256) -> Result<RegistryRecord, AdmissionError> {
        let folder = self.folder(key)?;
        let path = self.record_path(key);
        let bytes = match folder.read(&constant(RECORD_NAME), MAX_RECORD_BYTES) {
            Err(Error::Missing { .. }) => {
                let why = "the folder holds no record; gc removes it".to_owned();
                return Err(AdmissionError::Document { path, why });
            }
            other => other?,
        };
        let record: RegistryRecord = serde_json::from_slice(&bytes)
            .map_err(|e| AdmissionError::Document { path: path.clone(), why: e.to_string() })?;
        if record.format != REGISTRY_FORMAT {
            let why = format!("format is {}, expected {REGISTRY_FORMAT}", record.format);
            return Err(AdmissionError::Document { path, why });
        }
        Ok(record)
    }

    /// Records an artifact's identities. The payload is not copied and not touched.
    pub fn register(&self, request: &RegisterRequest<'_>, wait: Duration) -> Result<Registered, AdmissionError> {
        for (what, text) in [
            ("packer revision", request.packer_revision),
            ("layout", request.layout),
            ("kernel ABI", request.kernel_abi),
        ] {
            if text.is_empty() || text.chars().any(char::is_control) {
                let why = format!("the {what} {text:?} is empty or has a control character");
                return Err(AdmissionError::Document { path: self.path.clone(), why });
            }
        }
        let artifact = request.artifact;
        let key = pack_key(&request.source_model_sha256, request.packer_revision, request.layout, &artifact.sha256);
        let record = RegistryRecord {
            schema_version: Some(1),
            format: REGISTRY_FORMAT.to_owned(),
            status: "admitted".to_owned(),
            evidence_class: EvidenceClass::DevelopmentIterationOnly,
            promotion_eligible: NeverEligible,
            key,
            source_model_sha256: request.source_model_sha256,
            artifact: RegisteredArtifact {
                path: artifact.path.to_string_lossy().into_owned(),
                sha256: artifact.sha256,
                size_bytes: artifact.size_bytes,
                files: artifact.documents(),
                extra: Map::new(),
            },
            packer_revision: Revision::Text(request.packer_revision.to_owned()),
            layout: request.layout.to_owned(),
            kernel_abi: request.kernel_abi.to_owned(),
            build_fingerprint_sha256: request.build_fingerprint_sha256,
            created_unix: UnixTime::now(),
            created_utc: None,
            binding_status: BINDING.to_owned(),
            extra: Map::new(),
        };
        let _lock = self.lock("b70-registry register", wait)?;
        let outcome = match self.show(&key) {
            Err(AdmissionError::NotFound { .. }) => RegisterOutcome::Created,
            Err(AdmissionError::Document { .. }) => RegisterOutcome::Repaired,
            Err(e) => return Err(e),
            Ok(old) if !record_faults(&old, &key).is_empty() => RegisterOutcome::Repaired,
            Ok(old) if same_but_for_time(&old, &record) => {
                return Ok(self.registered(key, RegisterOutcome::Kept, old));
            }
            Ok(_) => RegisterOutcome::Updated,
        };
        let folder = self.packs.create_dir_durable(&constant(&key.to_string()), 0o755)?;
        sweep_orphans(&folder)?;
        replace_bytes(&folder, &constant(RECORD_NAME), &json_bytes(folder.path(), &record)?, 0o644)?;
        Ok(self.registered(key, outcome, record))
    }

    fn registered(&self, key: Sha256, outcome: RegisterOutcome, record: RegistryRecord) -> Registered {
        Registered { status: "admitted", key, manifest: self.record_path(&key), outcome, record }
    }

    fn entries(&self) -> Result<Vec<(PathBuf, Option<Sha256>)>> {
        let entries = self.packs.raw_entries()?;
        let mut found: Vec<(PathBuf, Option<Sha256>)> = entries
            .into_iter()
            .filter(|(_, kind)| *kind == EntryKind::Directory)
            .map(|(name, _)| (self.packs.path().join(&name), name.to_str().and_then(|n| n.parse().ok())))
            .collect();
        found.sort();
        Ok(found)
    }

    /// All records; nothing of the artifacts is read.
    pub fn list(&self) -> Result<Vec<Listed>, AdmissionError> {
        let mut listed = Vec::new();
        for key in self.entries()?.into_iter().filter_map(|(_, key)| key) {
            let (record, fault) = match self.show(&key) {
                Ok(record) => {
                    let fault = record_faults(&record, &key);
                    (Some(record), (!fault.is_empty()).then(|| fault.join("; ")))
                }
                Err(e) => (None, Some(e.to_string())),
            };
            let artifact_present = record.as_ref().is_some_and(|r| Path::new(&r.artifact.path).exists());
            listed.push(Listed { key, fault, artifact_present, record });
        }
        Ok(listed)
    }

    /// Which records serve nobody: their artifact is certainly gone, or there is no readable record. A place that
    /// cannot be looked at keeps its record.
    pub fn plan_gc(&self) -> Result<GcPlan, AdmissionError> {
        let mut plan = GcPlan { plan: Vec::new(), kept: 0, executed: false };
        for (path, key) in self.entries()? {
            let Some(key) = key else { continue };
            let reason = match self.show(&key) {
                Ok(record) => match std::fs::symlink_metadata(&record.artifact.path) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                        Some(format!("the artifact {} is gone", record.artifact.path))
                    }
                    _ => None,
                },
                Err(AdmissionError::Document { why, .. }) => Some(format!("the record cannot be used: {why}")),
                Err(_) => None,
            };
            match reason {
                Some(reason) => plan.plan.push(GcRecord { path, reason }),
                None => plan.kept += 1,
            }
        }
        Ok(plan)
    }

    /// Carries a collection out, after looking again under the registry's lock: a record that is being registered or
    /// repaired meanwhile is not taken for an unreadable one.
    pub fn gc(&self, wait: Duration) -> Result<GcPlan, AdmissionError> {
        let _lock = self.lock("b70-registry gc", wait)?;
        let mut plan = self.plan_gc()?;
        for record in &plan.plan {
            if let Some(name) = record.path.file_name() {
                self.packs.remove_tree(&RelPath::new(name)?)?;
            }
        }
        plan.executed = true;
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_waits_for_whoever_registers() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let registry = Registry::create(scratch.path()).expect("a registry");
        // What a register that is under way looks like: a folder, and no record yet.
        let folder = scratch.path().join("packs").join("0".repeat(64));
        std::fs::create_dir(&folder).expect("made");
        let held = registry.lock("b70-registry register", Duration::ZERO).expect("free").expect("supported");
        let refused = registry.gc(Duration::ZERO).expect_err("somebody registers");
        assert!(matches!(refused, AdmissionError::Store(Error::LockTimeout { .. })), "{refused}");
        assert!(folder.exists());
        drop(held);
        assert!(registry.gc(Duration::ZERO).expect("free").executed);
        assert!(!folder.exists());
    }
}
