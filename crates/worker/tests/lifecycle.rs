//! Starting and stopping real processes that misbehave.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; counts are said")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use b70_procguard::{ProcessIdentity, ProcessSignal, SignalOutcome, VerifiedProcess};
use b70_testkit::recorded_host;
use b70_worker::{ActionOutcome, LivenessState, ProbeOptions, StatusOptions, local_listener, probe, read_identity};
use serde_json::json;
use support::{Bench, free_port, reasons};

fn is_running(pid: u32) -> bool {
    b70_procguard::ProcStat::read(&b70_procguard::Host::real(), pid).unwrap().is_some_and(|s| !s.is_dead())
}

#[test]
fn a_dry_run_changes_nothing_and_two_workers_start_and_stop() {
    let bench = Bench::new(2, "slow-load");
    let plan = bench.with(|s| s.plan_start(&[])).unwrap();
    assert!(plan.allowed() && !plan.executed, "{}", reasons(&plan));
    assert!(!bench.dir.path().join("state").exists(), "a dry run makes no folder");
    let text = serde_json::to_string(&plan).unwrap();
    assert!(!text.contains("hunter2") && text.contains("MY_SECRET_TOKEN"), "secrets are not shown");
    assert_eq!(plan.plan[1].environment["ZE_AFFINITY_MASK"], "1");

    let plan = bench.start();
    assert_eq!(
        plan.results.iter().map(|r| r.outcome).collect::<Vec<_>>(),
        [ActionOutcome::Ready; 2],
        "{:?}",
        plan.results
    );
    let lane = bench.lane();
    let pids: Vec<u32> = plan.results.iter().map(|r| r.pid.unwrap()).collect();
    let identity = read_identity(&lane.paths(&lane.document.workers[0])).unwrap().unwrap();
    assert_eq!((identity.process.pid, identity.identity.session), (pids[0], Some(pids[0])));
    assert_eq!(identity.identity.environment["MY_SECRET_TOKEN"], "<removed>");
    assert_eq!(identity.identity.card, None, "an assumed card is in no document");

    let second = bench.start();
    assert!(!second.executed && second.exit_code() == 1);
    assert!(
        reasons(&second).contains("it runs already as pid") && reasons(&second).contains("is in use by pid"),
        "{}",
        reasons(&second)
    );

    let status = bench.with(|s| s.status(&[], &StatusOptions { probe: Some(Duration::from_secs(20)), api_key: None }));
    assert_eq!(status.unwrap().workers.len(), 2);
    let stopped = bench.stop();
    assert_eq!(stopped.exit_code(), 0, "{:?}", stopped.results);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    let signalled: BTreeSet<u32> = bench.signaller.log().iter().map(|r| r.target.pid).collect();
    assert_eq!(signalled, pids.into_iter().collect());
    let again = bench.stop();
    assert!(again.exit_code() == 0 && again.results.iter().all(|r| r.outcome == ActionOutcome::Nothing));
}

#[test]
fn a_server_that_does_not_come_up_leaves_nothing() {
    for (mode, outcome, word) in [
        ("die", ActionOutcome::Failed, "couldn't bind"),
        ("no-listen", ActionOutcome::Deadline, "not ready within"),
        ("hang-health,child", ActionOutcome::Deadline, "nothing of it is left"),
    ] {
        let bench = Bench::new(1, mode);
        let plan = bench.start_within(3.0);
        assert_eq!(plan.results[0].outcome, outcome, "{mode}: {:?}", plan.results);
        assert!(plan.results[0].detail.contains(word), "{mode}: {}", plan.results[0].detail);
        let lane = bench.lane();
        let left = read_identity(&lane.paths(&lane.document.workers[0])).unwrap().unwrap();
        assert!(left.session.members().unwrap().verified.is_empty(), "{mode}");
        assert_eq!(plan.exit_code(), if outcome == ActionOutcome::Failed { 1 } else { 124 });
    }
}

#[test]
fn term_is_ignored_until_a_kill_is_asked_for() {
    let bench = Bench::new(1, "ignore-term,child");
    let pid = bench.start().results[0].pid.unwrap();
    let stopped = bench.stop_with(0.5, None);
    assert_eq!((stopped.exit_code(), stopped.results[0].outcome), (124, ActionOutcome::Deadline));
    assert!(is_running(pid) && stopped.results[0].detail.contains("--kill-after"));
    let killed = bench.stop_with(60.0, Some(0.5));
    assert_eq!(killed.exit_code(), 0, "{:?}", killed.results);
    assert!(!is_running(pid));
    assert_eq!(killed.results[0].stop.as_ref().unwrap().leftovers_ended.len(), 1, "the forked helper");
}

