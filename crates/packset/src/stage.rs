//! The consumer's view: a set directory (on disk or staged in RAM) from which a loader takes the bytes of tensors.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use b70_manifest::Sha256Hex;
use b70_manifest::pack::{PackSet, TensorPack};
use b70_store::{DigestKind, Hasher, Progress, RelPath, SealedFile, StillMap};

use crate::error::PackError;
use crate::layout::Layout;
use crate::set::SetDir;
use crate::verify::{Expectation, Failures, check_documents, check_files};

/// A validated set directory.
#[derive(Debug)]
pub struct Stage {
    set: SetDir,
    document: PackSet,
    by_name: HashMap<String, usize>,
}

/// What a loader expects of a tensor: the fields of the set's `loader_contract`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup<'a> {
    /// SHA-256 of the model the loader serves.
    pub target_model_sha256: Sha256Hex,
    /// Name of the tensor.
    pub tensor_name: &'a str,
    /// `[K, N]`.
    pub tensor_shape: [u64; 2],
    /// Type name, `GGML_TYPE_Q4_0`.
    pub tensor_type: &'a str,
    /// Version of the layout the kernel reads.
    pub pack_layout_version: u64,
    /// Architecture of the device.
    pub target_architecture: &'a str,
}

impl Stage {
    /// Opens a set directory: validates manifest, keys, sidecars, sizes and the index, byte for byte. No payload is read.
    pub fn open(path: &Path, layout: &dyn Layout, expectation: &Expectation) -> Result<Self, PackError> {
        let set = SetDir::open_path(path)?;
        let (document, _) = set.read_manifest()?;
        let mut failures = Failures::default();
        check_documents(&document, layout, expectation, &mut failures)?;
        check_files(&set, &document, layout, &mut failures)?;
        if !failures.is_empty() {
            return Err(PackError::NotAdmitted { path: path.to_path_buf(), failures: failures.codes() });
        }
        let by_name = document
            .tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| (tensor.identity.tensor_name.clone(), index))
            .collect();
        Ok(Self { set, document, by_name })
    }

    /// The set's manifest.
    pub fn manifest(&self) -> &PackSet {
        &self.document
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.set.path()
    }

    /// Looks a tensor up by the fields of the loader contract; the first field that differs is the error.
    pub fn tensor(&self, lookup: &Lookup<'_>) -> Result<StagedTensor<'_>, PackError> {
        let name = lookup.tensor_name;
        let entry = self
            .by_name
            .get(name)
            .map(|index| &self.document.tensors[*index])
            .ok_or_else(|| PackError::NoTensor { set_key: self.document.key, name: name.to_owned() })?;
        let identity = &entry.identity;
        let refuse = |field: &'static str, found: String, expected: String| {
            Err(PackError::Contract { name: name.to_owned(), field, found, expected })
        };
        if identity.target_model_sha256 != lookup.target_model_sha256 {
            return refuse(
                "target_model_sha256",
                identity.target_model_sha256.to_string(),
                lookup.target_model_sha256.to_string(),
            );
        }
        if identity.tensor_shape != lookup.tensor_shape {
            return refuse(
                "tensor_shape",
                format!("{:?}", identity.tensor_shape),
                format!("{:?}", lookup.tensor_shape),
            );
        }
        if identity.tensor_type != lookup.tensor_type {
            return refuse("tensor_type", identity.tensor_type.clone(), lookup.tensor_type.to_owned());
        }
        if identity.pack_layout_version != lookup.pack_layout_version {
            return refuse(
                "pack_layout_version",
                identity.pack_layout_version.to_string(),
                lookup.pack_layout_version.to_string(),
            );
        }
        if identity.target_architecture != lookup.target_architecture {
            return refuse(
                "target_architecture",
                identity.target_architecture.clone(),
                lookup.target_architecture.to_owned(),
            );
        }
        self.open_payload(entry)
    }

    fn open_payload<'a>(&'a self, entry: &'a TensorPack) -> Result<StagedTensor<'a>, PackError> {
        let name = RelPath::new(&entry.payload.path)?;
        let (file, path) = (self.set.root().open_file(&name)?, self.set.root().join(&name));
        let found = file.metadata().map_err(PackError::io("stat", &path))?.len();
        if found != entry.payload.size_bytes {
            return Err(b70_store::Error::Size { path, expected: entry.payload.size_bytes, found }.into());
        }
        Ok(StagedTensor { entry, file, path })
    }
}

