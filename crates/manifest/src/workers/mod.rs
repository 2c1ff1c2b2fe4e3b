//! `workers.json`: persistent servers, one card each.
//!
//! Upstream's file (version 1) is read as it is. Version 2 adds a list form of extra arguments and the object `extensions`;
//! both versions may name a card by its PCI address, leave the launcher out, and bind a pack set.

mod args;
mod document;

pub use args::{ExtraArgs, SplitError};
pub use document::{Arm, CacheType, Common, FlashAttention, PackSetBinding, Profile, SpecType, Worker, Workers};

/// The version `migrate` writes; version 1 is upstream's.
pub const WORKERS_VERSION: u64 = 2;

/// What stands for the lane's draft model in a profile.
pub const DRAFT_MODEL_HOLE: &str = "{draft_model}";
