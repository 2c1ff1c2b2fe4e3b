//! HTTP and SSE client for llama-server-like endpoints: health, slots, props, completions, timings.
//!
//! Made for measuring: the bytes of a stream are stamped with a monotonic clock when the socket read returns, before
//! anything parses them, and are kept, so that every figure can be computed again from the record
//! ([`StreamReader::replay`]). Blocking, plain HTTP/1.1 on loopback or a trusted network, one request at a time per
//! [`Endpoint`], one connection per request.
//!
//! # Vocabulary
//!
//! - *offset*: seconds from just before the request's first byte was written. Connecting comes before it and is recorded
//!   beside it.
//! - *event*: one server-sent event; its offset is that of the read which brought its last byte.
//! - *ping*: a comment line of the stream. It shows that the server's HTTP thread lives and nothing else; no deadline is
//!   prolonged by it.
//! - *deadline*: every call has one for connecting, the first byte, the first event, silence, and the whole
//!   ([`Deadlines`]).
//!
//! # Example
//!
//! ```no_run
//! use b70_client::{Api, CompletionRequest, Deadlines, Endpoint};
//! use std::time::Duration;
//!
//! let mut probe = Endpoint::new("http://127.0.0.1:19720")?.with_deadlines(Deadlines::within(Duration::from_secs(2)));
//! let who = probe.identify()?;
//! assert!(who.is_llama_server());
//!
//! let mut endpoint = Endpoint::new("http://127.0.0.1:19720")?;
//! match endpoint.stream(&CompletionRequest::cold(Api::Chat, "Name three rivers.", 64)) {
//!     Ok(record) => {
//!         let first = record.first_output_s();
//!         let reuse = record.usage.map(|usage| usage.cached_tokens);
//!         # let _ = (first, reuse);
//!     }
//!     // What had arrived until the failure is kept.
//!     Err(failure) => assert!(!failure.error.code().is_empty() && failure.record.ended_s >= 0.0),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! No TLS, no proxies, no redirects, no compression, no connection reuse. Several choices per request (`n` > 1) are read as
//! one text. A name (rather than an address) is resolved by the system's resolver on a thread that outlives a deadline.

#![forbid(unsafe_code)]

mod address;
mod cancel;
mod completion;
mod connection;
mod decoder;
mod endpoint;
mod error;
mod limits;
mod payload;
mod reader;
mod record;
mod request;
mod server;
mod sse;
mod usage;

pub use address::BaseUrl;
pub use cancel::CancelToken;
pub use completion::{Api, CompletionRequest, Message, request_id};
pub use decoder::{ResponseDecoder, ResponseHead};
pub use endpoint::Endpoint;
pub use error::{ClientError, ErrorKind, Phase, ServerError, StreamFailure};
pub use limits::{Deadlines, Limits};
pub use reader::StreamReader;
pub use record::{Completion, EventKind, RawBytes, SentRequest, StreamEvent, StreamRecord};
pub use request::ApiKey;
pub use server::{Health, ModelEntry, Props, ServerIdentity, Slot};
pub use sse::{SseItem, SseParser};
pub use usage::{Reported, Timings, TokenUsage};
