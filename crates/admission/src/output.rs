//! What the commands over the RAM cache and the artifact registry print with `--json`, and its schemas.

use b70_manifest::schema::{SchemaEntry, output};
use b70_manifest::{EvidenceClass, NeverEligible};
use b70_store::Sha256;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cache::{CacheStatus, DropPlan, PreparedModel, Warmed};
use crate::documents::RegistryRecord;
use crate::fingerprint::FingerprintReport;
use crate::registry::{GcPlan, Listed, Registered, RegistryVerdict};

/// A command's document: what the result may be used for, and the result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OutputDocument<T> {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1))]
    pub schema_version: u64,
    /// What the result may be used for.
    pub evidence_class: EvidenceClass,
    /// Always false: a copy in memory and a registered file are not measurements.
    pub promotion_eligible: NeverEligible,
    /// The result.
    #[serde(flatten)]
    pub body: T,
}

impl<T> OutputDocument<T> {
    /// A document of the RAM cache.
    pub fn of_cache(body: T) -> Self {
        Self::new(EvidenceClass::DevelopmentInitializationOnly, body)
    }

    /// A document of the registry.
    pub fn of_registry(body: T) -> Self {
        Self::new(EvidenceClass::DevelopmentIterationOnly, body)
    }

    fn new(evidence_class: EvidenceClass, body: T) -> Self {
        Self { schema_version: 1, evidence_class, promotion_eligible: NeverEligible, body }
    }
}

/// One entry a model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Entries<T> {
    /// In the order asked for.
    pub entries: Vec<T>,
}

/// What was prepared.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PreparedEntries {
    /// `ready`.
    pub status: &'static str,
    /// In the order asked for.
    pub entries: Vec<PreparedModel>,
    /// What was left unchecked in the models, for each that has something.
    pub remarks: Vec<String>,
}

/// An admitted copy and its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AdmittedPath {
    /// Role the copy was prepared for, where known.
    pub role: Option<String>,
    /// Digest of the model.
    pub key: Sha256,
    /// The copy.
    pub path: String,
}

/// The records of a registry.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ListedRecords {
    /// By key.
    pub records: Vec<Listed>,
}

/// One entry a command: file name below `docs/schemas`, and the schema.
pub fn output_schemas() -> Vec<SchemaEntry> {
    vec![
        // `status` and `verify` print the same.
        output::<OutputDocument<Entries<CacheStatus>>>("cache-status"),
        output::<OutputDocument<PreparedEntries>>("cache-prepare"),
        output::<OutputDocument<Entries<Warmed>>>("cache-warm"),
        output::<OutputDocument<Entries<AdmittedPath>>>("cache-path"),
        output::<OutputDocument<DropPlan>>("cache-drop"),
        output::<FingerprintReport>("registry-fingerprint"),
        output::<OutputDocument<Registered>>("registry-register"),
        output::<OutputDocument<RegistryVerdict>>("registry-verify"),
        output::<OutputDocument<ListedRecords>>("registry-list"),
        output::<RegistryRecord>("registry-show"),
        output::<OutputDocument<GcPlan>>("registry-gc"),
    ]
}
