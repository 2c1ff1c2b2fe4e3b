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
mod folder;
mod prepare;
mod request;
mod residency;
mod select;
mod source;
mod staging;
mod warm;

pub use drop::{DropAction, DropPlan};
pub use entry::{CacheLookup, CacheStatus};
pub use folder::ModelCache;
pub use prepare::{PrepareAction, PreparedModel};
pub use request::{PrepareRequest, Reserve};
pub use residency::resident_bytes;
pub use select::SelectedModel;
pub use source::{ModelSource, ModelSourceFile, model_fault, model_sha256};
pub use staging::{StagingReport, StagingVerdict};
pub use warm::{Warmed, WarmedFile};
