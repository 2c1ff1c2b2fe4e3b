//! What a verification says.

use std::collections::HashSet;
use std::path::PathBuf;

use b70_manifest::Sha256Hex;
use b70_store::Trust;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How thoroughly a set is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Depth {
    /// Documents, keys, sizes, index.
    Shallow,
    /// The same, and the SHA-256 of every payload.
    Deep,
}

/// The outcome of a verification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Version of this document's form.
    pub schema_version: u64,
    /// `ready` or `failed`.
    pub status: VerifyStatus,
    /// How thorough it was.
    pub validation: Depth,
    /// Path of the set's manifest.
    pub manifest: PathBuf,
    /// The set key; absent when the manifest could not be read.
    pub set_key: Option<Sha256Hex>,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Payload bytes that were read and compared.
    pub checked_bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Failure codes, all of them.
    pub failures: Vec<String>,
    /// The same with what was found and expected.
    pub details: Vec<FailureDetail>,
    /// Requirements of the spec and whether each was enforced; empty without a spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// The receipt that was written, on which `prepare` rests from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<PathBuf>,
    /// Why a deep verification that passed wrote none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipt_reasons: Vec<String>,
    /// What the verdict on the payloads' bytes rests on; absent where none was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
}

/// Whether a set passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyStatus {
    /// Every check passed.
    Ready,
    /// At least one check failed.
    Failed,
}

/// One failed check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureDetail {
    /// The failure code.
    pub code: String,
    /// What was found and expected.
    pub detail: String,
}

/// An admission requirement of a model-pack manifest and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requirement {
    /// As the manifest names it.
    pub name: String,
    /// Enforced and met, enforced and not met, or not checkable.
    pub outcome: RequirementOutcome,
    /// In words.
    pub detail: String,
}

/// What became of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RequirementOutcome {
    /// Enforced, and met.
    Met,
    /// Enforced, and not met.
    NotMet,
    /// Not checkable with what was given.
    NotCheckable,
}

/// Collects failures; all of them are reported, none stops the others.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<FailureDetail>);

impl Failures {
    pub(crate) fn add(&mut self, code: impl Into<String>, detail: impl Into<String>) {
        self.0.push(FailureDetail { code: code.into(), detail: detail.into() });
    }

    pub(crate) fn equal<T: PartialEq + std::fmt::Display>(&mut self, code: &str, what: &str, found: &T, expected: &T) {
        if found != expected {
            self.add(code, format!("{what} is {found}, expected {expected}"));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn codes(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.0.iter().filter(|f| seen.insert(f.code.as_str())).map(|f| f.code.clone()).collect()
    }

    pub(crate) fn into_details(self) -> Vec<FailureDetail> {
        self.0
    }
}
