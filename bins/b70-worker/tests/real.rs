//! The commands with a real llama-server, and a rendered unit with systemd's own checker.
//!
//! Gated: `B70_TEST_ALL=1 B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-worker-bin --test real`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step is a failed test; figures and skips are said"
)]

use std::{
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use b70_procguard::{Host, ProcStat, ProcessSignal, Signaller, VerifiedProcess};
use serde_json::{Value, json};

const INNER: &str = "B70_TEST_INNER";

/// Are the gated tests asked for?
fn gate() -> bool {
    let on = std::env::var_os("B70_TEST_ALL").is_some_and(|v| v == "1");
    if !on {
        println!("skipped: needs B70_TEST_ALL=1, a llama-server, a model and systemd-analyze");
    }
    on
}

fn part(name: &str, what: &str) -> PathBuf {
    let path = std::env::var_os(name).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("B70_TEST_ALL is set: set {name} to the path of {what}"));
    assert!(path.is_file(), "{name}={} is not a file; it must be the path of {what}", path.display());
    path
}

/// A port of this moment below the range of outgoing connections.
fn port(from: u16) -> u16 {
    (from..from + 500).find(|p| TcpListener::bind(("127.0.0.1", *p)).is_ok()).unwrap()
}

struct Lane {
    dir: tempfile::TempDir,
    server: PathBuf,
    model: PathBuf,
    ports: [u16; 2],
    foreign: Vec<Child>,
}

