//! The documents of the cache, the registry and the fingerprint, and the error their operations share.

mod cache;
mod error;
mod fingerprint;
mod registry;

pub use cache::{CacheAdmission, CacheCopy, CacheEntry, CacheRuntime};
pub use error::ArtifactError;
pub use fingerprint::{Compiler, Fingerprint, HostFacts, Known, RuntimeSource};
pub use registry::{ArtifactFile, RegisteredArtifact, RegistryRecord};
