//! A proxy between the runner and a server that spoils generations in a chosen way and passes everything else on.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

/// What the proxy does to a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// Each event comes later.
    Delays,
    /// Each byte comes alone.
    EveryByte,
    /// Pings between the events.
    Pings,
    DropsUsage,
    CachedMissing,
    CachedFalse,
    CachedThree,
    CachedThreeInTimings,
    ClosesMidStream,
    ErrorEvent,
    Loading,
    /// Nothing more after some events, the connection open.
    Wedged,
    /// The same with pings.
    WedgedWithPings,
    NotJson,
    NoFinish,
}

/// Events that pass before a fault that cuts.
const BEFORE: usize = 20;

pub(crate) struct Proxy {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(upstream: &str, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("the listener has an address");
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, upstream) = (Arc::clone(&stopping), upstream.trim_start_matches("http://").to_owned());
        let thread = thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(socket), upstream) = (connection, upstream.clone()) else { continue };
                thread::spawn(move || drop(serve(socket, &upstream, fault)));
            }
        });
        Self { address, stopping, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Head lines up to the empty one, and the announced length.
fn head(reader: &mut impl std::io::BufRead) -> std::io::Result<(String, usize)> {
    let (mut text, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            text.push_str("\r\n");
            return Ok((text, length));
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        text.push_str(&line);
    }
}

fn serve(client: TcpStream, upstream: &str, fault: Fault) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    let (request, length) = head(&mut reader)?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut client = client;
    let generates = request.lines().next().is_some_and(|line| line.contains("completion"));
    if generates && fault == Fault::Loading {
        let body = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
        let text = format!(
            "HTTP/1.1 503 Service Unavailable\r\nServer: llama.cpp\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        return client.write_all(text.as_bytes());
    }
    let mut server = TcpStream::connect(upstream)?;
    server.write_all(request.as_bytes())?;
    server.write_all(&body)?;
    if !generates {
        std::io::copy(&mut server, &mut client)?;
        return Ok(());
    }
    let mut answer = BufReader::new(server);
    let (response, _) = head(&mut answer)?;
    client.write_all(response.as_bytes())?;
    let mut sent = 0;
    let mut text = String::new();
    loop {
        // One chunk: its length in hex, then so many bytes and a line end.
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        if size == 0 {
            return client.write_all(b"0\r\n\r\n");
        }
        let mut data = vec![0; size + 2];
        answer.read_exact(&mut data)?;
        text.push_str(&String::from_utf8_lossy(&data[..size]));
        while let Some(end) = text.find("\n\n") {
            let event: String = text.drain(..end + 2).collect();
            if !pass(&mut client, &event, sent, fault)? {
                return Ok(());
            }
            sent += 1;
        }
    }
}

/// Sends an event on, spoiled; false when nothing more is to be sent.
fn pass(client: &mut TcpStream, event: &str, sent: usize, fault: Fault) -> std::io::Result<bool> {
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    if sent >= BEFORE {
        match fault {
            Fault::ClosesMidStream => return Ok(false),
            Fault::ErrorEvent => {
                let lost = "data: {\"error\":{\"message\":\"device lost\",\"type\":\"server_error\",\"code\":500}}\n\n";
                client.write_all(chunk(lost).as_bytes())?;
                return Ok(false);
            }
            Fault::NotJson => {
                client.write_all(chunk("data: {oops\n\n").as_bytes())?;
                return Ok(false);
            }
            Fault::NoFinish => {
                client.write_all(b"0\r\n\r\n")?;
                return Ok(false);
            }
            Fault::Wedged => {
                drop(client.read(&mut [0; 16]));
                return Ok(false);
            }
            Fault::WedgedWithPings => loop {
                client.write_all(chunk(":\n\n").as_bytes())?;
                thread::sleep(Duration::from_millis(20));
            },
            _ => {}
        }
    }
    let spoiled = spoil(event, fault);
    let Some(event) = spoiled else { return Ok(true) };
    match fault {
        Fault::Delays => thread::sleep(Duration::from_millis(2)),
        Fault::Pings => client.write_all(chunk(":\n\n").as_bytes())?,
        _ => {}
    }
    let bytes = chunk(&event);
    if fault == Fault::EveryByte {
        bytes.as_bytes().chunks(1).try_for_each(|byte| client.write_all(byte))?;
    } else {
        client.write_all(bytes.as_bytes())?;
    }
    Ok(true)
}

/// The event with its usage changed; `None` to leave it out.
fn spoil(event: &str, fault: Fault) -> Option<String> {
    let Some(mut value) = event
        .strip_prefix("data: ")
        .and_then(|data| serde_json::from_str::<Value>(data.trim()).ok())
        .filter(|value| value.get("usage").is_some_and(Value::is_object))
    else {
        return Some(event.to_owned());
    };
    let cached = |value: &mut Value, count: Value| value["usage"]["prompt_tokens_details"]["cached_tokens"] = count;
    match fault {
        Fault::DropsUsage => return None,
        Fault::CachedMissing => {
            value["usage"].as_object_mut()?.remove("prompt_tokens_details");
            value.as_object_mut()?.remove("timings");
        }
        Fault::CachedFalse => cached(&mut value, json!(false)),
        Fault::CachedThree => cached(&mut value, json!(3)),
        Fault::CachedThreeInTimings => value["timings"]["cache_n"] = json!(3),
        _ => return Some(event.to_owned()),
    }
    Some(format!("data: {value}\n\n"))
}

/// Every fault with what is to become of a run: no code for one that must pass, otherwise the row's code or a gate's.
pub(crate) const FAULTS: [(Fault, &str); 16] = [
    (Fault::Nothing, ""),
    (Fault::Delays, ""),
    (Fault::EveryByte, ""),
    (Fault::Pings, ""),
    (Fault::DropsUsage, "cached_count_missing"),
    (Fault::CachedMissing, "cached_count_missing"),
    (Fault::CachedFalse, "cached_count_not_an_integer"),
    (Fault::CachedThree, "cached_count_not_zero"),
    (Fault::CachedThreeInTimings, "cached_count_not_zero"),
    (Fault::ClosesMidStream, "disconnected"),
    (Fault::ErrorEvent, "server_error"),
    (Fault::Loading, "loading"),
    (Fault::Wedged, "timeout_idle"),
    (Fault::WedgedWithPings, "timeout_idle"),
    (Fault::NotJson, "not_json"),
    (Fault::NoFinish, "unfinished"),
];

/// Runs one prompt through the proxy with every fault and holds the outcome against [`FAULTS`]; returns how many.
pub(crate) fn classify_all(upstream: &str, max_tokens: u32) -> usize {
    for (fault, expected) in FAULTS {
        let folder = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(upstream, fault);
        let mut one =
            crate::fake::calibration(vec![crate::fake::target("spoiled", &proxy.url(), 3)], &folder.path().join("out"));
        one.options.max_tokens = max_tokens;
        one.options.selected = Some(vec![one.suite.prompts[2].id.clone()]);
        let patient = Duration::from_secs(180);
        one.options.deadlines = b70_client::Deadlines::within(patient);
        if expected == "timeout_idle" {
            one.options.deadlines.idle = Duration::from_millis(1500);
        }
        let report = one.execute(&AtomicBool::new(false), &mut |_| {}).unwrap();
        let result = b70_bench::load_result(&one.out.join("spoiled.json")).unwrap();
        assert!(result.verify_report().verified, "{fault:?}: {:?}", result.disagreements);
        let screening = &result.judged.gates()["screening"];
        let row = &result.judged.measured().rows[0];
        if expected.is_empty() {
            assert_eq!(report.status, b70_bench::RunStatus::Passed, "{fault:?}: {screening:?} {:?}", row.error);
            continue;
        }
        assert_eq!(report.status, b70_bench::RunStatus::Failed, "{fault:?}");
        let by_row = b70_bench::error_code(row) == Some(expected);
        let by_gate = row.error.is_none() && screening.codes.iter().any(|code| code == expected);
        assert!(by_row || by_gate, "{fault:?}: expected {expected}, found {:?} and {:?}", row.error, screening.codes);
    }
    FAULTS.len()
}
