use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// A kind of document.
    Kind {
        /// Persistent servers, one card each.
        Workers = "workers",
        /// The model a lane serves, its packer and what admission requires.
        ModelPackManifest = "model-pack-manifest",
        /// The kernel cases a lane needs.
        GoldenCorpusManifest = "golden-corpus-manifest",
        /// Which tensors go to which slot.
        PackPlan = "pack-plan",
        /// The prompts of a cold calibration.
        CalibrationSuite = "calibration-suite",
        /// `manifest.json` of a pack set.
        PackSet = "pack-set",
        /// One packed tensor.
        TensorPack = "tensor-pack",
        /// Upstream's receipt of a deep validation.
        DeepValidation = "deep-validation",
        /// A receipt of a deep validation.
        Receipt = "receipt",
        /// A verified copy of a pack set in RAM.
        RamStage = "ram-stage",
        /// A copy of a model in RAM.
        CacheEntry = "cache-entry",
        /// A registered artifact.
        RegistryRecord = "registry-record",
        /// The fingerprint of a build.
        Fingerprint = "fingerprint",
        /// A set of deterministic kernel fixtures.
        GoldenSet = "golden-set",
        /// The outcome of focused backend tests.
        FocusedResult = "focused-result",
        /// Focused backend tests as upstream's script ran them.
        LabFocusedResult = "lab-focused-result",
        /// A calibration of one endpoint.
        CalibrationResult = "calibration-result",
        /// A calibration over several endpoints.
        CalibrationRun = "calibration-run",
        /// A calibration upstream's script wrote.
        LabCalibrationResult = "lab-calibration-result",
        /// A candidate against a control.
        Comparison = "comparison",
        /// Which process a worker is and what it runs.
        WorkerIdentity = "worker-identity",
        /// The record of a worker as upstream's script wrote it.
        LabWorkerIdentity = "lab-worker-identity",
        /// One row a worker.
        WorkerStatus = "worker-status",
    }
}

