//! A server that misbehaves on command, on a loopback port of its own.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the server does next on a connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends these bytes with one write.
    Send(Vec<u8>),
    /// Sends each byte with a write of its own.
    Bytewise(Vec<u8>),
    /// Waits.
    Sleep(Duration),
    /// Sends this again and again with the pause between, until the client closes.
    Repeat(Vec<u8>, Duration),
    /// Says nothing more until the client closes.
    Hang,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

pub(crate) struct FaultServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FaultServer {
    /// Answers the n-th request (from 0) with the steps `script` gives, then closes.
    pub(crate) fn start(script: impl Fn(usize, &Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("the listener has an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stopping = Arc::new(AtomicBool::new(false));
        let (seen, stop, script) = (Arc::clone(&requests), Arc::clone(&stopping), Arc::new(script));
        let thread = thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(mut socket) = connection else { continue };
                let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                thread::spawn(move || {
                    let Some(request) = read_request(&mut socket) else { return };
                    let index = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    play(&mut socket, script(index, &request));
                });
            }
        });
        Self { address, requests, stopping, thread: Some(thread) }
    }

    /// Always the same steps.
    pub(crate) fn always(steps: Vec<Step>) -> Self {
        Self::start(move |_, _| steps.clone())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn read_request(socket: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Some(Request { head: head.to_owned(), body: body.to_owned() });
            }
        }
        match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

fn play(socket: &mut TcpStream, steps: Vec<Step>) {
    drop(socket.set_nodelay(true));
    for step in steps {
        let result = match step {
            Step::Send(bytes) => socket.write_all(&bytes),
            Step::Bytewise(bytes) => bytes.chunks(1).try_for_each(|byte| socket.write_all(byte)),
            Step::Sleep(time) => {
                thread::sleep(time);
                Ok(())
            }
            Step::Repeat(bytes, pause) => {
                while socket.write_all(&bytes).is_ok() {
                    thread::sleep(pause);
                }
                return;
            }
            Step::Hang => {
                drop(socket.read(&mut [0; 16]));
                return;
            }
        };
        if result.is_err() {
            return;
        }
    }
}

/// A complete response with a length.
pub(crate) fn response(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nServer: llama.cpp\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

pub(crate) fn json_response(body: &str) -> Vec<u8> {
    response("200 OK", "application/json; charset=utf-8", body)
}

pub(crate) fn loading() -> Vec<u8> {
    let body = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
    response("503 Service Unavailable", "application/json; charset=utf-8", body)
}

/// The head of a stream.
pub(crate) fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        .to_vec()
}

pub(crate) fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

pub(crate) fn event(json: &str) -> Vec<u8> {
    chunk(&format!("data: {json}\n\n"))
}

pub(crate) fn delta(text: &str) -> Vec<u8> {
    event(&format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
    ))
}

pub(crate) fn finish() -> Vec<u8> {
    event(r#"{"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#)
}

/// The usage event; `cached` is put in as it is.
pub(crate) fn usage(cached: &str) -> Vec<u8> {
    event(&format!(
        r#"{{"id":"chatcmpl-1","choices":[],"usage":{{"completion_tokens":3,"prompt_tokens":9,"total_tokens":12{cached}}},"timings":{{"cache_n":0,"prompt_n":9,"prompt_ms":1.0,"predicted_n":3,"predicted_ms":2.0,"draft_n":4,"draft_n_accepted":2}}}}"#
    ))
}

pub(crate) const CACHED_ZERO: &str = r#","prompt_tokens_details":{"cached_tokens":0}"#;

/// The end of a chat stream with its terminating chunk.
pub(crate) fn done() -> Vec<u8> {
    [event("[DONE]"), b"0\r\n\r\n".to_vec()].concat()
}

/// A whole stream with three text events.
pub(crate) fn chat_stream() -> Vec<u8> {
    [stream_head(), delta("one "), delta("two "), delta("three"), finish(), usage(CACHED_ZERO), done()].concat()
}
