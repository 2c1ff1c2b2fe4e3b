use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::time::UnixTime;
use crate::words::words;

/// `manifest.json` of a set of deterministic kernel fixtures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Golden set")]
pub struct GoldenSet {
    /// Version of this document's form, 1.
    #[serde(default, skip_serializing_if = "is_unstated")]
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `qwen27-mmvp-q4_0-q8_1-golden-v1`.
    #[schemars(extend("const" = "qwen27-mmvp-q4_0-q8_1-golden-v1"))]
    pub format: String,
    /// Always `synthetic-kernel-contract-diagnostic-only`.
    #[schemars(extend("const" = "synthetic-kernel-contract-diagnostic-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// How values are quantised; `contract` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<GoldenRule>,
    /// Seed of the random values.
    #[schemars(example = 270_036)]
    pub seed: u64,
    /// Columns of the weights, a multiple of 32.
    #[schemars(range(min = 32), extend("multipleOf" = 32), example = 5120)]
    pub k: u64,
    /// Rows of the weights.
    #[schemars(range(min = 1), example = 256)]
    pub n: u64,
    /// Widths M of the inputs.
    #[schemars(length(min = 1), inner(range(min = 1, max = 4096)), example = json!([1, 4, 8, 16]))]
    pub required_widths: Vec<u64>,
    /// One case a width.
    pub cases: Vec<GoldenCase>,
    /// Every tensor file by name, each with its own digest.
    #[schemars(example = json!({"weights.q4_0.bin": {"sha256": "a4b55ab9398e943e6fe2585d2db1b9cdabf331aa875a0d346df14be2c1482e4c", "size_bytes": 737_280, "shape": [256, 5120], "dtype": "q4_0"}}))]
    pub tensors: BTreeMap<String, GoldenTensor>,
    /// SHA-256 of the model the shapes stand for; null without one.
    #[serde(default)]
    pub source_model_sha256: Option<Sha256Hex>,
    /// Fingerprint of the build the set was made for; null without one.
    #[serde(default)]
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// When the set was made, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: Option<UnixTime>,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One width: its input and its expected output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenCase {
    /// Width.
    #[schemars(range(min = 1, max = 4096), example = 4)]
    pub m: u64,
    /// File of the weights.
    #[schemars(length(min = 1), example = &"weights.q4_0.bin")]
    pub weights: String,
    /// File of the input.
    #[schemars(length(min = 1), example = &"input-m4.q8_1.bin")]
    pub input: String,
    /// File of the expected output.
    #[schemars(length(min = 1), example = &"expected-m4.f32.bin")]
    pub expected: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A tensor file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenTensor {
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// Size in bytes.
    #[schemars(example = 737_280)]
    pub size_bytes: u64,
    /// Rows and columns, columns fastest.
    #[schemars(length(min = 1), inner(range(min = 1)), example = json!([256, 5120]))]
    pub shape: Vec<u64>,
    /// Type of the elements.
    #[schemars(length(min = 1), example = &"q4_0")]
    pub dtype: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// How random values become blocks.
    GoldenRule {
        /// The project's contract: bit-identical everywhere.
        Contract = "contract",
        /// As ggml's reference quantises.
        Ggml = "ggml",
    }
}

/// The lab's sets state no version; they are written again as they were.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde calls")]
fn is_unstated(version: &u64) -> bool {
    *version == 0
}