/// A tensor of a stage: its payload, open.
///
/// What the payload's owner may change is given as a copy that was proved ([`read`](Self::read)), or sealed
/// ([`sealed`](Self::sealed)); what the kernel keeps still can be mapped ([`map`](Self::map)).
#[derive(Debug)]
pub struct StagedTensor<'a> {
    entry: &'a TensorPack,
    file: File,
    path: PathBuf,
}

impl StagedTensor<'_> {
    /// A copy of the packed bytes, which has the recorded digest.
    ///
    /// Errors: [`PackError::PayloadDigest`]; no memory for it.
    pub fn read(&self) -> Result<Vec<u8>, PackError> {
        let len = self.entry.payload.size_bytes as usize;
        let mut bytes = Vec::new();
        let no_memory = |error| PackError::io("get memory for", &self.path)(std::io::Error::other(error));
        bytes.try_reserve_exact(len).map_err(no_memory)?;
        bytes.resize(len, 0);
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// [`read`](Self::read) into memory of the caller's, as long as the payload. After an error it holds whatever was read.
    ///
    /// Errors: [`PackError::PayloadDigest`]; a buffer of another length, as [`Error::Size`](b70_store::Error::Size).
    pub fn read_into(&self, bytes: &mut [u8]) -> Result<(), PackError> {
        let payload = &self.entry.payload;
        if bytes.len() as u64 != payload.size_bytes {
            let (path, found) = (self.path.clone(), bytes.len() as u64);
            return Err(b70_store::Error::Size { path, expected: payload.size_bytes, found }.into());
        }
        self.file.read_exact_at(bytes, 0).map_err(PackError::io("read", &self.path))?;
        // What is hashed is the copy, so that nobody else can change it any more.
        let kind = if payload.blake3.is_some() { DigestKind::Blake3 } else { DigestKind::Sha256 };
        let mut hasher = Hasher::new(kind);
        hasher.update(bytes);
        let found = hasher.finish();
        let right = found.blake3 == payload.blake3 && found.sha256.is_none_or(|found| found == payload.sha256);
        if right { Ok(()) } else { Err(self.wrong(Sha256Hex::of(bytes))) }
    }

    /// The packed bytes where the kernel has them, of a payload that is immutable (`stage-ram --immutable`). Whether they are right is
    /// for the validation of the stage to say.
    ///
    /// Errors: [`Error::NotStill`](b70_store::Error::NotStill) for any other.
    pub fn map(&self) -> Result<StillMap, PackError> {
        Ok(StillMap::of_immutable(&self.file, &self.path)?)
    }

    /// A sealed copy in memory, proved after it was sealed, whose descriptor can be handed to another process.
    ///
    /// Errors: [`PackError::PayloadDigest`] and those of [`SealedFile::copy_of`].
    pub fn sealed(&self) -> Result<SealedFile, PackError> {
        let payload = &self.entry.payload;
        let (size, sha256) = (payload.size_bytes, payload.sha256);
        match SealedFile::copy_of(&self.file, &self.path, size, sha256, &Progress::NONE) {
            Err(b70_store::Error::Sha256 { found, .. }) => Err(self.wrong(found)),
            other => Ok(other?),
        }
    }

    fn wrong(&self, found: Sha256Hex) -> PackError {
        let (name, expected) = (self.entry.identity.tensor_name.clone(), self.entry.payload.sha256);
        PackError::PayloadDigest { name, found, expected }
    }

    /// The tensor's entry with its digests.
    pub fn entry(&self) -> &TensorPack {
        self.entry
    }

    /// The payload, open.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Path of the payload.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
