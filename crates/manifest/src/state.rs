//! What a running worker leaves on disk, and what `status` says of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::artifact::Trust;
use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::pci::{GpuRef, PciAddress};
use crate::time::UnixTime;
use crate::words::words;

/// `resolved-identity.json`: which process a worker is and exactly what it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Worker identity")]
pub struct WorkerIdentity {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `b70-worker-identity-v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "b70-worker-identity-v1"))]
    pub format: Option<String>,
    /// Always `development-screen-only`.
    #[schemars(extend("const" = "development-screen-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// Name of the worker.
    #[schemars(length(min = 1), example = &"gpu0-baseline")]
    pub name: String,
    /// What the worker is for.
    #[schemars(length(min = 1), example = &"immutable-baseline")]
    pub role: String,
    /// Profile it serves.
    #[schemars(length(min = 1), example = &"mtp3-control")]
    pub profile: String,
    /// The card as workers.json names it.
    pub gpu: GpuRef,
    /// The card's PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<PciAddress>,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535), example = 19720)]
    pub port: u16,
    /// Process id.
    #[schemars(range(min = 1), example = 4242)]
    pub pid: u32,
    /// Start time of the process in clock ticks since boot.
    #[schemars(example = 812_345)]
    pub start_time_ticks: u64,
    /// Boot the process belongs to.
    #[schemars(regex(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), example = &"3d6f1c2e-0b7a-4a57-9a0e-0d2a4a3a9f10")]
    pub boot_id: String,
    /// Session of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), example = 4242)]
    pub session: Option<u32>,
    /// Command line.
    #[schemars(length(min = 1), example = json!(["/srv/llama.cpp/build/bin/llama-server", "--port", "19720"]))]
    pub command: Vec<String>,
    /// Environment variables the kit set.
    #[schemars(example = json!({"ZE_AFFINITY_MASK": "0"}))]
    pub environment: BTreeMap<String, String>,
    /// The model and which copy was chosen.
    pub target_model: ModelChoice,
    /// The draft model and which copy was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<ModelChoice>,
    /// SHA-256 of the executable.
    pub binary_sha256: Sha256Hex,
    /// SHA-256 of each shared library it loads from its build.
    #[serde(default)]
    #[schemars(example = json!({"libggml-base.so": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}))]
    pub libraries: BTreeMap<String, Sha256Hex>,
    /// Fingerprint of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// The RAM stage that was bound, or why none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_stage: Option<PackStageChoice>,
    /// Path of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/results/workers/gpu0-baseline/server.log")]
    pub log: Option<String>,
    /// When it was started, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub started_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub started_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// `resolved-identity.json` as upstream's script writes it. It names no process: the number stands in `server.pid` beside it, without boot or start time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Worker identity (upstream)")]
pub struct LabWorkerIdentity {
    /// Always `development-screen-only`.
    #[schemars(extend("const" = "development-screen-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// What was started.
    pub resolved: LabResolved,
    /// When it was started, unix seconds.
    #[schemars(example = 1_783_870_000.25)]
    pub started_unix: UnixTime,
    /// The worker's entry of workers.json.
    pub worker: LabWorker,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What upstream's script started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabResolved {
    /// The launcher's command line.
    #[schemars(length(min = 1), example = json!(["/srv/lab/serve.sh"]))]
    pub command: Vec<String>,
    /// The variables it was given.
    #[schemars(example = json!({"PORT": "19720"}))]
    pub environment: BTreeMap<String, String>,
    /// The profile.
    #[schemars(example = json!({"spec_type": "draft-mtp"}))]
    pub profile: Map<String, Value>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A worker as upstream's script records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabWorker {
    /// Name of the worker.
    #[schemars(length(min = 1), example = &"gpu0-baseline")]
    pub name: String,
    /// The card as workers.json names it.
    pub gpu: GpuRef,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535), example = 19720)]
    pub port: u16,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A model and the copy a worker loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelChoice {
    /// The path that is loaded.
    #[schemars(length(min = 1), example = &"/dev/shm/lab-model-cache/20c9/Qwen3.6-27B-Q4_0.gguf")]
    pub path: String,
    /// SHA-256 of the model; absent when nothing vouches for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Hex>,
    /// Which copy it is.
    pub copy: ModelCopy,
    /// Why that copy was chosen.
    #[schemars(length(min = 1), example = &"the RAM copy is admitted")]
    pub reason: String,
    /// What the admission of the copy rests on; absent where none was made, and in documents of kit 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// Which copy of a model is loaded.
    ModelCopy {
        /// An admitted copy in RAM.
        Ram = "ram",
        /// The source file.
        Source = "source",
    }
}

/// The RAM stage a worker binds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PackStageChoice {
    /// Key of the set.
    pub set_key: Sha256Hex,
    /// Variable that carries the path.
    #[schemars(length(min = 1), example = &"GGML_SYCL_XE2_Q4_M6_PACK_CACHE")]
    pub variable: String,
    /// Whether the variable was set.
    #[schemars(example = true)]
    pub bound: bool,
    /// Path of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/dev/shm/b70kit-1000/7fb8")]
    pub path: Option<String>,
    /// Why it was bound or left out.
    #[schemars(length(min = 1), example = &"the stage is admitted")]
    pub reason: String,
    /// What the admission of the stage rests on; absent where none was made, and in documents of kit 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// `status`: one row a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Worker status")]
pub struct WorkerStatus {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// One row a worker.
    #[schemars(example = json!([]))]
    pub workers: Vec<StatusRow>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What is known of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusRow {
    /// Name of the worker.
    #[schemars(length(min = 1), example = &"gpu0-baseline")]
    pub name: String,
    /// What the worker is for.
    #[schemars(length(min = 1), example = &"immutable-baseline")]
    pub role: String,
    /// Profile it serves.
    #[schemars(length(min = 1), example = &"mtp3-control")]
    pub profile: String,
    /// The card.
    pub gpu: GpuRef,
    /// TCP port.
    #[schemars(range(min = 1, max = 65535), example = 19720)]
    pub port: u16,
    /// Process id; null when none is recorded.
    #[serde(default)]
    #[schemars(range(min = 1), example = 4242)]
    pub pid: Option<u32>,
    /// State of the recorded process: `absent`, `running`, `stale`, `reused` or `unverifiable`; upstream's files hold other words.
    #[schemars(length(min = 1), example = &"running")]
    pub pid_state: String,
    /// Whether something listens on the port.
    #[schemars(example = true)]
    pub port_open: bool,
    /// Processes on the card that the kit did not start.
    #[schemars(example = json!([]))]
    pub foreign_llama_pids: Vec<u32>,
    /// Always `development-screen-only`.
    #[schemars(extend("const" = "development-screen-only"))]
    pub evidence_class: EvidenceClass,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Status rows: alone in a list, as upstream stored them, or in a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "Worker status")]
pub enum StatusDocument {
    /// Rows alone.
    Rows(Vec<StatusRow>),
    /// A document.
    Document(WorkerStatus),
}
