//! Every fault of a server is classified, and what had arrived is kept.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use b70_client::{
    Api, ApiKey, CancelToken, CompletionRequest, Deadlines, Endpoint, ErrorKind, EventKind, Health, Limits, Phase,
    Reported, StreamFailure, StreamReader, StreamRecord,
};
use serde_json::Value;
use support::*;

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(20);

/// Long everywhere, so that only the deadline a test shortens can pass.
fn patient() -> Deadlines {
    Deadlines::within(LONG)
}

fn endpoint(server: &FaultServer) -> Endpoint {
    Endpoint::new(&server.url()).unwrap().with_deadlines(patient())
}

fn request() -> CompletionRequest {
    CompletionRequest::cold(Api::Chat, "hello", 3)
}

fn stream(steps: Vec<Step>) -> Result<StreamRecord, StreamFailure> {
    stream_within(steps, patient())
}

fn stream_within(steps: Vec<Step>, deadlines: Deadlines) -> Result<StreamRecord, StreamFailure> {
    endpoint(&FaultServer::always(steps)).with_deadlines(deadlines).stream(&request())
}

fn send(parts: &[Vec<u8>]) -> Step {
    Step::Send(parts.concat())
}

fn assert_failure(steps: Vec<Step>, code: &str, text: &str) -> StreamFailure {
    let failure = stream(steps).expect_err(code);
    assert_eq!((failure.error.code(), failure.record.text.as_str()), (code, text), "{failure}");
    failure
}

#[test]
fn a_stream_split_at_every_byte_reads_as_a_whole_one() {
    let whole = stream(vec![Step::Send(chat_stream())]).unwrap();
    let split = stream(vec![Step::Bytewise(chat_stream())]).unwrap();
    for record in [&whole, &split] {
        assert_eq!(record.text, "one two three");
        assert_eq!(record.finish_reasons, ["length"]);
        // Reading stops at [DONE]; whether the last chunk's end came with it is chance.
        assert!(chat_stream().starts_with(record.raw.bytes()) && record.done);
        assert_eq!(record.text_offsets().len(), 3);
        let usage = record.usage.as_ref().unwrap();
        assert_eq!((&usage.cached_tokens, &usage.completion_tokens), (&Reported::Count(0), &Reported::Count(3)));
        let timings = record.timings.as_ref().unwrap();
        assert_eq!((timings.draft_n.count(), timings.draft_n_accepted.count()), (Some(4), Some(2)));
        assert!(record.first_byte_s.unwrap() <= record.first_output_s().unwrap());
        assert!(record.first_output_s().unwrap() <= record.ended_s && record.connect_s >= 0.0);
    }
    assert!(split.raw.read_count() >= whole.raw.read_count());
}

#[test]
fn offsets_follow_the_arrival_and_a_record_can_be_read_again() {
    let pause = Duration::from_millis(60);
    let steps = vec![
        send(&[stream_head(), delta("a")]),
        Step::Sleep(pause),
        send(&[delta("b")]),
        Step::Sleep(pause),
        send(&[delta("c"), finish(), usage(CACHED_ZERO), done()]),
    ];
    let record = stream(steps).unwrap();
    let offsets = record.text_offsets();
    // Lower bounds only: the machine may delay an arrival, never advance it.
    assert!(offsets[2] >= 0.12 && offsets[1] >= 0.06, "{offsets:?}");
    assert!(offsets.windows(2).all(|pair| pair[0] < pair[1]), "{offsets:?}");
    let (again, result) = StreamReader::replay(record.request.clone(), &record.raw, &Limits::default());
    result.unwrap();
    assert_eq!((again.events, again.usage, again.text), (record.events, record.usage, record.text));
}

