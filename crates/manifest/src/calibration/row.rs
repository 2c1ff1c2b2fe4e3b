use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::hex::Sha256Hex;

/// One request of a calibration, measured at the client. Times are seconds of a monotonic clock unless a name says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationRow {
    /// Place of the prompt in the suite, from 0.
    #[schemars(example = 0)]
    pub prompt_index: u64,
    /// Id of the prompt.
    #[schemars(example = &"release-plan")]
    pub prompt_id: String,
    /// Class of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"operations")]
    pub prompt_class: Option<String>,
    /// SHA-256 of the prompt's text.
    pub prompt_sha256: Sha256Hex,
    /// Which repetition of the prompt this is, from 0; only the first is a fresh response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 0)]
    pub repeat: Option<u64>,
    /// Why the row is incomplete; absent when the request ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"the connection was closed after 37 events")]
    pub error: Option<String>,
    /// `X-Request-Id` that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"bench-b70-cold-v1-0-release-plan")]
    pub request_id: Option<String>,
    /// `X-Request-Id` that came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"bench-b70-cold-v1-0-release-plan")]
    pub response_x_request_id: Option<String>,
    /// `id` of the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"chatcmpl-1")]
    pub response_id_first: Option<String>,
    /// `id` of the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"chatcmpl-1")]
    pub response_id_last: Option<String>,
    /// When the request was sent, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_000.25)]
    pub request_started_epoch_s: Option<f64>,
    /// When the first text arrived, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_001.42)]
    pub first_text_epoch_s: Option<f64>,
    /// When the response ended, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_010.5)]
    pub request_ended_epoch_s: Option<f64>,
    /// From sending to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 10.25)]
    pub elapsed_s: Option<f64>,
    /// From sending to the first text or token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 1.17)]
    pub ttft_s: Option<f64>,
    /// From the first text to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 9.08)]
    pub post_ttft_s: Option<f64>,
    /// Chunks that carried text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 512)]
    pub chunk_count: Option<u64>,
    /// Token ids that were streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 0)]
    pub stream_token_id_count: Option<u64>,
    /// Chunks of answer text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 512)]
    pub content_delta_count: Option<u64>,
    /// Chunks of reasoning text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 0)]
    pub reasoning_delta_count: Option<u64>,
    /// Arrival of each chunk with text, from sending.
    #[serde(default)]
    #[schemars(example = json!([1.17, 1.19, 1.21]))]
    pub chunk_offsets_s: Vec<f64>,
    /// Arrival of each token id, from sending; ids of one chunk share one stamp.
    #[serde(default)]
    #[schemars(example = json!([1.17, 1.19, 1.21]))]
    pub token_id_offsets_s: Vec<f64>,
    /// Token ids, where the server sends them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!([101, 2009]))]
    pub token_ids: Option<Vec<u64>>,
    /// Log probabilities, where the server sends them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!([]))]
    pub logprob_content: Option<Value>,
    /// Finish reasons the server gave.
    #[serde(default)]
    #[schemars(example = json!(["length"]))]
    pub finish_reasons: Vec<String>,
    /// `usage` as the server sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"prompt_tokens": 74, "completion_tokens": 512, "prompt_tokens_details": {"cached_tokens": 0}}))]
    pub usage: Option<Value>,
    /// `timings` as the server sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"cache_n": 0, "prompt_n": 74, "predicted_n": 512}))]
    pub timings: Option<Value>,
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 74)]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 512)]
    pub completion_tokens: Option<u64>,
    /// Reused prompt tokens as the server reported them; anything but the integer 0 fails the gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 0)]
    pub cached_tokens: Option<Value>,
    /// Answer tokens over the whole time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 49.9)]
    pub tok_s_wall_full: Option<f64>,
    /// Answer tokens over the time after the first text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 56.4)]
    pub tok_s_after_ttft_full: Option<f64>,
    /// The older rate: 100 over the time from the 1st to the 100th event, that is 100 events over 99 intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 49.7084)]
    pub tok_s_1_100_after_ttft: Option<f64>,
    /// The older rate under its labelled name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 49.7084)]
    pub tok_s_1_100_after_ttft_legacy_inclusive_events: Option<f64>,
    /// The primary rate: 99 intervals over the time from the 1st to the 100th event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 49.2113)]
    pub tok_s_1_100_intervals_after_ttft: Option<f64>,
    /// Median time from one burst of tokens to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 0.059)]
    pub burst_gap_s_median: Option<f64>,
    /// Tokens a burst, a measure of draft acceptance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 3.1)]
    pub tokens_per_burst: Option<f64>,
    /// Tokens drafted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 600)]
    pub draft_n: Option<u64>,
    /// Drafted tokens that were accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 340)]
    pub draft_n_accepted: Option<u64>,
    /// SHA-256 of the answer's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Hex>,
    /// The answer's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"The release …")]
    pub text: Option<String>,
    /// Its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"The release …")]
    pub text_preview: Option<String>,
    /// Whether every token came in a chunk of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = true)]
    pub chunk_count_equals_completion_tokens: Option<bool>,
    /// Whether chunks cover the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = true)]
    pub metric_chunk_events_at_least_window: Option<bool>,
    /// Whether token ids cover the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = false)]
    pub metric_token_id_events_at_least_window: Option<bool>,
    /// Where the window's events come from: `chunk_offsets_s` or `token_id_offsets_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"chunk_offsets_s")]
    pub token_timing_source: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
