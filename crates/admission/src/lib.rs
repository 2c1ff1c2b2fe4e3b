//! Admission by content: the RAM cache of models, the registry of external artifacts, the fingerprint of a build and its host.
//!
//! # Purpose
//!
//! A model in memory, an artifact of another tool and a build of llama.cpp are all used by reference. This crate says
//! which bytes stand behind such a reference, keeps the record of it, and finds out when it is no longer true. What it
//! reads and writes goes through [`b70_store`].
//!
//! # Vocabulary
//!
//! - *entry*: one model in the RAM cache, in a folder named by the model's digest, with a document and a receipt.
//! - *record*: what the registry holds of one artifact outside the kit; its key is a digest of what it says.
//! - *fingerprint*: the identity of a build, its sources and the host; what could not be determined is never equal to anything.
//!
//! # Example
//!
//! ```
//! use b70_admission::{ModelCache, ModelSource, PrepareAction, PrepareRequest, Reserve};
//! use b70_store::HashOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let (folder, root) = (scratch.path(), scratch.path().join("cache"));
//! # std::fs::write(folder.join("model.gguf"), b"weights")?;
//! let how = HashOptions::default();
//! let cache = ModelCache::create(&root)?;
//! let source = ModelSource::open(&folder.join("model.gguf"))?;
//! let request = PrepareRequest {
//!     role: "target",
//!     source: &source,
//!     sha256: None,
//!     force: false,
//!     immutable: false,
//!     reserve: Reserve::Bytes(1 << 20),
//!     wait: std::time::Duration::from_secs(10),
//!     tool: "example",
//!     packing_tool: None,
//!     target_architecture: None,
//!     build: None,
//!     host: None,
//!     measure: false,
//! };
//! let first = cache.prepare(&request, &how)?;
//! let second = cache.prepare(&request, &how)?;
//! assert_eq!((first.action, second.action), (PrepareAction::Copied, PrepareAction::Reused));
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! - Those of the store hold here: receipts see what the kernel says of a file, not decay of the medium.
//! - A fingerprint is as good as what the build left behind in Git, in its build folder and in the ELF files.
#![deny(unsafe_code)]

mod cache;
mod documents;
mod error;
mod fingerprint;
mod output;
mod registry;

pub use cache::{
    CacheLookup, CacheStatus, DropAction, DropPlan, ModelCache, ModelSource, ModelSourceFile, PrepareAction,
    PrepareRequest, PreparedModel, Reserve, SelectedModel, StagingReport, StagingVerdict, Warmed, WarmedFile,
    model_fault, model_sha256, resident_bytes,
};
pub use documents::{
    ArtifactFile, CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Compiler, Fingerprint, HostFacts, Known,
    RegisteredArtifact, RegistryRecord, RuntimeSource,
};
pub use error::AdmissionError;
pub use fingerprint::{
    DEFAULT_BINARIES, FingerprintReport, FingerprintRequest, fingerprint, fingerprint_sha256, host_facts,
};
pub use output::{AdmittedPath, Entries, ListedRecords, OutputDocument, PreparedEntries, output_schemas};
pub use registry::{
    Artifact, GcPlan, GcRecord, Listed, RegisterOutcome, RegisterRequest, Registered, Registry, RegistryVerdict,
    pack_key,
};
