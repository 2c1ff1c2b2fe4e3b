//! The documents of the cache, the registry and the fingerprint, and the error their operations share.

mod error;
pub(crate) mod lossy;

pub use b70_manifest::artifact::{
    ArtifactFile, CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Compiler, Fingerprint, HostFacts, Known,
    RegisteredArtifact, RegistryRecord, RuntimeSource,
};
pub use error::ArtifactError;
