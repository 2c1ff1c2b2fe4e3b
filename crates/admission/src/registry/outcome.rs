//! What the registry's operations return.

use std::path::PathBuf;

use b70_store::{Sha256, Trust};
use serde::Serialize;

use crate::documents::RegistryRecord;

/// What registering did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RegisterOutcome {
    /// The record is new.
    Created,
    /// The same record was there already.
    Kept,
    /// The record was there for another place or build and now names this one.
    Updated,
    /// The record was damaged and has been replaced.
    Repaired,
}

/// A registered artifact.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Registered {
    /// Always `admitted`: every byte was read.
    pub status: &'static str,
    /// The record's key.
    pub key: Sha256,
    /// Path of the record.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub manifest: PathBuf,
    /// What was done.
    pub outcome: RegisterOutcome,
    /// The record.
    pub record: RegistryRecord,
}

/// Outcome of [`Registry::verify`](super::Registry::verify).
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RegistryVerdict {
    /// `admitted` or `failed`.
    pub status: &'static str,
    /// The record's key.
    pub key: Sha256,
    /// The artifact.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub artifact: PathBuf,
    /// Files with other bytes, or something else in a file's place; relative to the artifact.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub changed: Vec<PathBuf>,
    /// Files that are gone.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub missing: Vec<PathBuf>,
    /// Files, links and special files that are new.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub added: Vec<PathBuf>,
    /// One sentence for each of them.
    pub details: Vec<String>,
    /// What the record itself contradicts.
    pub record_faults: Vec<String>,
    /// Files that were read.
    pub checked_files: usize,
    /// Bytes that were read.
    pub checked_bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What the verdict on the bytes rests on, where they are admitted: every one was read.
    pub trust: Option<Trust>,
}

/// A record in a list.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Listed {
    /// The record's key.
    pub key: Sha256,
    /// Whether the record can be used, and why not.
    pub fault: Option<String>,
    /// Whether something is at the artifact's place; its bytes were not looked at.
    pub artifact_present: bool,
    /// The record, when it can be read.
    pub record: Option<RegistryRecord>,
}

/// A record in a plan to collect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GcRecord {
    /// The record's folder.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub path: PathBuf,
    /// Why nothing is lost with it.
    pub reason: String,
}

/// What a collection would remove: records whose artifact is gone or that cannot be read. Payload is never touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct GcPlan {
    /// The records.
    pub plan: Vec<GcRecord>,
    /// Records that stay.
    pub kept: usize,
    /// Whether it was carried out.
    pub executed: bool,
}
