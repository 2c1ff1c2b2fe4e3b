//! From socket reads to a record: pure, so that a recorded stream can be read again.

use serde_json::Value;

use crate::decoder::ResponseDecoder;
use crate::error::{ErrorKind, ServerError, excerpt};
use crate::limits::Limits;
use crate::payload::{Payload, error_of};
use crate::record::{EventKind, RawBytes, SentRequest, StreamEvent, StreamRecord};
use crate::sse::{SseItem, SseParser};

/// Reads one streamed response from its socket reads.
///
/// Live calls and [`StreamReader::replay`] share it: every figure made from a record can be made again from its raw bytes.
#[derive(Debug)]
pub struct StreamReader {
    record: StreamRecord,
    decoder: ResponseDecoder,
    sse: SseParser,
    /// The body of a response that is not a stream.
    other_body: Vec<u8>,
    limits: Limits,
}

impl StreamReader {
    /// A reader for the answer to `request`.
    pub fn new(request: SentRequest, limits: &Limits) -> Self {
        Self {
            record: StreamRecord::new(request),
            decoder: ResponseDecoder::new(limits, limits.stream),
            sse: SseParser::new(limits),
            other_body: Vec::new(),
            limits: *limits,
        }
    }

    /// Reads recorded bytes once more.
    ///
    /// # Errors
    /// The failure the live call had, with one exception: a deadline or a cancellation left no bytes, so that such a record
    /// ends as [`ErrorKind::Disconnected`] here.
    pub fn replay(request: SentRequest, raw: &RawBytes, limits: &Limits) -> (StreamRecord, Result<(), ErrorKind>) {
        let mut reader = Self::new(request, limits);
        for (offset_s, bytes) in raw.reads() {
            if let Err(kind) = reader.push(offset_s, bytes) {
                return (reader.record, Err(kind));
            }
        }
        let ended_s = reader.record.ended_s;
        let result = reader.finish(ended_s);
        (reader.record, result)
    }

    /// Takes what one read brought, `offset_s` seconds after the request was sent; gives the number of events with data.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] for an error event, [`ErrorKind::NotJson`], [`ErrorKind::UnexpectedShape`],
    /// [`ErrorKind::Protocol`], [`ErrorKind::TooLarge`]. What arrived before the fault is in the record.
    pub fn push(&mut self, offset_s: f64, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let room = self.limits.stream.saturating_sub(self.record.raw.bytes().len());
        let too_large = bytes.len() > room;
        let bytes = &bytes[..bytes.len().min(room)];
        self.record.raw.push(offset_s, bytes);
        self.record.first_byte_s.get_or_insert(offset_s);
        self.record.ended_s = offset_s;
        let mut body = Vec::new();
        let decoded = self.decoder.push(bytes, &mut body);
        self.note_head();
        let mut progress = 0;
        if self.is_event_stream() {
            let mut items = Vec::new();
            let parsed = self.sse.push(&body, &mut items);
            for item in items {
                progress += usize::from(!matches!(item, SseItem::Comment(_)));
                self.take(offset_s, item)?;
            }
            parsed?;
        } else {
            self.other_body.extend_from_slice(&body);
            if self.other_body.len() > self.limits.body {
                return Err(ErrorKind::TooLarge { what: "the response body", limit: self.limits.body });
            }
        }
        decoded?;
        if too_large {
            return Err(ErrorKind::TooLarge { what: "the stream", limit: self.limits.stream });
        }
        Ok(progress)
    }

    /// True when nothing more is to be read.
    pub fn is_finished(&self) -> bool {
        self.record.done || self.decoder.is_complete()
    }

    /// True while events are still to be expected, as far as is known.
    pub(crate) fn may_stream(&self) -> bool {
        self.decoder.head().is_none() || self.is_event_stream()
    }

