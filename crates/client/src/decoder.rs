//! The response side of HTTP/1.1 as a pure incremental state machine (RFC 9112: sections 4 to 7).
//!
//! The head and the chunk sizes are parsed by `httparse`; this module only decides where each byte belongs, so that the
//! caller may stamp bytes at the socket before anything looks at them.

use crate::error::ErrorKind;
use crate::limits::Limits;

/// Status line and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// Header lines in order; names as sent, values with bytes outside UTF-8 replaced.
    pub headers: Vec<(String, String)>,
}

impl ResponseHead {
    /// The first header of that name, compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    /// True for status 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[derive(Debug)]
enum State {
    Head,
    Length(u64),
    ChunkSize,
    ChunkData(u64),
    /// The CRLF after a chunk's data; true once its CR was seen.
    ChunkEnd(bool),
    Trailers,
    UntilClose,
    Complete,
    Failed,
}

/// Decodes one response. Any split of the same bytes gives the same head and body.
#[derive(Debug)]
pub struct ResponseDecoder {
    state: State,
    buffer: Vec<u8>,
    head: Option<ResponseHead>,
    informational: u32,
    trailer_bytes: usize,
    produced: usize,
    body_limit: usize,
    limits: Limits,
}

const VERSION: &[u8] = b"HTTP/1.";
const CHUNK_LINE_LIMIT: usize = 1024;
const MAX_INFORMATIONAL: u32 = 16;

impl ResponseDecoder {
    /// A decoder for one response whose decoded body may have at most `body_limit` bytes.
    pub fn new(limits: &Limits, body_limit: usize) -> Self {
        Self {
            state: State::Head,
            buffer: Vec::new(),
            head: None,
            informational: 0,
            trailer_bytes: 0,
            produced: 0,
            body_limit,
            limits: *limits,
        }
    }

    /// The head, once it is complete.
    pub fn head(&self) -> Option<&ResponseHead> {
        self.head.as_ref()
    }

    /// True when the response is complete; bytes pushed after that are ignored.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Takes the next bytes and appends the decoded body bytes among them.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] and [`ErrorKind::TooLarge`]; the decoder then takes nothing more.
    pub fn push(&mut self, bytes: &[u8], body: &mut Vec<u8>) -> Result<(), ErrorKind> {
        let result = self.advance(bytes, body);
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }

    /// The peer closed the connection.
    ///
    /// # Errors
    /// [`ErrorKind::Disconnected`], with `received` as given, unless the response was complete or ends by the close.
    pub fn finish(&mut self, received: u64) -> Result<(), ErrorKind> {
        match self.state {
            State::UntilClose | State::Complete => {
                self.state = State::Complete;
                Ok(())
            }
            _ => Err(ErrorKind::Disconnected { received }),
        }
    }

