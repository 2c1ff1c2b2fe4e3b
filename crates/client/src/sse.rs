//! Server-sent events as a pure incremental state machine.
//!
//! Source of the format: WHATWG HTML, section 9.2.6 "Interpreting an event stream". Lines end in LF, CR or CRLF; a byte
//! order mark at the start is dropped; an event ends at an empty line and is dispatched if it had a `data` field; an event
//! that the end of the stream cuts short is not dispatched. Comments are reported, since llama-server pings with them.

use crate::error::ErrorKind;
use crate::limits::Limits;

/// One item of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// A dispatched event.
    Event {
        /// The `event` field; empty when the event had none.
        event: String,
        /// The `data` lines joined by LF. Bytes that are not UTF-8 are replaced.
        data: String,
    },
    /// A comment line, without its colon; llama-server's ping is the empty comment.
    Comment(String),
}

/// The parser. Any split of the same bytes gives the same items.
#[derive(Debug)]
pub struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    event: String,
    /// The last byte was CR: an LF directly after it belongs to the same line end.
    after_cr: bool,
    at_start: bool,
    line_limit: usize,
    event_limit: usize,
    broken: Option<(&'static str, usize)>,
}

const BOM: &[u8] = b"\xef\xbb\xbf";

impl SseParser {
    /// A parser with the limits for a line and for an event.
    pub fn new(limits: &Limits) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            event: String::new(),
            after_cr: false,
            at_start: true,
            line_limit: limits.line,
            event_limit: limits.event,
            broken: None,
        }
    }

    /// Takes the next bytes and appends what they complete.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when a line or an event exceeds its limit; the parser then stays failed.
    pub fn push(&mut self, mut bytes: &[u8], items: &mut Vec<SseItem>) -> Result<(), ErrorKind> {
        self.check()?;
        while !bytes.is_empty() {
            if self.after_cr {
                self.after_cr = false;
                if bytes[0] == b'\n' {
                    bytes = &bytes[1..];
                    continue;
                }
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > self.line_limit {
                return self.fail("a line of the stream", self.line_limit);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, items)?;
            // Keep the allocation for the next line.
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    /// True if bytes of an event that never ended are pending: the stream was cut, or the parser has failed.
    pub fn has_pending(&self) -> bool {
        self.broken.is_some() || !self.line.is_empty() || self.has_data
    }

    fn end_line(&mut self, line: &[u8], items: &mut Vec<SseItem>) -> Result<(), ErrorKind> {
        let line = if std::mem::take(&mut self.at_start) { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                items.push(SseItem::Event { event, data: String::from_utf8_lossy(&self.data).into_owned() });
            }
            self.data.clear();
            return Ok(());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"" => items.push(SseItem::Comment(String::from_utf8_lossy(value).into_owned())),
            b"event" => self.event = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                if self.data.len() + value.len() + 1 > self.event_limit {
                    return self.fail("an event of the stream", self.event_limit);
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            // `id` and `retry` serve reconnection, which a measurement never does; others are to be ignored.
            _ => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ErrorKind> {
        match self.broken {
            Some((what, limit)) => Err(ErrorKind::TooLarge { what, limit }),
            None => Ok(()),
        }
    }

    fn fail(&mut self, what: &'static str, limit: usize) -> Result<(), ErrorKind> {
        self.broken = Some((what, limit));
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> (Vec<SseItem>, bool, bool) {
        let mut parser = SseParser::new(&Limits { line: 64, event: 96, ..Limits::default() });
        let mut items = Vec::new();
        let failed = pieces.iter().any(|piece| parser.push(piece, &mut items).is_err());
        (items, parser.has_pending(), failed)
    }

    fn event(data: &str) -> SseItem {
        SseItem::Event { event: String::new(), data: data.to_owned() }
    }

    #[test]
    fn the_forms_of_the_format() {
        let cases: [(&[u8], Vec<SseItem>); 12] = [
            (b"data: a\n\n", vec![event("a")]),
            (b"data:a\r\n\r\n", vec![event("a")]),
            (b"data:  a\r\r", vec![event(" a")]),
            (b"data: a\ndata: b\n\n", vec![event("a\nb")]),
            (b"data\n\n", vec![event("")]),
            (b"data:\ndata:\n\n", vec![event("\n")]),
            (b"\xef\xbb\xbfdata: a\n\n", vec![event("a")]),
            (b":\n\n: hi\n\n", vec![SseItem::Comment(String::new()), SseItem::Comment("hi".to_owned())]),
            (b"event: error\n\ndata: a\n\n", vec![event("a")]),
            (
                b"event: error\ndata: a\n\ndata: b\n\n",
                vec![SseItem::Event { event: "error".to_owned(), data: "a".to_owned() }, event("b")],
            ),
            (b"id: 3\nretry: 10\nfoo\ndata: a: b\n\n", vec![event("a: b")]),
            (b"data: \xff\n\n", vec![event("\u{fffd}")]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(parse(&[bytes]), (expected, false, false), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_cut_event_is_pending_and_not_dispatched() {
        assert_eq!(parse(&[b"data: a"]), (vec![], true, false));
        assert_eq!(parse(&[b"data: a\n"]), (vec![], true, false));
    }

    #[test]
    fn lines_and_events_are_capped() {
        assert!(parse(&[&[b'x'; 65]]).2);
        assert!(!parse(&[&[b'x'; 64]]).2);
        let line = format!("data: {}\n", "x".repeat(50));
        assert!(parse(&[line.as_bytes(), line.as_bytes()]).2);
        let mut parser = SseParser::new(&Limits { line: 4, ..Limits::default() });
        let mut items = Vec::new();
        assert!(parser.push(b"12345", &mut items).is_err());
        assert!(parser.push(b"\n", &mut items).is_err(), "a failed parser stays failed");
    }

    fn stream_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"data: ".to_vec()),
            Just(b"event: error".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\n\n".to_vec()),
            Just(b":".to_vec()),
            Just(BOM.to_vec()),
            Just("größe".as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..8),
        ];
        proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_items(bytes in stream_bytes(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..10)) {
            let whole = parse(&[&bytes]);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&parse(&single), &whole);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(&parse(&pieces), &whole);
        }
    }
}
