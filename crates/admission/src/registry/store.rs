//! The records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::model_pack::Revision;
use b70_manifest::{EvidenceClass, NeverEligible, unix_now};
use serde::Serialize;
use serde_json::Map;

use super::artifact::{Artifact, Found, folder_sha256, recorded_name};
use crate::digest::{Hasher, Sha256, What};
use crate::documents::{ArtifactError, RegisteredArtifact, RegistryRecord};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::path::{EntryKind, RelPath, Root};
use crate::progress::Progress;
use crate::publish::{replace_bytes, sweep_orphans};
use crate::roots::open_or_create;

/// Format of a record.
pub const REGISTRY_FORMAT: &str = "qwen27-b70-offline-pack-registry-v1";

/// What registering does not promise: no loader binds the artifact by itself.
const BINDING: &str = "external-artifact-registered-loader-binding-required";

/// Name of a record's document.
const RECORD_NAME: &str = "manifest.json";

/// The largest record that is read: some 200 000 files.
const MAX_RECORD_BYTES: u64 = 64 << 20;

fn constant(name: &str) -> RelPath {
    RelPath::new(name).expect("the constant follows the grammar")
}

/// The key of a record: SHA-256 of model digest, packer revision, layout and artifact digest, joined by NUL bytes; the
/// digests as 64 lower-case hex digits.
pub fn pack_key(source_model: &Sha256, packer_revision: &str, layout: &str, artifact: &Sha256) -> Sha256 {
    let mut hasher = Hasher::new(What::Sha256);
    for (i, part) in [source_model.to_string().as_str(), packer_revision, layout, artifact.to_string().as_str()]
        .into_iter()
        .enumerate()
    {
        if i > 0 {
            hasher.update(&[0]);
        }
        hasher.update(part.as_bytes());
    }
    hasher.finish().sha256.expect("SHA-256 was asked for")
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

/// What registering did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RegisterOutcome {
    /// The record is new.
    Created,
    /// The same record was there already.
    Kept,
    /// The record was there for another place or build and now names this one.
    Updated,
    /// The record was damaged and has been replaced.
    Repaired,
}

/// A registered artifact.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Registered {
    /// Always `admitted`: every byte was read.
    pub status: &'static str,
    /// The record's key.
    pub key: Sha256,
    /// Path of the record.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub manifest: PathBuf,
    /// What was done.
    pub outcome: RegisterOutcome,
    /// The record.
    pub record: RegistryRecord,
}

/// Outcome of [`Registry::verify`].
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RegistryVerdict {
    /// `admitted` or `failed`.
    pub status: &'static str,
    /// The record's key.
    pub key: Sha256,
    /// The artifact.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub artifact: PathBuf,
    /// Files with other bytes, or something else in a file's place; relative to the artifact.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub changed: Vec<PathBuf>,
    /// Files that are gone.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub missing: Vec<PathBuf>,
    /// Files, links and special files that are new.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub added: Vec<PathBuf>,
    /// One sentence for each of them.
    pub details: Vec<String>,
    /// What the record itself contradicts.
    pub record_faults: Vec<String>,
    /// Files that were read.
    pub checked_files: usize,
    /// Bytes that were read.
    pub checked_bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// A record in a list.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Listed {
    /// The record's key.
    pub key: Sha256,
    /// Whether the record can be used, and why not.
    pub fault: Option<String>,
    /// Whether something is at the artifact's place; its bytes were not looked at.
    pub artifact_present: bool,
    /// The record, when it can be read.
    pub record: Option<RegistryRecord>,
}

/// A record in a plan to collect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GcRecord {
    /// The record's folder.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub path: PathBuf,
    /// Why nothing is lost with it.
    pub reason: String,
}

