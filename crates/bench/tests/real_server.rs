//! Two prompts of the suite against a real llama-server: rows, summary and gates of what really arrives.
//!
//! Gated: `B70_TEST_ALL=1 B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-bench --test real_server`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; a skip is said")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use b70_bench::{Row, RunFacts, RunSummary, Suite, cached_zero, evidence_class, realistic_final, screening};
use b70_client::{Api, CompletionRequest, Deadlines, Endpoint, Health, Limits, StreamReader, request_id};
use b70_manifest::EvidenceClass;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start() -> Option<(Server, String)> {
    if std::env::var_os("B70_TEST_ALL").is_none_or(|value| value != "1") {
        println!("skipped: needs B70_TEST_ALL=1, a llama-server and a model");
        return None;
    }
    let part = |name: &str, what: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        let path = path.unwrap_or_else(|| panic!("B70_TEST_ALL is set: set {name} to the path of {what}"));
        assert!(path.is_file(), "{name}={} is not a file; it must be the path of {what}", path.display());
        path
    };
    let binary = part("B70_TEST_LLAMA_SERVER", "a llama-server executable");
    let model = part("B70_TEST_MODEL", "a small GGUF chat model");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(binary)
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "-c", "2048", "-np", "1", "--cache-ram", "0", "-m"])
        .arg(model)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("B70_TEST_LLAMA_SERVER can be started");
    let mut server = Server(child);
    let url = format!("http://127.0.0.1:{port}");
    let mut endpoint = Endpoint::new(&url).unwrap().with_deadlines(Deadlines::within(Duration::from_secs(2)));
    let begun = Instant::now();
    while !matches!(endpoint.health(), Ok(Health::Ready)) {
        assert!(server.0.try_wait().unwrap().is_none(), "llama-server ended while starting");
        assert!(begun.elapsed() < Duration::from_secs(120), "llama-server was not ready within 120 s");
        thread::sleep(Duration::from_millis(100));
    }
    Some((server, url))
}

#[test]
fn rows_and_gates_of_a_real_run() {
    let Some((_server, url)) = start() else { return };
    let suite = Suite::builtin();
    let mut endpoint = Endpoint::new(&url).unwrap();
    let mut rows = Vec::new();
    for (index, prompt) in suite.prompts.iter().take(2).enumerate() {
        let tokens = endpoint.tokenize(&prompt.prompt).unwrap().len();
        let mut request = CompletionRequest::cold(Api::Chat, &prompt.prompt, 110);
        request.request_id = Some(request_id(&format!("bench-{}-{index:02}-{}", suite.suite_id, prompt.id)));
        let record = endpoint.stream(&request).unwrap();
        let row = Row::complete(prompt, index, 0, &record, 100);
        // The same row once more from the raw bytes.
        let (again, result) = StreamReader::replay(record.request.clone(), &record.raw, &Limits::default());
        result.unwrap();
        let again = Row::complete(prompt, index, 0, &again, 100);
        assert_eq!(
            (&again.chunk_offsets_s, again.tok_s_1_100_intervals_after_ttft),
            (&row.chunk_offsets_s, row.tok_s_1_100_intervals_after_ttft)
        );
        println!(
            "{}: {tokens} prompt tokens, {} events, {:.2} tok/s interval, ttft {:.0} ms",
            prompt.id,
            row.chunk_count,
            row.tok_s_1_100_intervals_after_ttft.unwrap(),
            row.ttft_s.unwrap() * 1e3
        );
        rows.push(row);
    }
    let facts = RunFacts {
        suite_prompt_count: suite.prompts.len(),
        prompt_classes: suite.prompts.iter().map(|prompt| prompt.prompt_class.clone()).collect(),
        selected_prompt_ids: rows.iter().map(|row| row.prompt_id.clone()).collect(),
        max_tokens: 110,
        metric_window: 100,
        ignore_eos: false,
        cache_prompt: Some(false),
        require_natural_eos: true,
        requests_before: 0,
    };
    let (screened, promoted) = (screening(&facts, &rows), realistic_final(&facts, &rows));
    assert!(screened.passed, "{screened:?}");
    assert_eq!(promoted.codes, ["prompt_subset_selected", "fixed_suite_incomplete", "max_tokens_must_equal_512"]);
    assert_eq!(evidence_class(&screened, &promoted), EvidenceClass::FreshResponseScreening);
    assert_eq!(RunSummary::of(&rows).tok_s_1_100_intervals_after_ttft.count, 2);

    // A server that may reuse a repeated prefix is caught.
    let prompt = &suite.prompts[1];
    let mut request = CompletionRequest::cold(Api::Chat, &prompt.prompt, 4);
    request.cache_prompt = Some(true);
    let warm = Row::complete(prompt, 1, 0, &endpoint.stream(&request).unwrap(), 100);
    assert_eq!(cached_zero(std::slice::from_ref(&warm)).codes[0], "cached_tokens_not_zero", "{:?}", warm.usage);
}
