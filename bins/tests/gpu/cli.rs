//! The executable, on recorded hosts and on this machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test ends where something is amiss.

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use b70_testkit::{conforms, recorded_host};
use serde_json::Value;

fn gpu(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-gpu"));
    command.args(args).env_remove("B70_LEASE_ROOT").stdin(Stdio::null());
    command.output().unwrap()
}

fn json(args: &[&str]) -> (Value, i32) {
    let out = gpu(&[&["--json"], args].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
    let schema = match args[0] {
        _ if value.get("error").is_some() => "error".to_owned(),
        "lease" => "gpu-lease-status".to_owned(),
        command => format!("gpu-{command}"),
    };
    conforms(&schema, &value);
    (value, out.status.code().unwrap())
}

#[test]
fn cards_and_owners_of_a_recorded_host() {
    let root = recorded_host("vllm-all-cards");
    let root = root.to_str().unwrap();
    let (list, code) = json(&["list", "--host-root", root]);
    assert_eq!(code, 0);
    assert_eq!(list["cards"][1]["pci"], "0000:07:00.0");
    assert_eq!(list["cards"][1]["level_zero_ordinal"], 1);
    let (owners, code) = json(&["owners", "--host-root", root]);
    assert_eq!(code, 0);
    let verdicts: Vec<&str> =
        owners["cards"].as_array().unwrap().iter().map(|c| c["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["used", "used", "free", "free"]);
    let (one, _) = json(&["owners", "--gpu", "c3:00.0", "--host-root", root]);
    assert_eq!(one["cards"].as_array().unwrap().len(), 1);
    let text = String::from_utf8(gpu(&["owners", "--host-root", root]).stdout).unwrap();
    assert!(
        text.contains("0000:03:00.0  used") && text.contains("pid 4000 VLLM::Worker_TP: fdinfo-vram fdinfo-active"),
        "{text}"
    );
}

#[test]
fn errors_are_one_document_and_have_their_codes() {
    let root = recorded_host("vllm-all-cards");
    let root = root.to_str().unwrap();
    for (args, kind) in [
        (&["owners", "--gpu", "7", "--host-root", root][..], "no-such-card"),
        (&["list", "--host-root", "/nonexistent"][..], "host-record"),
        (&["owners", "--gpu", "x"][..], "usage"),
        (&["lease", "run", "--gpu", "0", "--host-root", root, "--", "true"][..], "usage"),
        (&["lease", "run", "--gpu", "0", "--no-gpu", "--", "true"][..], "usage"),
        (&["lease", "run", "--gpu", "03:00.0", "--no-gpu", "--wait", "-1", "--", "true"][..], "usage"),
    ] {
        let (error, code) = json(args);
        assert_eq!((error["error"]["kind"].as_str().unwrap(), code), (kind, 2), "{args:?}: {error}");
    }
}

#[test]
fn a_record_replays() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("record");
    let (summary, code) =
        json(&["record", "--host-root", recorded_host("unit-forms").to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!((code, summary["cards"].as_u64()), (0, Some(4)));
    let (there, _) = json(&["owners", "--host-root", out.to_str().unwrap()]);
    let (here, _) = json(&["owners", "--host-root", recorded_host("unit-forms").to_str().unwrap()]);
    assert_eq!(there, here);
    let (error, code) = json(&["record", "--out", out.to_str().unwrap()]);
    assert_eq!((error["error"]["kind"].as_str(), code), (Some("record"), 2));
}

#[test]
fn the_doctor_fails_where_something_does_not_work() {
    let (report, code) = json(&["doctor", "--host-root", recorded_host("closed-nodes").to_str().unwrap()]);
    assert_eq!((report["status"].as_str(), code), (Some("fail"), 1));
    let (report, code) = json(&["doctor", "--host-root", recorded_host("four-b70-idle").to_str().unwrap()]);
    assert_eq!((report["status"].as_str(), code), (Some("ok"), 0));
}

#[test]
fn a_lease_lasts_as_long_as_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("leases");
    let root = root.to_str().unwrap();
    let run = |wait: &str, command: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_b70-gpu"));
        child
            .args(["lease", "run", "--gpu", "0000:03:00.0", "--no-gpu", "--lease-root", root, "--wait", wait, "--"])
            .args(command);
        child
    };
    assert_eq!(run("0", &["sh", "-c", "exit 42"]).status().unwrap().code(), Some(42), "the command's own code");
    let out = run("0", &["sh", "-c", "echo $B70_GPU_PCI"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "0000:03:00.0\n");

    let mut holder = run("0", &["sleep", "60"]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        let (status, _) = json(&["lease", "status", "--lease-root", root]);
        if status["leases"][0]["held"] == true || Instant::now() > until {
            break status;
        }
    };
    let lease = &status["leases"][0];
    assert_eq!(lease["owner"]["pid"], holder.id());
    assert_eq!(lease["owner"]["command"], "sleep 60");
    assert_eq!(run("0", &["true"]).output().unwrap().status.code(), Some(1), "held, not waited for");
    let waited = run("0.2", &["true"]).output().unwrap();
    assert_eq!(waited.status.code(), Some(124), "held, waited for in vain");
    assert!(String::from_utf8_lossy(&waited.stderr).contains("sleep 60"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(run("5", &["true"]).status().unwrap().code(), Some(0));

    let missing = run("0", &["/nonexistent/program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    let (status, _) = json(&["lease", "status", "--lease-root", root]);
    assert_eq!(status["leases"][0]["held"], false);
}

#[test]
fn this_machine_can_be_looked_at() {
    for args in [&["list"][..], &["owners"][..], &["doctor"][..]] {
        let (value, code) = json(args);
        assert!(value["schema_version"] == 1 && (code == 0 || code == 1), "{args:?}: {value}");
    }
}
