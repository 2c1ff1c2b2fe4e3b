//! RAM model cache: byte-identical copies of GGUF files in memory, shared by all workers of a host.
//!
//! An entry is the folder `<root>/<model SHA-256>/` with the model's file (or all its shards) under its own name, mode
//! 0444, the document `cache-entry.json` and a receipt. It appears as a whole or not at all.
//!
//! A copy in memory makes starts faster. It says nothing of generation speed, and nothing measured on it is evidence:
//! entries carry the class `development-initialization-only`.

mod document;
mod drop;
mod entry;
mod prepare;
mod residency;
mod source;
mod staging;
mod transfer;
mod warm;

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_store::{
    EntryKind, Error, FileIdentity, LockGuard, Progress, RelPath, Result, Root, Scope, Sha256, lock, open_or_create,
};
pub use drop::{DropAction, DropPlan};
pub use entry::{CacheStatus, Look};
use prepare::recorded_identities;
pub use prepare::{PrepareAction, PrepareRequest, Prepared, Reserve};
pub use residency::resident_bytes;
pub use source::{ModelSource, ModelSourceFile, model_fault, model_sha256};
pub use staging::{StagingReport, StagingVerdict};
pub use warm::{Warmed, WarmedFile};

use crate::error::AdmissionError;

/// Name of an entry's document.
pub const ENTRY_NAME: &str = "cache-entry.json";

/// Name of an entry's receipt.
pub(crate) const RECEIPT_NAME: &str = "admission-receipt.json";

/// Format of an entry's document.
pub const ENTRY_FORMAT: &str = "byte-identical-gguf-ram-cache";

/// The folder of lock files, which are never removed.
const LOCKS: &str = ".locks";

fn constant(name: &str) -> RelPath {
    RelPath::new(name).expect("the constant follows the grammar")
}

/// A folder of cache entries.
#[derive(Debug)]
pub struct ModelCache {
    root: Root,
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

    /// The keys of the entries that were copied from this very file, under whatever path: any shard, and any link, stands
    /// for the model. Without one, the keys of those that were copied from this path, whatever is there now.
    pub fn keys_of_source(&self, path: &Path) -> Result<Vec<Sha256>, AdmissionError> {
        let absolute = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
        let wanted = absolute.to_string_lossy();
        let there = FileIdentity::at(&absolute).ok();
        let (mut found, mut by_name) = (Vec::new(), Vec::new());
        for key in self.keys()? {
            let Ok(opened) = self.open_entry(&key)? else { continue };
            let source = &opened.entry.source;
            let is_it = |there: &FileIdentity| {
                let recorded = recorded_identities(&opened.entry);
                // The whole identity: a number may have gone to another file since.
                // Entries of other tools and of kit 0.1 have none: what stands at their source's place now.
                let now = |name: &RelPath| FileIdentity::at(&Path::new(&source.path).with_file_name(name.as_path()));
                recorded.iter().any(|was| was.differences(there, Scope::Disk).is_empty())
                    || recorded.is_empty()
                        && opened.files.iter().any(|file| now(&file.name).is_ok_and(|now| now.same_file(there)))
            };
            if there.as_ref().is_some_and(is_it) {
                found.push(key);
            } else if source.path == wanted {
                by_name.push(key);
            }
        }
        // A file that is there now is that file, whatever was copied from its name before.
        Ok(if found.is_empty() { by_name } else { found })
    }

    fn lock(&self, name: &str, holder: &str, wait: Duration, progress: &Progress<'_>) -> Result<Option<LockGuard>> {
        let locks = self.root.create_dir_durable(&constant(LOCKS), 0o755)?;
        lock(&locks, &RelPath::new(name)?, holder, wait, progress)
    }

    fn folder(&self, key: &Sha256) -> Result<Root, AdmissionError> {
        match self.root.dir(&constant(&key.to_string())) {
            Err(Error::Missing { .. }) => {
                Err(AdmissionError::NotThere { what: format!("the model {key}"), root: self.path().to_path_buf() })
            }
            other => Ok(other?),
        }
    }
}
