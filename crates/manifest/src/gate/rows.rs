use std::collections::BTreeSet;

use serde_json::Value;

use super::code::Findings;
use super::{Code, GateOutcome};
use crate::calibration::{CalibrationRow, Measured};

/// Relative difference up to which a recorded rate agrees with its raw offsets: far below the 1 % between the two ways
/// of counting, far above what rounding to four decimals does.
const RATE_TOLERANCE: f64 = 1e-4;

/// Nothing was reused: every reuse count a response reports is the integer 0, and each reports at least one.
///
/// Counts are `usage.prompt_tokens_details.cached_tokens`, `timings.cache_n`, and the row's own `cached_tokens`. An empty
/// list of rows does not pass.
pub fn cached_zero(rows: &[CalibrationRow]) -> GateOutcome {
    cached_zero_findings(rows).outcome()
}

fn cached_zero_findings(rows: &[CalibrationRow]) -> Findings {
    let mut findings = Findings::default();
    findings.check(!rows.is_empty(), Code::NoRows, "there are no rows");
    for (index, row) in rows.iter().enumerate() {
        let counts = [
            ("usage", row.usage.as_ref().and_then(|usage| usage.pointer("/prompt_tokens_details/cached_tokens"))),
            ("timings", row.timings.as_ref().and_then(|timings| timings.get("cache_n"))),
            ("the row", row.cached_tokens.as_ref()),
        ];
        let place = place(index, row);
        if counts.iter().all(|(_, count)| count.is_none()) {
            findings.add(Code::CachedCountMissing, format!("{place}: no count of reused tokens was reported"));
        }
        for (source, count) in counts.into_iter().filter_map(|(source, count)| count.map(|count| (source, count))) {
            match count {
                Value::Number(number) if number.as_u64() == Some(0) => {}
                Value::Number(number) if number.is_u64() || number.is_i64() => {
                    findings.add(Code::CachedCountNotZero, format!("{place}: {source} reports {number} cached tokens"));
                }
                other => findings.add(
                    Code::CachedCountNotAnInteger,
                    format!("{place}: {source} reports {other} as its count of cached tokens"),
                ),
            }
        }
    }
    findings
}

/// The rows are fresh responses: every selected prompt ran once and to its end, every row has the rate over the window
/// and agrees with its raw offsets, nothing was reused.
pub fn screening(measured: &Measured) -> GateOutcome {
    screening_findings(measured).outcome()
}

pub(super) fn screening_findings(measured: &Measured) -> Findings {
    let rows = &measured.rows;
    let window = measured.settings.metric_window;
    let mut findings = cached_zero_findings(rows);

    let complete: BTreeSet<&str> =
        rows.iter().filter(|row| row.error.is_none()).map(|row| row.prompt_id.as_str()).collect();
    let all: Vec<String>;
    let selected = if let Some(selected) = &measured.suite.selected {
        selected
    } else {
        all = measured.suite.prompts.iter().map(|prompt| prompt.id.clone()).collect();
        &all
    };
    for id in selected.iter().filter(|id| !complete.contains(id.as_str())) {
        findings.add(Code::SelectedPromptDidNotRun, format!("prompt {id:?} has no complete row"));
    }

    let mut seen = BTreeSet::new();
    for (index, row) in rows.iter().enumerate() {
        let place = place(index, row);
        if let Some(error) = &row.error {
            findings.add(Code::RowFailed, format!("{place}: {error}"));
        }
        let processed = row.timings.as_ref().and_then(|timings| timings.get("prompt_n")).and_then(Value::as_u64);
        if let (Some(processed), Some(prompt)) = (processed, row.prompt_tokens) {
            findings.check(
                processed == prompt,
                Code::PromptNotAllProcessed,
                format!("{place}: {processed} of {prompt} prompt tokens were processed"),
            );
        }
        if !seen.insert((row.prompt_sha256, row.repeat.unwrap_or(0))) {
            findings.add(Code::PromptHashesNotDistinct, format!("{place}: an earlier row has the same prompt"));
        }
        findings.check(
            row.completion_tokens.is_some_and(|tokens| tokens >= window),
            Code::CompletionTokensBelowWindow,
            format!("{place}: {} answer tokens, the window is {window}", text(row.completion_tokens)),
        );
        check_rate(&mut findings, row, window, &place);
        if measured.settings.require_natural_eos {
            let known = |reason: &String| matches!(reason.as_str(), "stop" | "length");
            findings.check(
                !row.finish_reasons.is_empty() && row.finish_reasons.iter().all(known),
                Code::FinishReasonUnknown,
                format!("{place}: finish reasons {:?}", row.finish_reasons),
            );
        }
    }
    findings
}

fn check_rate(findings: &mut Findings, row: &CalibrationRow, window: u64, place: &str) {
    let offsets = timing_offsets(row);
    let ordered = offsets.windows(2).all(|pair| pair[0] <= pair[1]) && offsets.iter().all(|offset| offset.is_finite());
    findings.check(
        ordered && !offsets.is_empty(),
        Code::OffsetsUnusable,
        format!("{place}: the raw offsets are missing, decrease or are not numbers"),
    );
    findings.check(
        offsets.len() as u64 >= window,
        Code::EventsBelowWindow,
        format!("{place}: {} events, the window is {window}", offsets.len()),
    );
    let Some(rate) = row.tok_s_1_100_intervals_after_ttft else {
        findings.add(Code::WindowMetricMissing, format!("{place}: no rate over the window"));
        return;
    };
    match interval_rate(offsets, window) {
        Some(computed) => findings.check(
            close(rate, computed, RATE_TOLERANCE),
            Code::RateDisagreesWithOffsets,
            format!("{place}: the rate is given as {rate}, the raw offsets give {computed}"),
        ),
        // Too few events were said above. Events that all came at once, or a window without an interval, give no rate: any
        // that is stated all the same was not measured.
        None if offsets.len() as u64 >= window => findings.add(
            Code::RateDisagreesWithOffsets,
            format!("{place}: the rate is given as {rate}, the raw offsets give none"),
        ),
        None => {}
    }
}

/// The primary rate: `window - 1` intervals over the time from the first to the `window`-th event, in events per second;
/// none when there are too few events or no time passed.
///
/// ```
/// // 100 events, 20 ms apart: 99 intervals in 1.98 s.
/// let offsets: Vec<f64> = (0..100).map(|event| 1.0 + 0.02 * f64::from(event)).collect();
/// let rate = b70_manifest::gate::interval_rate(&offsets, 100).unwrap();
/// assert!((rate - 50.0).abs() < 1e-9);
/// ```
pub fn interval_rate(offsets: &[f64], window: u64) -> Option<f64> {
    let last = usize::try_from(window).ok()?.checked_sub(1).filter(|last| *last > 0)?;
    let duration = offsets.get(last)? - offsets.first()?;
    (duration.is_finite() && duration > 0.0).then(|| last as f64 / duration)
}

/// The events the rate is taken over: token ids when the row says so, otherwise chunks with text.
pub(super) fn timing_offsets(row: &CalibrationRow) -> &[f64] {
    let by_ids = row.token_timing_source.as_deref().is_some_and(|source| source.contains("token_id"));
    if by_ids { &row.token_id_offsets_s } else { &row.chunk_offsets_s }
}

pub(super) fn close(one: f64, two: f64, tolerance: f64) -> bool {
    (one - two).abs() <= tolerance * one.abs().max(two.abs())
}

pub(super) fn place(index: usize, row: &CalibrationRow) -> String {
    format!("row {index} ({})", row.prompt_id)
}

fn text(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}
