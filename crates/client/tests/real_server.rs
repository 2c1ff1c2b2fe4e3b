//! Against a real llama-server, started on a free loopback port with prompt reuse off.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-client --test real_server -- --include-ignored`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; a skip is said")]

use std::thread;
use std::time::{Duration, Instant};

use b70_client::{
    Api, CancelToken, CompletionRequest, Deadlines, Endpoint, Health, Limits, Message, StreamReader, StreamRecord,
};
use b70_testkit::LlamaServer;

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
    let server = LlamaServer::start(2048);
    let mut endpoint = Endpoint::new(&server.url).unwrap();

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
    let server = LlamaServer::start(2048);
    let cancel = CancelToken::new();
    let mut endpoint = Endpoint::new(&server.url).unwrap().with_cancel(cancel.clone());
    let mut watcher = Endpoint::new(&server.url).unwrap().with_deadlines(Deadlines::within(Duration::from_secs(10)));
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
