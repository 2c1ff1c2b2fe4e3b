//! Storms of INT, TERM and HUP while workers start and stop: no foreign process is touched, and nothing is left running.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::lab::{Lab, Numbers, Ran, text};
use super::{Size, Tally};
use crate::failure::{AtPath as _, Failure};
use crate::process;

const MARK: &str = "CAMPAIGN_MARK";
const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Processes that have nothing to do with the lane; ended by us at the end.
struct Bystanders(Vec<Child>);

impl Drop for Bystanders {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends what a failed campaign would leave: the kit's own stop, and nothing else.
struct Lane<'a> {
    lab: &'a Lab,
    config: String,
    leases: String,
}

impl Lane<'_> {
    fn args<'b>(&'b self, args: &[&'b str]) -> Vec<&'b str> {
        let common = ["--config", &self.config, "--lease-root", &self.leases, "--no-gpu"];
        [args, &common[..]].concat()
    }

    fn stop(&self) -> Result<Ran, Failure> {
        let args = self.args(&["stop", "--execute", "--wait", "30", "--kill-after", "2"]);
        self.lab.run("b70-worker", args)
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let mut numbers = Numbers(seed);
    let server = lab.disk("stand-in-server");
    stand_in(&server)?;
    let mark = format!("{}-{}", std::process::id(), numbers.next());
    let ports = free_ports(3)?;
    let mut bystanders = Bystanders(Vec::new());
    let mut start = |command: &mut Command| -> Result<(), Failure> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let failed = |error| Failure::new(format!("cannot start a bystander: {error}"), "install coreutils, python3");
        bystanders.0.push(child.map_err(failed)?);
        Ok(())
    };
    start(Command::new("sleep").arg("3600"))?;
    // The same program as the workers', started by somebody else.
    start(Command::new(&server).args(["--host", "127.0.0.1", "--port", &ports[2].to_string()]))?;

    let model = lab.disk("worker-model.gguf");
    fs::write(&model, b"GGUF").at("write", &model)?;
    let worker =
        |n: usize| json!({"name": format!("w{n}"), "gpu": n, "port": ports[n], "role": "trial", "profile": "p"});
    let document = json!({
        "schema_version": 2, "lane": "trial", "runtime_root": lab.disk("worker-state"),
        "binary": server, "target_model": model, "model_alias": "stub",
        "common": {"host": "127.0.0.1", "ctx_size": 512, "batch_size": 64, "ubatch_size": 64, "n_parallel": 1,
            "flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16", "extra_llama_args": "--cache-ram 0"},
        "profiles": {"p": {"spec_type": "none", "environment": {MARK: mark, "STUB_MODE": "slow-load,child"}}},
        "workers": [worker(0), worker(1)],
    });
    let config = lab.disk("lane.workers.json");
    fs::write(&config, document.to_string()).at("write", &config)?;
    let lane = Lane { lab, config: text(&config), leases: text(&lab.disk("leases")) };

    for round in 0..size.pick(4, 100) {
        if lab.is_late() {
            break;
        }
        storm(&lane, &["start", "--execute", "--wait", "20"], &mut numbers, round, tally)?;
        if numbers.below(2) == 0 {
            storm(&lane, &["stop", "--execute", "--wait", "20", "--kill-after", "1"], &mut numbers, round, tally)?;
        }
        let ran = lane.stop()?;
        if ran.code != Some(0) {
            tally.violation(format!("round {round}: the stop after the storm: {}", ran.brief()));
        }
        let mut left = marked(&mark);
        // A program that was asked for its options when the storm came ends by itself; counted, and given a moment.
        for _ in 0..100 {
            if left.is_empty() {
                break;
            }
            tally.count("looks at what was ending by itself");
            std::thread::sleep(Duration::from_millis(20));
            left = marked(&mark);
        }
        if !left.is_empty() {
            tally.violation(format!("round {round}: still running after the stop: {left:?}"));
        }
        for child in &mut bystanders.0 {
            if !matches!(child.try_wait(), Ok(None)) {
                tally.violation(format!("round {round}: a foreign process ended: {}", child.id()));
                return Ok(());
            }
        }
        tally.count("rounds");
    }
    tally.add("foreign processes watched", bystanders.0.len() as u64);
    Ok(())
}

/// Runs a command and sends it signals at random moments until it ends.
fn storm(
    lane: &Lane<'_>,
    args: &[&str],
    numbers: &mut Numbers,
    round: usize,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let mut command = lane.lab.command("b70-worker", lane.args(args));
    let mut running = lane.lab.spawn(&mut command)?;
    let pid = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw);
    let quiet = numbers.below(900);
    std::thread::sleep(Duration::from_millis(quiet as u64));
    for _ in 0..30 {
        if running.has_ended() {
            break;
        }
        if let Some(pid) = pid {
            // Our own child, not yet waited for: the number cannot belong to anybody else.
            let _ = kill_process(pid, *numbers.pick(&SIGNALS));
            tally.count("signals");
        }
        std::thread::sleep(Duration::from_millis(numbers.below(120) as u64));
    }
    let ran = running.finish();
    let ended = match (ran.code, ran.signal, ran.hung) {
        (_, _, true) => "hung",
        (Some(130), ..) => "interrupted",
        (Some(0), ..) => "done",
        (Some(1 | 124), ..) => "refused or late",
        // HUP is not handled: its default ends the command, which is as good as a kill.
        (None, Some(1 | 2 | 15), _) => "ended by the signal",
        _ => "another end",
    };
    tally.count(format!("commands {ended}"));
    if matches!(ended, "hung" | "another end") {
        tally.violation(format!("round {round}: {args:?}: {ended}: {}", ran.brief()));
    }
    Ok(())
}

/// Processes whose environment carries the mark: everything a worker started.
fn marked(mark: &str) -> BTreeSet<u32> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    })
    .collect()
}

fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    let mut ports = Vec::new();
    for port in 19_300..19_700 {
        if ports.len() < count && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            ports.push(port);
        }
    }
    if ports.len() == count {
        Ok(ports)
    } else {
        Err(Failure::new("no free ports", "end what listens on 19300 to 19700"))
    }
}

/// The stand-in server of the worker crate's tests, with its interpreter named directly.
fn stand_in(path: &Path) -> Result<(), Failure> {
    let source = process::workspace_root().join("crates/worker/tests/support/server.py");
    let script = fs::read_to_string(&source).at("read", &source)?;
    let python = process::answer(Command::new("python3").args(["-c", "import sys; print(sys.executable)"]))
        .ok_or_else(|| Failure::new("there is no python3", "install Python 3 (Debian: apt-get install python3)"))?;
    fs::write(path, script.replacen("/usr/bin/env python3", &python, 1)).at("write", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).at("change the mode of", path)
}
