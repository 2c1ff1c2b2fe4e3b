//! The cache's folder, and the names in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_store::{EntryKind, Error, LockGuard, Progress, RelPath, Result, Root, Sha256, lock, open_or_create};

use crate::error::AdmissionError;

/// Name of an entry's document.
pub(crate) const ENTRY_NAME: &str = "cache-entry.json";

/// Name of an entry's receipt.
pub(super) const RECEIPT_NAME: &str = "admission-receipt.json";

/// Format of an entry's document.
pub(crate) const ENTRY_FORMAT: &str = "byte-identical-gguf-ram-cache";

/// The folder of lock files, which are never removed.
const LOCKS: &str = ".locks";

pub(super) fn constant(name: &str) -> RelPath {
    RelPath::new(name).expect("the constant follows the grammar")
}

/// A folder of cache entries.
#[derive(Debug)]
pub struct ModelCache {
    pub(super) root: Root,
}

impl ModelCache {
    /// Opens an existing cache.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { root: Root::open(path)? })
    }

    /// Opens the cache, creating its folder (0755).
    pub fn create(path: &Path) -> Result<Self> {
        Ok(Self { root: open_or_create(path, 0o755)? })
    }

    /// The cache's folder.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The folder of the entry for this model.
    pub fn entry_path(&self, key: &Sha256) -> PathBuf {
        self.path().join(key.to_string())
    }

    /// The keys of all entries, sorted; other names in the folder are not the cache's.
    pub fn keys(&self) -> Result<Vec<Sha256>> {
        let mut keys: Vec<Sha256> = self
            .root
            .raw_entries()?
            .into_iter()
            .filter(|(_, kind)| *kind == EntryKind::Directory)
            .filter_map(|(name, _)| name.to_str()?.parse().ok())
            .collect();
        keys.sort_unstable();
        Ok(keys)
    }

    pub(super) fn lock(
        &self,
        name: &str,
        holder: &str,
        wait: Duration,
        progress: &Progress<'_>,
    ) -> Result<Option<LockGuard>> {
        let locks = self.root.create_dir_durable(&constant(LOCKS), 0o755)?;
        lock(&locks, &RelPath::new(name)?, holder, wait, progress)
    }

    pub(super) fn folder(&self, key: &Sha256) -> Result<Root, AdmissionError> {
        match self.root.dir(&constant(&key.to_string())) {
            Err(Error::Missing { .. }) => {
                Err(AdmissionError::NotFound { what: format!("the model {key}"), root: self.path().to_path_buf() })
            }
            other => Ok(other?),
        }
    }
}