impl Lane {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = part("B70_TEST_LLAMA_SERVER", "a llama-server executable");
        let model = part("B70_TEST_MODEL", "a small GGUF chat model");
        let ports = [port(18_900), port(19_400)];
        let workers: Vec<Value> = (0..2)
            .map(|n| json!({"name": format!("w{n}"), "gpu": n, "port": ports[n], "role": "trial", "profile": "p"}))
            .collect();
        let document = json!({
            "schema_version": 2, "lane": "trial", "runtime_root": dir.path().join("state"),
            "binary": server, "target_model": model, "model_alias": "trial",
            "common": {"host": "127.0.0.1", "ctx_size": 512, "batch_size": 64, "ubatch_size": 64, "n_parallel": 1,
                "flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16",
                "extra_llama_args": "--cache-ram 0 --threads 1 --no-warmup"},
            "profiles": {"p": {"spec_type": "none"}}, "workers": workers,
        });
        fs::write(dir.path().join("workers.json"), document.to_string()).unwrap();
        Self { dir, server, model, ports, foreign: Vec::new() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
        command.arg("--config").arg(self.dir.path().join("workers.json")).args(["--json", "--no-gpu"]).args(args);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> (Value, i32) {
        let out = self.command(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let document = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {text} {}", String::from_utf8_lossy(&out.stderr)));
        (document, out.status.code().unwrap())
    }

    fn states(&self, deadline: &str) -> Vec<(String, String)> {
        let (status, code) = self.run(&["status", "--probe", "--deadline", deadline]);
        assert_eq!(code, 0, "{status:#}");
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let rows = status["workers"].as_array().unwrap();
        rows.iter().map(|r| (text(&r["liveness"]["state"]), text(&r["liveness"]["reason"]))).collect()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.command(&["stop", "--execute", "--kill-after", "10"]).output();
        for child in &mut self.foreign {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn two_real_workers() {
    if !gate() {
        return;
    }
    // Other llama-servers of the machine are in the way of every card; in a pid namespace of its own the test sees none.
    if std::env::var_os(INNER).is_none() {
        let mut inner = Command::new("unshare");
        inner.args(["--pid", "--fork", "--mount-proc", "--"]).arg(std::env::current_exe().unwrap());
        inner.args(["two_real_workers", "--exact", "--nocapture"]).env(INNER, "1");
        let status = inner.status().expect("unshare (util-linux) can be run");
        assert!(
            status.success(),
            "the test in its own pid namespace failed, or unshare was refused (it takes root): {status}"
        );
        return;
    }
    let mut lane = Lane::new();
    let (validation, code) = lane.run(&["validate"]);
    assert_eq!(code, 0, "{validation:#}");
    let (plan, code) = lane.run(&["start"]);
    assert_eq!((code, plan["executed"].as_bool()), (0, Some(false)), "{plan:#}");
    assert!(!lane.dir.path().join("state").exists(), "a dry run touches nothing");

    let begun = Instant::now();
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    assert_eq!(code, 0, "{started:#}");
    println!("two workers ready after {:.1} s", begun.elapsed().as_secs_f64());
    let pids: Vec<u32> =
        started["results"].as_array().unwrap().iter().map(|r| r["pid"].as_u64().unwrap() as u32).collect();
    let (second, code) = lane.run(&["start", "--execute"]);
    assert_eq!((code, second["executed"].as_bool()), (1, Some(false)));
    println!("a second start: {}", second["plan"][0]["reasons"]);
    let states = lane.states("60");
    assert!(states.iter().all(|(s, _)| s == "healthy"), "{states:?}");

    // One works for a client, the other is stopped.
    let mut client = TcpStream::connect(("127.0.0.1", lane.ports[0])).unwrap();
    let body = r#"{"prompt":"Count:","n_predict":400,"ignore_eos":true,"stream":true}"#;
    write!(client, "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let signaller = Signaller::new();
    let halted = VerifiedProcess::of_child(pids[1]).unwrap();
    signaller.send(&halted, ProcessSignal::Stop).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let states = lane.states("6");
    println!("busy and stopped read {states:?} within {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(states.iter().map(|(s, _)| s.as_str()).collect::<Vec<_>>(), ["busy", "wedged"]);
    signaller.send(&halted, ProcessSignal::Cont).unwrap();
    drop(client);

    // A foreign server that may use both cards blocks both, and is not touched.
    let (stopped, code) = lane.run(&["stop", "--execute", "--wait", "120"]);
    assert_eq!(code, 0, "{stopped:#}");
    println!("stopped: {}", stopped["results"]);
    assert!(pids.iter().all(|p| ProcStat::read(&Host::real(), *p).unwrap().is_none_or(|s| s.is_dead())));
    let foreign = Command::new(&lane.server)
        .args(["--port", &port(19_900).to_string(), "-c", "256", "--threads", "1", "-m"])
        .arg(&lane.model)
        .env("ZE_AFFINITY_MASK", "0,1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = foreign.id();
    lane.foreign.push(foreign);
    // Its name changes with its exec.
    std::thread::sleep(Duration::from_millis(500));
    let (plan, code) = lane.run(&["start", "--execute"]);
    assert_eq!((code, plan["executed"].as_bool()), (1, Some(false)), "{plan:#}");
    for action in plan["plan"].as_array().unwrap() {
        let reasons = action["reasons"].to_string();
        assert!(reasons.contains(&format!("foreign process {pid}")), "{reasons}");
        println!("{}: {reasons}", action["worker"]);
    }
    assert!(lane.foreign[0].try_wait().unwrap().is_none(), "the foreign server lives on");
}

#[test]
fn a_rendered_unit_passes_systemds_checker() {
    if !gate() {
        return;
    }
    let lane = Lane::new();
    let out = lane.dir.path().join("units");
    fs::create_dir(&out).unwrap();
    let (_, code) = lane.run(&["render", "--format", "systemd", "--out", out.to_str().unwrap()]);
    assert_eq!(code, 0);
    let units: Vec<PathBuf> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(units.len(), 2);
    let checked = Command::new("systemd-analyze")
        .arg("verify")
        .args(&units)
        .output()
        .expect("B70_TEST_ALL is set: systemd-analyze is needed (Debian: apt-get install systemd)");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    println!("systemd-analyze verify: {} {said}", checked.status);
    // Lines about other units of the machine are not about these.
    let ours: Vec<&str> = said.lines().filter(|l| l.contains("b70-worker-")).collect();
    assert!(checked.status.success() && ours.is_empty(), "{said}");
    assert!(Path::new(&units[0]).is_file());
}