#[test]
fn cached_tokens_are_kept_as_they_came() {
    for (cached, expected) in [
        (CACHED_ZERO, Reported::Count(0)),
        ("", Reported::Missing),
        (r#","prompt_tokens_details":{}"#, Reported::Missing),
        (r#","prompt_tokens_details":{"cached_tokens":3}"#, Reported::Count(3)),
        (r#","prompt_tokens_details":{"cached_tokens":false}"#, Reported::NotACount(Value::Bool(false))),
        (r#","prompt_tokens_details":{"cached_tokens":null}"#, Reported::NotACount(Value::Null)),
    ] {
        let record = stream(vec![send(&[stream_head(), delta("x"), finish(), usage(cached), done()])]).unwrap();
        assert_eq!(record.usage.unwrap().cached_tokens, expected);
    }
    let record = stream(vec![send(&[stream_head(), delta("x"), finish(), done()])]).unwrap();
    assert!(record.usage.is_none() && record.timings.is_none(), "a dropped usage is absent, not zero");
}

#[test]
fn pings_and_comments_are_events_without_text() {
    let record =
        stream(vec![send(&[stream_head(), chunk(":\n\n"), delta("x"), chunk(": note\n\n"), finish(), done()])])
            .unwrap();
    assert_eq!((record.text.as_str(), record.comment_count()), ("x", 2));
    assert_eq!(record.events.last().unwrap().kind, EventKind::Done);
}

#[test]
fn a_close_mid_stream_keeps_what_arrived() {
    let failure = assert_failure(vec![send(&[stream_head(), delta("one"), delta(" two")])], "disconnected", "one two");
    assert_eq!(failure.record.text_offsets().len(), 2);
    assert!(failure.to_string().contains("2 events"), "{failure}");
    // Cut inside an event.
    let cut = delta("never");
    assert_failure(vec![send(&[stream_head(), delta("one"), cut[..cut.len() / 2].to_vec()])], "disconnected", "one");
    // Cut after the finish reason but before [DONE]: usage may be missing, so this is not a complete answer.
    assert_failure(vec![send(&[stream_head(), delta("one"), finish()])], "disconnected", "one");
    // Nothing at all.
    assert_failure(vec![], "disconnected", "");
}

#[test]
fn an_orderly_end_without_a_finish_reason_is_unfinished() {
    let end = b"0\r\n\r\n".to_vec();
    assert_failure(vec![send(&[stream_head(), delta("one"), end.clone()])], "unfinished", "one");
    let record = stream(vec![send(&[stream_head(), delta("one"), finish(), end])]).unwrap();
    assert!(!record.done, "no [DONE] came, and the record says so");
}

#[test]
fn error_events_fail_the_stream() {
    let error = event(r#"{"error":{"message":"device lost","type":"server_error","code":500}}"#);
    let failure = assert_failure(vec![send(&[stream_head(), delta("one"), error])], "server_error", "one");
    assert_eq!(failure.error.server_error().unwrap().message, "device lost");
    assert_eq!(failure.record.events.last().unwrap().kind, EventKind::Error);
    for named in ["event: error\ndata: {\"message\":\"m\"}\n\n", "event: error\ndata: m\n\n"] {
        assert_failure(vec![send(&[stream_head(), chunk(named)])], "server_error", "");
    }
    let context = event(
        r#"{"error":{"message":"too long","type":"exceed_context_size_error","code":400,"n_prompt_tokens":900,"n_ctx":256}}"#,
    );
    assert_failure(vec![send(&[stream_head(), context])], "context_exceeded", "");
}

#[test]
fn events_that_are_not_of_a_completion_fail() {
    assert_failure(vec![send(&[stream_head(), delta("a"), event("{oops")])], "not_json", "a");
    assert_failure(vec![send(&[stream_head(), delta("a"), event("[1]")])], "unexpected_shape", "a");
    assert_failure(vec![send(&[stream_head(), delta("a"), b"zz\r\n".to_vec()])], "protocol", "a");
}

#[test]
fn http_errors_carry_the_servers_envelope() {
    let context = r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":900,"n_ctx":256}}"#;
    let failure = assert_failure(
        vec![Step::Send(response("400 Bad Request", "application/json", context))],
        "context_exceeded",
        "",
    );
    let server = failure.error.server_error().unwrap();
    assert_eq!((server.n_prompt_tokens, server.n_ctx, failure.error.status()), (Some(900), Some(256), Some(400)));
    assert!(failure.to_string().contains("900") && failure.to_string().contains("-c"), "{failure}");
    assert_failure(vec![Step::Send(loading())], "loading", "");
    assert_failure(vec![Step::Send(response("404 Not Found", "text/html", "<h1>no</h1>"))], "status", "");
    assert_failure(vec![Step::Send(response("302 Found", "text/html", ""))], "status", "");
    // An error that is cut still tells its status.
    let cut = b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\npart".to_vec();
    assert_failure(vec![Step::Send(cut)], "status", "");
    // An envelope under a success status, and something that is not a stream at all.
    assert_failure(vec![Step::Send(json_response(r#"{"error":"no"}"#))], "server_error", "");
    assert_failure(vec![Step::Send(json_response(r#"{"choices":[]}"#))], "not_a_stream", "");
}

#[test]
fn loading_then_ready() {
    let server = FaultServer::start(|index, _| {
        vec![Step::Send(if index < 2 { loading() } else { json_response(r#"{"status":"ok"}"#) })]
    });
    let mut endpoint = endpoint(&server);
    assert_eq!(endpoint.health().unwrap(), Health::Loading("Loading model".to_owned()));
    assert!(endpoint.props().unwrap_err().is_loading());
    assert_eq!(endpoint.health().unwrap(), Health::Ready);
}

#[test]
fn each_deadline_has_its_own_name() {
    let at = |change: fn(&mut Deadlines)| {
        let mut deadlines = patient();
        change(&mut deadlines);
        deadlines
    };
    let wedged = vec![Step::Hang];
    let head_only = vec![send(&[stream_head()]), Step::Hang];
    let then_silent = vec![send(&[stream_head(), delta("one")]), Step::Hang];
    let pings = |start: &[Vec<u8>]| vec![send(start), Step::Repeat(chunk(":\n\n"), Duration::from_millis(10))];
    for (steps, deadlines, code, text) in [
        (wedged, at(|d| d.first_byte = SHORT), "timeout_first_byte", ""),
        (head_only, at(|d| d.first_event = SHORT), "timeout_first_event", ""),
        (then_silent, at(|d| d.idle = SHORT), "timeout_idle", "one"),
        // Pings show a living HTTP thread and prolong nothing.
        (pings(&[stream_head()]), at(|d| d.first_event = SHORT), "timeout_first_event", ""),
        (pings(&[stream_head(), delta("one")]), at(|d| d.idle = SHORT), "timeout_idle", "one"),
        // Text that trickles for ever ends with the total.
        (
            vec![send(&[stream_head()]), Step::Repeat(delta("x"), SHORT)],
            at(|d| d.total = SHORT * 2),
            "timeout_total",
            "",
        ),
    ] {
        let begun = Instant::now();
        let failure = stream_within(steps, deadlines).expect_err(code);
        assert_eq!(failure.error.code(), code, "{failure}");
        assert!(failure.record.text.starts_with(text));
        assert!(begun.elapsed() < LONG);
    }
}

#[test]
fn a_head_that_trickles_is_bounded() {
    let mut deadlines = patient();
    deadlines.total = SHORT;
    let steps = vec![Step::Repeat(b"H".to_vec(), Duration::from_millis(5))];
    assert_eq!(stream_within(steps, deadlines).unwrap_err().error.code(), "protocol");
    let steps =
        vec![Step::Send(b"HTTP/1.1 200 OK\r\n".to_vec()), Step::Repeat(b"A: b\r\n".to_vec(), Duration::from_millis(5))];
    let failure = stream_within(steps, deadlines).unwrap_err();
    assert!(matches!(failure.error.code(), "timeout_total" | "too_large"), "{failure}");
}

#[test]
fn a_connection_refused_or_unanswered() {
    let url = FaultServer::always(vec![]).url();
    let error = Endpoint::new(&url).unwrap().health().unwrap_err();
    assert_eq!(error.code(), "connect");
    assert!(error.to_string().contains(&url), "{error}");
}

#[test]
fn deadlines_at_both_ends_of_their_range() {
    let server = FaultServer::always(vec![Step::Send(chat_stream())]);
    let at = |limit| Endpoint::new(&server.url()).unwrap().with_deadlines(Deadlines::within(limit)).stream(&request());
    assert_eq!(at(Duration::MAX).unwrap().text, "one two three");
    assert_eq!(at(Duration::ZERO).unwrap_err().error.code(), "timeout_connect");
}

#[test]
fn garbage_and_oversize() {
    assert_failure(vec![Step::Send(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), Step::Hang], "protocol", "");
    assert_failure(vec![Step::Send(vec![0; 100_000]), Step::Hang], "protocol", "");
    let huge = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    assert_failure(vec![Step::Send(huge.into_bytes()), Step::Hang], "too_large", "");
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(300));
    assert_failure(vec![Step::Send(many.into_bytes()), Step::Hang], "too_large", "");

    let limits = Limits { body: 1000, stream: 2000, line: 500, event: 500, ..Limits::default() };
    let server = FaultServer::start(|_, request| {
        vec![Step::Send(match request.path() {
            "/props" => json_response(&format!("{:>1001}", "{}")),
            "/slots" => [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b' '; 5000]].concat(),
            _ => [stream_head(), delta("ok"), event(&"x".repeat(600))].concat(),
        })]
    });
    let mut endpoint = endpoint(&server).with_limits(limits);
    assert_eq!(endpoint.props().unwrap_err().code(), "too_large");
    assert_eq!(endpoint.slots().unwrap_err().code(), "too_large");
    let failure = endpoint.stream(&request()).unwrap_err();
    assert_eq!((failure.error.code(), failure.record.text.as_str()), ("too_large", "ok"));
    // An endless stream of small events ends at the stream's limit.
    let server = FaultServer::always(vec![send(&[stream_head()]), Step::Repeat(delta("x"), Duration::ZERO)]);
    let mut endpoint = Endpoint::new(&server.url()).unwrap().with_limits(limits);
    let failure = endpoint.stream(&request()).unwrap_err();
    assert_eq!(failure.error.code(), "too_large");
    assert!(failure.record.raw.bytes().len() <= 2000);
}

#[test]
fn cancelling_ends_a_waiting_call_and_all_later_ones() {
    let server = FaultServer::always(vec![send(&[stream_head(), delta("one")]), Step::Hang]);
    let cancel = CancelToken::new();
    let mut endpoint = endpoint(&server).with_cancel(cancel.clone());
    let mut observed = 0;
    let failure = endpoint
        .stream_with(&request(), &mut |_| {
            observed += 1;
            let cancel = cancel.clone();
            thread::spawn(move || cancel.cancel());
        })
        .unwrap_err();
    assert_eq!((failure.error.code(), failure.record.text.as_str(), observed), ("cancelled", "one", 1));
    assert_eq!(endpoint.health().unwrap_err().code(), "cancelled");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_key_goes_out_and_never_comes_back() {
    let echo = r#"{"error":{"message":"Invalid API Key: hunter2","type":"authentication_error","code":401}}"#;
    let server = FaultServer::always(vec![Step::Send(response("401 Unauthorized", "application/json", echo))]);
    let mut endpoint = endpoint(&server).with_api_key(ApiKey::new("hunter2").unwrap());
    let error = endpoint.props().unwrap_err();
    let failure = endpoint.stream(&request()).unwrap_err();
    for shown in
        [format!("{endpoint:?}"), format!("{error} {error:?}"), format!("{} {:?}", failure.error, failure.error)]
    {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert!(error.to_string().contains("[api key]"));
    assert!(server.requests()[0].head.contains("authorization: Bearer hunter2"));
}

#[test]
fn a_request_id_with_a_line_break_is_never_sent() {
    let server = FaultServer::always(vec![Step::Send(chat_stream())]);
    let mut request = request();
    request.request_id = Some("a\r\nX-Evil: 1".to_owned());
    assert_eq!(endpoint(&server).stream(&request).unwrap_err().error.code(), "invalid_header");
    assert!(server.requests().is_empty());
    request.request_id = Some("bench-s-1".to_owned());
    endpoint(&server).stream(&request).unwrap();
    assert!(server.requests()[0].head.contains("x-request-id: bench-s-1"));
}

#[test]
fn the_three_apis_in_one_piece() {
    let server = FaultServer::start(|_, request| {
        vec![Step::Bytewise(json_response(match request.path() {
            "/v1/chat/completions" => {
                r#"{"id":"c","choices":[{"message":{"role":"assistant","content":"hi","reasoning_content":"hm"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#
            }
            "/v1/completions" => r#"{"choices":[{"text":"hi","finish_reason":"length"}],"timings":{"cache_n":0}}"#,
            "/completion" => {
                r#"{"content":"hi","tokens":[5],"stop":true,"stop_type":"eos","tokens_predicted":1,"tokens_evaluated":2}"#
            }
            "/apply-template" => r#"{"prompt":"<user>hello"}"#,
            _ => r#"{"tokens":[1,2,3]}"#,
        }))]
    });
    let mut endpoint = endpoint(&server);
    let mut complete = |api| endpoint.complete(&CompletionRequest::cold(api, "hello", 3)).unwrap();
    let chat = complete(Api::Chat);
    assert_eq!(
        (chat.text.as_str(), chat.reasoning.as_str(), chat.finish_reason.as_deref()),
        ("hi", "hm", Some("stop"))
    );
    assert!(chat.first_byte_s <= chat.ended_s);
    assert_eq!(complete(Api::Completions).timings.unwrap().cache_n, Reported::Count(0));
    let native = complete(Api::Native);
    assert_eq!((native.tokens.as_slice(), native.finish_reason.as_deref()), (&[5][..], Some("stop")));
    assert_eq!(native.usage.unwrap().prompt_tokens.count(), Some(2));
    assert_eq!(endpoint.apply_template(&request().messages()).unwrap(), "<user>hello");
    assert_eq!(endpoint.tokenize("x").unwrap(), [1, 2, 3]);
    assert_eq!(endpoint.slots().unwrap_err().code(), "unexpected_shape");
    assert_eq!(endpoint.complete(&CompletionRequest::cold(Api::Native, "x", 1)).unwrap().text, "hi");
}

#[test]
fn a_native_stream_ends_with_its_stop_event() {
    let events = [
        stream_head(),
        event(r#"{"content":"a","tokens":[11],"stop":false}"#),
        event(r#"{"content":"bc","tokens":[12,13],"stop":false}"#),
        event(
            r#"{"content":"","tokens":[],"stop":true,"stop_type":"limit","tokens_predicted":3,"tokens_evaluated":4,"tokens_cached":6,"timings":{"cache_n":0}}"#,
        ),
    ];
    let server = FaultServer::always(vec![send(&events), Step::Hang]);
    let record = endpoint(&server).stream(&CompletionRequest::cold(Api::Native, "p", 3)).unwrap();
    assert_eq!(record.token_ids(), [11, 12, 13]);
    assert_eq!(record.token_offsets().len(), 3);
    assert_eq!((record.finish_reasons.as_slice(), record.done), (&["length".to_owned()][..], true));
    assert!(record.usage.unwrap().cached_tokens.is_missing());
}

#[test]
fn who_answers_here() {
    let llama = FaultServer::start(|_, request| {
        vec![Step::Send(json_response(match request.path() {
            "/props" => {
                r#"{"model_path":"/m.gguf","model_alias":"m","build_info":"b1","total_slots":1,"default_generation_settings":{"n_ctx":2048},"is_sleeping":false}"#
            }
            "/v1/models" => r#"{"data":[{"id":"m","owned_by":"llamacpp"}]}"#,
            _ => {
                r#"[{"id":0,"n_ctx":2048,"speculative":false,"is_processing":true,"id_task":3,"next_token":[{"n_decoded":17}]}]"#
            }
        }))]
    });
    let mut endpoint1 = endpoint(&llama);
    let who = endpoint1.identify().unwrap();
    assert!(who.is_llama_server());
    assert_eq!(who.evidence, ["server-header", "owned-by", "model-path"]);
    assert_eq!((who.model_path.as_deref(), who.n_ctx), (Some("/m.gguf"), Some(2048)));
    let slots = endpoint1.slots().unwrap();
    assert_eq!((slots[0].is_processing, slots[0].n_decoded), (true, Some(17)));
    assert_eq!(endpoint1.props().unwrap().is_sleeping, Some(false));

    let other = FaultServer::start(|_, request| {
        vec![Step::Send(match request.path() {
            "/v1/models" => {
                b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Length: 39\r\n\r\n{\"data\":[{\"id\":\"x\",\"owned_by\":\"vllm\"}]}".to_vec()
            }
            _ => b"HTTP/1.1 404 Not Found\r\nServer: uvicorn\r\nContent-Length: 0\r\n\r\n".to_vec(),
        })]
    });
    let who = endpoint(&other).identify().unwrap();
    assert!(!who.is_llama_server());
    assert_eq!((who.server.as_deref(), who.owned_by.as_slice()), (Some("uvicorn"), &["vllm".to_owned()][..]));

    let busy = FaultServer::always(vec![Step::Send(loading())]);
    let who = endpoint(&busy).identify().unwrap();
    assert!(who.loading && who.is_llama_server());
}

#[test]
fn a_probe_of_a_hung_server_returns_within_its_deadline() {
    let server = FaultServer::always(vec![Step::Hang]);
    let mut probe = Endpoint::new(&server.url()).unwrap().with_deadlines(Deadlines::within(SHORT));
    let error = probe.slots().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Timeout { phase: Phase::Total, during: Phase::FirstByte, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("the whole call, waiting for the first byte"), "{error}");
}

#[test]
fn a_server_that_answers_before_it_has_read_everything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 100]).unwrap();
        drop(socket.write_all(&response("413 Payload Too Large", "text/plain", "too long")));
    });
    let mut request = request();
    request.prompt = "x".repeat(8 << 20);
    let failure = Endpoint::new(&url).unwrap().with_deadlines(patient()).stream(&request).unwrap_err();
    server.join().unwrap();
    // The kernel's reset may overtake the answer.
    assert!(matches!(failure.error.code(), "status" | "disconnected"), "{failure}");
}
