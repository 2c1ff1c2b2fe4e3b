//! Entries of tensors: what is ready in this set, what another set of the same root already has.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use b70_manifest::pack::{IndexRecord, LoaderContract, PayloadRecord, SourceTensor, TensorIdentity, TensorPack};
use b70_manifest::{Sha256Hex, UnixTime};
use b70_store::{
    DigestKind, Digests, EntryKind, Job, OnExisting, Progress, PublishOutcome, Root, Source, TempFile, Trust, hash_file,
};
use rustix::fs::{AtFlags, CWD};
use serde_json::json;

use crate::error::PackError;
use crate::index::INDEX_FILE;
use crate::set::{SetDir, payload_name, rel, sidecar_name};
use crate::verify::same_tensor;

/// A payload of another set whose bytes were checked.
pub(crate) struct Import {
    entry: TensorPack,
    from: Sha256Hex,
    file: File,
    path: PathBuf,
}

/// An entry with everything that is known before the tensor is packed.
pub(crate) fn wanted_entry(
    format_prefix: &str,
    key: Sha256Hex,
    identity: TensorIdentity,
    source_tensor: SourceTensor,
) -> TensorPack {
    TensorPack {
        schema_version: 1,
        format: format!("{format_prefix}-tensor-pack-v2"),
        status: "ready".to_owned(),
        key,
        identity,
        payload: PayloadRecord {
            path: payload_name(key),
            size_bytes: source_tensor.size_bytes,
            sha256: Sha256Hex::EMPTY,
            blake3: None,
            extra: serde_json::Map::default(),
        },
        source_tensor,
        pack_seconds: 0.0,
        created_unix: UnixTime::now(),
        imported_from: None,
        extra: serde_json::Map::default(),
    }
}

/// Whether a sidecar describes the tensor that is wanted, digests apart.
fn describes(found: &TensorPack, wanted: &TensorPack) -> bool {
    found.schema_version == 1
        && found.status == "ready"
        && found.key == wanted.key
        && found.identity == wanted.identity
        && found.payload.path == wanted.payload.path
        && found.source_tensor.gguf_offset == wanted.source_tensor.gguf_offset
        && found.source_tensor.file_index == wanted.source_tensor.file_index
        && found.source_tensor.size_bytes == wanted.source_tensor.size_bytes
}

/// Computes the SHA-256 of the model's own bytes of the tensor in question.
pub(crate) type SourceDigest<'a> = &'a dyn Fn() -> Result<Sha256Hex, PackError>;

/// How much of a payload must be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing: the set's receipt stands for it, on this rung.
    Nothing(Trust),
    /// All, against the BLAKE3 where one is recorded.
    Fast,
    /// All, by SHA-256.
    Sha256,
}

/// Why a tensor of a set is not ready.
#[derive(Debug)]
pub(crate) struct NotReady {
    pub(crate) found: String,
    pub(crate) expected: String,
}

impl NotReady {
    fn new(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { found: found.into(), expected: expected.into() }
    }
}

/// The entry of a tensor that is ready in this set, and what that rests on: its sidecar describes it and its bytes have the
/// recorded digest.
///
/// `recorded` is the entry of the set's manifest, if there is one. Where both documents say the
/// same, their digests are believed; a sidecar that stands alone is checked by SHA-256 and against the model; one that the
/// manifest contradicts is not believed at all.
pub(crate) fn find_ready(
    set: &SetDir,
    wanted: &TensorPack,
    recorded: Option<&TensorPack>,
    source: SourceDigest<'_>,
    reading: Reading,
    progress: &Progress<'_>,
) -> Result<Result<(TensorPack, Trust), NotReady>, PackError> {
    let name = sidecar_name(wanted.key);
    let entry = match set.read_sidecar(wanted.key) {
        Ok(entry) => entry,
        Err(error) => return Ok(Err(NotReady::new(error.to_string(), format!("a readable {name}")))),
    };
    if !describes(&entry, wanted) || entry.format != wanted.format {
        return Ok(Err(NotReady::new(
            format!("{name} describes another tensor"),
            "the tensor of the model and the plan",
        )));
    }
    let alone = match recorded {
        Some(recorded) if same_tensor(recorded, &entry) => false,
        Some(_) => return Ok(Err(NotReady::new(format!("{name} differs from the manifest"), "the manifest's entry"))),
        None => true,
    };
    let reading = if alone { Reading::Sha256 } else { reading };
    if let Reading::Nothing(rung) = reading {
        return Ok(Ok((entry, rung)));
    }
    let trust = match open_good(set.root(), &entry, reading, progress)? {
        Ok((.., trust)) => trust,
        Err(not_ready) => return Ok(Err(not_ready)),
    };
    if alone {
        let source = source()?;
        if entry.source_tensor.sha256 != source {
            return Ok(Err(NotReady::new(
                format!("{name} names a source tensor {}", entry.source_tensor.sha256),
                source.to_string(),
            )));
        }
    }
    Ok(Ok((entry, trust)))
}

/// An open payload, where it is, and what says that its bytes are right.
type GoodPayload = (File, PathBuf, Trust);

