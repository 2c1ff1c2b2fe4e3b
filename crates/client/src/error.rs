//! What can go wrong with a call, each with a stable code.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::StreamRecord;

/// The part of a call a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Resolving and connecting.
    Connect,
    /// Waiting for the response's first byte.
    FirstByte,
    /// Waiting for a stream's first event with data.
    FirstEvent,
    /// Waiting for more.
    Idle,
    /// The whole call.
    Total,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the first byte",
            Self::FirstEvent => "waiting for the first event",
            Self::Idle => "waiting for more after the last progress",
            Self::Total => "the whole call",
        })
    }
}

/// The error envelope of llama-server and of OpenAI-like servers: `{"error": {"message", "type", "code", …}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerError {
    /// The server's words.
    pub message: String,
    /// llama-server's type, such as `unavailable_error` or `exceed_context_size_error`; empty if it gave none.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The numeric code inside the envelope, normally the HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// With `exceed_context_size_error`: tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_prompt_tokens: Option<u64>,
    /// With `exceed_context_size_error`: the context of the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_ctx: Option<u64>,
}

impl ServerError {
    /// Reads the envelope's value (`error` itself: an object, or a bare string as some servers send it).
    pub(crate) fn from_value(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let message = match error {
            Value::String(message) => message.clone(),
            Value::Object(_) if error.get("message").is_some_and(Value::is_string) => text("message"),
            other => other.to_string(),
        };
        Self {
            message,
            kind: text("type"),
            code: error.get("code").and_then(Value::as_i64),
            n_prompt_tokens: error.get("n_prompt_tokens").and_then(Value::as_u64),
            n_ctx: error.get("n_ctx").and_then(Value::as_u64),
        }
    }

    /// True while the server loads its model.
    pub fn is_loading(&self) -> bool {
        self.kind == "unavailable_error"
    }

    /// True when the prompt does not fit the slot's context.
    pub fn is_context_exceeded(&self) -> bool {
        self.kind == "exceed_context_size_error"
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.kind.is_empty() {
            write!(f, " ({})", self.kind)?;
        }
        if let (Some(prompt), Some(ctx)) = (self.n_prompt_tokens, self.n_ctx) {
            write!(
                f,
                ": the prompt has {prompt} tokens, the slot's context holds {ctx}; start the server with a larger -c"
            )?;
        }
        Ok(())
    }
}

/// The kinds of failure. [`ErrorKind::code`] gives each a stable name for result files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address is not a plain HTTP address.
    #[error("invalid address: {reason}; expected http://HOST:PORT")]
    InvalidUrl {
        /// What is wrong with it.
        reason: String,
    },
    /// A header name or value that cannot be sent. The value is not shown.
    #[error("the header {name:?} cannot be sent: {reason}")]
    InvalidHeader {
        /// The header's name.
        name: String,
        /// Why it was refused.
        reason: String,
    },
    /// The host name has no address, or the resolver did not answer in time.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's reason.
        reason: String,
    },
    /// No connection.
    #[error("cannot connect to {address}: {source}; is the server running?")]
    Connect {
        /// The last address tried.
        address: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A deadline passed.
    #[error("no answer within {limit_s:.3} s ({phase}{})", during_text(*phase, *during))]
    Timeout {
        /// Whose deadline it was.
        phase: Phase,
        /// What the call was doing then; differs from `phase` only for [`Phase::Total`].
        during: Phase,
        /// The deadline, in seconds.
        limit_s: f64,
    },
    /// The call was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The socket failed in another way than by being closed.
    #[error("the connection failed while {doing}: {source}")]
    Io {
        /// `sending` or `receiving`.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The peer closed the connection before the response was complete.
    #[error("the server closed the connection after {received} bytes, before the response was complete")]
    Disconnected {
        /// Bytes received in this call, head included.
        received: u64,
    },
    /// What arrived is not HTTP/1.x as this client accepts it.
    #[error("not a valid HTTP response: {reason}")]
    Protocol {
        /// What was found and what was expected.
        reason: String,
    },
    /// A limit of [`Limits`](crate::Limits) was exceeded.
    #[error("{what} is larger than {limit}")]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// The limit, in bytes (for header lines and events: their number).
        limit: usize,
    },
    /// An HTTP status other than success.
    #[error("HTTP status {status}{}", describe(error.as_ref(), body))]
    Status {
        /// The status.
        status: u16,
        /// The error envelope, if the body held one.
        error: Option<ServerError>,
        /// The beginning of the body.
        body: String,
    },
    /// An error event within a stream, or an error envelope under a success status.
    #[error("the server reported an error: {error}")]
    Server {
        /// The envelope.
        error: ServerError,
    },
    /// The body, or an event of a stream, is not JSON.
    #[error("not JSON: {reason}; it begins with {excerpt:?}")]
    NotJson {
        /// The parser's reason.
        reason: String,
        /// The beginning of the text.
        excerpt: String,
    },
    /// JSON without something this call needs.
    #[error("unexpected answer: expected {expected}, found {found}")]
    UnexpectedShape {
        /// What the call needs.
        expected: &'static str,
        /// The beginning of what came.
        found: String,
    },
    /// A stream was asked for and something else came.
    #[error("expected a stream of type text/event-stream, found {content_type:?}")]
    NotAStream {
        /// The response's content type; empty if it had none.
        content_type: String,
    },
    /// The response ended in order, but the generation in it did not: no finish reason, no `[DONE]`.
    #[error("the stream ended without a finish reason")]
    Unfinished,
}

