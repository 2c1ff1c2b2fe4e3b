//! One response as a result file keeps it: raw offsets first, figures made from them.

use b70_client::{ClientError, EventKind, Reported, StreamFailure, StreamRecord, Timings, Usage};
use b70_manifest::Sha256Hex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::metrics::{BURST_GAP_S, Bursts, WindowRates, bursts, window_rates};
use crate::suite::SuitePrompt;

/// The offsets come from the events that brought text.
pub const TIMING_TEXT: &str = "openai_stream_content_or_reasoning_delta";
/// The offsets come from the token ids in the events; ids of one event share its offset.
pub const TIMING_TOKENS: &str = "openai_stream_token_ids_chunk_timestamp";

/// Why a row is not a complete response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowFailure {
    /// The client's stable code, such as `disconnected` or `timeout_idle`.
    pub code: String,
    /// The whole message.
    pub message: String,
}

impl From<&ClientError> for RowFailure {
    fn from(error: &ClientError) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// One response. Field names are those of the lab's result files where they have one; times in seconds, rates per second,
/// `null` where a figure cannot be computed. Everything below `usage` and `timings` can be computed again from the rest
/// with [`Row::recompute`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Row {
    /// Position in the suite, from 0.
    pub prompt_index: usize,
    /// Id of the prompt.
    pub prompt_id: String,
    /// Class of the prompt.
    pub prompt_class: String,
    /// SHA-256 of the prompt.
    pub prompt_sha256: String,
    /// Which repetition of the suite within the run, from 0. Only repetition 0 can hold first responses.
    pub repeat: usize,
    /// Present if the response is not complete; what arrived until then is in the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<RowFailure>,
    /// Sent as `X-Request-Id`.
    pub request_id: Option<String>,
    /// `X-Request-Id` of the response.
    pub response_x_request_id: Option<String>,
    /// `id` of the first event.
    pub response_id_first: Option<String>,
    /// `id` of the last event.
    pub response_id_last: Option<String>,
    /// Wall clock, unix seconds; for orientation only.
    pub request_started_epoch_s: Option<f64>,
    /// The same plus the offset of the first text.
    pub first_text_epoch_s: Option<f64>,
    /// The same plus the offset of the end.
    pub request_ended_epoch_s: Option<f64>,
    /// Time spent connecting, before the offsets begin.
    pub connect_s: Option<f64>,
    /// From the request's first byte sent to the end of the response.
    pub elapsed_s: Option<f64>,
    /// Offsets of the events with text.
    pub chunk_offsets_s: Vec<f64>,
    /// Offsets of the token ids.
    pub token_id_offsets_s: Vec<f64>,
    /// The token ids.
    pub token_ids: Vec<i64>,
    /// Events whose text belongs to the answer.
    pub content_delta_count: usize,
    /// Events whose text is thinking.
    pub reasoning_delta_count: usize,
    /// Pings and other comments.
    pub ping_count: usize,
    /// Finish reasons.
    pub finish_reasons: Vec<String>,
    /// Thinking and answer as they came.
    pub text: String,
    /// The first 320 characters of it.
    pub text_preview: String,
    /// SHA-256 of the text.
    pub sha256: String,
    /// `usage` as reported, in the form of the `OpenAI` API.
    pub usage: Option<Value>,
    /// `timings` as reported.
    pub timings: Option<Timings>,

    /// `prompt_tokens` of the usage.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub prompt_tokens: Reported,
    /// `completion_tokens` of the usage.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub completion_tokens: Reported,
    /// `prompt_tokens_details.cached_tokens` of the usage.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub cached_tokens: Reported,
    /// `cache_n` of the timings.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub cache_n: Reported,
    /// Drafted tokens.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub draft_n: Reported,
    /// Accepted drafted tokens.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub draft_n_accepted: Reported,
    /// Events with text.
    pub chunk_count: usize,
    /// Token ids.
    pub stream_token_id_count: usize,
    /// [`TIMING_TOKENS`] if the stream carried ids, else [`TIMING_TEXT`].
    pub token_timing_source: String,
    /// Offset of the first text or token id.
    pub ttft_s: Option<f64>,
    /// From the first text to the end.
    pub post_ttft_s: Option<f64>,
    /// The legacy rate under its old name: 100 events over 99 intervals, 1.0101 times too high.
    pub tok_s_1_100_after_ttft: Option<f64>,
    /// The same under a name that says so.
    pub tok_s_1_100_after_ttft_legacy_inclusive_events: Option<f64>,
    /// The primary rate: 99 intervals.
    pub tok_s_1_100_intervals_after_ttft: Option<f64>,
    /// `completion_tokens` over `elapsed_s`.
    pub tok_s_wall_full: Option<f64>,
    /// `completion_tokens` over `post_ttft_s`.
    pub tok_s_after_ttft_full: Option<f64>,
    /// Median time from burst to burst within the window.
    pub cycle_gap_s: Option<f64>,
    /// Mean of the same.
    pub cycle_gap_mean_s: Option<f64>,
    /// Events per complete burst.
    pub tokens_per_burst: Option<f64>,
    /// Bursts in the window.
    pub burst_count: usize,
    /// Informational: an end token may be counted and not be sent as text.
    pub chunk_count_equals_completion_tokens: bool,
    /// Enough events with text for the window.
    pub metric_chunk_events_at_least_window: bool,
    /// Enough token ids for the window.
    pub metric_token_id_events_at_least_window: bool,
}

