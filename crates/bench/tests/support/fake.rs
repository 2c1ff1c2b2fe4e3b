//! A server that answers like llama-server, out of a script, and results made from known offsets.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::Duration;

use b70_bench::{CalibrateOptions, Calibration, Suite, Target, parse_endpoint};
use b70_client::Deadlines;
use b70_procguard::Host;

use crate::fault_server::{
    FaultServer, Request, Step, delta, done, event, finish, json_response, response, stream_head,
};

/// Tokens of an answer.
pub(crate) const TOKENS: u32 = 110;

pub(crate) const PROPS: &str = r#"{"model_path":"/models/m.gguf","model_alias":"m","total_slots":1,"build_info":"b1-fake","chat_template":"t","default_generation_settings":{"n_ctx":4096}}"#;
pub(crate) const MODELS: &str = r#"{"object":"list","data":[{"id":"m","owned_by":"llamacpp"}]}"#;

/// A pause that the reader notices even on a busy machine: an answer that arrives in one read has no rate.
const PAUSE: Duration = Duration::from_millis(100);

/// A cold answer of [`TOKENS`] tokens.
pub(crate) fn answer() -> Vec<Step> {
    let words = |count: u32| Step::Send((0..count).flat_map(|_| delta("word ")).collect());
    let mut steps = vec![Step::Send(stream_head()), words(10), Step::Sleep(PAUSE), words(40), words(TOKENS - 50)];
    let usage = format!(
        r#"{{"id":"chatcmpl-1","choices":[],"usage":{{"completion_tokens":{TOKENS},"prompt_tokens":80,"prompt_tokens_details":{{"cached_tokens":0}}}},"timings":{{"cache_n":0,"prompt_n":80,"predicted_n":{TOKENS}}}}}"#
    );
    steps.push(Step::Send([finish(), event(&usage), done()].concat()));
    steps
}

/// A cold answer of the native API with token ids.
pub(crate) fn native_answer() -> Vec<Step> {
    let mut steps = vec![Step::Send(stream_head())];
    for token in 0..TOKENS {
        if token == 10 {
            steps.push(Step::Sleep(PAUSE));
        }
        steps.push(Step::Send(event(&format!(r#"{{"content":"w ","tokens":[{token}],"stop":false}}"#))));
    }
    let last = format!(
        r#"{{"content":"","tokens":[],"stop":true,"stop_type":"limit","tokens_predicted":{TOKENS},"tokens_evaluated":80,"timings":{{"cache_n":0,"prompt_n":80,"predicted_n":{TOKENS}}}}}"#
    );
    steps.push(Step::Send([event(&last), b"0\r\n\r\n".to_vec()].concat()));
    steps
}

/// Serves what identifies llama-server; `generate` makes the answer of the n-th generation, from 0.
pub(crate) fn llama(generate: impl Fn(usize, &Request) -> Vec<Step> + Send + Sync + 'static) -> FaultServer {
    with_props(PROPS, generate)
}

pub(crate) fn with_props(
    props: &'static str,
    generate: impl Fn(usize, &Request) -> Vec<Step> + Send + Sync + 'static,
) -> FaultServer {
    let generations = std::sync::atomic::AtomicUsize::new(0);
    FaultServer::start(move |_, request| match request.path() {
        "/health" => vec![Step::Send(json_response(r#"{"status":"ok"}"#))],
        "/props" => vec![Step::Send(json_response(props))],
        "/v1/models" => vec![Step::Send(json_response(MODELS))],
        "/apply-template" => vec![Step::Send(json_response(r#"{"prompt":"<user>rendered"}"#))],
        "/v1/chat/completions" | "/v1/completions" | "/completion" => {
            generate(generations.fetch_add(1, std::sync::atomic::Ordering::SeqCst), request)
        }
        _ => vec![Step::Send(response("404 Not Found", "text/plain", "no"))],
    })
}

/// A target on the n-th card.
pub(crate) fn target(name: &str, url: &str, card: usize) -> Target {
    parse_endpoint(&format!("{name}={url},card=0000:{card:02x}:00.0")).unwrap()
}

/// A calibration with deadlines that a busy machine does not reach.
pub(crate) fn calibration(targets: Vec<Target>, out: &std::path::Path) -> Calibration {
    Calibration {
        targets,
        suite: Suite::builtin(),
        options: CalibrateOptions {
            max_tokens: TOKENS,
            deadlines: Deadlines::within(Duration::from_secs(30)),
            ..CalibrateOptions::default()
        },
        out: out.to_owned(),
        host: Host::real(),
        lease_root: None,
    }
}