impl ErrorKind {
    /// A stable name for result files and tests.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidUrl { .. } => "invalid_url",
            Self::InvalidHeader { .. } => "invalid_header",
            Self::Resolve { .. } => "resolve",
            Self::Connect { .. } => "connect",
            Self::Timeout { phase: Phase::Connect, .. } => "timeout_connect",
            Self::Timeout { phase: Phase::FirstByte, .. } => "timeout_first_byte",
            Self::Timeout { phase: Phase::FirstEvent, .. } => "timeout_first_event",
            Self::Timeout { phase: Phase::Idle, .. } => "timeout_idle",
            Self::Timeout { phase: Phase::Total, .. } => "timeout_total",
            Self::Cancelled => "cancelled",
            Self::Io { .. } => "io",
            Self::Disconnected { .. } => "disconnected",
            Self::Protocol { .. } => "protocol",
            Self::TooLarge { .. } => "too_large",
            Self::Status { error: Some(error), .. } if error.is_loading() => "loading",
            Self::Status { error: Some(error), .. } | Self::Server { error } if error.is_context_exceeded() => {
                "context_exceeded"
            }
            Self::Status { .. } => "status",
            Self::Server { .. } => "server_error",
            Self::NotJson { .. } => "not_json",
            Self::UnexpectedShape { .. } => "unexpected_shape",
            Self::NotAStream { .. } => "not_a_stream",
            Self::Unfinished => "unfinished",
        }
    }

    /// Replaces every occurrence of a secret in what the server said.
    pub(crate) fn redact(mut self, secret: &str) -> Self {
        if secret.is_empty() {
            return self;
        }
        let clean = |text: &mut String| {
            if text.contains(secret) {
                *text = text.replace(secret, "[api key]");
            }
            // An excerpt may end within the key.
            if let Some(cut) = text.strip_suffix('…') {
                let part = (4..secret.len()).rev().find(|&n| secret.get(..n).is_some_and(|part| cut.ends_with(part)));
                if let Some(part) = part {
                    *text = format!("{}[api key]…", &cut[..cut.len() - part]);
                }
            }
        };
        match &mut self {
            Self::Status { error, body, .. } => {
                clean(body);
                if let Some(error) = error {
                    clean(&mut error.message);
                    clean(&mut error.kind);
                }
            }
            Self::Server { error } => {
                clean(&mut error.message);
                clean(&mut error.kind);
            }
            Self::NotJson { excerpt: text, .. }
            | Self::UnexpectedShape { found: text, .. }
            | Self::NotAStream { content_type: text }
            | Self::Protocol { reason: text } => clean(text),
            _ => {}
        }
        self
    }
}

fn during_text(phase: Phase, during: Phase) -> String {
    if phase == during { String::new() } else { format!(", {during}") }
}

fn describe(error: Option<&ServerError>, body: &str) -> String {
    match error {
        Some(error) => format!(": {error}"),
        None if body.is_empty() => String::new(),
        None => format!(": {body}"),
    }
}

/// A failed call: which one, and why.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {kind}")]
pub struct ClientError {
    call: String,
    #[source]
    kind: Box<ErrorKind>,
}

impl ClientError {
    pub(crate) fn new(call: impl Into<String>, kind: ErrorKind) -> Self {
        Self { call: call.into(), kind: Box::new(kind) }
    }

    /// Method and address, such as `GET http://127.0.0.1:8080/health`.
    pub fn call(&self) -> &str {
        &self.call
    }

    /// Why it failed.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// [`ErrorKind::code`].
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// The server's own error, if it sent one.
    pub fn server_error(&self) -> Option<&ServerError> {
        match &*self.kind {
            ErrorKind::Status { error, .. } => error.as_ref(),
            ErrorKind::Server { error } => Some(error),
            _ => None,
        }
    }

    /// True while the server loads its model.
    pub fn is_loading(&self) -> bool {
        self.server_error().is_some_and(ServerError::is_loading)
    }

    /// The HTTP status, if the failure is one.
    pub fn status(&self) -> Option<u16> {
        if let ErrorKind::Status { status, .. } = &*self.kind { Some(*status) } else { None }
    }
}

/// A stream that failed, with everything that had arrived.
#[derive(Debug, thiserror::Error)]
#[error("{error}{}", arrived(record))]
pub struct StreamFailure {
    /// Why it failed.
    #[source]
    pub error: ClientError,
    /// What had arrived until then: events, text and raw bytes.
    pub record: Box<StreamRecord>,
}

fn arrived(record: &StreamRecord) -> String {
    match record.events.len() {
        0 => String::new(),
        events => format!(" ({events} events had arrived and are kept)"),
    }
}

/// The beginning of a text of unknown length, cut at a character boundary.
pub(crate) fn excerpt(text: &str) -> String {
    const MAX: usize = 400;
    match text.char_indices().nth(MAX) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_out_of_what_the_server_said_also_where_the_excerpt_cuts_it() {
        let key = "sk-0123456789abcdef";
        for at in [0, 200, 385, 390, 396, 400] {
            let body = excerpt(&format!("{}{key} and more", "x".repeat(at)));
            let error = ErrorKind::Status { status: 401, error: None, body }.redact(key);
            assert!(!format!("{error} {error:?}").contains("sk-0"), "{at}: {error}");
        }
    }
}