impl Kind {
    /// The kind called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// One line about the kind.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Workers => "persistent llama-server processes, one card each",
            Self::ModelPackManifest => "the model a lane serves, its packer, and what admission requires",
            Self::GoldenCorpusManifest => "the kernel cases a lane needs and what they may be used for",
            Self::PackPlan => "which tensors of a model go to which slot of a pack set",
            Self::CalibrationSuite => "the prompts of a cold calibration",
            Self::PackSet => "manifest.json of a pack set",
            Self::TensorPack => "one packed tensor, tensors/<key>.json of a set",
            Self::DeepValidation => "upstream's receipt of a deep validation; readable, never trusted",
            Self::Receipt => "a receipt of a deep validation, void as soon as anything it names changes",
            Self::RamStage => "a verified copy of a pack set in RAM",
            Self::CacheEntry => "a byte-identical copy of a model in RAM",
            Self::RegistryRecord => "a registered artifact that was packed elsewhere",
            Self::Fingerprint => "everything a test result of a build depends on",
            Self::GoldenSet => "a set of deterministic kernel fixtures",
            Self::FocusedResult => "the outcome of focused backend tests",
            Self::LabFocusedResult => {
                "focused backend tests as upstream's script ran them; readable, never a pass to reuse"
            }
            Self::CalibrationResult => "a cold calibration of one endpoint",
            Self::CalibrationRun => "a cold calibration over several endpoints",
            Self::LabCalibrationResult => "a result of upstream's realistic suite",
            Self::Comparison => "a candidate against a control over physical cards",
            Self::WorkerIdentity => "which process a worker is and exactly what it runs",
            Self::LabWorkerIdentity => "the record of a worker as upstream's script wrote it; it names no process",
            Self::WorkerStatus => "one row a worker, as status prints it",
        }
    }

    /// Whether people write this kind. Unknown keys are errors there, and kept in everything else but a receipt, which has a
    /// checksum.
    pub const fn is_written_by_people(self) -> bool {
        matches!(
            self,
            Self::Workers
                | Self::ModelPackManifest
                | Self::GoldenCorpusManifest
                | Self::PackPlan
                | Self::CalibrationSuite
        )
    }

    /// Names files of this kind usually have, as glob patterns for editors. Kinds whose files are all called
    /// `manifest.json` are told apart by their folder, or have no pattern.
    pub const fn file_patterns(self) -> &'static [&'static str] {
        match self {
            Self::Workers => &["workers.json", "*.workers.json", "*-workers.json"],
            Self::ModelPackManifest => &["model-pack-manifest.json", "*.model-pack.json", "*-model-pack-manifest.json"],
            Self::GoldenCorpusManifest => {
                &["golden-corpus-manifest.json", "*.golden-corpus.json", "*-golden-corpus-manifest.json"]
            }
            Self::PackPlan => &["*.pack-plan.json", "pack-plan.json"],
            Self::CalibrationSuite => &["*.suite.json", "suite.json"],
            Self::PackSet | Self::TensorPack | Self::RegistryRecord | Self::Comparison => match self {
                Self::PackSet => &["*.pack-set.json"],
                Self::TensorPack => &["*.tensor-pack.json"],
                Self::RegistryRecord => &["*.registry-record.json"],
                _ => &["comparison.json", "*.comparison.json"],
            },
            Self::DeepValidation => &["*.deep-validation.json"],
            Self::Receipt => &["*.receipt.json", "admission-receipt.json", "deep-validation-v2.json"],
            Self::RamStage => &["ram-stage.json"],
            Self::CacheEntry => &["cache-entry.json"],
            Self::Fingerprint => &["fingerprint.json", "*.fingerprint.json"],
            Self::GoldenSet => &["*.golden-set.json"],
            Self::FocusedResult => &["*.focused-result.json"],
            Self::LabFocusedResult => &["*.lab-focused-result.json"],
            Self::CalibrationResult => &["*.calibration-result.json"],
            Self::CalibrationRun => &["*.calibration-run.json"],
            Self::LabCalibrationResult => &["*.lab-calibration-result.json"],
            Self::WorkerIdentity => &["resolved-identity.json"],
            Self::LabWorkerIdentity => &["resolved-identity.upstream.json"],
            Self::WorkerStatus => &["*.worker-status.json", "status-before.json", "status-after.json"],
        }
    }

    /// Name of the schema's file, `<kind>.schema.json`.
    pub fn schema_file(self) -> String {
        format!("{self}.schema.json")
    }

    /// The schema's `$id`. It names the schema; nothing needs to be fetched from it.
    pub fn schema_id(self) -> String {
        format!("{}{self}.schema.json", crate::schema::BASE)
    }

    /// The kind a value of `$schema` names: an `$id`, or a path that ends in the schema's file name.
    pub fn from_schema_reference(reference: &str) -> Option<Self> {
        let file = reference.split(['#', '?']).next().unwrap_or_default().rsplit(['/', '\\']).next()?;
        Self::from_name(file.strip_suffix(".schema.json")?)
    }
}

/// What `list` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Kinds of documents")]
pub struct KindList {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// The kinds.
    pub kinds: Vec<KindEntry>,
}

/// One kind of document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindEntry {
    /// Name of the kind.
    pub kind: Kind,
    /// One line about it.
    #[schemars(example = &"the prompts of a cold calibration")]
    pub about: String,
    /// Whether people write it.
    #[schemars(example = true)]
    pub written_by_people: bool,
    /// Usual names of its files.
    #[schemars(example = serde_json::json!(["*.suite.json"]))]
    pub file_patterns: Vec<String>,
    /// The schema's `$id`.
    #[schemars(example = &"https://b70kit.dev/schemas/v1/calibration-suite.schema.json")]
    pub schema_id: String,
}

impl KindList {
    /// Every kind.
    pub fn every() -> Self {
        let entry = |kind: &Kind| KindEntry {
            kind: *kind,
            about: kind.about().into(),
            written_by_people: kind.is_written_by_people(),
            file_patterns: kind.file_patterns().iter().map(|pattern| (*pattern).to_owned()).collect(),
            schema_id: kind.schema_id(),
        };
        Self { schema_version: 1, kinds: Kind::ALL.iter().map(entry).collect() }
    }
}
