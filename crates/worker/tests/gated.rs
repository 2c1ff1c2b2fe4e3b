//! Tests that need root and a pid namespace. `cargo xtask test --all` runs them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; counts are said")]

mod support;

use std::{
    os::unix::fs::chown,
    time::{Duration, Instant},
};

use b70_procguard::{PidState, ProcStat, ProcessSignal, SignalOutcome, Signaller, VerifiedProcess};
use b70_testkit::{in_pid_namespace, spawn_as};
use b70_worker::{ActionOutcome, read_identity};
use support::{Bench, reasons};

#[test]
#[ignore = "needs root and a pid namespace with ns_last_pid: cargo xtask test --all"]
fn a_worker_whose_number_a_stranger_has_signals_nobody() {
    if in_pid_namespace("a_worker_whose_number_a_stranger_has_signals_nobody") {
        strangers();
    }
}

fn strangers() {
    let rounds: u32 = std::env::var("B70_REUSE_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(6);
    let bench = Bench::new(1, "");
    let lane = bench.lane();
    let paths = lane.paths(&lane.document.workers[0]);
    let host = b70_procguard::Host::real();
    for round in 0..rounds {
        let pid = bench.start_within(0.0).results[0].pid.unwrap();
        let recorded = read_identity(&paths).unwrap().unwrap();
        // As the kernel's OOM killer would: not through the kit.
        let server = VerifiedProcess::open(&recorded.process).unwrap();
        Signaller::new().send(&server, ProcessSignal::Kill).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while ProcStat::read(&host, pid).unwrap().is_some() {
            assert!(Instant::now() < until, "the killed server is not collected");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Start times count in hundredths of a second: a number reused within one cannot be told apart by them.
        std::thread::sleep(Duration::from_millis(25));
        // Every other stranger leads a session of the same number and has a child in it.
        let mut stranger = if round % 2 == 0 {
            spawn_as(pid, "sleep", &["300"])
        } else {
            spawn_as(pid, "setsid", &["sh", "-c", "sleep 300 & wait"])
        };
        assert_eq!(recorded.state(&host), PidState::Reused);
        let before = bench.signaller.log().len();
        let plan = bench.with(|s| s.plan_stop(&[])).unwrap();
        assert!(reasons(&plan).contains("is another process now: it is not signalled"), "{}", reasons(&plan));
        let stopped = bench.stop_with(1.0, Some(1.0));
        assert_eq!(
            (stopped.exit_code(), stopped.results[0].outcome),
            (0, ActionOutcome::Nothing),
            "{:?}",
            stopped.results
        );
        let delivered =
            bench.signaller.log()[before..].iter().filter(|r| r.outcome == SignalOutcome::Delivered).count();
        assert_eq!(delivered, 0);
        assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
        // A start is not kept from its work by a stranger with an old number.
        let plan = bench.with(|s| s.plan_start(&[])).unwrap();
        assert!(plan.allowed(), "{}", reasons(&plan));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    println!("{rounds} rounds of a worker's number in a stranger's hands: nobody was signalled");
}

#[test]
#[ignore = "needs root to give a file away: cargo xtask test --all"]
fn a_record_of_another_user_signals_nobody() {
    let bench = Bench::new(1, "");
    let pid = bench.start_within(0.0).results[0].pid.unwrap();
    let lane = bench.lane();
    let paths = lane.paths(&lane.document.workers[0]);
    chown(&paths.identity, Some(65_534), None).unwrap();
    let stopped = bench.stop_with(1.0, Some(1.0));
    assert_eq!(stopped.exit_code(), 1, "{stopped:?}");
    assert!(reasons(&stopped).contains("belongs to user 65534"), "{}", reasons(&stopped));
    assert!(bench.signaller.log().is_empty());
    assert!(ProcStat::read(&b70_procguard::Host::real(), pid).unwrap().is_some_and(|s| !s.is_dead()));
    chown(&paths.identity, Some(0), None).unwrap();
    assert_eq!(bench.stop().exit_code(), 0);

    // A folder that somebody else made is not used.
    chown(paths.directory.parent().unwrap(), Some(65_534), None).unwrap();
    let started = bench.start_within(0.0);
    assert_eq!(started.exit_code(), 1);
    assert!(started.results[0].detail.contains("is not trusted"), "{:?}", started.results);
    chown(paths.directory.parent().unwrap(), Some(0), None).unwrap();
}