    /// No more bytes will come: judges whether what came is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Status`] for another status than success, [`ErrorKind::NotAStream`], [`ErrorKind::Disconnected`],
    /// [`ErrorKind::Unfinished`].
    pub fn finish(&mut self, ended_s: f64) -> Result<(), ErrorKind> {
        self.record.ended_s = ended_s;
        if self.record.done {
            return Ok(());
        }
        let received = self.record.raw.bytes().len() as u64;
        let ended = self.decoder.finish(received);
        let Some(head) = self.decoder.head() else { return ended };
        if !head.is_success() {
            return Err(status_error(head.status, &self.other_body));
        }
        ended?;
        if !self.is_event_stream() {
            let content_type = head.header("content-type").unwrap_or_default().to_owned();
            let error = serde_json::from_slice::<Value>(&self.other_body).ok().as_ref().and_then(error_of);
            return Err(error.map_or(ErrorKind::NotAStream { content_type }, |error| ErrorKind::Server { error }));
        }
        if self.record.finish_reasons.is_empty() || self.sse.has_pending() {
            return Err(ErrorKind::Unfinished);
        }
        Ok(())
    }

    /// The record so far.
    pub fn record(&self) -> &StreamRecord {
        &self.record
    }

    pub(crate) fn record_mut(&mut self) -> &mut StreamRecord {
        &mut self.record
    }

    /// Ends reading.
    pub fn into_record(self) -> StreamRecord {
        self.record
    }

    fn is_event_stream(&self) -> bool {
        self.decoder.head().is_some_and(|head| {
            let content_type = head.header("content-type").unwrap_or_default();
            let media = content_type.split(';').next().unwrap_or_default().trim();
            head.is_success() && media.eq_ignore_ascii_case("text/event-stream")
        })
    }

    fn note_head(&mut self) {
        if self.record.status.is_none()
            && let Some(head) = self.decoder.head()
        {
            self.record.status = Some(head.status);
            self.record.server = head.header("server").map(str::to_owned);
            self.record.response_request_id = head.header("x-request-id").map(str::to_owned);
        }
    }

    fn take(&mut self, offset_s: f64, item: SseItem) -> Result<(), ErrorKind> {
        if self.record.done {
            return Ok(());
        }
        if self.record.events.len() >= self.limits.events {
            return Err(ErrorKind::TooLarge { what: "the number of events", limit: self.limits.events });
        }
        let event =
            |kind| StreamEvent { offset_s, kind, content: String::new(), reasoning: String::new(), tokens: Vec::new() };
        let (name, data) = match item {
            SseItem::Comment(_) => {
                self.record.events.push(event(EventKind::Comment));
                return Ok(());
            }
            SseItem::Event { event, data } => (event, data),
        };
        if data.trim() == "[DONE]" {
            self.record.events.push(event(EventKind::Done));
            self.record.done = true;
            return Ok(());
        }
        let value: Value = match serde_json::from_str(&data) {
            Ok(value) => value,
            Err(_) if name == "error" => Value::String(data.clone()),
            Err(error) => return Err(ErrorKind::NotJson { reason: error.to_string(), excerpt: excerpt(&data) }),
        };
        let mut payload = Payload::read(self.record.request.api, &value);
        if name == "error" && payload.error.is_none() {
            payload.error = Some(ServerError::from_value(&value));
        }
        if let Some(error) = payload.error {
            self.record.events.push(event(EventKind::Error));
            return Err(ErrorKind::Server { error });
        }
        if !payload.recognised && payload.usage.is_none() && payload.timings.is_none() {
            return Err(ErrorKind::UnexpectedShape { expected: "an event of a completion", found: excerpt(&data) });
        }
        let record = &mut self.record;
        record.text.push_str(&payload.content);
        record.reasoning.push_str(&payload.reasoning);
        if let Some(id) = payload.id {
            record.response_id_first.get_or_insert_with(|| id.clone());
            record.response_id_last = Some(id);
        }
        record.finish_reasons.append(&mut payload.finish_reasons);
        record.usage = payload.usage.or(record.usage.take());
        record.timings = payload.timings.or(record.timings.take());
        record.done = payload.stop;
        record.events.push(StreamEvent {
            content: payload.content,
            reasoning: payload.reasoning,
            tokens: payload.tokens,
            ..event(EventKind::Data)
        });
        Ok(())
    }
}