#[test]
fn launchers_with_tee_work_and_one_that_loses_the_server_is_refused() {
    let server =
        "\"$LLAMA_SERVER\" --host \"$HOST\" --port \"$PORT\" --model \"$MODEL\" --ctx-checkpoints 0 $EXTRA_LLAMA_ARGS";
    let mut bench = Bench::new(1, "");
    bench.launcher(&format!("#!/bin/bash\nexec > >(tee \"$LOG\") 2>&1\nexec {server}\n"));
    let plan = bench.start();
    assert_eq!(plan.results[0].outcome, ActionOutcome::Ready, "{:?}", plan.results);
    let lane = bench.lane();
    let log = lane.paths(&lane.document.workers[0]).log;
    assert!(fs::read_to_string(log).unwrap().contains("[SYCL-GRAPH] requested"));
    assert_eq!(bench.stop().exit_code(), 0);

    // Without exec the script is the process that is asked, and the sweep ends the server.
    bench.launcher(&format!("#!/bin/bash\n{server}\n"));
    let plan = bench.start();
    assert_eq!(plan.results[0].outcome, ActionOutcome::Ready, "{:?}", plan.results);
    let stopped = bench.stop();
    assert_eq!(stopped.exit_code(), 0, "{:?}", stopped.results);
    assert!(TcpListener::bind(("127.0.0.1", lane.document.workers[0].port)).is_ok(), "the server is gone");

    bench.launcher(&format!("#!/bin/bash\n{server} &\nexit 0\n"));
    let plan = bench.start();
    assert_eq!(plan.results[0].outcome, ActionOutcome::Failed);
    let detail = &plan.results[0].detail;
    assert!(detail.contains("process(es) behind") && detail.contains("nothing of it is left"), "{detail}");
    assert!(TcpListener::bind(("127.0.0.1", lane.document.workers[0].port)).is_ok());
}

#[test]
fn busy_ports_leases_and_vanished_models_block() {
    let mut bench = Bench::new(1, "");
    let port = bench.document["workers"][0]["port"].as_u64().unwrap() as u16;
    let held = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let plan = bench.start();
    assert!(!plan.executed && reasons(&plan).contains(&format!("pid {}", std::process::id())), "{}", reasons(&plan));
    drop(held);
    fs::remove_file(bench.dir.path().join("model.gguf")).unwrap();
    assert!(reasons(&bench.start()).contains("the model is not there"));
    fs::write(bench.dir.path().join("model.gguf"), b"GGUF").unwrap();
    // On a host with cards a missing one blocks.
    bench.mode = b70_worker::GpuMode::Required;
    let tree = recorded_host("no-cards");
    bench.host = b70_procguard::Host::recorded(&tree).unwrap();
    assert!(reasons(&bench.start()).contains("there is no card 0"));
}

#[test]
fn foreign_processes_of_a_recorded_host_block_their_cards() {
    let mut bench = Bench::new(4, "");
    bench.mode = b70_worker::GpuMode::Required;
    for (host, blocked) in [
        ("mask-two-cards", vec![true, true, false, false]),
        ("unmasked-server", vec![true; 4]),
        ("vllm-all-cards", vec![true, true, false, false]),
        ("four-b70-idle", vec![false; 4]),
    ] {
        let tree = recorded_host(host);
        bench.host = b70_procguard::Host::recorded(&tree).unwrap();
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        let found: Vec<bool> = plan.plan.iter().map(|a| !a.allowed).collect();
        assert_eq!(found, blocked, "{host}: {}", reasons(&plan));
    }
    // One card under two names.
    bench.document["workers"][1]["gpu"] = json!("0000:03:00.0");
    let found = b70_worker::validate(&bench.config(), &bench.host, bench.mode, &[]).unwrap();
    assert!(!found.valid && found.findings.iter().any(|f| f.code == "unique-card"), "{:?}", found.findings);
}

