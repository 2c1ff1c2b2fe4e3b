//! Records that upstream's script left, with real processes behind them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use std::{
    fs,
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use b70_worker::ActionOutcome;
use serde_json::{Value, json};
use support::{Bench, reasons};

/// A child that does not outlive its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const LAUNCHER: &str = "#!/bin/bash\nexec \"$LLAMA_SERVER\" --host \"$HOST\" --port \"$PORT\" --model \"$MODEL\" --ctx-checkpoints 0 $EXTRA_LLAMA_ARGS\n";

fn folder(bench: &Bench) -> PathBuf {
    let lane = bench.lane();
    lane.paths(&lane.document.workers[0]).directory
}

/// Writes the record as `json.dumps(indent=2, sort_keys=True)` does; returns its bytes.
fn record(bench: &Bench, pid: &str) -> Vec<u8> {
    let worker = &bench.document["workers"][0];
    let mut record = json!({
        "evidence_class": "development-screen-only", "promotion_eligible": false, "started_unix": 1_796_078_798.060_747_9,
        "resolved": {"command": [bench.document["launcher"]], "environment": {"PORT": worker["port"].to_string()}, "profile": {"spec_type": "none"}},
        "worker": {"name": "w0", "gpu": 0, "port": worker["port"], "role": "trial", "profile": "p"},
    });
    record.sort_all_objects();
    let text = serde_json::to_string_pretty(&record).unwrap() + "\n";
    let folder = folder(bench);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("resolved-identity.json"), &text).unwrap();
    fs::write(folder.join("server.pid"), pid).unwrap();
    text.into_bytes()
}

/// A server as upstream's script starts it: the launcher, with its settings in the environment.
fn started_by_upstream(bench: &Bench, exec: bool) -> Server {
    let text = |name: &str| bench.document[name].as_str().unwrap().to_owned();
    let port = bench.document["workers"][0]["port"].as_u64().unwrap() as u16;
    let mut command = if exec { Command::new(text("launcher")) } else { Command::new("bash") };
    if !exec {
        command.arg(text("launcher"));
    }
    command.env("LLAMA_SERVER", text("binary")).env("HOST", "127.0.0.1").env("PORT", port.to_string());
    command.env("MODEL", text("target_model")).env("EXTRA_LLAMA_ARGS", "--cache-ram 0");
    let server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "the stand-in does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn a_server_that_upstream_started_is_shown_and_never_signalled() {
    for exec in [true, false] {
        let mut bench = Bench::new(1, "");
        bench.launcher(if exec {
            LAUNCHER
        } else {
            "#!/bin/bash\n\"$LLAMA_SERVER\" --host \"$HOST\" --port \"$PORT\" --model \"$MODEL\"\n"
        });
        let mut server = started_by_upstream(&bench, exec);
        let pid = server.0.id();
        let bytes = record(&bench, &format!("{pid}\n"));
        bench.launcher(LAUNCHER);
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        let sentence = format!("you end it by: kill -TERM {pid}");
        assert!(!plan.allowed() && reasons(&plan).contains(&sentence), "{}", reasons(&plan));
        assert!(reasons(&plan).contains("names no start time and no boot"), "{}", reasons(&plan));
        let stopped = bench.stop_with(1.0, Some(1.0));
        assert!(stopped.exit_code() == 1 && reasons(&stopped).contains(&sentence), "{}", reasons(&stopped));
        assert!(bench.signaller.log().is_empty() && server.0.try_wait().unwrap().is_none(), "nobody was signalled");
        assert_eq!(fs::read(folder(&bench).join("resolved-identity.json")).unwrap(), bytes);
    }
}

#[test]
fn a_server_of_upstreams_that_has_ended_is_replaced_and_its_record_kept() {
    let mut bench = Bench::new(1, "");
    bench.launcher(LAUNCHER);
    let mut gone = Command::new("/bin/true").spawn().unwrap();
    gone.wait().unwrap();
    let bytes = record(&bench, &format!("{}\n", gone.id()));
    let stopped = bench.with(|s| s.plan_stop(&[])).unwrap();
    assert!(stopped.allowed() && reasons(&stopped).contains("has ended: nothing to stop"), "{}", reasons(&stopped));
    let plan = bench.start();
    assert_eq!(plan.results[0].outcome, ActionOutcome::Ready, "{:?}", plan.results);
    let folder = folder(&bench);
    assert_eq!(fs::read(folder.join("resolved-identity.upstream.json")).unwrap(), bytes);
    assert_eq!(fs::read_to_string(folder.join("server.upstream.pid")).unwrap(), format!("{}\n", gone.id()));
    let ours: Value = serde_json::from_slice(&fs::read(folder.join("resolved-identity.json")).unwrap()).unwrap();
    assert_eq!((&ours["schema_version"], &ours["name"]), (&json!(1), &json!("w0")));
    assert_eq!(bench.stop().exit_code(), 0);
    // Another record of upstream's does not replace the one that is kept.
    record(&bench, "garbage");
    assert_eq!(bench.start().results[0].outcome, ActionOutcome::Ready);
    assert_eq!(fs::read(folder.join("resolved-identity.upstream.json")).unwrap(), bytes);
    assert_eq!(fs::read_to_string(folder.join("server.upstream.pid.2")).unwrap(), "garbage");
    assert_eq!(bench.stop().exit_code(), 0);
}

#[test]
fn a_number_that_somebody_else_has_blocks_nothing_and_is_not_signalled() {
    let mut bench = Bench::new(1, "");
    bench.launcher(LAUNCHER);
    let mut stranger = Server(Command::new("sleep").arg("300").spawn().unwrap());
    let me = std::process::id().to_string();
    let pid = stranger.0.id().to_string();
    for number in [pid.as_str(), &me, "1", "2147483648", "4294967296", "0", "-5", "", "\u{1b}[31mred", "12 13"] {
        let bytes = record(&bench, number);
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        assert!(plan.allowed(), "{number:?}: {}", reasons(&plan));
        let stopped = bench.stop_with(0.2, Some(0.2));
        assert_eq!(stopped.exit_code(), 0, "{number:?}: {}", reasons(&stopped));
        assert_eq!(fs::read(folder(&bench).join("resolved-identity.json")).unwrap(), bytes);
        assert!(!reasons(&stopped).chars().any(|c| c.is_control() && c != '\n'), "{}", reasons(&stopped));
    }
    assert!(bench.signaller.log().is_empty() && stranger.0.try_wait().unwrap().is_none(), "nobody was signalled");
}

#[test]
fn a_record_that_is_damaged_is_one_error_and_stays() {
    let mut bench = Bench::new(1, "");
    bench.launcher(LAUNCHER);
    let good = String::from_utf8(record(&bench, "1")).unwrap();
    let path = folder(&bench).join("resolved-identity.json");
    let command = format!("[\n      {}\n    ]", bench.document["launcher"]);
    for (from, to) in [
        ("1796078798.0607479", "NaN"),
        ("1796078798.0607479", "1e400"),
        ("1796078798.0607479", "-1"),
        (command.as_str(), "[]"),
        ("\"port\": ", "\"port\": 9"),
        ("\"promotion_eligible\": false", "\"promotion_eligible\": true"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        fs::write(&path, &bad).unwrap();
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        assert!(!plan.allowed(), "{to}");
        assert_eq!(plan.plan[0].reasons.len(), 1, "{to}: {}", reasons(&plan));
        assert!(reasons(&plan).contains("resolved-identity.json"), "{to}: {}", reasons(&plan));
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
}
