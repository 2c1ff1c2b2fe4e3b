//! The figures of a result, in the order in which every report shows them.

use b70_manifest::calibration::MetricSummary;

use super::text::number;
use crate::load::LoadedResult;
use crate::summary::{CLASS_BALANCED_METRIC, LEGACY_METRIC, PRIMARY_METRIC};

/// A column of a report.
pub(super) struct Figure {
    /// Its head in a terminal.
    pub(super) short: &'static str,
    /// Its head on a page.
    pub(super) long: &'static str,
    value: fn(&LoadedResult) -> Option<f64>,
    digits: usize,
}

impl Figure {
    /// What stands in the row of a result.
    pub(super) fn text(&self, result: &LoadedResult) -> String {
        number((self.value)(result), self.digits)
    }
}

const fn figure(
    short: &'static str,
    long: &'static str,
    digits: usize,
    value: fn(&LoadedResult) -> Option<f64>,
) -> Figure {
    Figure { short, long, value, digits }
}

/// Rates first: the primary metric, then what is told beside it.
pub(super) const FIGURES: [Figure; 11] = [
    figure("median", "median", 2, |result| primary(result)?.median),
    figure("p10", "p10", 2, |result| primary(result)?.p10),
    figure("mean", "mean", 2, |result| primary(result)?.mean),
    figure("balanced", "balanced", 2, |result| median_of(result, CLASS_BALANCED_METRIC)),
    figure("legacy", "legacy", 2, |result| median_of(result, LEGACY_METRIC)),
    figure("after ttft", "after TTFT", 2, |result| median_of(result, "tok_s_after_ttft_full")),
    figure("wall", "wall", 2, |result| median_of(result, "tok_s_wall_full")),
    figure("ttft ms", "TTFT ms", 1, |result| median_of(result, "ttft_ms")),
    figure("gap ms", "gap ms", 2, |result| median_of(result, "burst_gap_ms")),
    figure("tok/burst", "tokens a burst", 2, |result| median_of(result, "tokens_per_burst")),
    figure("accepted", "accepted %", 1, |result| median_of(result, "draft_acceptance").map(|share| share * 100.0)),
];

fn primary(result: &LoadedResult) -> Option<&MetricSummary> {
    result.judged.measured().summary.get(PRIMARY_METRIC)
}

fn median_of(result: &LoadedResult, metric: &str) -> Option<f64> {
    result.judged.measured().summary.get(metric)?.median
}
