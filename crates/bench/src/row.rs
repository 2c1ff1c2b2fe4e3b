//! One response as a result file keeps it: raw offsets first, figures made from them.

use b70_client::{EventKind, Reported, StreamEvent, StreamFailure, StreamRecord, Timings, TokenUsage};
use b70_manifest::Sha256Hex;
use b70_manifest::calibration::CalibrationRow;
use serde_json::{Map, Value, json};

use crate::metrics::{BURST_GAP_S, Bursts, WindowRates, bursts, window_rates};
use crate::suite::SuitePrompt;

/// The offsets come from the events that brought text.
pub(crate) const TIMING_TEXT: &str = "openai_stream_content_or_reasoning_delta";
/// The offsets come from the token ids in the events; ids of one event share its offset.
pub(crate) const TIMING_TOKENS: &str = "openai_stream_token_ids_chunk_timestamp";

/// Which request of a run a row is of.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The prompt.
    pub prompt: &'a SuitePrompt,
    /// Its place in the suite, from 0.
    pub index: usize,
    /// The repetition of the suite, from 0.
    pub repeat: u64,
    /// The most tokens of the answer.
    pub max_tokens: u64,
    /// Events of the metric window.
    pub window: usize,
}

/// The row of a response that ended well. An answer that the server cut short of `max_tokens` with the finish reason
/// `length` ended because the context was full: it is marked as failed (`context_too_small`).
pub fn complete_row(asked: Asked<'_>, record: &StreamRecord) -> CalibrationRow {
    let mut row = row_of(asked, record);
    let cut = row.finish_reasons.iter().any(|reason| reason == "length")
        && row.completion_tokens.is_some_and(|tokens| tokens < asked.max_tokens);
    if cut {
        let tokens = row.completion_tokens.unwrap_or_default();
        let message = format!(
            "the answer ended by `length` after {tokens} of {} tokens: the context is full; start the server with a larger -c",
            asked.max_tokens
        );
        fail(&mut row, "context_too_small", message);
    }
    row
}

/// The row of a response that failed, with what had arrived. `error_code` is the client's stable code.
pub fn failed_row(asked: Asked<'_>, failure: &StreamFailure) -> CalibrationRow {
    let mut row = row_of(asked, &failure.record);
    fail(&mut row, failure.error.code(), failure.error.to_string());
    row
}

/// Marks a row as incomplete.
pub(crate) fn fail(row: &mut CalibrationRow, code: &str, message: String) {
    row.error = Some(message);
    row.extra.insert("error_code".to_owned(), json!(code));
}

/// Why a row is incomplete, as a stable word: the client's code, `context_too_small`, or `unknown` for a row of another
/// writer that gives only a text. `None` for a complete row.
pub fn error_code(row: &CalibrationRow) -> Option<&str> {
    row.error.as_ref()?;
    Some(row.extra.get("error_code").and_then(Value::as_str).unwrap_or("unknown"))
}

/// A row about which nothing is known but what was asked.
pub(crate) fn bare_row(asked: Asked<'_>) -> CalibrationRow {
    CalibrationRow {
        prompt_index: asked.index as u64,
        prompt_id: asked.prompt.id.clone(),
        prompt_class: Some(asked.prompt.prompt_class.clone()),
        prompt_sha256: asked.prompt.sha256(),
        repeat: Some(asked.repeat),
        error: None,
        request_id: None,
        response_x_request_id: None,
        response_id_first: None,
        response_id_last: None,
        request_started_epoch_s: None,
        first_text_epoch_s: None,
        request_ended_epoch_s: None,
        elapsed_s: None,
        ttft_s: None,
        post_ttft_s: None,
        chunk_count: None,
        stream_token_id_count: None,
        content_delta_count: None,
        reasoning_delta_count: None,
        chunk_offsets_s: Vec::new(),
        token_id_offsets_s: Vec::new(),
        token_ids: None,
        logprob_content: None,
        finish_reasons: Vec::new(),
        usage: None,
        timings: None,
        prompt_tokens: None,
        completion_tokens: None,
        cached_tokens: None,
        tok_s_wall_full: None,
        tok_s_after_ttft_full: None,
        tok_s_1_100_after_ttft: None,
        tok_s_1_100_after_ttft_legacy_inclusive_events: None,
        tok_s_1_100_intervals_after_ttft: None,
        burst_gap_s_median: None,
        tokens_per_burst: None,
        draft_n: None,
        draft_n_accepted: None,
        sha256: None,
        text: None,
        text_preview: None,
        chunk_count_equals_completion_tokens: None,
        metric_chunk_events_at_least_window: None,
        metric_token_id_events_at_least_window: None,
        token_timing_source: None,
        extra: Map::new(),
    }
}

