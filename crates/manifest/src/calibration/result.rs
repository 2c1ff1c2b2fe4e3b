use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::CalibrationRow;
use crate::evidence::EvidenceClass;
use crate::gate::GateOutcome;
use crate::hex::Sha256Hex;
use crate::pci::PciAddress;
use crate::time::UnixTime;
use crate::workers::Arm;

/// A calibration of one endpoint as a file holds it: what was measured, and what the file claims of itself.
///
/// It can be read but not written: a document comes from [`gate::judge`](crate::gate::judge) alone.
/// ```compile_fail
/// fn write(loaded: &b70_manifest::calibration::CalibrationResult) -> String {
///     serde_json::to_string(loaded).unwrap()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[schemars(title = "Calibration result")]
pub struct CalibrationResult {
    /// What the file says of itself; believed only after the gates have run on its rows again.
    #[serde(flatten)]
    pub claim: Claim,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
}

/// What a result file says of itself.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct Claim {
    /// Evidence class the file claims.
    pub evidence_class: EvidenceClass,
    /// Whether the file claims that it may support a promotion.
    #[schemars(example = false)]
    pub promotion_eligible: bool,
    /// Outcome of each gate as the file claims it.
    #[schemars(example = json!({"screening": {"passed": true, "codes": []}}))]
    pub gates: BTreeMap<String, GateOutcome>,
}

