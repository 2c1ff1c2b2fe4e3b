//! Every fault of a server ends as a failed row or a gate code: none passes the screening, none stops the run.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; the count is the result")]

#[path = "../../client/tests/support/mod.rs"]
mod fault_server;
mod support;

use std::time::Duration;

use b70_bench::{Asked, SuitePrompt, complete_row, error_code, failed_row};
use b70_client::{Api, CompletionRequest, Deadlines, Endpoint};
use b70_manifest::gate;
use fault_server::{
    FaultServer, Step, chunk, delta, done, event, finish, json_response, loading, response, stream_head,
};

const TOKENS: usize = 110;

/// What the screening is to say: nothing, a failed row with a client code, or gate codes.
enum Expected {
    Pass,
    Failed(&'static str),
    Codes(&'static [&'static str]),
}

/// 110 text events in eleven bursts.
fn text(count: usize) -> Vec<Step> {
    let burst = |size: usize| Step::Send((0..size).flat_map(|_| delta("word ")).collect());
    let mut steps = vec![Step::Send(stream_head())];
    for start in (0..count).step_by(10) {
        steps.extend([burst(10.min(count - start)), Step::Sleep(Duration::from_millis(1))]);
    }
    steps
}

fn usage(fields: &str) -> Vec<u8> {
    event(&format!(r#"{{"id":"c","choices":[],{fields}}}"#))
}

/// A whole answer whose usage event holds these fields.
fn answer(fields: &str) -> Vec<Step> {
    let mut steps = text(TOKENS);
    steps.push(Step::Send([finish(), usage(fields), done()].concat()));
    steps
}

fn cached(value: &str) -> String {
    format!(
        r#""usage":{{"completion_tokens":111,"prompt_tokens":80,"prompt_tokens_details":{{"cached_tokens":{value}}}}}"#
    )
}

const COLD: &str = r#""usage":{"completion_tokens":111,"prompt_tokens":80,"prompt_tokens_details":{"cached_tokens":0}},"timings":{"cache_n":0,"prompt_n":80}"#;
const BARE: &str = r#""usage":{"completion_tokens":111,"prompt_tokens":80}"#;

fn bytewise(steps: Vec<Step>) -> Vec<Step> {
    steps.into_iter().map(|step| if let Step::Send(bytes) = step { Step::Bytewise(bytes) } else { step }).collect()
}

fn with(mut steps: Vec<Step>, last: Vec<Step>) -> Vec<Step> {
    steps.extend(last);
    steps
}

fn faults() -> Vec<(&'static str, Vec<Step>, Expected)> {
    use Expected::{Codes, Failed, Pass};
    let context = r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":900,"n_ctx":256}}"#;
    let lost = event(r#"{"error":{"message":"device lost","type":"server_error","code":500}}"#);
    vec![
        ("a cold answer", answer(COLD), Pass),
        ("split at every byte", bytewise(answer(COLD)), Pass),
        ("pings between", with(text(0), with(vec![Step::Send(chunk(":\n\n"))], answer(COLD).split_off(1))), Pass),
        ("delayed", with(vec![Step::Sleep(Duration::from_millis(30))], answer(COLD)), Pass),
        (
            "usage without cached, timings zero",
            answer(&format!(r#"{BARE},"timings":{{"cache_n":0,"prompt_n":80}}"#)),
            Pass,
        ),
        (
            "usage dropped",
            with(text(TOKENS), vec![Step::Send([finish(), done()].concat())]),
            Codes(&["cached_count_missing", "completion_tokens_below_window"]),
        ),
        ("cached missing", answer(BARE), Codes(&["cached_count_missing"])),
        ("cached false", answer(&cached("false")), Codes(&["cached_count_not_an_integer"])),
        ("cached null", answer(&cached("null")), Codes(&["cached_count_not_an_integer"])),
        ("cached 3", answer(&cached("3")), Codes(&["cached_count_not_zero"])),
        (
            "cached in the timings alone",
            answer(&format!(r#"{},"timings":{{"cache_n":7,"prompt_n":73}}"#, cached("0"))),
            Codes(&["cached_count_not_zero", "prompt_not_all_processed"]),
        ),
        (
            "too few tokens",
            with(
                text(40),
                vec![Step::Send(
                    [
                        finish(),
                        usage(r#""usage":{"completion_tokens":41,"prompt_tokens_details":{"cached_tokens":0}}"#),
                        done(),
                    ]
                    .concat(),
                )],
            ),
            Codes(&["completion_tokens_below_window", "events_below_window", "window_metric_missing"]),
        ),
        ("closed mid-stream", text(60), Failed("disconnected")),
        ("closed at once", vec![], Failed("disconnected")),
        ("an error event", with(text(60), vec![Step::Send(lost)]), Failed("server_error")),
        ("an event that is not JSON", with(text(60), vec![Step::Send(event("{oops"))]), Failed("not_json")),
        (
            "an orderly end without a reason",
            with(text(60), vec![Step::Send(b"0\r\n\r\n".to_vec())]),
            Failed("unfinished"),
        ),
        ("a broken chunk", with(text(60), vec![Step::Send(b"zz\r\n".to_vec())]), Failed("protocol")),
        ("loading", vec![Step::Send(loading())], Failed("loading")),
        (
            "context too small",
            vec![Step::Send(response("400 Bad Request", "application/json", context))],
            Failed("context_exceeded"),
        ),
        ("not found", vec![Step::Send(response("404 Not Found", "text/html", "no"))], Failed("status")),
        ("no stream", vec![Step::Send(json_response(r#"{"choices":[]}"#))], Failed("not_a_stream")),
        ("no HTTP", vec![Step::Send(b"SSH-2.0-x\r\n".to_vec())], Failed("protocol")),
        (
            "a huge head",
            vec![Step::Send(format!("HTTP/1.1 200 OK\r\nX: {}\r\n", "y".repeat(100_000)).into_bytes())],
            Failed("too_large"),
        ),
        ("never answering", vec![Step::Hang], Failed("timeout_first_byte")),
        ("head and then nothing", with(text(0), vec![Step::Hang]), Failed("timeout_first_event")),
        (
            "pings for ever",
            with(text(60), vec![Step::Repeat(chunk(":\n\n"), Duration::from_millis(10))]),
            Failed("timeout_idle"),
        ),
    ]
}

#[test]
fn every_fault_is_classified() {
    let prompt = SuitePrompt { id: "p".to_owned(), prompt_class: "prose".to_owned(), prompt: "hello".to_owned() };
    // The answers end by `length`, so they are as long as they may be.
    let asked = Asked { prompt: &prompt, index: 0, repeat: 0, max_tokens: 41, window: 100 };
    let mut classified = 0;
    for (name, steps, expected) in faults() {
        // Only the deadline that is to pass is short: a busy machine must not turn an answer into a timeout.
        let mut deadlines = Deadlines::within(Duration::from_secs(20));
        let short = Duration::from_millis(250);
        match expected {
            Expected::Failed("timeout_first_byte") => deadlines.first_byte = short,
            Expected::Failed("timeout_first_event") => deadlines.first_event = short,
            Expected::Failed("timeout_idle") => deadlines.idle = short,
            _ => {}
        }
        let server = FaultServer::always(steps);
        let mut endpoint = Endpoint::new(&server.url()).unwrap().with_deadlines(deadlines);
        let row = match endpoint.stream(&CompletionRequest::cold(Api::Chat, &prompt.prompt, 512)) {
            Ok(record) => complete_row(asked, &record),
            Err(failure) => failed_row(asked, &failure),
        };
        let mut measured = support::measured();
        measured.rows = vec![row.clone()];
        measured.settings.require_natural_eos = true;
        let report = gate::screening(&measured);
        match expected {
            Expected::Pass => assert!(report.passed, "{name}: {report:?} {:?}", row.error),
            Expected::Codes(codes) => assert_eq!(report.codes, codes, "{name}"),
            Expected::Failed(code) => {
                assert_eq!(error_code(&row), Some(code), "{name}: {row:?}");
                assert!(report.codes.iter().any(|code| code == "row_failed"), "{name}: {report:?}");
            }
        }
        classified += 1;
    }
    println!("{classified} of {} faults and controls classified as expected", faults().len());
}
