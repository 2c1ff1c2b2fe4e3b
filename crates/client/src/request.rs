//! The request side: header values that cannot break out of their line, and a key that never shows.

use std::fmt;

use http::{HeaderName, HeaderValue};

use crate::address::BaseUrl;
use crate::error::ErrorKind;

/// An API key, sent as `Authorization: Bearer …`. It is never part of `Debug` output, of an error or of a record.
#[derive(Clone)]
pub struct ApiKey {
    header: HeaderValue,
    secret: String,
}

impl ApiKey {
    /// Takes a key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidHeader`] for an empty key and for one with characters that a header cannot carry.
    pub fn new(key: &str) -> Result<Self, ErrorKind> {
        let refuse =
            |reason: &str| ErrorKind::InvalidHeader { name: "Authorization".to_owned(), reason: reason.to_owned() };
        let secret = key.trim();
        if secret.is_empty() {
            return Err(refuse("the API key is empty"));
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(|_| refuse("the API key contains characters that a header cannot carry"))?;
        header.set_sensitive(true);
        Ok(Self { header, secret: secret.to_owned() })
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

/// One request, ready to be written.
pub(crate) struct RequestLine<'a> {
    pub(crate) method: &'static str,
    /// A path of this crate's own, with its query.
    pub(crate) path: &'a str,
    pub(crate) accept: &'static str,
    /// A JSON body.
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) request_id: Option<&'a str>,
}

impl RequestLine<'_> {
    /// Head and body as they go over the wire.
    pub(crate) fn encode(&self, base: &BaseUrl, api_key: Option<&ApiKey>) -> Result<Vec<u8>, ErrorKind> {
        let mut headers = vec![
            (http::header::HOST, value("Host", base.authority())?),
            (http::header::USER_AGENT, HeaderValue::from_static(concat!("b70kit/", env!("CARGO_PKG_VERSION")))),
            (http::header::ACCEPT, HeaderValue::from_static(self.accept)),
            // A compressed stream would be delayed by the compressor: arrival could not be stamped.
            (http::header::ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            (http::header::CONNECTION, HeaderValue::from_static("close")),
        ];
        if let Some(id) = self.request_id {
            headers.push((HeaderName::from_static("x-request-id"), value("X-Request-Id", id)?));
        }
        if let Some(body) = &self.body {
            headers.push((http::header::CONTENT_TYPE, HeaderValue::from_static("application/json")));
            headers.push((http::header::CONTENT_LENGTH, HeaderValue::from(body.len())));
        }
        if let Some(key) = api_key {
            headers.push((http::header::AUTHORIZATION, key.header.clone()));
        }
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, base.target(self.path)).into_bytes();
        for (name, value) in &headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        Ok(bytes)
    }
}

fn value(name: &str, text: &str) -> Result<HeaderValue, ErrorKind> {
    HeaderValue::from_str(text)
        .map_err(|error| ErrorKind::InvalidHeader { name: name.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_cannot_be_sent() {
        let base = BaseUrl::parse("http://127.0.0.1:1").unwrap();
        let line = |id| RequestLine { method: "GET", path: "/", accept: "*/*", body: None, request_id: Some(id) };
        for id in ["a\r\nX-Evil: 1", "a\n", "\r", "\0"] {
            let error = line(id).encode(&base, None).expect_err("must be refused");
            assert_eq!(error.code(), "invalid_header");
        }
        let bytes = line("fine").encode(&base, None).unwrap();
        assert!(String::from_utf8(bytes).unwrap().contains("x-request-id: fine\r\n"));
    }

    #[test]
    fn the_key_is_sent_and_never_shown() {
        let key = ApiKey::new(" hunter2\n").unwrap();
        assert!(!format!("{key:?}").contains("hunter2"));
        for bad in ["", "  ", "hunter2\r\nX: y", "hunter2\u{7f}"] {
            let error = ApiKey::new(bad).expect_err("must be refused");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
        let base = BaseUrl::parse("http://127.0.0.1:1/p").unwrap();
        let line =
            RequestLine { method: "POST", path: "/x", accept: "*/*", body: Some(b"{}".to_vec()), request_id: None };
        let text = String::from_utf8(line.encode(&base, Some(&key)).unwrap()).unwrap();
        assert!(text.starts_with("POST /p/x HTTP/1.1\r\nhost: 127.0.0.1:1\r\n"), "{text}");
        assert!(
            text.contains("authorization: Bearer hunter2\r\n")
                && text.ends_with("content-length: 2\r\nauthorization: Bearer hunter2\r\n\r\n{}"),
            "{text}"
        );
    }
}
