//! Against a real llama-server, started on a free loopback port with prompt reuse off.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-client --test real_server -- --include-ignored`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; a skip is said")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use b70_client::{
    Api, CancelToken, CompletionRequest, Deadlines, Endpoint, Health, Limits, Message, StreamReader, StreamRecord,
};

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let part = |name: &str, what: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            let path =
                path.unwrap_or_else(|| panic!("set {name} to the path of {what}, or run cargo xtask test --all"));
            assert!(path.is_file(), "{name}={} is not a file; it must be the path of {what}", path.display());
            path
        };
        let binary = part("B70_TEST_LLAMA_SERVER", "a llama-server executable");
        let model = part("B70_TEST_MODEL", "a small GGUF chat model");
        // Free at this moment; the server's own bind decides, and a clash ends it before it loads anything.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(binary)
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "-c",
                "2048",
                "-np",
                "1",
                "--cache-ram",
                "0",
                "-m",
            ])
            .arg(model)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("B70_TEST_LLAMA_SERVER can be started");
        let mut server = Self { child, url: format!("http://127.0.0.1:{port}") };
        server.wait_ready();
        server
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.url).unwrap()
    }

    fn wait_ready(&mut self) {
        let mut endpoint = self.endpoint().with_deadlines(Deadlines::within(Duration::from_secs(2)));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(120) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("llama-server ended while starting: {status}");
            }
            if matches!(endpoint.health(), Ok(Health::Ready)) {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("llama-server was not ready within 120 s");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn check(record: &StreamRecord, tokens: u64) {
    assert!(!record.full_text().is_empty());
    assert_eq!(record.finish_reasons.len(), 1);
    assert!(record.done);
    let usage = record.usage.as_ref().expect("usage was asked for");
    assert_eq!(usage.completion_tokens.count(), Some(tokens));
    let timings = record.timings.as_ref().expect("llama-server sends timings");
    assert_eq!(timings.cache_n.count(), Some(0));
    assert_eq!(timings.prompt_n, usage.prompt_tokens);
    let offsets = record.text_offsets();
    assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
    let (again, result) = StreamReader::replay(record.request.clone(), &record.raw, &Limits::default());
    result.unwrap();
    assert_eq!((&again.events, &again.usage), (&record.events, &record.usage));
    println!(
        "{:?}: {} tokens, {} reads, first byte {:.1} ms, first text {:.1} ms, {:.2} tok/s after it (server: {:.2})",
        record.request.api,
        tokens,
        record.raw.read_count(),
        record.first_byte_s.unwrap() * 1e3,
        offsets[0] * 1e3,
        (offsets.len() - 1) as f64 / (offsets[offsets.len() - 1] - offsets[0]),
        timings.predicted_per_second.unwrap()
    );
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn the_calls_of_a_real_server() {
    let server = Server::start();
    let mut endpoint = server.endpoint();

    let who = endpoint.identify().unwrap();
    assert!(who.is_llama_server() && !who.loading);
    assert_eq!(who.evidence, ["server-header", "owned-by", "model-path"]);
    println!("identity: {who:?}");
    let props = endpoint.props().unwrap();
    assert_eq!((props.is_sleeping, props.total_slots, props.n_ctx), (Some(false), Some(1), Some(2048)));
    assert!(!endpoint.tokenize("three rivers").unwrap().is_empty());

    let prompt = "List the months of the year, one per line, and then the days of the week.";
    let chat = endpoint.stream(&CompletionRequest::cold(Api::Chat, prompt, 48)).unwrap();
    check(&chat, chat.usage.as_ref().unwrap().completion_tokens.count().unwrap());
    assert_eq!(chat.usage.as_ref().unwrap().cached_tokens.count(), Some(0));
    let plain = endpoint.stream(&CompletionRequest::cold(Api::Completions, prompt, 32)).unwrap();
    check(&plain, plain.usage.as_ref().unwrap().completion_tokens.count().unwrap());

    let messages = [Message { role: "user".to_owned(), content: prompt.to_owned() }];
    let rendered = endpoint.apply_template(&messages).unwrap();
    assert!(rendered.contains(prompt) && rendered.len() > prompt.len());
    let native = endpoint.stream(&CompletionRequest::cold(Api::Native, &rendered, 48)).unwrap();
    check(&native, native.token_ids().len() as u64);

    let once = endpoint.complete(&CompletionRequest::cold(Api::Chat, prompt, 48)).unwrap();
    assert_eq!(once.text, chat.text, "greedy and cold: the same answer in one piece");

    // With reuse left on, a repeated prompt is caught by both counts.
    let mut warm = CompletionRequest::cold(Api::Chat, prompt, 8);
    warm.cache_prompt = Some(true);
    endpoint.stream(&warm).unwrap();
    let again = endpoint.stream(&warm).unwrap();
    let reused = again.usage.unwrap().cached_tokens.count().unwrap();
    assert!(reused > 0 && again.timings.unwrap().cache_n.count() == Some(reused));

    let long = "river ".repeat(4000);
    let failure = endpoint.stream(&CompletionRequest::cold(Api::Chat, long, 8)).unwrap_err();
    assert_eq!(failure.error.code(), "context_exceeded", "{failure}");
    println!("context: {}", failure.error);
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn a_busy_real_server_is_seen_working_and_can_be_cancelled() {
    let server = Server::start();
    let cancel = CancelToken::new();
    let mut endpoint = server.endpoint().with_cancel(cancel.clone());
    let mut watcher = server.endpoint().with_deadlines(Deadlines::within(Duration::from_secs(10)));
    let mut request = CompletionRequest::cold(Api::Chat, "Tell a long story about a lighthouse.", 1500);
    request.extra.insert("ignore_eos".to_owned(), true.into());
    let mut seen = 0;
    let failure = endpoint
        .stream_with(&request, &mut |event| {
            seen += u32::from(event.has_text());
            if seen == 5 {
                let slots = watcher.slots().unwrap();
                assert!(slots[0].is_processing && slots[0].n_decoded > Some(0));
                assert_eq!(watcher.health().unwrap(), Health::Ready);
                cancel.cancel();
            }
        })
        .unwrap_err();
    assert_eq!(failure.error.code(), "cancelled");
    assert!(!failure.record.text.is_empty());
    // The server notices the closed connection and its slot becomes idle.
    let begun = Instant::now();
    while watcher.slots().unwrap()[0].is_processing {
        assert!(begun.elapsed() < Duration::from_secs(30), "the slot is still busy 30 s after the client left");
        thread::sleep(Duration::from_millis(50));
    }
}
