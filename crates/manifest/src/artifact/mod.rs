//! Documents of admitted artifacts: copies in RAM, registered packs, build fingerprints, receipts of validation.

mod cache;
mod fingerprint;
mod identity;
mod receipt;
mod registry;

pub use cache::{CacheAdmission, CacheCopy, CacheEntry, CacheRuntime};
pub use fingerprint::{Compiler, Fingerprint, HostFacts, Known, RuntimeSource};
pub use identity::{Boot, FieldChange, FileIdentity, FileSystem, FsKind, Scope};
pub use receipt::{DeepValidationV1, DirectoryHint, FileName, LeaseEvidence, Receipt, ReceiptFile, Trust};
pub use registry::{ArtifactFile, RegisteredArtifact, RegistryRecord};
