use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::time::UnixTime;

/// `ram-stage.json`: a verified copy of a pack set in RAM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "RAM stage")]
pub struct RamStage {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `<prefix>-ram-stage-v1`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-ram-stage-v1$"), example = &"my-model-ram-stage-v1")]
    pub format: String,
    /// `ready`.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// Always `development-initialization-cache-only`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"development-initialization-cache-only")]
    pub evidence_class: Option<EvidenceClass>,
    /// Always false.
    #[serde(default)]
    pub promotion_eligible: NeverEligible,
    /// Key of the staged set.
    pub set_key: Sha256Hex,
    /// Path of the set's `manifest.json`.
    #[schemars(length(min = 1), example = &"/srv/cache/7fb8/manifest.json")]
    pub source_manifest: String,
    /// SHA-256 of that manifest.
    pub source_manifest_sha256: Sha256Hex,
    /// Canonical hash of the payload table.
    pub payload_table_sha256: Sha256Hex,
    /// Sum of the payloads' sizes in bytes.
    #[schemars(example = 9_375_252_480_u64)]
    pub payload_size_bytes: u64,
    /// Number of tensors.
    #[schemars(example = 187)]
    pub tensor_count: u64,
    /// When the stage was made, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
