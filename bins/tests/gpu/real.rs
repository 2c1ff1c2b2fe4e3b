//! `probe` against a real llama-server, alive, stopped and gone.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70kit-bins --test real -- --include-ignored`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; verdicts are said")]

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use b70_procguard::{ProcessSignal, Signaller, VerifiedProcess};
use serde_json::Value;

fn part(name: &str, what: &str) -> PathBuf {
    let path = std::env::var_os(name).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("set {name} to the path of {what}, or run cargo xtask test --all"));
    assert!(path.is_file(), "{name}={} is not a file; it must be the path of {what}", path.display());
    path
}

/// A server that does not outlive its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn probe(url: &str, deadline: &str) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-gpu"));
    command.args(["--json", "probe", "--url", url, "--deadline", deadline]).env_remove("B70_API_KEY");
    let out = command.stdin(Stdio::null()).output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas/output");
    let schema = fs::read_to_string(folder.join("gpu-probe.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&report).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}\n{report:#}");
    println!("{} within {} s: {}", report["state"], report["seconds"], report["reason"]);
    (report, out.status.code().unwrap())
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn a_server_alive_stopped_and_gone() {
    let port = (18_700..18_800).find(|p| TcpListener::bind(("127.0.0.1", *p)).is_ok()).unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let (report, code) = probe(&url, "5");
    assert_eq!((report["state"].as_str(), code), (Some("lost"), 1));
    assert!(!report["recovery"].as_array().unwrap().is_empty(), "a plan to read");

    let mut command = Command::new(part("B70_TEST_LLAMA_SERVER", "a llama-server executable"));
    command.args(["--port", &port.to_string(), "-c", "256", "--threads", "1", "--no-warmup", "-m"]);
    command.arg(part("B70_TEST_MODEL", "a small GGUF chat model"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server(command.spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(240);
    let mut seen = Vec::new();
    loop {
        let (report, code) = probe(&url, "60");
        let state = report["state"].as_str().unwrap().to_owned();
        assert_eq!(code, i32::from(state != "healthy"), "{report:#}");
        seen.push(state);
        if seen.last().unwrap() == "healthy" {
            assert_eq!(report["pid"], server.0.id(), "the listener is named");
            break;
        }
        assert!(server.0.try_wait().unwrap().is_none() && Instant::now() < until, "{report:#}");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(seen.iter().all(|s| ["lost", "loading", "healthy"].contains(&s.as_str())), "while it came up: {seen:?}");

    let signaller = Signaller::new();
    let process = VerifiedProcess::of_child(server.0.id()).unwrap();
    signaller.send(&process, ProcessSignal::Stop).unwrap();
    let (report, code) = probe(&url, "4");
    assert_eq!((report["state"].as_str(), code), (Some("wedged"), 1), "{report:#}");
    assert!(report["reason"].as_str().unwrap().contains("is stopped"), "{report:#}");
    assert!(report["recovery"].to_string().contains("--kill-after"), "{report:#}");
    assert!(server.0.try_wait().unwrap().is_none(), "a plan is never carried out");
    signaller.send(&process, ProcessSignal::Cont).unwrap();
    let (report, code) = probe(&url, "60");
    assert_eq!((report["state"].as_str(), code), (Some("healthy"), 0), "{report:#}");

    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let (report, code) = probe(&url, "5");
    assert_eq!((report["state"].as_str(), code), (Some("lost"), 1));
}
