//! A record by itself: its format, its key, and what in it contradicts the rest.

use std::collections::BTreeMap;
use std::path::Path;

use b70_store::{DigestKind, Hasher, RelPath, Sha256};

use super::artifact::{folder_sha256, recorded_name};
use crate::documents::RegistryRecord;

/// Format of a record.
pub(crate) const REGISTRY_FORMAT: &str = "qwen27-b70-offline-pack-registry-v1";

/// What registering does not promise: no loader binds the artifact by itself.
pub(super) const BINDING: &str = "external-artifact-registered-loader-binding-required";

/// The key of a record: SHA-256 of model digest, packer revision, layout and artifact digest, joined by NUL bytes; the
/// digests as 64 lower-case hex digits.
pub fn pack_key(source_model: &Sha256, packer_revision: &str, layout: &str, artifact: &Sha256) -> Sha256 {
    let mut hasher = Hasher::new(DigestKind::Sha256);
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

pub(super) fn same_but_for_time(old: &RegistryRecord, new: &RegistryRecord) -> bool {
    let mut old = old.clone();
    old.created_unix = new.created_unix;
    old.created_utc.clone_from(&new.created_utc);
    old == *new
}

pub(super) fn recorded_files(record: &RegistryRecord) -> Result<BTreeMap<RelPath, (Sha256, u64)>, String> {
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
pub(super) fn record_faults(record: &RegistryRecord, key: &Sha256) -> Vec<String> {
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
                faults.push(format!("its files have SHA-256 {folder}, expected {}", artifact.sha256));
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
