use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;

/// Golden-corpus manifest: which kernel cases a lane needs, which exist, and what they may be used for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Golden-corpus manifest")]
pub struct GoldenCorpusManifest {
    /// Where an editor finds the schema of this document.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    #[schemars(title = "Schema", example = &"./schemas/golden-corpus-manifest.schema.json")]
    pub schema: Option<String>,
    /// Version of this document's form: 1 as upstream writes it, 2 after `b70-manifest migrate`.
    #[schemars(range(min = 1, max = 2), example = 2)]
    pub schema_version: u64,
    /// Name of the corpus.
    #[schemars(length(min = 1, max = 128), example = &"qwen27-b70-kernel-golden-v1")]
    pub corpus: String,
    /// State of the corpus, in words.
    #[schemars(example = &"synthetic-ready; real-capture-not-started")]
    pub status: String,
    /// Always `diagnostic-only`.
    #[schemars(extend("const" = "diagnostic-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// Why the corpus can never support a promotion.
    #[schemars(length(min = 1), example = &"warm reused state is not cold evidence")]
    pub promotion_exclusion_reason: String,
    /// Folder that holds the corpus.
    #[schemars(length(min = 1), example = &"/srv/results/golden")]
    pub storage_root: String,
    /// What the corpus was made from.
    pub source_identity: CorpusSource,
    /// Widths M every case must cover.
    #[schemars(length(min = 1), extend("uniqueItems" = true), inner(range(min = 1, max = 4096)), example = serde_json::json!([8]))]
    pub required_widths: Vec<u64>,
    /// Artifacts that exist.
    #[schemars(example = serde_json::json!([]))]
    pub implemented_artifacts: Vec<ImplementedArtifact>,
    /// Cases that must exist before the corpus is complete.
    #[schemars(
        length(min = 1),
        extend("uniqueItems" = true),
        inner(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$")), example = serde_json::json!(["full_attention_qkv"])
    )]
    pub required_cases: Vec<String>,
    /// Real captures, as their importer recorded them.
    #[schemars(example = serde_json::json!([]))]
    pub artifacts: Vec<Map<String, Value>>,
    /// What a real capture must record.
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["record_input_and_output_sha256"]))]
    pub capture_requirements: Vec<String>,
    /// What resetting to a recorded state may be used for.
    pub reset_policy: ResetPolicy,
    /// Free room for other tools; the kit keeps it and never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = serde_json::json!({"my-tool": {"colour": "blue"}}))]
    pub extensions: Option<Map<String, Value>>,
}

/// What a corpus was made from; null where it is not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorpusSource {
    /// SHA-256 of the target model.
    pub target_model_sha256: Sha256Hex,
    /// SHA-256 of the draft model.
    #[serde(default)]
    pub draft_model_sha256: Option<Sha256Hex>,
    /// Commit of the runtime that captured.
    #[serde(default)]
    #[schemars(regex(pattern = "^[0-9a-f]{7,64}$"), example = &"0123456789abcdef0123456789abcdef01234567")]
    pub runtime_commit: Option<String>,
    /// SHA-256 of the runtime's uncommitted changes.
    #[serde(default)]
    pub runtime_dirty_patch_sha256: Option<Sha256Hex>,
    /// SHA-256 of the model pack that was loaded.
    #[serde(default)]
    pub model_pack_sha256: Option<Sha256Hex>,
}

/// An artifact of the corpus that exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImplementedArtifact {
    /// Name of the artifact.
    #[schemars(length(min = 1), example = &"mmvq-q4_0-q8_1-v1")]
    pub name: String,
    /// State of the artifact, in words.
    #[schemars(example = &"ready")]
    pub status: String,
    /// What kind of artifact it is, in words.
    #[schemars(example = &"deterministic-synthetic-kernel-contract")]
    pub class: String,
    /// Its sizes by name, numbers or lists of numbers.
    #[serde(default)]
    #[schemars(example = serde_json::json!({"k": 5120, "n": 256, "m": [1, 4, 8, 16]}))]
    pub dimensions: Map<String, Value>,
    /// What its files hold.
    #[serde(default)]
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["q4_0_weights"]))]
    pub contents: Vec<String>,
    /// Path of its manifest.
    #[schemars(length(min = 1), example = &"/srv/results/golden/mmvq-q4_0-q8_1-v1/manifest.json")]
    pub manifest: String,
}

/// What resetting to a recorded state may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetPolicy {
    /// How a reset is meant to be done, in words.
    #[schemars(example = &"device-to-device-copy-from-pristine-post-prefill-state")]
    pub method: String,
    /// How far it is implemented, in words.
    #[schemars(example = &"not-yet-implemented")]
    pub status: String,
    /// Uses that are allowed.
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["kernel-parity"]))]
    pub allowed_for: Vec<String>,
    /// Uses that are forbidden; the three of promotion, submission and headline must be among them.
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["headline-throughput"]))]
    pub forbidden_for: Vec<String>,
}
