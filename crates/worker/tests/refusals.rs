//! What is refused, with which reason, and that nothing is started or left.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::atomic::AtomicBool,
    time::Duration,
};

use b70_admission::{Fingerprint, Known, fingerprint_sha256};
use b70_procguard::{Host, LeaseKind, LeaseRoot, ProcessSignal, Signaller, VerifiedProcess};
use b70_store::Sha256;
use b70_testkit::{fixture, recorded_host};
use b70_worker::{
    ActionOutcome, GpuMode, Lane, ResolveOptions, StartChecks, StartOptions, Supervisor, WorkerPlan, read_identity,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::json;
use support::{Bench, reasons};

/// Nothing was started, and no folder, record or log was made.
fn untouched(bench: &Bench, plan: &WorkerPlan) {
    assert!(!plan.executed && plan.results.is_empty() && plan.exit_code() == 1, "{plan:?}");
    assert!(!bench.dir.path().join("state").exists(), "something was left");
}

#[test]
fn a_port_that_an_outgoing_connection_has_blocks() {
    let bench = Bench::new(1, "");
    let port = bench.document["workers"][0]["port"].as_u64().unwrap() as u16;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A client that the kernel gave that very port.
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
    connect(&socket, &listener.local_addr().unwrap()).unwrap();
    let client = TcpStream::from(socket);
    let plan = bench.start();
    untouched(&bench, &plan);
    let text = reasons(&plan);
    assert!(text.contains(&format!("port {port} is in use by pid {}", std::process::id())), "{text}");
    assert!(text.contains("established"), "{text}");
    drop(client);
}

#[test]
fn masks_of_a_foreign_server_block_what_its_driver_would_take() {
    let mut bench = Bench::new(4, "");
    bench.mode = GpuMode::Required;
    for (mask, blocked) in [
        // A range is not a range, and what follows a number is ignored.
        ("0-1", [true, false, false, false]),
        ("1a", [false, true, false, false]),
        ("1,3", [false, true, false, true]),
        // Empty is all; what the driver cannot read is anything.
        ("", [true; 4]),
        ("a", [true; 4]),
        // No such card: none.
        ("9", [false; 4]),
    ] {
        let tree = tempfile::tempdir().unwrap();
        let copy = tree.path().join("host");
        let copied = Command::new("cp").arg("-a").arg(recorded_host("mask-two-cards")).arg(&copy).status().unwrap();
        assert!(copied.success());
        fs::write(copy.join("proc/9000/environ"), format!("ZE_AFFINITY_MASK={mask}\0")).unwrap();
        bench.host = Host::recorded(&copy).unwrap();
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        let found: Vec<bool> = plan.plan.iter().map(|a| !a.allowed).collect();
        assert_eq!(found, blocked, "{mask:?}: {}", reasons(&plan));
        if blocked.contains(&true) {
            assert!(reasons(&plan).contains("foreign process 9000"), "{}", reasons(&plan));
            untouched(&bench, &bench.start());
        }
    }
}

#[test]
fn a_configuration_that_undoes_the_pinning_blocks() {
    for (name, value) in [
        ("ZE_AFFINITY_MASK", "0-1"),
        ("ZE_AFFINITY_MASK", ""),
        ("NEO_L0_ZE_AFFINITY_MASK", "a"),
        ("ONEAPI_DEVICE_SELECTOR", "level_zero:1a"),
    ] {
        let mut bench = Bench::new(1, "");
        bench.document["common"]["environment"] = json!({name: value});
        let plan = bench.start();
        untouched(&bench, &plan);
        assert!(reasons(&plan).contains(&format!("{name} chooses devices")), "{}", reasons(&plan));
    }
}

#[test]
fn flags_that_the_server_no_longer_takes_block() {
    let mut bench = Bench::new(2, "");
    bench.document["common"]["extra_llama_args"] = json!("--cache-ram 0 --no-mmap");
    let plan = bench.start();
    untouched(&bench, &plan);
    for action in &plan.plan {
        let text = action.reasons.join("\n");
        assert!(text.contains("does not accept --no-mmap: newer builds take --load-mode none"), "{text}");
    }
}

#[test]
fn a_launcher_that_ignores_what_is_asked_blocks() {
    let mut bench = Bench::new(1, "");
    bench.launcher("#!/bin/sh\nexec \"$LLAMA_SERVER\" --port \"$PORT\" -m /a/model.gguf\n");
    let plan = bench.start();
    untouched(&bench, &plan);
    assert!(reasons(&plan).contains("never reads MODEL") && reasons(&plan).contains("never reads EXTRA_LLAMA_ARGS"));
}

#[test]
fn a_model_that_vanishes_between_plan_and_start_fails_by_itself() {
    let bench = Bench::new(2, "");
    let model = bench.dir.path().join("model.gguf");
    let interrupted = AtomicBool::new(false);
    // The plan allowed both; the first has been started when the file goes.
    let vanish = |worker: &str, what: &str| {
        if worker == "w0" && what.starts_with("started") {
            fs::remove_file(&model).unwrap();
        }
    };
    let options = StartOptions {
        wait: Duration::from_secs(90),
        interrupted: &interrupted,
        progress: &vanish,
        signaller: &bench.signaller,
    };
    let plan = bench.with(|s| s.start(&[], &options)).unwrap();
    assert_eq!(plan.exit_code(), 1, "{plan:?}");
    let second = plan.results.iter().find(|r| r.worker == "w1").unwrap();
    assert!(second.outcome == ActionOutcome::Failed && second.detail.contains("the model is not there"), "{second:?}");
    let lane = bench.lane();
    let paths = lane.paths(&lane.document.workers[1]);
    assert!(read_identity(&paths).unwrap().is_none() && !paths.pid.exists() && !paths.log.exists(), "nothing is left");
    assert_eq!(bench.stop().exit_code(), 0);
}

#[test]
fn a_model_larger_than_memory_blocks_unless_that_is_allowed() {
    let mut bench = Bench::new(1, "");
    // A hole of 64 TiB: no machine has that, and no disk is filled.
    let model = bench.dir.path().join("model.gguf");
    fs::write(&model, b"GGUF").unwrap();
    let file = fs::OpenOptions::new().write(true).open(&model).unwrap();
    if file.set_len(64 << 40).is_err() {
        // Some file systems end at 16 TiB.
        file.set_len(15 << 40).unwrap();
    }
    let plan = bench.start();
    untouched(&bench, &plan);
    assert!(reasons(&plan).contains("bytes of model files are not in memory yet"), "{}", reasons(&plan));
    bench.checks.allow_low_memory = true;
    let plan = bench.with(|s| s.plan_start(&[])).unwrap();
    let notes = plan.plan[0].notes.join("\n");
    assert!(plan.allowed() && notes.contains("allowed by --allow-low-memory"), "{notes}");
}

#[test]
fn a_fingerprint_is_recorded_when_it_is_of_this_build_and_refused_when_it_is_not() {
    let mut bench = Bench::new(1, "");
    let sample = fixture("documents/samples/fingerprint.json");
    let mut fingerprint: Fingerprint = serde_json::from_slice(&fs::read(sample).unwrap()).unwrap();
    fingerprint.libraries.clear();
    let path = bench.dir.path().join("fingerprint.json");
    let digest = Sha256::of(&fs::read(bench.dir.path().join("stub-server")).unwrap());
    let mut write = |binary: Option<(&str, Sha256)>| {
        fingerprint.binaries = binary.into_iter().map(|(n, d)| (n.to_owned(), Known::Value(d))).collect();
        let digest = fingerprint_sha256(&fingerprint).unwrap();
        fingerprint.sha256 = Known::Value(digest);
        // As the command prints it, with what it adds for its reader.
        let mut printed = serde_json::to_value(&fingerprint).unwrap();
        for (name, value) in [("fit_for_pass_reuse", json!(false)), ("reasons", json!(["dirty"]))] {
            printed[name] = value;
        }
        fs::write(&path, printed.to_string()).unwrap();
        digest
    };
    let recorded = |bench: &Bench| {
        let lane = bench.lane();
        read_identity(&lane.paths(&lane.document.workers[0])).unwrap().unwrap().identity
    };

    // By the flag, of another build: refused before anything starts.
    let other = write(Some(("stub-server", Sha256::of(b"another build"))));
    bench.checks.build_fingerprint = Some(path.clone());
    let plan = bench.start();
    untouched(&bench, &plan);
    assert!(reasons(&plan).contains("is not of this build: stub-server has"), "{}", reasons(&plan));
    // A document that was edited is not a fingerprint.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&other.to_string(), &digest.to_string())).unwrap();
    assert!(!bench.start().executed);

    // By the configuration, of this build.
    bench.checks = StartChecks::default();
    bench.document["build_fingerprint"] = json!("fingerprint.json");
    let ours = write(Some(("stub-server", digest)));
    let plan = bench.start_within(0.0);
    assert!(plan.plan[0].notes.iter().any(|n| *n == format!("build fingerprint {ours}")), "{:?}", plan.plan[0].notes);
    assert_eq!(recorded(&bench).build_fingerprint_sha256, Some(ours));
    assert_eq!(bench.stop().exit_code(), 0);

    // One whose digest is withheld, one that does not speak of this executable, and none at all are unknown and say so.
    write(Some(("stub-server", digest)));
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&ours.to_string(), "unknown")).unwrap();
    bench.start_within(0.0);
    let record = recorded(&bench);
    let said = record.extra["build_fingerprint"].as_str().unwrap();
    assert!(record.build_fingerprint_sha256.is_none() && said.contains("gives no digest"), "{said}");
    assert_eq!(bench.stop().exit_code(), 0);
    write(None);
    bench.start_within(0.0);
    let record = recorded(&bench);
    let said = record.extra["build_fingerprint"].as_str().unwrap();
    assert!(record.build_fingerprint_sha256.is_none() && said.contains("does not list stub-server"), "{said}");
    assert_eq!(bench.stop().exit_code(), 0);
    bench.document.as_object_mut().unwrap().remove("build_fingerprint");
    bench.start_within(0.0);
    let record = recorded(&bench);
    assert!(
        record.extra["build_fingerprint"].as_str().unwrap().starts_with("build fingerprint unknown: no fingerprint")
    );
    assert_eq!(bench.stop().exit_code(), 0);
}

