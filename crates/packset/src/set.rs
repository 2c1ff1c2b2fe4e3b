//! The folder of a set, `<cache root>/<set key>/`, and the documents in it.

use std::path::{Path, PathBuf};

use b70_manifest::Sha256Hex;
use b70_manifest::pack::{LAB_FORMAT_PREFIX, PackSet, TensorPack};
use b70_store::{RelPath, Root};

use crate::error::PackError;
use crate::index::INDEX_FILE;

/// Name of the set's manifest.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";
/// Name of the checksum list.
pub(crate) const SUMS_FILE: &str = "SHA256SUMS";
/// Name of the receipt below a set's or stage's folder.
pub(crate) const RECEIPT_FILE: &str = "deep-validation.json";
/// Its name where upstream's record, which is never replaced, has the other one.
pub(crate) const RECEIPT_BESIDE: &str = "deep-validation-v2.json";
/// Files a ready set or stage may have beside its manifest and payloads; the last two are what upstream's stage commands leave.
pub(crate) const BESIDE_FILES: [&str; 6] =
    [INDEX_FILE, SUMS_FILE, RECEIPT_FILE, RECEIPT_BESIDE, "last-ram-stage.json", "last-ram-lookup.json"];
/// Folder of the lock files below a cache root; they are never removed.
pub(crate) const LOCKS_DIR: &str = ".locks";
/// Name of the payloads' folder.
pub(crate) const TENSORS_DIR: &str = "tensors";
/// Larger documents are refused unread: a manifest of a million tensors is 1.5 GiB, of ten thousand 15 MiB.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 64 << 20;
pub(crate) const MAX_SIDECAR_BYTES: u64 = 1 << 20;

/// A set's folder, open.
#[derive(Debug)]
pub struct SetDir {
    root: Root,
}

impl SetDir {
    /// Opens the set of that key under a cache root.
    pub fn open(cache_root: &Path, key: Sha256Hex) -> Result<Self, PackError> {
        let no_set = || PackError::NoSet { what: key.to_string(), root: cache_root.to_path_buf() };
        if !cache_root.exists() {
            return Err(no_set());
        }
        let root = Root::open(cache_root)?;
        match root.dir(&rel(&key.to_string())) {
            Ok(root) => Ok(Self { root }),
            Err(b70_store::Error::Missing { .. }) => Err(no_set()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a folder as a set, wherever it lies.
    pub fn open_path(path: &Path) -> Result<Self, PackError> {
        Ok(Self { root: Root::open(path)? })
    }

    pub(crate) fn from_root(root: Root) -> Self {
        Self { root }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The key by which the folder is named, if it is.
    pub(crate) fn named_key(&self) -> Option<Sha256Hex> {
        self.path().file_name()?.to_str()?.parse().ok()
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Reads and parses `manifest.json`; also returns its bytes, since receipts and stages name their hash.
    pub fn read_manifest(&self) -> Result<(PackSet, Vec<u8>), PackError> {
        let (path, bytes) = self.read(MANIFEST_FILE, MAX_MANIFEST_BYTES)?;
        Ok((parse(&path, &bytes)?, bytes))
    }

    /// Reads the sidecar of a tensor.
    pub(crate) fn read_sidecar(&self, key: Sha256Hex) -> Result<TensorPack, PackError> {
        let (path, bytes) = self.read(&sidecar_name(key), MAX_SIDECAR_BYTES)?;
        parse(&path, &bytes)
    }

    /// Reads `runtime-index.tsv`.
    pub(crate) fn read_index(&self) -> Result<Vec<u8>, PackError> {
        Ok(self.read(INDEX_FILE, MAX_MANIFEST_BYTES)?.1)
    }

    fn read(&self, name: &str, limit: u64) -> Result<(PathBuf, Vec<u8>), PackError> {
        let name = rel(name);
        Ok((self.root.join(&name), self.root.read(&name, limit)?))
    }
}

pub(crate) fn payload_name(key: Sha256Hex) -> String {
    format!("{TENSORS_DIR}/{key}.bin")
}

pub(crate) fn sidecar_name(key: Sha256Hex) -> String {
    format!("{TENSORS_DIR}/{key}.json")
}

/// A name made by this crate, which keeps the grammar.
pub(crate) fn rel(name: &str) -> RelPath {
    RelPath::new(name).expect("names made of keys and constants keep the grammar")
}

/// The prefix of a set's format names. The identity decides, since the set key is its hash; upstream's sets name none.
pub(crate) fn prefix_of(document: &PackSet) -> &str {
    document.identity.format_prefix.as_deref().unwrap_or(LAB_FORMAT_PREFIX)
}

/// Makes room for a file: a link, a special file or an empty folder that has its name is removed, whatever a link points
/// to is left alone. Returns whether there was such a thing. A folder with content is not ours to remove: the publish that
/// follows refuses it by name.
pub(crate) fn clear_the_way(dir: &Root, name: &RelPath) -> Result<bool, PackError> {
    use rustix::fs::{AtFlags, FileType, statat, unlinkat};
    use rustix::io::Errno;
    let error = |errno: Errno| PackError::io("remove", &dir.join(name))(errno.into());
    let kind = match statat(dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(error(errno)),
    };
    let flags = match kind {
        FileType::RegularFile => return Ok(false),
        FileType::Directory => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    };
    unlinkat(dir, name.as_path(), flags).map_err(error)?;
    Ok(true)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, PackError> {
    let text = std::str::from_utf8(bytes).map_err(|error| PackError::Document {
        path: path.to_path_buf(),
        problem: format!("not UTF-8: {error}"),
        not_json: true,
    })?;
    crate::document::parse(path, text)
}