fn row_of(asked: Asked<'_>, record: &StreamRecord) -> CalibrationRow {
    let text = record.full_text();
    let at = |offset: f64| record.started_unix_s + offset;
    let count = |test: fn(&StreamEvent) -> bool| Some(record.events.iter().filter(|event| test(event)).count() as u64);
    // A negative id would not be a token; then none is recorded and the offsets still are.
    let ids: Option<Vec<u64>> = record.token_ids().into_iter().map(|id| u64::try_from(id).ok()).collect();
    let mut row = CalibrationRow {
        request_id: record.request.request_id.clone(),
        response_x_request_id: record.response_request_id.clone(),
        response_id_first: record.response_id_first.clone(),
        response_id_last: record.response_id_last.clone(),
        request_started_epoch_s: Some(record.started_unix_s),
        first_text_epoch_s: record.first_output_s().map(at),
        request_ended_epoch_s: Some(at(record.ended_s)),
        elapsed_s: Some(record.ended_s),
        chunk_offsets_s: record.text_offsets(),
        token_id_offsets_s: record.token_offsets(),
        token_ids: ids.filter(|ids| !ids.is_empty()),
        content_delta_count: count(|event| !event.content.is_empty()),
        reasoning_delta_count: count(|event| event.content.is_empty() && !event.reasoning.is_empty()),
        finish_reasons: record.finish_reasons.clone(),
        text_preview: Some(text.chars().take(320).collect()),
        sha256: Some(Sha256Hex::of(text.as_bytes())),
        text: Some(text),
        usage: record.usage.as_ref().map(TokenUsage::to_openai),
        timings: record.timings.as_ref().map(|timings| json!(timings)),
        ..bare_row(asked)
    };
    row.extra.insert("connect_s".to_owned(), json!(record.connect_s));
    let pings = record.events.iter().filter(|event| event.kind == EventKind::Comment).count();
    row.extra.insert("ping_count".to_owned(), json!(pings));
    recompute_row(&mut row, asked.window);
    row
}