impl Row {
    /// The row of a complete response; `window` is the number of events of the metric.
    pub fn complete(prompt: &SuitePrompt, index: usize, repeat: usize, record: &StreamRecord, window: usize) -> Self {
        let text = record.full_text();
        let at = |offset: f64| record.started_unix_s + offset;
        let count =
            |test: fn(&b70_client::StreamEvent) -> bool| record.events.iter().filter(|event| test(event)).count();
        let mut row = Self {
            prompt_index: index,
            prompt_id: prompt.id.clone(),
            prompt_class: prompt.prompt_class.clone(),
            prompt_sha256: prompt.sha256().to_string(),
            repeat,
            request_id: record.request.request_id.clone(),
            response_x_request_id: record.response_request_id.clone(),
            response_id_first: record.response_id_first.clone(),
            response_id_last: record.response_id_last.clone(),
            request_started_epoch_s: Some(record.started_unix_s),
            first_text_epoch_s: record.first_output_s().map(at),
            request_ended_epoch_s: Some(at(record.ended_s)),
            connect_s: Some(record.connect_s),
            elapsed_s: Some(record.ended_s),
            chunk_offsets_s: record.text_offsets(),
            token_id_offsets_s: record.token_offsets(),
            token_ids: record.token_ids(),
            content_delta_count: count(|event| !event.content.is_empty()),
            reasoning_delta_count: count(|event| event.content.is_empty() && !event.reasoning.is_empty()),
            ping_count: count(|event| event.kind == EventKind::Comment),
            finish_reasons: record.finish_reasons.clone(),
            text_preview: text.chars().take(320).collect(),
            sha256: Sha256Hex::of(text.as_bytes()).to_string(),
            text,
            usage: record.usage.as_ref().map(Usage::to_openai),
            timings: record.timings.clone(),
            ..Self::default()
        };
        row.recompute(window);
        row
    }

    /// The row of a response that failed, with what had arrived.
    pub fn failed(prompt: &SuitePrompt, index: usize, repeat: usize, failure: &StreamFailure, window: usize) -> Self {
        let mut row = Self::complete(prompt, index, repeat, &failure.record, window);
        row.failure = Some(RowFailure::from(&failure.error));
        row
    }

