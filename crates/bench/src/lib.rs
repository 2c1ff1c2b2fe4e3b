//! Cold calibration of llama-server-like endpoints: metrics, gates, card-swap comparison, reports.
//!
//! The measuring core is pure: it turns arrival offsets into figures, figures into summaries, rows into gate verdicts and
//! the runs of a crossover into a comparison. Nothing in it touches a clock, a network or a process, so that every figure
//! of a result file can be computed again from its raw offsets.
//!
//! # Words
//!
//! - *cold*: the prompt was never seen by the server; no prompt token came from a cache.
//! - *window*: the first 100 events after the request; the primary rate is its 99 intervals over their time.
//! - *legacy rate*: 100 over the same time, as older results state it; too high by 100/99 and always labelled.
//! - *burst*: events without a pause of more than 20 ms between them; with speculation, one verification's tokens.
//! - *arm*: control or candidate. *Period*: one run of all cards; 1 and 2 are a pair whose arms are swapped.
//! - *card*: the unit of every statistic. Prompts on one card are not independent samples of cards.
//!
//! # Example
//!
//! ```
//! use b70_bench::{Bursts, Suite, bursts};
//!
//! let suite = Suite::builtin();
//! assert!(suite.prompts.len() >= 12);
//!
//! // 120 tokens, three every 60 ms.
//! let offsets: Vec<f64> = (0..120).map(|token| 1.0 + f64::from(token / 3) * 0.060).collect();
//! let Bursts { tokens_per_burst, median_cycle_s, .. } = bursts(&offsets, 100, 0.020);
//! assert_eq!(tokens_per_burst, Some(3.0));
//! assert!((median_cycle_s.unwrap() - 0.060).abs() < 1e-9);
//! ```
//!
//! # Limits
//!
//! An event is a text delta or a token id; a server that packs several tokens into one delta without ids is undercounted.
//! Intervals rest on the card as unit: with four cards they are wide, and that is what four cards can say. Sensors are read
//! between requests, never during one. Identity is looked up on this machine alone; of a server elsewhere only what it says
//! and what the caller vouches for is on record.

#![forbid(unsafe_code)]

mod calibrate;
mod compare;
mod compare_files;
mod crossover;
mod explain;
mod export;
mod identity;
mod load;
mod metrics;
mod report;
mod row;
mod stats;
mod suite;
mod summary;
mod telemetry;

pub use b70_manifest::calibration::ComparisonVerdict;
pub use calibrate::{
    CalibrateError, CalibrateOptions, Calibration, CalibrationEvent, CalibrationPlan, CalibrationReport, EndpointPlan,
    RunStatus, Target, parse_endpoint, targets_of_workers, write_document,
};
pub use compare::{
    CardComparison, CompareError, CompareOptions, CompareRun, ComparisonReason, CrossoverComparison, FloorRule,
    aa_floor, compare,
};
pub use compare_files::compare_files;
pub use crossover::{BootstrapEstimate, CardUnits, CrossoverEstimate, PairedUnit};
pub use export::{ExportError, LocalMaxxing, Submission, export_localmaxxing};
pub use identity::{IdentityInputs, recipe_sha256};
pub use load::{
    Disagreement, LoadError, LoadedResult, ResultSource, VerifyReport, load_arms, load_folder, load_result,
};
pub use metrics::{Bursts, WindowRates, bursts};
pub use report::{ReportDocument, ReportedResult, html_report, text_report};
pub use row::{Asked, complete_row, error_code, failed_row, recompute_row};
pub use stats::{ClassBalanced, Summary, class_balanced, mean, median, noise_floor, percentile, stdev};
pub use suite::{Suite, SuiteError, SuitePrompt, SuiteReport};
pub use summary::summarise;

/// JSON Schemas of what this crate's commands print, for `docs/schemas/output`.
pub fn output_schemas() -> Vec<b70_manifest::schema::SchemaEntry> {
    use b70_manifest::schema::output;
    vec![
        output::<CalibrationPlan>("bench-plan"),
        output::<CalibrationReport>("bench-calibrate"),
        output::<VerifyReport>("bench-verify"),
        output::<ReportDocument>("bench-report"),
        output::<SuiteReport>("bench-suite"),
        output::<LocalMaxxing>("bench-export"),
    ]
}
