//! `probe` against a real llama-server, alive, stopped and gone.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70kit-bins --test real -- --include-ignored`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; verdicts are said")]

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use b70_procguard::{ProcessSignal, Signaller, VerifiedProcess};
use b70_testkit::{LlamaServer, conforms, port_from};
use serde_json::Value;

fn probe(url: &str, deadline: &str) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-gpu"));
    command.args(["--json", "probe", "--url", url, "--deadline", deadline]).env_remove("B70_API_KEY");
    let out = command.stdin(Stdio::null()).output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    conforms("gpu-probe", &report);
    println!("{} within {} s: {}", report["state"], report["seconds"], report["reason"]);
    (report, out.status.code().unwrap())
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn a_server_alive_stopped_and_gone() {
    let port = port_from(18_700);
    let url = format!("http://127.0.0.1:{port}");
    let (report, code) = probe(&url, "5");
    assert_eq!((report["state"].as_str(), code), (Some("lost"), 1));
    assert!(!report["recovery"].as_array().unwrap().is_empty(), "a plan to read");

    let mut server = LlamaServer::spawn(port, 256, &["--no-warmup"]);
    let until = Instant::now() + Duration::from_secs(240);
    let mut seen = Vec::new();
    loop {
        let (report, code) = probe(&url, "60");
        let state = report["state"].as_str().unwrap().to_owned();
        assert_eq!(code, i32::from(state != "healthy"), "{report:#}");
        seen.push(state);
        if seen.last().unwrap() == "healthy" {
            assert_eq!(report["pid"], server.child.id(), "the listener is named");
            break;
        }
        assert!(server.child.try_wait().unwrap().is_none() && Instant::now() < until, "{report:#}");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(seen.iter().all(|s| ["lost", "loading", "healthy"].contains(&s.as_str())), "while it came up: {seen:?}");

    let signaller = Signaller::new();
    let process = VerifiedProcess::of_child(server.child.id()).unwrap();
    signaller.send(&process, ProcessSignal::Stop).unwrap();
    let (report, code) = probe(&url, "4");
    assert_eq!((report["state"].as_str(), code), (Some("wedged"), 1), "{report:#}");
    assert!(report["reason"].as_str().unwrap().contains("is stopped"), "{report:#}");
    assert!(report["recovery"].to_string().contains("--kill-after"), "{report:#}");
    assert!(server.child.try_wait().unwrap().is_none(), "a plan is never carried out");
    signaller.send(&process, ProcessSignal::Cont).unwrap();
    let (report, code) = probe(&url, "60");
    assert_eq!((report["state"].as_str(), code), (Some("healthy"), 0), "{report:#}");

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let (report, code) = probe(&url, "5");
    assert_eq!((report["state"].as_str(), code), (Some("lost"), 1));
}