    /// Computes every figure again from the raw offsets, the usage and the timings. A row from a file is a claim until this
    /// has run; the gates run on rows that went through it.
    pub fn recompute(&mut self, window: usize) {
        let usage = self.usage.as_ref().map(Usage::from_openai).unwrap_or_default();
        let timings = self.timings.clone().unwrap_or_default();
        self.prompt_tokens = usage.prompt_tokens;
        self.completion_tokens = usage.completion_tokens;
        self.cached_tokens = usage.cached_tokens;
        self.cache_n = timings.cache_n;
        self.draft_n = timings.draft_n;
        self.draft_n_accepted = timings.draft_n_accepted;
        self.chunk_count = self.chunk_offsets_s.len();
        self.stream_token_id_count = self.token_id_offsets_s.len();
        let by_tokens = !self.token_id_offsets_s.is_empty();
        if by_tokens { TIMING_TOKENS } else { TIMING_TEXT }.clone_into(&mut self.token_timing_source);

        let first = |offsets: &[f64]| offsets.first().copied();
        let (chunk, token) = (first(&self.chunk_offsets_s), first(&self.token_id_offsets_s));
        self.ttft_s = match (chunk, token) {
            (Some(chunk), Some(token)) => Some(chunk.min(token)),
            (chunk, token) => chunk.or(token),
        };
        self.post_ttft_s = self.elapsed_s.zip(self.ttft_s).map(|(end, first)| end - first);
        let WindowRates { interval, legacy } = window_rates(self.offsets(), window);
        self.tok_s_1_100_intervals_after_ttft = interval;
        self.tok_s_1_100_after_ttft = legacy;
        self.tok_s_1_100_after_ttft_legacy_inclusive_events = legacy;
        let Bursts { count, median_cycle_s, mean_cycle_s, tokens_per_burst } =
            bursts(self.offsets(), window, BURST_GAP_S);
        self.burst_count = count;
        self.cycle_gap_s = median_cycle_s;
        self.cycle_gap_mean_s = mean_cycle_s;
        self.tokens_per_burst = tokens_per_burst;

        let completed = self.completion_tokens.count().filter(|count| *count > 0);
        let rate = |seconds: Option<f64>| {
            let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0)?;
            Some(completed? as f64 / seconds)
        };
        self.tok_s_wall_full = rate(self.elapsed_s);
        self.tok_s_after_ttft_full = rate(self.post_ttft_s);
        self.chunk_count_equals_completion_tokens = self.completion_tokens.count() == Some(self.chunk_count as u64);
        self.metric_chunk_events_at_least_window = self.chunk_count >= window;
        self.metric_token_id_events_at_least_window = self.stream_token_id_count >= window;
    }

    /// The offsets the metric rests on: of the token ids if there are any, else of the events with text.
    pub fn offsets(&self) -> &[f64] {
        if self.token_id_offsets_s.is_empty() { &self.chunk_offsets_s } else { &self.token_id_offsets_s }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row() -> Row {
        let mut row = Row {
            elapsed_s: Some(3.5),
            chunk_offsets_s: (0..120).map(|event| 1.0 + f64::from(event) * 0.02).collect(),
            usage: Some(
                json!({"completion_tokens": 121, "prompt_tokens": 30, "prompt_tokens_details": {"cached_tokens": 0}}),
            ),
            ..Row::default()
        };
        row.recompute(100);
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
        assert_eq!(row.token_timing_source, TIMING_TEXT);
        assert!(!row.chunk_count_equals_completion_tokens && row.metric_chunk_events_at_least_window);
    }

    #[test]
    fn a_claim_in_a_file_is_overwritten() {
        let mut claimed = row();
        claimed.tok_s_1_100_intervals_after_ttft = Some(999.0);
        claimed.cached_tokens = Reported::Count(0);
        claimed.usage = Some(json!({"completion_tokens": 121, "prompt_tokens_details": {"cached_tokens": 7}}));
        let text = serde_json::to_string(&claimed).unwrap();
        let mut read: Row = serde_json::from_str(&text).unwrap();
        read.recompute(100);
        assert_eq!(read.cached_tokens, Reported::Count(7));
        assert_eq!(read.tok_s_1_100_intervals_after_ttft, row().tok_s_1_100_intervals_after_ttft);
    }

    #[test]
    fn token_ids_take_over_the_timing() {
        let mut row = row();
        row.token_id_offsets_s = (0..100).map(|event| 0.9 + f64::from(event) * 0.01).collect();
        row.recompute(100);
        assert!((row.tok_s_1_100_intervals_after_ttft.unwrap() - 100.0).abs() < 1e-9);
        assert_eq!((row.ttft_s, row.token_timing_source.as_str()), (Some(0.9), TIMING_TOKENS));
    }

    #[test]
    fn a_published_row_reads_and_recomputes() {
        let document = include_str!("../tests/data/lab-2026-07-12-card0-row0.json");
        let document: Value = serde_json::from_str(document).unwrap();
        let claimed: Row = serde_json::from_value(document["row"].clone()).unwrap();
        let mut row = claimed.clone();
        row.recompute(100);
        // Published offsets were rounded to microseconds.
        let close =
            |found: Option<f64>, published: Option<f64>| (found.unwrap() / published.unwrap() - 1.0).abs() < 1e-5;
        assert!(close(row.tok_s_1_100_after_ttft, claimed.tok_s_1_100_after_ttft));
        assert!(close(row.tok_s_1_100_after_ttft, Some(54.2390)));
        assert!(close(row.tok_s_1_100_intervals_after_ttft, Some(54.238_960 * 0.99)));
        assert!(close(row.ttft_s, claimed.ttft_s) && close(row.post_ttft_s, claimed.post_ttft_s));
        assert!(close(row.tok_s_after_ttft_full, claimed.tok_s_after_ttft_full));
        assert!(close(row.tok_s_wall_full, claimed.tok_s_wall_full));
        assert_eq!((row.cached_tokens, row.chunk_count), (Reported::Count(0), 128));
        assert!(row.chunk_count_equals_completion_tokens);
        // Three drafted tokens per cycle of 59 ms.
        assert_eq!(row.burst_count, 32);
        assert!((row.cycle_gap_s.unwrap() - 0.0590).abs() < 1e-4, "{:?}", row.cycle_gap_s);
    }

    #[test]
    fn nothing_arrived() {
        let mut row = Row::default();
        row.recompute(100);
        assert_eq!((row.ttft_s, row.tok_s_wall_full, row.cycle_gap_s), (None, None, None));
        assert!(row.cached_tokens.is_missing());
        let text = serde_json::to_value(&row).unwrap();
        assert!(text["tok_s_1_100_intervals_after_ttft"].is_null() && text.get("cached_tokens").is_none());
    }
}
