//! Reports: tables for a terminal, and one HTML file with plots that needs nothing else.

mod figures;
mod html;
mod plot;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use b70_manifest::EvidenceClass;
use b70_manifest::calibration::MetricSummary;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::ONE_RUN_NOTE;
use crate::load::{LoadedResult, ResultSource};

pub use html::html_report;
pub use text::text_report;

/// What `report` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration report of files")]
pub struct ReportDocument {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The HTML file that was written.
    pub html: Option<PathBuf>,
    /// The results, one an endpoint.
    pub results: Vec<ReportedResult>,
    /// What no reader may overlook.
    pub note: String,
}

/// One result of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReportedResult {
    /// The file.
    pub file: PathBuf,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Who wrote it.
    pub source: ResultSource,
    /// False if the run was cut short.
    pub finished: bool,
    /// Evidence class the gates give.
    pub evidence_class: EvidenceClass,
    /// Whether it may support a promotion.
    pub promotion_eligible: bool,
    /// Figures of the file that its rows do not give.
    pub disagreements: usize,
    /// Codes of every gate that does not pass.
    pub failing: BTreeMap<String, Vec<String>>,
    /// Rows, failed ones included.
    pub rows: usize,
    /// Its figures, made from the rows.
    pub summary: BTreeMap<String, MetricSummary>,
}

impl ReportDocument {
    /// About these results.
    pub fn of(results: &[LoadedResult], html: Option<PathBuf>) -> Self {
        let one = |result: &LoadedResult| ReportedResult {
            file: result.path.clone(),
            endpoint: result.name().to_owned(),
            source: result.source,
            finished: result.is_finished(),
            evidence_class: result.judged.evidence_class(),
            promotion_eligible: result.promotion().is_some(),
            disagreements: result.disagreements.len(),
            failing: result
                .judged
                .gates()
                .iter()
                .filter(|(_, gate)| !gate.passed)
                .map(|(name, gate)| (name.clone(), gate.codes.clone()))
                .collect(),
            rows: result.judged.measured().rows.len(),
            summary: result.judged.measured().summary.clone(),
        };
        Self { schema_version: 1, html, results: results.iter().map(one).collect(), note: ONE_RUN_NOTE.to_owned() }
    }
}

/// The word of an evidence class as documents write it.
pub(crate) fn class_word(class: EvidenceClass) -> String {
    serde_json::to_value(class).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}
