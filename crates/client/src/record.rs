//! What a streamed generation left behind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::completion::{Api, CompletionRequest};
use crate::usage::{Timings, TokenUsage};

/// The request as it was sent; headers are not part of it, so it never holds the API key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SentRequest {
    /// The API.
    pub api: Api,
    /// The path below the server's address.
    pub path: String,
    /// The JSON body.
    pub body: Value,
    /// The `X-Request-Id` sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl SentRequest {
    /// The request as `stream` or as a plain call.
    pub(crate) fn new(request: &CompletionRequest, stream: bool) -> Self {
        Self {
            api: request.api,
            path: request.api.path().to_owned(),
            body: request.body(stream),
            request_id: request.request_id.clone(),
        }
    }
}

/// What an event of a stream was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A JSON event; it may carry text, token ids, usage, timings, a finish reason, or none of them (the first event of a
    /// chat names only the role).
    Data,
    /// A comment line: llama-server's ping.
    Comment,
    /// `[DONE]`.
    Done,
    /// An error event.
    Error,
}

/// One event with the moment it was complete on this side's socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamEvent {
    /// Seconds from the request's first byte sent to the return of the socket read that brought the event's last byte.
    pub offset_s: f64,
    /// What it was.
    pub kind: EventKind,
    /// Text of the answer in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Thinking text in it (`reasoning_content`, or `reasoning` where a server sends that instead).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Token ids in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<i64>,
}

impl StreamEvent {
    /// True if the event brought generated text of either sort.
    pub fn has_text(&self) -> bool {
        !self.content.is_empty() || !self.reasoning.is_empty()
    }
}

/// Everything the socket delivered, byte for byte, with the moment of each read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawBytes {
    bytes: Vec<u8>,
    /// Per read: offset in seconds, end position in `bytes`.
    reads: Vec<(f64, usize)>,
}

impl RawBytes {
    /// Appends one read.
    pub fn push(&mut self, offset_s: f64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.reads.push((offset_s, self.bytes.len()));
    }

    /// All bytes, from the status line on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The reads in order: seconds since the request's first byte was sent, and what that read brought.
    pub fn reads(&self) -> impl Iterator<Item = (f64, &[u8])> {
        let starts = std::iter::once(0).chain(self.reads.iter().map(|(_, end)| *end));
        starts.zip(&self.reads).map(|(start, (offset, end))| (*offset, &self.bytes[start..*end]))
    }

    /// Number of reads.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }
}

/// A streamed generation. All offsets are seconds since the request's first byte was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRecord {
    /// What was sent.
    pub request: SentRequest,
    /// Wall clock when the request's first byte was sent (unix seconds); only for orientation, no figure uses it.
    pub started_unix_s: f64,
    /// Time spent connecting, before the offsets' origin.
    pub connect_s: f64,
    /// HTTP status; absent if no head arrived.
    pub status: Option<u16>,
    /// The `Server` header.
    pub server: Option<String>,
    /// The `X-Request-Id` of the response.
    pub response_request_id: Option<String>,
    /// `id` of the first event that had one.
    pub response_id_first: Option<String>,
    /// `id` of the last event that had one.
    pub response_id_last: Option<String>,
    /// The events in order, pings included.
    pub events: Vec<StreamEvent>,
    /// Every byte as it came.
    pub raw: RawBytes,
    /// The answer's text.
    pub text: String,
    /// The thinking text.
    pub reasoning: String,
    /// Finish reasons in order; the native API's `eos` and `word` are given as `stop`, its `limit` as `length`.
    pub finish_reasons: Vec<String>,
    /// The last usage reported.
    pub usage: Option<TokenUsage>,
    /// The last timings reported.
    pub timings: Option<Timings>,
    /// True once `[DONE]` (native: the event with `stop: true`) arrived.
    pub done: bool,
    /// Offset of the first byte of the response.
    pub first_byte_s: Option<f64>,
    /// Offset of the end: the read that completed the response, or the moment of failure.
    pub ended_s: f64,
}

impl StreamRecord {
    pub(crate) fn new(request: SentRequest) -> Self {
        Self {
            request,
            started_unix_s: 0.0,
            connect_s: 0.0,
            status: None,
            server: None,
            response_request_id: None,
            response_id_first: None,
            response_id_last: None,
            events: Vec::new(),
            raw: RawBytes::default(),
            text: String::new(),
            reasoning: String::new(),
            finish_reasons: Vec::new(),
            usage: None,
            timings: None,
            done: false,
            first_byte_s: None,
            ended_s: 0.0,
        }
    }

    /// Offsets of the events that brought text, of the answer or of thinking.
    pub fn text_offsets(&self) -> Vec<f64> {
        self.events.iter().filter(|event| event.has_text()).map(|event| event.offset_s).collect()
    }

    /// One offset per token id; all ids of one event share its offset.
    pub fn token_offsets(&self) -> Vec<f64> {
        self.events.iter().flat_map(|event| event.tokens.iter().map(|_| event.offset_s)).collect()
    }

    /// All token ids in order.
    pub fn token_ids(&self) -> Vec<i64> {
        self.events.iter().flat_map(|event| event.tokens.iter().copied()).collect()
    }

    /// Offset of the first text or token id.
    pub fn first_output_s(&self) -> Option<f64> {
        self.events.iter().find(|event| event.has_text() || !event.tokens.is_empty()).map(|event| event.offset_s)
    }

    /// Thinking and answer as one text, in the order in which it arrived.
    pub fn full_text(&self) -> String {
        let mut text = String::with_capacity(self.text.len() + self.reasoning.len());
        for event in &self.events {
            text.push_str(&event.reasoning);
            text.push_str(&event.content);
        }
        text
    }

    /// Number of pings and other comments.
    pub fn comment_count(&self) -> usize {
        self.events.iter().filter(|event| event.kind == EventKind::Comment).count()
    }
}

/// A generation that came in one piece. Times are seconds since the request's first byte was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What was sent.
    pub request: SentRequest,
    /// The answer's text.
    pub text: String,
    /// The thinking text.
    pub reasoning: String,
    /// Token ids, if the server sent them.
    pub tokens: Vec<i64>,
    /// The finish reason, named as in [`StreamRecord::finish_reasons`].
    pub finish_reason: Option<String>,
    /// Usage, if reported.
    pub usage: Option<TokenUsage>,
    /// Timings, if reported.
    pub timings: Option<Timings>,
    /// The response's `id`.
    pub id: Option<String>,
    /// The `Server` header.
    pub server: Option<String>,
    /// First byte of the response.
    pub first_byte_s: f64,
    /// Last byte of the response.
    pub ended_s: f64,
}