/// What a collection would remove: records whose artifact is gone or that cannot be read. Payload is never touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GcPlan {
    /// The records.
    pub plan: Vec<GcRecord>,
    /// Records that stay.
    pub kept: usize,
    /// Whether it was carried out.
    pub executed: bool,
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

    fn folder(&self, key: &Sha256) -> Result<Root, ArtifactError> {
        match self.packs.dir(&constant(&key.to_string())) {
            Err(Error::Missing { .. }) => {
                Err(ArtifactError::NotThere { what: format!("the key {key}"), root: self.path.clone() })
            }
            other => Ok(other?),
        }
    }

    /// Reads a record.
    ///
    /// [`ArtifactError::NotThere`] without one, [`ArtifactError::Document`] when it cannot be read as one.
    pub fn show(&self, key: &Sha256) -> Result<RegistryRecord, ArtifactError> {
        let folder = self.folder(key)?;
        let path = self.record_path(key);
        let bytes = match folder.read(&constant(RECORD_NAME), MAX_RECORD_BYTES) {
            Err(Error::Missing { .. }) => {
                let why = "the folder holds no record; gc removes it".to_owned();
                return Err(ArtifactError::Document { path, why });
            }
            other => other?,
        };
        let record: RegistryRecord = serde_json::from_slice(&bytes)
            .map_err(|e| ArtifactError::Document { path: path.clone(), why: e.to_string() })?;
        if record.format != REGISTRY_FORMAT {
            let why = format!("format is {}, expected {REGISTRY_FORMAT}", record.format);
            return Err(ArtifactError::Document { path, why });
        }
        Ok(record)
    }

    /// Records an artifact's identities. The payload is not copied and not touched.
    pub fn register(&self, request: &RegisterRequest<'_>, wait: Duration) -> Result<Registered, ArtifactError> {
        for (what, text) in [
            ("packer revision", request.packer_revision),
            ("layout", request.layout),
            ("kernel ABI", request.kernel_abi),
        ] {
            if text.is_empty() || text.chars().any(char::is_control) {
                let why = format!("the {what} {text:?} is empty or has a control character");
                return Err(ArtifactError::Document { path: self.path.clone(), why });
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
            created_unix: unix_now(),
            created_utc: None,
            binding_status: BINDING.to_owned(),
            extra: Map::new(),
        };
        let _lock = match lock(&self.packs, &constant(".lock"), "b70-registry register", wait, &Progress::NONE) {
            Ok(guard) => Some(guard),
            Err(Error::LockUnsupported { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        let outcome = match self.show(&key) {
            Err(ArtifactError::NotThere { .. }) => RegisterOutcome::Created,
            Err(ArtifactError::Document { .. }) => RegisterOutcome::Repaired,
            Err(e) => return Err(e),
            Ok(old) if !record_faults(&old, &key).is_empty() => RegisterOutcome::Repaired,
            Ok(old) if same_but_for_time(&old, &record) => {
                return Ok(self.registered(key, RegisterOutcome::Kept, old));
            }
            Ok(_) => RegisterOutcome::Updated,
        };
        let folder = self.packs.create_dir_durable(&constant(&key.to_string()), 0o755)?;
        sweep_orphans(&folder)?;
        let mut bytes = serde_json::to_vec_pretty(&record).expect("a record has string keys only");
        bytes.push(b'\n');
        replace_bytes(&folder, &constant(RECORD_NAME), &bytes, 0o644)?;
        Ok(self.registered(key, outcome, record))
    }

    fn registered(&self, key: Sha256, outcome: RegisterOutcome, record: RegistryRecord) -> Registered {
        Registered { status: "admitted", key, manifest: self.record_path(&key), outcome, record }
    }

    /// Reads the artifact again and compares every file with the record.
    pub fn verify(
        &self,
        key: &Sha256,
        pool: &rayon::ThreadPool,
        progress: &Progress<'_>,
    ) -> Result<RegistryVerdict, ArtifactError> {
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
        };
        // Why not is already among the record's faults.
        let Ok(listed) = recorded_files(&record) else { return Ok(verdict) };
        match Found::look(&path) {
            Ok(found) => compare(&found, listed, pool, progress, &mut verdict)?,
            Err(Error::Missing { .. }) => {
                verdict.missing = listed.into_keys().map(|name| name.as_path().to_path_buf()).collect();
                verdict.details.push(format!("{} is gone", path.display()));
            }
            Err(e) => return Err(e.into()),
        }
        let clean = verdict.changed.is_empty() && verdict.missing.is_empty() && verdict.added.is_empty();
        if clean && verdict.record_faults.is_empty() {
            verdict.status = "admitted";
        }
        verdict.seconds = start.elapsed().as_secs_f64();
        Ok(verdict)
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
    pub fn list(&self) -> Result<Vec<Listed>, ArtifactError> {
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
    pub fn plan_gc(&self) -> Result<GcPlan, ArtifactError> {
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
                Err(ArtifactError::Document { why, .. }) => Some(format!("the record cannot be used: {why}")),
                Err(_) => None,
            };
            match reason {
                Some(reason) => plan.plan.push(GcRecord { path, reason }),
                None => plan.kept += 1,
            }
        }
        Ok(plan)
    }

    /// Carries a collection out, after looking again.
    pub fn gc(&self) -> Result<GcPlan, ArtifactError> {
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

fn same_but_for_time(old: &RegistryRecord, new: &RegistryRecord) -> bool {
    let mut old = old.clone();
    old.created_unix = new.created_unix;
    old.created_utc.clone_from(&new.created_utc);
    old == *new
}

fn recorded_files(record: &RegistryRecord) -> Result<BTreeMap<RelPath, (Sha256, u64)>, String> {
    let artifact = &record.artifact;
    if artifact.files.is_empty() {
        // One file, as some records have it.
        let name = Path::new(&artifact.path).file_name().ok_or("the artifact's path has no name")?;
        let name = RelPath::new(name).map_err(|e| e.to_string())?;
        return Ok(BTreeMap::from([(name, (artifact.sha256, artifact.size_bytes))]));
    }
    let mut files = BTreeMap::new();
    for file in &artifact.files {
        let name = recorded_name(file)?;
        if files.insert(name, (file.sha256, file.size_bytes)).is_some() {
            return Err(format!("{} is listed twice", file.path));
        }
    }
    Ok(files)
}

/// A record is a claim: its key and its digest must follow from the rest of it.
fn record_faults(record: &RegistryRecord, key: &Sha256) -> Vec<String> {
    let mut faults = Vec::new();
    let artifact = &record.artifact;
    if record.key != *key {
        faults.push(format!("its key is {}, its folder says {key}", record.key));
    }
    let computed =
        pack_key(&record.source_model_sha256, &record.packer_revision.to_string(), &record.layout, &artifact.sha256);
    if computed != record.key {
        faults.push(format!("its key is {}, its fields give {computed}", record.key));
    }
    match recorded_files(record) {
        Err(why) => faults.push(why),
        Ok(files) => {
            let single = files.len() == 1 && files.values().next().is_some_and(|f| f.0 == artifact.sha256);
            let folder = folder_sha256(files.iter().map(|(name, (sha256, _))| (name, *sha256)));
            if !single && folder != artifact.sha256 {
                faults.push(format!("its artifact digest is {}, its files give {folder}", artifact.sha256));
            }
            let sum = files.values().try_fold(0_u64, |sum, f| sum.checked_add(f.1));
            if sum != Some(artifact.size_bytes) {
                faults.push("the sizes of its files do not add up to artifact.size_bytes".to_owned());
            }
        }
    }
    if record.status != "admitted" {
        faults.push(format!("its status is {:?}, expected \"admitted\"", record.status));
    }
    if record.binding_status != BINDING {
        faults.push(format!("binding_status is {:?}; no loader binding can be claimed here", record.binding_status));
    }
    faults
}

fn compare(
    found: &Found,
    mut listed: BTreeMap<RelPath, (Sha256, u64)>,
    pool: &rayon::ThreadPool,
    progress: &Progress<'_>,
    verdict: &mut RegistryVerdict,
) -> Result<(), ArtifactError> {
    for (name, result) in found.hash(pool, progress)? {
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
                    verdict.details.push(format!("{name} has {read_size} bytes, recorded {size}"));
                    verdict.changed.push(path);
                } else if sha256 != read {
                    verdict.details.push(format!("{name} has SHA-256 {read}, recorded {sha256}"));
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