/// Computes every figure of a row again from its raw offsets, its `usage` and its `timings`, in place. A row from a file is
/// a claim until this has run; gates and comparisons run on rows that went through it.
///
/// What the row lacks stays as it is claimed only where nothing could have made it: counts without `usage`, and the reused
/// tokens without either source, become absent.
pub fn recompute_row(row: &mut CalibrationRow, window: usize) {
    let usage = row.usage.as_ref().map(TokenUsage::from_openai).unwrap_or_default();
    let timings: Timings =
        row.timings.clone().and_then(|timings| serde_json::from_value(timings).ok()).unwrap_or_default();
    row.prompt_tokens = usage.prompt_tokens.count();
    row.completion_tokens = usage.completion_tokens.count();
    row.cached_tokens = reported(&usage.cached_tokens).or_else(|| reported(&timings.cache_n));
    row.draft_n = timings.draft_n.count();
    row.draft_n_accepted = timings.draft_n_accepted.count();
    row.chunk_count = Some(row.chunk_offsets_s.len() as u64);
    row.stream_token_id_count = Some(row.token_id_offsets_s.len() as u64);
    let by_tokens = !row.token_id_offsets_s.is_empty();
    row.token_timing_source = Some(if by_tokens { TIMING_TOKENS } else { TIMING_TEXT }.to_owned());

    let first = |offsets: &[f64]| offsets.first().copied();
    row.ttft_s = match (first(&row.chunk_offsets_s), first(&row.token_id_offsets_s)) {
        (Some(chunk), Some(token)) => Some(chunk.min(token)),
        (chunk, token) => chunk.or(token),
    };
    row.post_ttft_s = row.elapsed_s.zip(row.ttft_s).map(|(end, first)| end - first);
    let WindowRates { interval, legacy } = window_rates(metric_offsets(row), window);
    row.tok_s_1_100_intervals_after_ttft = interval;
    row.tok_s_1_100_after_ttft = legacy;
    row.tok_s_1_100_after_ttft_legacy_inclusive_events = legacy;
    let Bursts { count, median_cycle_s, mean_cycle_s, tokens_per_burst } =
        bursts(metric_offsets(row), window, BURST_GAP_S);
    row.burst_gap_s_median = median_cycle_s;
    row.tokens_per_burst = tokens_per_burst;
    row.extra.insert("burst_gap_s_mean".to_owned(), json!(mean_cycle_s));
    row.extra.insert("burst_count".to_owned(), json!(count));

    let completed = row.completion_tokens.filter(|count| *count > 0);
    let rate = |seconds: Option<f64>| {
        let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0)?;
        Some(completed? as f64 / seconds)
    };
    row.tok_s_wall_full = rate(row.elapsed_s);
    row.tok_s_after_ttft_full = rate(row.post_ttft_s);
    row.chunk_count_equals_completion_tokens = Some(row.completion_tokens == row.chunk_count);
    row.metric_chunk_events_at_least_window = Some(row.chunk_offsets_s.len() >= window);
    row.metric_token_id_events_at_least_window = Some(row.token_id_offsets_s.len() >= window);
}

fn reported(count: &Reported) -> Option<Value> {
    match count {
        Reported::Missing => None,
        Reported::Count(count) => Some(json!(count)),
        Reported::NotACount(value) => Some(value.clone()),
    }
}

/// The offsets the metric rests on: of the token ids if there are any, else of the events with text.
pub(crate) fn metric_offsets(row: &CalibrationRow) -> &[f64] {
    if row.token_id_offsets_s.is_empty() { &row.chunk_offsets_s } else { &row.token_id_offsets_s }
}