/// What a calibration of one endpoint measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `b70-calibration-result-v1`.
    #[schemars(extend("const" = "b70-calibration-result-v1"))]
    pub format: String,
    /// The endpoint.
    pub endpoint: EndpointIdentity,
    /// Side of a comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<Arm>,
    /// Period of a crossover, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000), example = 1)]
    pub period: Option<u64>,
    /// The suite and what was asked for.
    pub suite: SuiteIdentity,
    /// How the requests were made.
    pub settings: Settings,
    /// What ran.
    pub identity: RunIdentity,
    /// One row a request, incomplete ones included.
    #[schemars(example = json!([]))]
    pub rows: Vec<CalibrationRow>,
    /// Summary of each metric over the complete rows.
    #[serde(default)]
    #[schemars(example = json!({"tok_s_1_100_intervals_after_ttft": {"count": 12, "median": 49.2113, "p10": 41.91, "mean": 46.46, "min": 40.2, "max": 53.7, "stdev": 4.1}}))]
    pub summary: BTreeMap<String, MetricSummary>,
    /// When the calibration began, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub started_unix: UnixTime,
    /// When it ended, unix seconds; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_120_u64)]
    pub ended_unix: Option<UnixTime>,
    /// When the document was written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are; never the fields a gate decides.
    #[serde(flatten, serialize_with = "without_claims")]
    pub extra: Map<String, Value>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointIdentity {
    /// Name of the worker or endpoint.
    #[schemars(length(min = 1), example = &"gpu0-baseline")]
    pub name: String,
    /// Base URL.
    #[schemars(length(min = 1), example = &"http://127.0.0.1:19720")]
    pub url: String,
    /// PCI address of the card behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<PciAddress>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A suite, by name and by content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SuiteIdentity {
    /// Name of the suite.
    #[schemars(length(min = 1), example = &"b70-cold-v1")]
    pub suite_id: String,
    /// Version of the suite.
    #[schemars(extend("type" = ["integer", "string"]), example = 1)]
    pub version: Value,
    /// SHA-256 of the suite's file.
    pub sha256: Sha256Hex,
    /// Every prompt of the suite, in order.
    #[schemars(example = json!([{"id": "release-plan", "prompt_class": "operations", "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]))]
    pub prompts: Vec<SuitePromptIdentity>,
    /// Ids of the prompts that were asked for; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!(["release-plan"]))]
    pub selected: Option<Vec<String>>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A prompt of a suite, without its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SuitePromptIdentity {
    /// Id of the prompt.
    #[schemars(length(min = 1), example = &"release-plan")]
    pub id: String,
    /// Class of the prompt.
    #[schemars(length(min = 1), example = &"operations")]
    pub prompt_class: String,
    /// SHA-256 of its text.
    pub sha256: Sha256Hex,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How the requests were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// API that was used: `chat`, `completions` or `native`.
    #[schemars(extend("enum" = ["chat", "completions", "native"]), example = &"chat")]
    pub api: String,
    /// Most tokens of an answer.
    #[schemars(range(min = 1), example = 512)]
    pub max_tokens: u64,
    /// Events the rate is taken over.
    #[schemars(range(min = 2), example = 100)]
    pub metric_window: u64,
    /// Temperature.
    #[schemars(range(min = 0.0), example = 0.0)]
    pub temperature: f64,
    /// Nucleus.
    #[schemars(range(min = 0.0, max = 1.0), example = 1.0)]
    pub top_p: f64,
    /// Seed of every request.
    #[schemars(example = 1)]
    pub seed: i64,
    /// `cache_prompt` as it was sent; must be false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = false)]
    pub cache_prompt: Option<bool>,
    /// Whether the end of text was ignored.
    #[serde(default)]
    #[schemars(example = false)]
    pub ignore_eos: bool,
    /// How often every prompt was asked.
    #[schemars(range(min = 1), example = 1)]
    pub repeats: u64,
    /// Requests before the first row.
    #[schemars(example = 0)]
    pub warm_up_requests: u64,
    /// Endpoints that were measured at the same time.
    #[schemars(range(min = 1), example = 4)]
    pub endpoints_at_once: u64,
    /// Whether every answer had to end by `stop` or `length`.
    #[serde(default)]
    #[schemars(example = false)]
    pub require_natural_eos: bool,
    /// Further fields of every request.
    #[serde(default)]
    #[schemars(example = json!({"cache_prompt": false}))]
    pub request_extra: Map<String, Value>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What ran, as far as it is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunIdentity {
    /// SHA-256 of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_model_sha256: Option<Sha256Hex>,
    /// SHA-256 of the draft model, where one drafts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model_sha256: Option<Sha256Hex>,
    /// SHA-256 of the server's executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_sha256: Option<Sha256Hex>,
    /// Fingerprint of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// Command line of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), example = json!(["/srv/llama.cpp/build/bin/llama-server", "--cache-ram", "0"]))]
    pub command: Option<Vec<String>>,
    /// Environment variables that matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"GGML_SYCL_ENABLE_GRAPH": "0"}))]
    pub environment: Option<BTreeMap<String, String>>,
    /// Profile the worker ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"mtp3-control")]
    pub profile: Option<String>,
    /// Pack set that was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_set_key: Option<Sha256Hex>,
    /// The card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardIdentity>,
    /// Workers that ran on the host at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), example = 4)]
    pub workers_at_once: Option<u64>,
    /// Clocks, power and temperature where the host shows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"temperature_c": 61}))]
    pub telemetry: Option<Value>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A physical card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CardIdentity {
    /// PCI address.
    pub pci: PciAddress,
    /// Vendor and device id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{4}:[0-9a-f]{4}$"), example = &"8086:e223")]
    pub device_id: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Summary of one metric. Percentiles are linear between the order statistics, at (n-1)p; stdev is the sample's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricSummary {
    /// Rows that have the metric.
    #[schemars(example = 12)]
    pub count: u64,
    /// 10th percentile.
    #[serde(default)]
    #[schemars(example = 41.91)]
    pub p10: Option<f64>,
    /// Median.
    #[serde(default)]
    #[schemars(example = 49.2113)]
    pub median: Option<f64>,
    /// Mean.
    #[serde(default)]
    #[schemars(example = 46.46)]
    pub mean: Option<f64>,
    /// Least.
    #[serde(default)]
    #[schemars(example = 40.2)]
    pub min: Option<f64>,
    /// Greatest.
    #[serde(default)]
    #[schemars(example = 53.7)]
    pub max: Option<f64>,
    /// Sample standard deviation, 0 for one row.
    #[serde(default)]
    #[schemars(example = 4.1)]
    pub stdev: Option<f64>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// `result.json`: one calibration over several endpoints, with the file of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration run")]
pub struct CalibrationRun {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `b70-calibration-run-v1`.
    #[schemars(extend("const" = "b70-calibration-run-v1"))]
    pub format: String,
    /// The lowest class of the endpoints' results.
    pub evidence_class: EvidenceClass,
    /// Always false: each endpoint's result stands for itself.
    pub promotion_eligible: crate::evidence::NeverEligible,
    /// The suite.
    pub suite: SuiteIdentity,
    /// How the requests were made.
    pub settings: Settings,
    /// One entry an endpoint.
    #[schemars(length(min = 1), example = json!([{"name": "gpu0-baseline", "file": "gpu0-baseline.json", "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "evidence_class": "fresh-response-screening", "gates": {}}]))]
    pub endpoints: Vec<RunEndpoint>,
    /// When the calibration began, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub started_unix: UnixTime,
    /// When it ended, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_120_u64)]
    pub ended_unix: Option<UnixTime>,
    /// When the document was written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One endpoint of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunEndpoint {
    /// Name of the endpoint.
    #[schemars(length(min = 1), example = &"gpu0-baseline")]
    pub name: String,
    /// Its result file, beside this one.
    #[schemars(length(min = 1), example = &"gpu0-baseline.json")]
    pub file: String,
    /// SHA-256 of that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Hex>,
    /// Class of its result.
    pub evidence_class: EvidenceClass,
    /// Outcome of each gate.
    #[schemars(example = json!({"screening": {"passed": true, "codes": []}}))]
    pub gates: BTreeMap<String, GateOutcome>,
    /// Summary of each metric.
    #[serde(default)]
    #[schemars(example = json!({}))]
    pub summary: BTreeMap<String, MetricSummary>,
    /// Why the endpoint failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"the server closed the connection after row 7")]
    pub error: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The fields of a result that only a gate may write.
const DECIDED: [&str; 3] = ["evidence_class", "promotion_eligible", "gates"];

fn without_claims<S: serde::Serializer>(extra: &Map<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(extra.iter().filter(|(key, _)| !DECIDED.contains(&key.as_str())))
}

/// A result of upstream's realistic suite, as its script wrote it. Its own gate is a claim; it carries no identity the kit could check, so it is never promotion-eligible here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration result (upstream)")]
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