#[test]
fn liveness_tells_busy_from_wedged() {
    for (mode, state) in [
        ("", LivenessState::Healthy),
        ("busy", LivenessState::Busy),
        ("asleep", LivenessState::Asleep),
        ("hang-slots", LivenessState::Wedged),
    ] {
        let bench = Bench::new(1, mode);
        assert_eq!(bench.start().results[0].outcome, ActionOutcome::Ready);
        let url = bench.with(|s| s.lane.url(&s.lane.document.workers[0]));
        let host = b70_procguard::Host::real();
        let pid = local_listener(&host, &url);
        assert!(pid.is_some());
        let options = ProbeOptions { deadline: Duration::from_secs(4), pid, ..ProbeOptions::default() };
        let report = probe(&url, &host, &options).unwrap();
        assert_eq!(report.state, state, "{mode}: {report:#?}");
        assert_eq!(report.recovery.is_empty(), state != LivenessState::Wedged);
        if mode.is_empty() {
            let process = VerifiedProcess::of_child(pid.unwrap()).unwrap();
            bench.signaller.send(&process, ProcessSignal::Stop).unwrap();
            let began = Instant::now();
            let report = probe(&url, &host, &options).unwrap();
            assert_eq!(report.state, LivenessState::Wedged, "{report:#?}");
            println!("a stopped server read wedged after {:.2} s: {}", began.elapsed().as_secs_f64(), report.reason);
            bench.signaller.send(&process, ProcessSignal::Cont).unwrap();
        }
    }
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let report = probe(&nobody, &b70_procguard::Host::real(), &ProbeOptions::default()).unwrap();
    assert_eq!(report.state, LivenessState::Lost);
}

/// Random rounds of start, stop, kill from outside and a record that names another process.
#[test]
fn no_foreign_process_is_ever_signalled() {
    let rounds: u32 = std::env::var("B70_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(50);
    let mut bystanders: Vec<_> = (0..3)
        .map(|_| {
            Command::new("sleep")
                .arg("infinity")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let bench = Bench::new(1, "");
    let lane = bench.lane();
    let paths = lane.paths(&lane.document.workers[0]);
    let mut ours: std::collections::HashSet<ProcessIdentity> = std::collections::HashSet::default();
    let (mut signals, mut foreign) = (0, 0);
    let mut seen = 0;
    for round in 0..rounds {
        let what = random() % 5;
        // Not waited for: the moment of a stop falls anywhere in the start.
        let plan = bench.start_within(0.0);
        let Some(recorded) = read_identity(&paths).unwrap() else { panic!("{plan:?}") };
        ours.insert(recorded.process.clone());
        match what {
            // Killed from outside, as by the kernel's OOM killer: through this test's own verified handle.
            0 => {
                if let Ok(process) = VerifiedProcess::open(&recorded.process) {
                    b70_procguard::Signaller::new().send(&process, ProcessSignal::Kill).unwrap();
                    process.wait_exit(Instant::now() + Duration::from_secs(30)).unwrap();
                }
            }
            // The number now belongs to a bystander: as after reuse.
            1 | 2 => {
                assert_eq!(bench.stop_with(30.0, Some(5.0)).exit_code(), 0);
                let mut record: serde_json::Value =
                    serde_json::from_slice(&fs::read(&paths.identity).unwrap()).unwrap();
                let pid = bystanders[random() as usize % 3].id();
                record["pid"] = json!(pid);
                if what == 2 {
                    record["start_time_ticks"] = json!(random() % 1000);
                } else {
                    record["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
                }
                fs::write(&paths.identity, record.to_string()).unwrap();
                let plan = bench.with(|s| s.plan_stop(&[])).unwrap();
                assert!(reasons(&plan).contains("not signalled"), "{}", reasons(&plan));
            }
            _ => std::thread::sleep(Duration::from_millis(random() % 60)),
        }
        let stopped = bench.stop_with(30.0, Some(5.0));
        assert_eq!(stopped.exit_code(), 0, "round {round}: {:?}", stopped.results);
        let log = bench.signaller.log();
        for record in &log[seen..] {
            signals += 1;
            let known = ours.contains(&record.target);
            foreign += u32::from(!known && record.outcome == SignalOutcome::Delivered);
        }
        seen = log.len();
    }
    println!("{rounds} rounds, {signals} signals, {foreign} of them to foreign processes");
    for bystander in &mut bystanders {
        assert!(bystander.try_wait().unwrap().is_none(), "a bystander ended");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }
    assert_eq!(foreign, 0);
    assert!(signals > 0);
}
