//! Where a server listens: `http://host:port[/prefix]`, and nothing else.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use http::Uri;

use crate::error::ErrorKind;

/// The checked address of a server on plain HTTP.
///
/// User names, passwords, queries and fragments are refused: a secret belongs in [`ApiKey`](crate::ApiKey),
/// which never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    host: String,
    authority: String,
    port: u16,
    prefix: String,
}

impl BaseUrl {
    /// Reads `http://host[:port][/prefix]`; the port defaults to 80.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`]; the text of the URL itself is not repeated, since it may hold a secret.
    pub fn parse(text: &str) -> Result<Self, ErrorKind> {
        let refuse = |reason: &str| ErrorKind::InvalidUrl { reason: reason.to_owned() };
        if text.contains('#') {
            return Err(refuse("a fragment (#…) has no meaning here"));
        }
        let uri: Uri = text.trim().parse().map_err(|error| refuse(&format!("not a URL: {error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(refuse(
                    "https is not spoken; use a plain http address on this machine or a trusted network",
                ));
            }
            Some(_) | None => return Err(refuse("expected http://HOST:PORT")),
        }
        let authority = uri.authority().ok_or_else(|| refuse("expected http://HOST:PORT"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("a user name or password in the address is refused; set the API key instead"));
        }
        if uri.query().is_some() {
            return Err(refuse("a query (?…) does not belong to a server's address"));
        }
        let bracketed = authority.host();
        let host = bracketed.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(refuse("the host is empty"));
        }
        let after_host = authority.as_str().strip_prefix(bracketed).unwrap_or_default();
        let port = match after_host {
            "" => 80,
            _ => authority.port_u16().filter(|port| *port != 0).ok_or_else(|| refuse("the port must be 1 to 65535"))?,
        };
        Ok(Self {
            host,
            authority: authority.as_str().to_owned(),
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The host, an IPv6 literal without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// True when the host is a loopback literal or `localhost`.
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost") || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// `host[:port]` as it was written, for the `Host` header.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// The request target of a path that starts with `/`.
    pub(crate) fn target(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Resolves the host within the limit. A literal address needs no resolver; for a name the system's resolver, which
    /// takes no deadline, runs on a thread of its own that is left behind if it does not answer in time.
    pub(crate) fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>, ErrorKind> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let (host, port) = (self.host.clone(), self.port);
        let spawned = thread::Builder::new().name("b70-resolve".to_owned()).spawn(move || {
            let answer = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            // The receiver is gone when the caller's deadline has passed: then nobody wants the answer.
            drop(sender.send(answer));
        });
        let failed = |reason: String| ErrorKind::Resolve { host: self.host.clone(), reason };
        spawned.map_err(|error| failed(error.to_string()))?;
        match receiver.recv_timeout(limit) {
            Ok(Ok(addresses)) if addresses.is_empty() => Err(failed("the name has no address".to_owned())),
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer from the resolver within {:.1} s", limit.as_secs_f64()))),
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BaseUrl({self})")
    }
}

impl std::str::FromStr for BaseUrl {
    type Err = ErrorKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_addresses() {
        for (text, host, port, shown) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, "http://127.0.0.1:8080"),
            ("http://127.0.0.1:8080/", "127.0.0.1", 8080, "http://127.0.0.1:8080"),
            ("http://[::1]:9931/llama/", "::1", 9931, "http://[::1]:9931/llama"),
            ("http://box.lan", "box.lan", 80, "http://box.lan"),
        ] {
            let url = BaseUrl::parse(text).expect(text);
            assert_eq!((url.host(), url.port(), url.to_string().as_str()), (host, port, shown));
        }
        assert!(BaseUrl::parse("http://[::1]:1").unwrap().is_loopback());
        assert!(!BaseUrl::parse("http://10.0.0.1:1").unwrap().is_loopback());
    }

    #[test]
    fn refused_addresses_never_show_a_secret() {
        for text in [
            "",
            "127.0.0.1:8080",
            "https://127.0.0.1:8080",
            "ftp://127.0.0.1",
            "http://",
            "http://:80",
            "http://h:99999",
            "http://h:0",
            "http://h:",
            "http://h:80?x=1",
            "http://h:80#x",
            "http://a:hunter2@h:80",
            "http://h:80\r\nX: y",
            "http://h h",
        ] {
            let error = BaseUrl::parse(text).expect_err(text);
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_within_its_limit() {
        let url = BaseUrl::parse("http://no-such-host.invalid:80").unwrap();
        assert!(matches!(url.resolve(Duration::from_secs(5)), Err(ErrorKind::Resolve { .. })));
    }
}
