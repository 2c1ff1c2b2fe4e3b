//! What `b70-worker` and `b70-gpu probe` print with `--json`, and its schemas.

use std::path::PathBuf;

use b70_manifest::{
    schema::{SchemaEntry, output},
    state::WorkerStatus,
    workers::Workers,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    liveness::LivenessReport, plan::WorkerPlan, render::Rendered, resolve::ResolvedCommand, validate::Validation,
};

/// What `render` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RenderedFiles {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The files, with their texts.
    pub files: Vec<Rendered>,
}

/// The file that `render --format json` makes. Secrets are replaced.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResolvedWorkers {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// One command a worker.
    pub workers: Vec<ResolvedCommand>,
}

/// What `logs` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LogText {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The worker.
    pub worker: String,
    /// Its log.
    pub log: PathBuf,
    /// The last lines, control characters escaped.
    pub text: String,
}

/// One entry a command: file name below `docs/schemas`, and the schema.
pub fn output_schemas() -> Vec<SchemaEntry> {
    vec![
        output::<Validation>("worker-validate"),
        output::<WorkerStatus>("worker-status"),
        // `start`, `stop` and `restart` print the same.
        output::<WorkerPlan>("worker-plan"),
        output::<RenderedFiles>("worker-render"),
        output::<ResolvedWorkers>("worker-resolved"),
        output::<LogText>("worker-logs"),
        // `init` and `assign` print the configuration they wrote.
        output::<Workers>("worker-config"),
        output::<LivenessReport>("gpu-probe"),
    ]
}
