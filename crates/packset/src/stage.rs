//! The consumer's view: a set directory (on disk or staged in RAM) from which a loader takes mapped slices.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use b70_manifest::Sha256Hex;
use b70_manifest::pack::{PackSet, TensorPack};
use b70_store::RelPath;
use memmap2::Mmap;

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
        self.map(entry)
    }

    fn map<'a>(&'a self, entry: &'a TensorPack) -> Result<StagedTensor<'a>, PackError> {
        let name = RelPath::new(&entry.payload.path)?;
        let (file, path) = (self.set.root().open_file(&name)?, self.set.root().join(&name));
        let found = file.metadata().map_err(PackError::io("stat", &path))?.len();
        if found != entry.payload.size_bytes {
            return Err(b70_store::Error::Size { path, expected: entry.payload.size_bytes, found }.into());
        }
        #[expect(unsafe_code, reason = "a consumer's slice is a memory map of the payload")]
        // SAFETY: the file is a regular file opened read-only beneath the set's folder, published complete with mode 0444 and
        // never written again by the kit, which replaces files by rename and so leaves a mapped one as it is. A process
        // with write permission that modifies it all the same would change the bytes under the reference; one that
        // truncates it would end the reader with SIGBUS. Neither is possible to exclude for a map of a file; both need the
        // owner's rights, and `StagedTensor::verify` is there for a reader that must know.
        let map = unsafe { Mmap::map(&file) }.map_err(PackError::io("map", &path))?;
        Ok(StagedTensor { entry, map, path })
    }
}

/// A tensor of a stage: its payload, mapped read-only.
#[derive(Debug)]
pub struct StagedTensor<'a> {
    entry: &'a TensorPack,
    map: Mmap,
    path: PathBuf,
}

impl StagedTensor<'_> {
    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The tensor's entry with its digests.
    pub fn entry(&self) -> &TensorPack {
        self.entry
    }

    /// Path of the payload.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hashes the mapped bytes and compares them with the recorded SHA-256.
    pub fn verify(&self) -> Result<(), PackError> {
        let found = Sha256Hex::of(&self.map);
        if found == self.entry.payload.sha256 {
            return Ok(());
        }
        Err(PackError::PayloadDigest {
            name: self.entry.identity.tensor_name.clone(),
            found,
            expected: self.entry.payload.sha256,
        })
    }
}
