//! The figures of a run: each metric over its complete rows.

use std::collections::BTreeMap;

use b70_manifest::calibration::{CalibrationRow, MetricSummary, UNCLASSIFIED};
use serde_json::{Map, json};

use crate::stats::{ClassBalanced, Summary, class_balanced};

/// The primary metric: 99 intervals over the time from the 1st to the 100th event.
pub(crate) const PRIMARY_METRIC: &str = "tok_s_1_100_intervals_after_ttft";
/// The same with every prompt class of one weight: the summary of the class medians.
pub(crate) const CLASS_BALANCED_METRIC: &str = "class_balanced_tok_s_1_100_intervals_after_ttft";
/// The older figure, interval × 100/99, under the name that says so.
pub(crate) const LEGACY_METRIC: &str = "tok_s_1_100_after_ttft_legacy_inclusive_events";

/// Summaries of a run by metric; failed rows contribute nothing. Rates are per second, `_ms` milliseconds.
///
/// Summarises rows as they are; call [`recompute_row`](crate::recompute_row) on rows from a file first.
pub fn summarise(rows: &[CalibrationRow]) -> BTreeMap<String, MetricSummary> {
    let rows: Vec<&CalibrationRow> = rows.iter().filter(|row| row.error.is_none()).collect();
    let over = |value: fn(&CalibrationRow) -> Option<f64>| {
        plain(&Summary::of(&rows.iter().filter_map(|row| value(row)).collect::<Vec<_>>()))
    };
    let classed = rows.iter().filter_map(|row| {
        let class = row.prompt_class.as_deref().unwrap_or(UNCLASSIFIED);
        Some((class, row.tok_s_1_100_intervals_after_ttft?))
    });
    let mut labelled = over(|row| row.tok_s_1_100_after_ttft_legacy_inclusive_events);
    labelled
        .extra
        .insert("label".to_owned(), json!("legacy: 100 events over 99 intervals, 100/99 of the interval rate"));
    let mut old_name = labelled.clone();
    old_name.extra.insert("same_as".to_owned(), json!(LEGACY_METRIC));
    let summaries = [
        (PRIMARY_METRIC, over(|row| row.tok_s_1_100_intervals_after_ttft)),
        (CLASS_BALANCED_METRIC, balanced(class_balanced(classed))),
        (LEGACY_METRIC, labelled),
        ("tok_s_1_100_after_ttft", old_name),
        ("tok_s_after_ttft_full", over(|row| row.tok_s_after_ttft_full)),
        ("tok_s_wall_full", over(|row| row.tok_s_wall_full)),
        ("ttft_ms", over(|row| row.ttft_s.map(|seconds| seconds * 1e3))),
        ("burst_gap_ms", over(|row| row.burst_gap_s_median.map(|seconds| seconds * 1e3))),
        ("tokens_per_burst", over(|row| row.tokens_per_burst)),
        ("prompt_tokens", over(|row| row.prompt_tokens.map(|count| count as f64))),
        ("completion_tokens", over(|row| row.completion_tokens.map(|count| count as f64))),
        ("draft_n", over(|row| row.draft_n.map(|count| count as f64))),
        ("draft_n_accepted", over(|row| row.draft_n_accepted.map(|count| count as f64))),
        (
            "draft_acceptance",
            over(|row| {
                let drafted = row.draft_n.filter(|drafted| *drafted > 0)?;
                Some(row.draft_n_accepted? as f64 / drafted as f64)
            }),
        ),
    ];
    summaries.into_iter().map(|(name, summary)| (name.to_owned(), summary)).collect()
}

fn plain(summary: &Summary) -> MetricSummary {
    MetricSummary {
        count: summary.count as u64,
        p10: summary.p10,
        median: summary.median,
        mean: summary.mean,
        min: summary.min,
        max: summary.max,
        stdev: summary.stdev,
        extra: Map::new(),
    }
}

fn balanced(balanced: ClassBalanced) -> MetricSummary {
    let mut summary = plain(&balanced.summary);
    summary.extra.insert("aggregation".to_owned(), json!(balanced.aggregation));
    summary.extra.insert("class_medians".to_owned(), json!(balanced.class_medians));
    summary.extra.insert("class_prompt_counts".to_owned(), json!(balanced.class_prompt_counts));
    summary
}
