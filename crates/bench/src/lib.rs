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
//! use b70_bench::{Bursts, Row, RunSummary, Suite, bursts, window_rates};
//!
//! let suite = Suite::builtin();
//! assert!(suite.prompts.len() >= 12);
//!
//! // 120 tokens, three every 60 ms.
//! let offsets: Vec<f64> = (0..120).map(|token| 1.0 + f64::from(token / 3) * 0.060).collect();
//! let Bursts { tokens_per_burst, median_cycle_s, .. } = bursts(&offsets, 100, 0.020);
//! assert_eq!(tokens_per_burst, Some(3.0));
//! assert!((median_cycle_s.unwrap() - 0.060).abs() < 1e-9);
//!
//! let mut row = Row { chunk_offsets_s: offsets, elapsed_s: Some(4.0), ..Row::default() };
//! row.recompute(100);
//! let summary = RunSummary::of(&[row]);
//! assert_eq!(summary.tok_s_1_100_intervals_after_ttft.count, 1);
//! ```
//!
//! # Limits
//!
//! An event is a text delta or a token id; a server that packs several tokens into one delta without ids is undercounted.
//! Intervals rest on the card as unit: with four cards they are wide, and that is what four cards can say.

#![forbid(unsafe_code)]

mod compare;
mod crossover;
mod gates;
mod metrics;
mod row;
mod stats;
mod suite;
mod summary;

pub use compare::{
    BOOTSTRAP_DECIDES_FROM_CARDS, CardComparison, CompareError, CompareOptions, CompareRun, Comparison, FloorRule,
    ONE_RUN_NOTE, Reason, Verdict, aa_floor, compare,
};
pub use crossover::{
    BootstrapInterval, CardUnits, CrossoverEstimate, PairedUnit, crossover_estimate, hierarchical_bootstrap,
};
pub use gates::{
    Arm, GateFinding, GateReport, IdentityFacts, MIN_CLASSES, MIN_PROMPTS, PROMOTION_MAX_TOKENS, PROMOTION_WINDOW,
    Placement, RunFacts, cached_zero, crossover_completeness, evidence_class, identity, realistic_final, screening,
};
pub use metrics::{BURST_GAP_S, Bursts, WINDOW_EVENTS, WindowRates, bursts, window_rates};
pub use row::{Row, RowFailure, TIMING_TEXT, TIMING_TOKENS};
pub use stats::{
    ClassBalanced, Summary, UNCLASSIFIED, class_balanced, mean, median, noise_floor, percentile, stdev, t_quantile,
};
pub use suite::{Suite, SuiteError, SuitePrompt};
pub use summary::RunSummary;
