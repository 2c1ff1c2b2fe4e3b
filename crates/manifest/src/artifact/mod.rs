//! Documents of admitted artifacts: copies in RAM, registered packs, build fingerprints, receipts of validation.

mod cache;
mod fingerprint;
mod receipt;
mod registry;

pub use cache::{CacheAdmission, CacheCopy, CacheEntry, CacheRuntime};
pub use fingerprint::{Compiler, Fingerprint, HostFacts, Known, RuntimeSource};
pub use receipt::{DeepValidationV1, FileReceipt, LeaseEvidence, Receipt, StatIdentity, StatTime};
pub use registry::{ArtifactFile, RegisteredArtifact, RegistryRecord};
