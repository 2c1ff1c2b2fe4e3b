//! `run` as a unit calls it, `restart`, and `logs --follow` across it.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use b70_procguard::{ProcessSignal, Signaller, VerifiedProcess};

use crate::real::support::{Lane, pid_of};
use b70_testkit::in_pid_namespace;

/// Waits until something holds, or fails with what.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(240);
    while !holds() {
        assert!(Instant::now() < until, "in vain: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn foreground(lane: &Lane) -> Child {
    let mut child = lane.command(&["run", "w0"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the server in the foreground is healthy", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was ready");
        lane.file("w0", "resolved-identity.json").exists()
            && lane.run(&["status", "--probe", "--deadline", "30"]).0["workers"][0]["liveness"]["state"] == "healthy"
    });
    child
}

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn a_unit_is_the_server_itself() {
    if !in_pid_namespace("units::a_unit_is_the_server_itself") {
        return;
    }
    let lane = Lane::new(1, 19_700, |_| ());
    let signaller = Signaller::new();
    // systemd's stop: TERM to the process it started, which is the server.
    let mut child = foreground(&lane);
    assert_eq!(pid_of(&lane.record("w0")), child.id(), "the recorded process is the unit's own");
    let (second, code) = lane.run(&["start", "--execute"]);
    assert_eq!((code, second["executed"].as_bool()), (1, Some(false)), "{second:#}");
    let begun = Instant::now();
    signaller.send(&VerifiedProcess::of_child(child.id()).unwrap(), ProcessSignal::Term).unwrap();
    let status = child.wait().unwrap();
    println!("run: TERM ended it after {:.2} s with {status}", begun.elapsed().as_secs_f64());
    assert_eq!(status.code(), Some(0), "the server's own exit code");
    let (state, _) = lane.run(&["status"]);
    assert_eq!(state["workers"][0]["pid_state"], "absent");
    assert!(TcpListener::bind(("127.0.0.1", lane.ports[0])).is_ok());

    // The kit's stop reaches it as well, and a death by signal stays one.
    let mut child = foreground(&lane);
    let (stopped, code) = lane.run(&["stop", "--execute"]);
    assert_eq!(code, 0, "{stopped:#}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut child = foreground(&lane);
    signaller.send(&VerifiedProcess::of_child(child.id()).unwrap(), ProcessSignal::Kill).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));

    // What keeps it from running is an exit code and a reason, and nothing is left.
    let held = TcpListener::bind(("127.0.0.1", lane.ports[0])).unwrap();
    let (error, code) = {
        let out = lane.command(&["run", "w0", "--json"]).output().unwrap();
        (serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap(), out.status.code())
    };
    assert_eq!((code, error["error"]["kind"].as_str()), (Some(1), Some("blocked")), "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("is in use"), "{error}");
    drop(held);
}

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn a_restart_is_followed_in_the_log() {
    if !in_pid_namespace("units::a_restart_is_followed_in_the_log") {
        return;
    }
    let lane = Lane::new(1, 19_800, |_| ());
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    assert_eq!(code, 0, "{started:#}");
    let first = pid_of(&started["results"][0]);
    let (tail, code) = lane.run(&["logs", "w0", "--lines", "3"]);
    assert_eq!((code, tail["text"].as_str().unwrap().lines().count()), (0, 3));

    let out = lane.dir.path().join("followed.txt");
    let mut follower = lane
        .command(&["logs", "w0", "--follow", "--lines", "1000000"])
        .stdout(fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    eventually("the log is followed", || fs::metadata(&out).unwrap().len() > 0);

    // Without --execute: the whole plan, its start judged as if the stop had happened, and nothing touched.
    let (plan, code) = lane.run(&["restart"]);
    let halves: Vec<(&str, bool)> = plan["plan"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| (a["action"].as_str().unwrap(), a["allowed"].as_bool().unwrap()))
        .collect();
    assert_eq!((code, halves), (0, vec![("stop", true), ("start", true)]), "{plan:#}");
    assert!(plan["plan"][1]["notes"].to_string().contains(&format!("as if pid {first} had been stopped")), "{plan:#}");
    assert_eq!(lane.run(&["status"]).0["workers"][0]["pid_state"], "running");

    let begun = Instant::now();
    let (restarted, code) = lane.run(&["restart", "--execute", "--ready-wait", "240"]);
    let outcomes: Vec<&str> =
        restarted["results"].as_array().unwrap().iter().map(|r| r["outcome"].as_str().unwrap()).collect();
    assert_eq!((code, outcomes), (0, vec!["stopped", "ready"]), "{restarted:#}");
    println!("restarted within {:.1} s", begun.elapsed().as_secs_f64());
    let second = pid_of(&restarted["results"][1]);
    assert_ne!(first, second);
    assert_eq!(lane.run(&["stop", "--execute"]).1, 0);

    // Every line of both runs, in order, none twice.
    let text = |name: &str| fs::read_to_string(lane.file("w0", name)).unwrap();
    let both = text("server.log.1") + &text("server.log");
    eventually("every line was followed", || fs::read_to_string(&out).unwrap().lines().count() >= both.lines().count());
    Signaller::new().send(&VerifiedProcess::of_child(follower.id()).unwrap(), ProcessSignal::Int).unwrap();
    assert_eq!(follower.wait().unwrap().code(), Some(130), "interrupted");
    let followed = fs::read_to_string(&out).unwrap();
    assert!(followed.lines().eq(both.lines()), "followed:\n{followed}\nlogs:\n{both}");
    println!("{} lines of two runs were followed", both.lines().count());
}