/// Mean time from burst to burst within the window, in seconds.
pub(crate) fn burst_gap_mean_s(row: &CalibrationRow) -> Option<f64> {
    row.extra.get("burst_gap_s_mean").and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt() -> SuitePrompt {
        SuitePrompt { id: "p".to_owned(), prompt_class: "prose".to_owned(), prompt: "hello".to_owned() }
    }

    fn row() -> CalibrationRow {
        let prompt = prompt();
        let asked = Asked { prompt: &prompt, index: 0, repeat: 0, max_tokens: 512, window: 100 };
        let mut row = CalibrationRow {
            elapsed_s: Some(3.5),
            chunk_offsets_s: (0..120).map(|event| 1.0 + f64::from(event) * 0.02).collect(),
            usage: Some(
                json!({"completion_tokens": 121, "prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 0}}),
            ),
            ..bare_row(asked)
        };
        recompute_row(&mut row, 100);
        row
    }

    #[test]
    fn figures_come_from_the_offsets() {
        let row = row();
        assert!((row.tok_s_1_100_intervals_after_ttft.unwrap() - 50.0).abs() < 1e-9);
        assert!((row.tok_s_1_100_after_ttft.unwrap() - 5000.0 / 99.0).abs() < 1e-9);
        assert_eq!((row.ttft_s, row.post_ttft_s), (Some(1.0), Some(2.5)));
        assert!((row.tok_s_wall_full.unwrap() - 121.0 / 3.5).abs() < 1e-12);
        assert!((row.tok_s_after_ttft_full.unwrap() - 121.0 / 2.5).abs() < 1e-12);
        assert_eq!(row.token_timing_source.as_deref(), Some(TIMING_TEXT));
        assert_eq!(row.chunk_count_equals_completion_tokens, Some(false));
        assert_eq!(row.metric_chunk_events_at_least_window, Some(true));
    }

    #[test]
    fn a_step_of_the_wall_clock_changes_no_figure() {
        let mut stepped = row();
        stepped.request_started_epoch_s = Some(1e9);
        stepped.first_text_epoch_s = Some(1e9 - 3600.0);
        stepped.request_ended_epoch_s = Some(0.0);
        let before = stepped.clone();
        recompute_row(&mut stepped, 100);
        assert_eq!(stepped, before);
        assert_eq!(stepped.tok_s_wall_full, row().tok_s_wall_full);
    }

    #[test]
    fn a_claim_in_a_file_is_overwritten() {
        let mut claimed = row();
        claimed.tok_s_1_100_intervals_after_ttft = Some(999.0);
        claimed.cached_tokens = Some(json!(0));
        claimed.usage = Some(json!({"completion_tokens": 121, "prompt_tokens_details": {"cached_tokens": 7}}));
        let text = serde_json::to_string(&claimed).unwrap();
        let mut read: CalibrationRow = serde_json::from_str(&text).unwrap();
        recompute_row(&mut read, 100);
        assert_eq!(read.cached_tokens, Some(json!(7)));
        assert_eq!(read.tok_s_1_100_intervals_after_ttft, row().tok_s_1_100_intervals_after_ttft);
    }

    #[test]
    fn token_ids_take_over_the_timing() {
        let mut row = row();
        row.token_id_offsets_s = (0..100).map(|event| 0.9 + f64::from(event) * 0.01).collect();
        recompute_row(&mut row, 100);
        assert!((row.tok_s_1_100_intervals_after_ttft.unwrap() - 100.0).abs() < 1e-9);
        assert_eq!((row.ttft_s, row.token_timing_source.as_deref()), (Some(0.9), Some(TIMING_TOKENS)));
    }

    #[test]
    fn a_published_row_reads_and_recomputes() {
        let document = include_str!("../tests/data/lab-2026-07-12-card0-row0.json");
        let document: Value = serde_json::from_str(document).unwrap();
        let claimed: CalibrationRow = serde_json::from_value(document["row"].clone()).unwrap();
        let mut row = claimed.clone();
        recompute_row(&mut row, 100);
        // Published offsets were rounded to microseconds.
        let close =
            |found: Option<f64>, published: Option<f64>| (found.unwrap() / published.unwrap() - 1.0).abs() < 1e-5;
        assert!(close(row.tok_s_1_100_after_ttft, claimed.tok_s_1_100_after_ttft));
        assert!(close(row.tok_s_1_100_after_ttft, Some(54.2390)));
        assert!(close(row.tok_s_1_100_intervals_after_ttft, Some(54.238_960 * 0.99)));
        assert!(close(row.ttft_s, claimed.ttft_s) && close(row.post_ttft_s, claimed.post_ttft_s));
        assert!(close(row.tok_s_after_ttft_full, claimed.tok_s_after_ttft_full));
        assert!(close(row.tok_s_wall_full, claimed.tok_s_wall_full));
        assert_eq!((row.cached_tokens.clone(), row.chunk_count), (Some(json!(0)), Some(128)));
        assert_eq!(row.chunk_count_equals_completion_tokens, Some(true));
        // Three drafted tokens per cycle of 59 ms.
        assert_eq!(row.extra["burst_count"], 32);
        assert!((row.burst_gap_s_median.unwrap() - 0.0590).abs() < 1e-4, "{:?}", row.burst_gap_s_median);
    }

    #[test]
    fn nothing_arrived() {
        let prompt = prompt();
        let mut row = bare_row(Asked { prompt: &prompt, index: 0, repeat: 0, max_tokens: 512, window: 100 });
        recompute_row(&mut row, 100);
        assert_eq!((row.ttft_s, row.tok_s_wall_full, row.burst_gap_s_median), (None, None, None));
        assert_eq!((row.cached_tokens, row.tok_s_1_100_intervals_after_ttft), (None, None));
    }
}