#[test]
fn a_restart_is_one_plan_and_stops_nothing_that_could_not_start_again() {
    let mut bench = Bench::new(1, "child");
    let first = bench.start().results[0].pid.unwrap();
    let plan = bench.with(|s| s.plan_restart(&[])).unwrap();
    assert!(plan.allowed() && plan.plan.len() == 2, "{}", reasons(&plan));
    let second = bench.restart();
    assert_eq!(
        second.results.iter().map(|r| r.outcome).collect::<Vec<_>>(),
        [ActionOutcome::Stopped, ActionOutcome::Ready]
    );
    let pid = second.results[1].pid.unwrap();
    assert_ne!(pid, first);
    // What stands against the start keeps the server alive.
    bench.document["common"]["extra_llama_args"] = json!("--cache-ram 0 --no-mmap");
    let refused = bench.restart();
    assert!(!refused.executed && refused.exit_code() == 1 && reasons(&refused).contains("--no-mmap"));
    let lane = bench.lane();
    let recorded = read_identity(&lane.paths(&lane.document.workers[0])).unwrap().unwrap();
    assert_eq!((recorded.process.pid, recorded.state(&Host::real())), (pid, b70_procguard::PidState::Running));
    assert_eq!(bench.stop().exit_code(), 0);
}

const STARTER: &str = "B70_TEST_STARTER";