/// The failure of a status other than success, with the envelope if the body holds one.
pub(crate) fn status_error(status: u16, body: &[u8]) -> ErrorKind {
    let error = serde_json::from_slice::<Value>(body).ok().as_ref().and_then(error_of);
    let body = excerpt(&String::from_utf8_lossy(body));
    ErrorKind::Status { status, error, body }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::completion::{Api, CompletionRequest};

    fn sent(api: Api) -> SentRequest {
        SentRequest::new(&CompletionRequest::cold(api, "p", 4), true)
    }

    fn chunk(data: &str) -> String {
        format!("{:x}\r\n{data}\r\n", data.len())
    }

    fn chat_stream() -> Vec<u8> {
        let events = [
            r#"{"id":"c","choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"delta":{"content":"grün"},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"id":"c","choices":[],"usage":{"completion_tokens":2,"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":0}},"timings":{"cache_n":0}}"#,
            "[DONE]",
        ];
        let body: String = events.iter().map(|event| chunk(&format!("data: {event}\n\n"))).collect();
        format!("HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{}{body}0\r\n\r\n", chunk(":\n\n"))
            .into_bytes()
    }

    fn replay(bytes: &[u8], cuts: &[usize]) -> (StreamRecord, Result<(), ErrorKind>) {
        let mut raw = RawBytes::default();
        let mut start = 0;
        for (index, cut) in cuts.iter().chain([&bytes.len()]).enumerate() {
            if *cut > start {
                raw.push(index as f64, &bytes[start..*cut]);
                start = *cut;
            }
        }
        StreamReader::replay(sent(Api::Chat), &raw, &Limits::default())
    }

    #[test]
    fn a_chat_stream() {
        let (record, result) = replay(&chat_stream(), &[]);
        result.unwrap();
        assert_eq!((record.text.as_str(), record.reasoning.as_str()), ("grün", "hm"));
        assert_eq!(record.full_text(), "hmgrün");
        assert_eq!(record.finish_reasons, ["stop"]);
        assert_eq!(record.usage.unwrap().cached_tokens.count(), Some(0));
        assert_eq!(record.timings.unwrap().cache_n.count(), Some(0));
        assert_eq!((record.events.len(), record.done), (7, true));
        assert_eq!(record.events.iter().filter(|event| event.kind == EventKind::Comment).count(), 1);
        assert_eq!(record.server.as_deref(), Some("llama.cpp"));
    }

    #[test]
    fn an_event_is_stamped_by_the_read_that_completes_it() {
        let bytes = chat_stream();
        let at = bytes.windows(5).position(|window| window == b"gr\xc3\xbcn").unwrap();
        // Cut inside the umlaut: the event belongs to the second read.
        let (record, result) = replay(&bytes, &[at + 3]);
        result.unwrap();
        assert_eq!(record.text_offsets(), [0.0, 1.0]);
        assert_eq!(record.first_output_s(), Some(0.0));
        assert_eq!(record.text, "grün");
    }

    #[test]
    fn events_are_counted_against_their_limit() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let limits = Limits { events: 3, ..Limits::default() };
        for (pings, fits) in [(3, true), (4, false)] {
            let mut reader = StreamReader::new(sent(Api::Chat), &limits);
            let pushed = reader.push(0.0, format!("{head}{}", ":\n".repeat(pings)).as_bytes());
            assert_eq!(pushed.is_ok(), fits, "{pings}");
            assert_eq!(reader.record().events.len(), 3);
        }
    }

    proptest! {
        #[test]
        fn every_split_and_every_cut(cut in 0usize..2000, stop in any::<prop::sample::Index>()) {
            let bytes = chat_stream();
            let (whole, _) = replay(&bytes, &[]);
            let (split, result) = replay(&bytes, &[cut.min(bytes.len())]);
            prop_assert!(result.is_ok());
            prop_assert_eq!(&split.text, &whole.text);
            prop_assert_eq!(split.events.len(), whole.events.len());
            // A stream cut anywhere keeps what arrived and never reads as complete before [DONE].
            let (part, result) = replay(&bytes[..stop.index(bytes.len())], &[]);
            prop_assert!(whole.text.starts_with(&part.text));
            prop_assert_eq!(result.is_ok(), part.done);
        }
    }
}
