//! The documents of the cache, the registry and the fingerprint.

pub(crate) mod lossy;

pub use b70_manifest::artifact::{
    ArtifactFile, CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Compiler, Fingerprint, HostFacts, Known,
    RegisteredArtifact, RegistryRecord, RuntimeSource,
};