/// The starting command: a process of its own that starts the worker on a recorded host with cards, and ends.
fn start_and_end(config: &Path) {
    let lane = Lane::load(config).unwrap();
    let host = Host::recorded(&recorded_host("four-b70-idle")).unwrap();
    let resolve = ResolveOptions { layout: None, uid: 0 };
    let lease_root = config.with_file_name("leases");
    let checks = StartChecks::default();
    let mode = GpuMode::Required;
    let supervisor = Supervisor { lane: &lane, host: &host, local: true, mode, lease_root, resolve, checks };
    let interrupted = AtomicBool::new(false);
    let signaller = Signaller::new();
    let options =
        StartOptions { wait: Duration::ZERO, interrupted: &interrupted, progress: &|_, _| {}, signaller: &signaller };
    let plan = supervisor.start(&[], &options).unwrap();
    assert_eq!(plan.results.iter().map(|r| r.outcome).collect::<Vec<_>>(), [ActionOutcome::Started], "{plan:?}");
}

#[test]
fn the_lease_outlives_the_command_that_started_the_server() {
    const TEST: &str = "the_lease_outlives_the_command_that_started_the_server";
    if let Some(config) = std::env::var_os(STARTER) {
        return start_and_end(config.as_ref());
    }
    let mut bench = Bench::new(1, "child");
    bench.mode = GpuMode::Required;
    bench.document["common"]["extra_llama_args"] = json!("--cache-ram 0 --api-key hunter2");
    let mut starter = Command::new(std::env::current_exe().unwrap());
    let starter = starter.args([TEST, "--exact", "--nocapture"]).env(STARTER, bench.config()).output().unwrap();
    assert!(starter.status.success(), "{}", String::from_utf8_lossy(&starter.stderr));

    let lane = bench.lane();
    let recorded = read_identity(&lane.paths(&lane.document.workers[0])).unwrap().unwrap();
    let pid = recorded.process.pid;
    let root = LeaseRoot::open_existing(&bench.dir.path().join("leases")).unwrap();
    let card = recorded.identity.card.unwrap();
    let lease = || root.status(&Host::real(), card, LeaseKind::Card).unwrap();
    let held = lease();
    assert!(held.held && held.holders.contains(&pid), "the server holds it: {held:?}");
    let owner = held.owner.unwrap();
    assert_eq!(owner.pid, pid);
    assert!(!owner.command.contains("hunter2"), "{}", owner.command);
    let plan = bench.with(|s| s.plan_start(&[])).unwrap();
    assert!(reasons(&plan).contains(&format!("{card} is leased by pid {pid}")), "{}", reasons(&plan));

    // The server dies and what it forked lives on, with the lock and perhaps with the card's memory.
    let members = || recorded.session.members().unwrap().verified.len();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while members() < 2 {
        assert!(std::time::Instant::now() < until, "the server forks a helper");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A restart would give it back first.
    let restart = bench.with(|s| s.plan_restart(&[])).unwrap();
    assert!(restart.allowed(), "{}", reasons(&restart));
    let server = VerifiedProcess::open(&recorded.process).unwrap();
    Signaller::new().send(&server, ProcessSignal::Kill).unwrap();
    server.wait_exit(std::time::Instant::now() + Duration::from_secs(30)).unwrap();
    let held = lease();
    assert!(held.held && !held.holders.contains(&pid), "its helper holds it: {held:?}");
    assert_eq!(bench.stop().exit_code(), 0);
    assert!(!lease().held, "given back with the last of them");
}

#[test]
fn a_record_and_a_log_hold_no_secret() {
    let mut bench = Bench::new(1, "");
    bench.document["common"]["extra_llama_args"] =
        json!(["--cache-ram", "0", "--api-key", "hunter2", "--hf-token=hunter2"]);
    let started = bench.start();
    assert_eq!(started.results[0].outcome, ActionOutcome::Ready, "{:?}", started.results);
    assert!(!serde_json::to_string(&started).unwrap().contains("hunter2"));
    let lane = bench.lane();
    let paths = lane.paths(&lane.document.workers[0]);
    for entry in fs::read_dir(&paths.directory).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        assert!(!text.contains("hunter2"), "{}", path.display());
    }
    let record = read_identity(&paths).unwrap().unwrap().identity;
    assert!(record.command.iter().any(|word| word == "--hf-token=<removed>"), "{:?}", record.command);
    assert_eq!(record.environment["MY_SECRET_TOKEN"], "<removed>");
    assert_eq!(bench.stop().exit_code(), 0);
}