    fn advance(&mut self, mut bytes: &[u8], body: &mut Vec<u8>) -> Result<(), ErrorKind> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Head => self.take_head(bytes)?,
                State::Length(left) => {
                    let (rest, left) = self.take_data(bytes, left, body)?;
                    self.state = if left == 0 { State::Complete } else { State::Length(left) };
                    rest
                }
                State::ChunkSize => self.take_chunk_size(bytes)?,
                State::ChunkData(left) => {
                    let (rest, left) = self.take_data(bytes, left, body)?;
                    self.state = if left == 0 { State::ChunkEnd(false) } else { State::ChunkData(left) };
                    rest
                }
                State::ChunkEnd(cr_seen) => {
                    self.state = match (cr_seen, bytes[0]) {
                        (false, b'\r') => State::ChunkEnd(true),
                        (true, b'\n') => State::ChunkSize,
                        _ => return Err(protocol("a chunk is longer than its size says")),
                    };
                    &bytes[1..]
                }
                State::Trailers => self.take_trailer(bytes)?,
                State::UntilClose => {
                    self.take_data(bytes, u64::MAX, body)?;
                    &[]
                }
                State::Complete => return Ok(()),
                State::Failed => return Err(protocol("bytes after a failure")),
            };
        }
        Ok(())
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ErrorKind> {
        // Line by line, so that the parser runs once, on the whole head, however the bytes were split.
        let (line, rest) = split_after_newline(bytes);
        let room = self.limits.head - self.buffer.len();
        self.buffer.extend_from_slice(&line[..line.len().min(room)]);
        let compared = self.buffer.len().min(VERSION.len());
        if self.buffer[..compared] != VERSION[..compared] {
            let found = String::from_utf8_lossy(&self.buffer[..compared]).into_owned();
            return Err(protocol(&format!("expected a status line HTTP/1.x, found {found:?}")));
        }
        if line.len() > room {
            return Err(ErrorKind::TooLarge { what: "the response head", limit: self.limits.head });
        }
        if self.buffer.ends_with(b"\n\r\n") || self.buffer.ends_with(b"\n\n") {
            let buffer = std::mem::take(&mut self.buffer);
            let head = parse_head(&buffer, &self.limits)?;
            if (100..200).contains(&head.status) {
                self.informational += 1;
                if head.status == 101 || self.informational > MAX_INFORMATIONAL {
                    return Err(protocol(&format!("unexpected interim status {}", head.status)));
                }
            } else {
                self.state = framing(&head, self.body_limit)?;
                self.head = Some(head);
            }
        }
        Ok(rest)
    }

    fn take_data<'a>(&mut self, bytes: &'a [u8], left: u64, body: &mut Vec<u8>) -> Result<(&'a [u8], u64), ErrorKind> {
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        // Up to the limit, so that what arrived before it is the same for every split.
        let allowed = take.min(self.body_limit - self.produced);
        body.extend_from_slice(&bytes[..allowed]);
        self.produced += allowed;
        if allowed < take {
            return Err(ErrorKind::TooLarge { what: "the response body", limit: self.body_limit });
        }
        Ok((&bytes[take..], left - take as u64))
    }

    fn take_chunk_size<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ErrorKind> {
        let (line, rest) = split_after_newline(bytes);
        if self.buffer.len() + line.len() > CHUNK_LINE_LIMIT {
            return Err(ErrorKind::TooLarge { what: "a chunk's size line", limit: CHUNK_LINE_LIMIT });
        }
        self.buffer.extend_from_slice(line);
        if self.buffer.ends_with(b"\n") {
            let buffer = std::mem::take(&mut self.buffer);
            let size = match httparse::parse_chunk_size(&buffer) {
                Ok(httparse::Status::Complete((used, size))) if used == buffer.len() => size,
                _ => return Err(protocol("invalid chunk size")),
            };
            self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
        }
        Ok(rest)
    }

    fn take_trailer<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ErrorKind> {
        let (line, rest) = split_after_newline(bytes);
        self.trailer_bytes += line.len();
        if self.trailer_bytes > self.limits.head {
            return Err(ErrorKind::TooLarge { what: "the response's trailers", limit: self.limits.head });
        }
        self.buffer.extend_from_slice(line);
        if self.buffer.ends_with(b"\n") {
            let line = std::mem::take(&mut self.buffer);
            if matches!(line.as_slice(), b"\r\n" | b"\n") {
                self.state = State::Complete;
            }
        }
        Ok(rest)
    }
}

fn protocol(reason: &str) -> ErrorKind {
    ErrorKind::Protocol { reason: reason.to_owned() }
}

/// The bytes up to and including the first LF, and the rest.
fn split_after_newline(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => bytes.split_at(at + 1),
        None => (bytes, &[]),
    }
}

fn parse_head(bytes: &[u8], limits: &Limits) -> Result<ResponseHead, ErrorKind> {
    let count = limits.headers.min(Limits::MAX_HEADERS);
    let mut storage = vec![httparse::EMPTY_HEADER; count];
    let mut response = httparse::Response::new(&mut storage);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(protocol("an incomplete head")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(ErrorKind::TooLarge { what: "the number of header lines", limit: count });
        }
        Err(error) => return Err(protocol(&format!("malformed head: {error}"))),
    }
    let status = response.code.ok_or_else(|| protocol("no status code"))?;
    if status < 100 {
        return Err(protocol(&format!("status {status:03} is below 100")));
    }
    let headers = response
        .headers
        .iter()
        .map(|header| (header.name.to_owned(), String::from_utf8_lossy(header.value).into_owned()))
        .collect();
    Ok(ResponseHead { status, headers })
}

