use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::CalibrationRow;

/// A result of the lab's realistic suite, as its script wrote it. Its own gate is a claim; it carries no identity the kit could check, so it is never promotion-eligible here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration result (lab)")]
pub struct LabCalibrationResult {
    /// What the script recorded of the run.
    #[schemars(example = json!({"model": "qwen36-27b-q4_0-tp1", "max_tokens": 128, "seed": 1}))]
    pub run_identity: Value,
    /// The script's final gate, a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"passed": false}))]
    pub realistic_final_gate: Option<Value>,
    /// The script's screening, a claim.
    #[schemars(example = json!({"valid": true}))]
    pub fresh_response_validity: Value,
    /// The script's summaries, by metric.
    #[schemars(example = json!({"ttft_ms": {"median": 1171.72}}))]
    pub summary: Map<String, Value>,
    /// Digests of the prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!([]))]
    pub prompt_sha256s: Option<Value>,
    /// Digests of the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!([]))]
    pub output_sha256s: Option<Value>,
    /// One row a request.
    #[schemars(example = json!([]))]
    pub rows: Vec<CalibrationRow>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