/// The payload of an entry, open, if its bytes have the recorded digest.
fn open_good(
    root: &Root,
    entry: &TensorPack,
    reading: Reading,
    progress: &Progress<'_>,
) -> Result<Result<GoodPayload, NotReady>, PackError> {
    let name = rel(&payload_name(entry.key));
    let problem =
        |found: String| Ok(Err(NotReady::new(found, format!("{name} with SHA-256 {}", entry.payload.sha256))));
    let file = match root.open_file(&name) {
        Ok(file) => file,
        Err(error) => return problem(error.to_string()),
    };
    let path = root.join(&name);
    let job = Job { source: Source::File(&file, &path), size: Some(entry.payload.size_bytes) };
    let fast = entry.payload.blake3.is_some() && reading != Reading::Sha256;
    let (what, trust) = if fast { (DigestKind::Blake3, Trust::Blake3) } else { (DigestKind::Sha256, Trust::Sha256) };
    match hash_file(job, what, &progress.silent()) {
        Ok(digests) if fast && digests.blake3 == entry.payload.blake3 => Ok(Ok((file, path, trust))),
        Ok(digests) if !fast && digests.sha256 == Some(entry.payload.sha256) => Ok(Ok((file, path, trust))),
        Ok(Digests { sha256: Some(found), .. }) => {
            problem(format!("it has SHA-256 {found}, expected {}", entry.payload.sha256))
        }
        Ok(_) => problem("its bytes have another BLAKE3 than the recorded one".to_owned()),
        Err(error) if error.is_cancelled() => Err(error.into()),
        // Unreadable or of another size: as good as damaged, it is packed again.
        Err(error) => problem(error.to_string()),
    }
}

/// The other sets of a cache root, from which tensors can be imported.
pub(crate) struct Donors(Vec<Donor>);

struct Donor {
    key: Sha256Hex,
    set: SetDir,
    /// What its manifest records, if it has a readable one.
    recorded: HashMap<Sha256Hex, TensorPack>,
}

impl Donors {
    /// Opens the sets of a cache root but for `own`. What cannot be read is not a donor.
    pub(crate) fn find(cache: &Root, own: Sha256Hex) -> Self {
        let mut donors = Vec::new();
        for candidate in cache.list().unwrap_or_default() {
            let key = candidate.name.as_str().and_then(|name| name.parse::<Sha256Hex>().ok());
            let Some(key) = key.filter(|key| *key != own && candidate.kind == EntryKind::Directory) else { continue };
            let Ok(root) = cache.dir(&candidate.name) else { continue };
            let set = SetDir::from_root(root);
            let recorded = set.read_manifest().map(|(document, _)| document.tensors).unwrap_or_default();
            let recorded = recorded.into_iter().map(|entry| (entry.key, entry)).collect();
            donors.push(Donor { key, set, recorded });
        }
        Self(donors)
    }

    /// Looks for the same tensor. Its bytes are rehashed by SHA-256; the digests of a sidecar that its set's manifest does
    /// not confirm are checked against the model.
    pub(crate) fn import(
        &self,
        wanted: &TensorPack,
        source: SourceDigest<'_>,
        progress: &Progress<'_>,
    ) -> Result<Option<Import>, PackError> {
        for donor in &self.0 {
            let Ok(entry) = donor.set.read_sidecar(wanted.key) else { continue };
            if !describes(&entry, wanted) {
                continue;
            }
            let confirmed = match donor.recorded.get(&wanted.key) {
                Some(recorded) if same_tensor(recorded, &entry) => true,
                Some(_) => continue,
                None => false,
            };
            let Ok((file, path, _)) = open_good(donor.set.root(), &entry, Reading::Sha256, progress)? else { continue };
            if confirmed || entry.source_tensor.sha256 == source()? {
                return Ok(Some(Import { entry, from: donor.key, file, path }));
            }
        }
        Ok(None)
    }
}

impl Import {
    /// Links the very file that was checked into this set; copies it where links fail.
    pub(crate) fn publish(
        self,
        mut entry: TensorPack,
        tensors_dir: &Root,
        progress: &Progress<'_>,
    ) -> Result<(TensorPack, PublishOutcome), PackError> {
        entry.source_tensor = self.entry.source_tensor;
        entry.payload = self.entry.payload;
        entry.pack_seconds = self.entry.pack_seconds;
        entry.imported_from = Some(json!({ "set_key": self.from, "path": self.path.display().to_string() }));
        let name = payload_name(entry.key);
        let file_name = name.rsplit('/').next().unwrap_or_default();
        b70_store::fault_step("packset.import-link");
        let linked = rustix::fs::linkat(
            CWD,
            Path::new(&format!("/proc/self/fd/{}", self.file.as_raw_fd())),
            tensors_dir,
            file_name,
            AtFlags::SYMLINK_FOLLOW,
        );
        if linked.is_ok() {
            tensors_dir.sync()?;
            return Ok((entry, PublishOutcome::Created));
        }
        // Another file system, too many links, no permission, or a damaged payload in the way: a copy replaces it.
        let mut temp = TempFile::create(tensors_dir, 0o444)?;
        temp.reserve(entry.payload.size_bytes)?;
        temp.copy_from(&self.file, &self.path, entry.payload.size_bytes, &progress.silent())?;
        let expected = Some(entry.payload.sha256);
        let published = temp.commit(&rel(file_name), OnExisting::ReplaceDamaged, expected, &progress.silent())?;
        entry.payload.blake3 = Some(published.content.blake3);
        Ok((entry, published.outcome))
    }
}

pub(crate) fn index_record(format_prefix: &str, index: &str) -> IndexRecord {
    IndexRecord {
        format: format!("{format_prefix}-runtime-index-v1"),
        path: INDEX_FILE.to_owned(),
        size_bytes: index.len() as u64,
        sha256: Sha256Hex::of(index.as_bytes()),
        extra: serde_json::Map::default(),
    }
}

pub(crate) fn loader_contract() -> LoaderContract {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    LoaderContract {
        lookup_fields: words(&[
            "target_model_sha256",
            "tensor_name",
            "tensor_shape",
            "tensor_type",
            "pack_layout_version",
            "target_architecture",
        ]),
        required_validation: words(&["runtime_index_bytes", "payload_size_bytes", "payload_sha256_or_receipt"]),
        mmap_safe: true,
        extra: serde_json::Map::default(),
    }
}
