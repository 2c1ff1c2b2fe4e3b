//! The figures of a run: each metric over its rows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::stats::{ClassBalanced, Summary, class_balanced};

/// Summaries of a run; failed rows contribute nothing. Rates per second, gaps and TTFT in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Primary: 99 intervals.
    pub tok_s_1_100_intervals_after_ttft: Summary,
    /// Primary, every prompt class with the same weight.
    pub class_balanced_tok_s_1_100_intervals_after_ttft: ClassBalanced,
    /// Legacy, under its old name.
    pub tok_s_1_100_after_ttft: Summary,
    /// Legacy, under a name that says so.
    pub tok_s_1_100_after_ttft_legacy_inclusive_events: Summary,
    /// All tokens over the time after the first.
    pub tok_s_after_ttft_full: Summary,
    /// All tokens over the whole time.
    pub tok_s_wall_full: Summary,
    /// Time to the first text or token.
    pub ttft_ms: Summary,
    /// Median cycle of each row.
    pub cycle_gap_ms: Summary,
    /// Tokens per burst of each row.
    pub tokens_per_burst: Summary,
    /// Accepted over drafted tokens, for rows that report both.
    pub draft_acceptance: Summary,
}

impl RunSummary {
    /// Summarises rows as they are; call [`Row::recompute`] on rows from a file first.
    pub fn of(rows: &[Row]) -> Self {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.failure.is_none()).collect();
        let over = |value: fn(&Row) -> Option<f64>| -> Summary {
            Summary::of(&rows.iter().filter_map(|row| value(row)).collect::<Vec<_>>())
        };
        let legacy = over(|row| row.tok_s_1_100_after_ttft_legacy_inclusive_events);
        let classed = rows
            .iter()
            .filter_map(|row| row.tok_s_1_100_intervals_after_ttft.map(|rate| (row.prompt_class.as_str(), rate)));
        Self {
            tok_s_1_100_intervals_after_ttft: over(|row| row.tok_s_1_100_intervals_after_ttft),
            class_balanced_tok_s_1_100_intervals_after_ttft: class_balanced(classed),
            tok_s_1_100_after_ttft: legacy.clone(),
            tok_s_1_100_after_ttft_legacy_inclusive_events: legacy,
            tok_s_after_ttft_full: over(|row| row.tok_s_after_ttft_full),
            tok_s_wall_full: over(|row| row.tok_s_wall_full),
            ttft_ms: over(|row| row.ttft_s.map(|seconds| seconds * 1e3)),
            cycle_gap_ms: over(|row| row.cycle_gap_s.map(|seconds| seconds * 1e3)),
            tokens_per_burst: over(|row| row.tokens_per_burst),
            draft_acceptance: over(|row| {
                let drafted = row.draft_n.count().filter(|drafted| *drafted > 0)?;
                Some(row.draft_n_accepted.count()? as f64 / drafted as f64)
            }),
        }
    }
}
