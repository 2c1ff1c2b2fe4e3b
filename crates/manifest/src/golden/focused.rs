use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::artifact::Known;
use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::time::UnixTime;
use crate::words::words;

/// The outcome of one run of named backend tests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Focused result")]
pub struct FocusedResult {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `b70-focused-result-v1`.
    #[schemars(extend("const" = "b70-focused-result-v1"))]
    pub format: String,
    /// Always `focused-diagnostic-only`.
    #[schemars(extend("const" = "focused-diagnostic-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// Outcome of the run.
    pub status: FocusedStatus,
    /// Canonical hash of `identity`; a pass is reused for exactly this key.
    pub run_key: Sha256Hex,
    /// Everything the outcome depends on.
    pub identity: FocusedIdentity,
    /// Why an earlier pass was not reused.
    #[serde(default)]
    #[schemars(example = json!(["/environment/GGML_SYCL_ENABLE_GRAPH differs"]))]
    pub not_reused_because: Vec<String>,
    /// One entry a test.
    pub tests: Vec<FocusedTest>,
    /// When the run began, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub started_unix: UnixTime,
    /// Seconds the run took.
    #[schemars(range(min = 0.0), example = 12.5)]
    pub seconds: f64,
    /// When the document was written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Everything a test's outcome depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FocusedIdentity {
    /// Fingerprint of the build; `unknown` where none covers what it loads.
    pub build_fingerprint_sha256: Known<Sha256Hex>,
    /// SHA-256 of the golden set's manifest.
    pub golden_manifest_sha256: Sha256Hex,
    /// PCI address and device id of the card, or `absent` on a host without one.
    #[schemars(example = json!({"pci": "0000:03:00.0", "device_id": "8086:e223"}))]
    pub card: Value,
    /// Backend the tests ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"SYCL0")]
    pub backend: Option<String>,
    /// Selected tests.
    #[schemars(length(min = 1), example = json!(["MUL_MAT_Q4_0_REORDER"]))]
    pub tests: Vec<String>,
    /// Every variable of the run that can change its outcome.
    #[schemars(example = json!({"GGML_SYCL_ENABLE_GRAPH": "0"}))]
    pub environment: BTreeMap<String, String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One named test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FocusedTest {
    /// Name of the test.
    #[schemars(length(min = 1), example = &"MUL_MAT_Q4_0_REORDER")]
    pub op: String,
    /// Cases that were executed; none is a failure.
    #[schemars(example = 42)]
    pub executed: u64,
    /// Cases that passed.
    #[schemars(example = 42)]
    pub passed: u64,
    /// Cases that failed.
    #[schemars(example = 0)]
    pub failed: u64,
    /// Path of the log.
    #[schemars(length(min = 1), example = &"MUL_MAT_Q4_0_REORDER.log")]
    pub log: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Focused backend tests as upstream's script ran them. Its identity leaves out libraries, card and compiler, so its pass is readable and never reused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Focused result (upstream)")]
pub struct LabFocusedResult {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `focused-diagnostic-only`.
    #[schemars(extend("const" = "focused-diagnostic-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// Whether every program ended with 0, a claim.
    #[schemars(example = true)]
    pub passed: bool,
    /// The script's key of the run.
    pub run_key: Sha256Hex,
    /// What the key was made of.
    pub identity: LabFocusedIdentity,
    /// The script's fingerprint of the build.
    #[schemars(example = json!({"schema_version": 1}))]
    pub build_fingerprint: Map<String, Value>,
    /// One log a test.
    pub logs: Vec<LabFocusedLog>,
    /// Seconds the run took.
    #[schemars(range(min = 0.0), example = 3.2)]
    pub seconds: f64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What upstream's script makes the key of a run from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabFocusedIdentity {
    /// The build's fingerprint.
    pub fingerprint: Sha256Hex,
    /// Ordinal of the card, as text.
    #[schemars(example = &"0")]
    pub gpu: String,
    /// Selected tests.
    #[schemars(length(min = 1), example = json!(["MUL_MAT_Q4_0_REORDER"]))]
    pub ops: Vec<String>,
    /// Variables of the run.
    #[schemars(example = json!([]))]
    pub environment: Vec<Value>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One test of upstream's run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabFocusedLog {
    /// Name of the test.
    #[schemars(length(min = 1), example = &"MUL_MAT_Q4_0_REORDER")]
    pub op: String,
    /// Path of the log.
    #[schemars(length(min = 1), example = &"/srv/results/focused/MUL_MAT_Q4_0_REORDER.log")]
    pub log: String,
    /// How the program ended: its exit code, or minus the signal.
    #[schemars(example = 0)]
    pub returncode: i64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// Outcome of a focused run.
    FocusedStatus {
        /// Every test was executed and passed.
        Passed = "passed",
        /// A pass of exactly this key was reused.
        ReusedPass = "reused-pass",
        /// A test failed, crashed, ran out of time, or was not executed.
        Failed = "failed",
    }
}