/// RFC 9112, section 6.3: how the body's end is found.
fn framing(head: &ResponseHead, body_limit: usize) -> Result<State, ErrorKind> {
    if let Some(coding) = head.header("content-encoding")
        && !coding.eq_ignore_ascii_case("identity")
    {
        return Err(protocol(&format!("content coding {coding:?} was not asked for")));
    }
    if matches!(head.status, 204 | 304) {
        return Ok(State::Complete);
    }
    if let Some(coding) = head.header("transfer-encoding") {
        if head.all("transfer-encoding").len() == 1 && coding.eq_ignore_ascii_case("chunked") {
            return Ok(State::ChunkSize);
        }
        return Err(protocol(&format!("transfer coding {coding:?}; only chunked is read")));
    }
    let mut length: Option<u64> = None;
    for value in head.all("content-length") {
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = value.parse().ok().filter(|_| digits);
        let parsed = parsed.ok_or_else(|| protocol(&format!("content-length {value:?} is not a length")))?;
        if length.replace(parsed).is_some_and(|earlier| earlier != parsed) {
            return Err(protocol("two content-length headers disagree"));
        }
    }
    match length {
        Some(0) => Ok(State::Complete),
        Some(length) if length > body_limit as u64 => {
            Err(ErrorKind::TooLarge { what: "the response body", limit: body_limit })
        }
        Some(length) => Ok(State::Length(length)),
        None => Ok(State::UntilClose),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Decoded = (Option<ResponseHead>, Vec<u8>, bool, Option<&'static str>);

    fn decode(pieces: &[&[u8]]) -> Decoded {
        let limits = Limits { head: 256, headers: 4, body: 64, ..Limits::default() };
        let mut decoder = ResponseDecoder::new(&limits, limits.body);
        let mut body = Vec::new();
        let mut error = None;
        for piece in pieces {
            if let Err(kind) = decoder.push(piece, &mut body) {
                error = Some(kind.code());
                break;
            }
        }
        (decoder.head().cloned(), body, decoder.is_complete(), error)
    }

    fn body_of(bytes: &[u8]) -> (Vec<u8>, bool, Option<&'static str>) {
        let (_, body, complete, error) = decode(&[bytes]);
        (body, complete, error)
    }

    #[test]
    fn framings() {
        let cases: [(&[u8], &[u8], bool); 9] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", b"abc", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", b"abc", true),
            (b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc", false),
            (b"HTTP/1.1 204 No Content\r\n\r\nabc", b"", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", true),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", true),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n", b"abc0123456789", true),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", b"", true),
            (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", true),
        ];
        for (bytes, body, complete) in cases {
            assert_eq!(body_of(bytes), (body.to_vec(), complete, None), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn refused_responses() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let cases = [
            ("SSH-2.0-x\r\n".to_owned(), "protocol"),
            ("HTTP/2 200\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 abc\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 053 x\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n".to_owned(), "too_large"),
            ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(), "protocol"),
            ("HTTP/1.1 200 OK\r\nA: 1\r\nA: 1\r\nA: 1\r\nA: 1\r\nA: 1\r\n\r\n".to_owned(), "too_large"),
            (format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(300)), "too_large"),
            ("HTTP/1.1 100 Continue\r\n\r\n".repeat(17), "protocol"),
            (format!("{chunked}xyz\r\n"), "protocol"),
            (format!("{chunked}FFFFFFFFFFFFFFFFF\r\n"), "protocol"),
            (format!("{chunked}2\r\nabc"), "protocol"),
            (format!("{chunked}50\r\n{}", "x".repeat(80)), "too_large"),
            (format!("{chunked}{}", "0".repeat(2000)), "too_large"),
            (format!("{chunked}0\r\n{}", "T: v\r\n".repeat(60)), "too_large"),
        ];
        for (bytes, code) in cases {
            assert_eq!(body_of(bytes.as_bytes()).2, Some(code), "{bytes:?}");
        }
    }

    #[test]
    fn a_close_ends_only_what_may_end_so() {
        let limits = Limits::default();
        for (bytes, complete) in [
            (&b"HTTP/1.1 200 OK\r\n\r\nabc"[..], true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", false),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false),
            (b"HTTP/1.1 200 OK\r\n", false),
            (b"", false),
        ] {
            let mut decoder = ResponseDecoder::new(&limits, limits.body);
            decoder.push(bytes, &mut Vec::new()).unwrap();
            assert_eq!(decoder.finish(bytes.len() as u64).is_ok(), complete);
        }
    }

    fn response_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("HTTP/1.1 200 OK\r\n"),
            Just("Transfer-Encoding: chunked\r\n"),
            Just("Content-Length: 5\r\n"),
            Just("\r\n"),
            Just("\n"),
            Just("5\r\nhello\r\n"),
            Just("0\r\n\r\n"),
            Just("3\r\nab"),
            Just("x"),
        ];
        (any::<bool>(), proptest::collection::vec(piece, 0..14)).prop_map(|(chunked, pieces)| {
            let head =
                if chunked { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" } else { "HTTP/1.1 200 OK\r\n" };
            format!("{head}{}", pieces.concat()).into_bytes()
        })
    }

    proptest! {
        #[test]
        fn any_split_decodes_the_same(bytes in response_bytes(), cut in any::<prop::sample::Index>()) {
            let whole = decode(&[&bytes]);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(&decode(&single), &whole);
            let (left, right) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(&decode(&[left, right]), &whole);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), head in any::<bool>()) {
            let mut input = if head { b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec() } else { Vec::new() };
            input.extend(bytes);
            let single: Vec<&[u8]> = input.chunks(1).collect();
            prop_assert_eq!(decode(&single), decode(&[&input]));
        }
    }
}
