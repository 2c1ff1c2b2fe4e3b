//! Tests that need root, a pid namespace and another user. `cargo xtask test --all` runs them.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test ends, and speaks, where something is amiss.

use std::{fs, process::Command, time::Duration};

use b70_procguard::{
    Host, LeaseError, LeaseKind, LeaseOwner, LeaseRoot, PidState, ProcStat, ProcessIdentity, Session, Signaller,
    StopPolicy, Usage, UsageOptions, VerifiedProcess, VerifyError, stop,
};
use b70_testkit::{in_pid_namespace, spawn_as};

#[test]
#[ignore = "needs root and a pid namespace with ns_last_pid: cargo xtask test --all"]
fn a_reused_pid_is_never_signalled() {
    if in_pid_namespace("a_reused_pid_is_never_signalled") {
        reuse_rounds();
    }
}

fn reuse_rounds() {
    let host = Host::real();
    let signaller = Signaller::new();
    let firm = StopPolicy { term_wait: Duration::from_millis(50), kill_wait: Some(Duration::from_secs(5)) };
    let mut spared = 0;
    let rounds: u32 = std::env::var("B70_REUSE_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(20);
    for round in 0..rounds {
        let mut victim = Command::new("setsid").args(["sleep", "300"]).spawn().unwrap();
        let pid = victim.id();
        let identity = ProcessIdentity::of(&host, pid).unwrap().unwrap();
        let held = VerifiedProcess::open(&identity).unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Start times count in hundredths of a second: a number reused within one cannot be told apart by them.
        std::thread::sleep(Duration::from_millis(25));
        let mut stranger = if round % 2 == 0 {
            spawn_as(pid, "sleep", &["300"])
        } else {
            // The stranger leads a session of the same number and has a child in it.
            spawn_as(pid, "setsid", &["sh", "-c", "sleep 300 & wait"])
        };
        let mut child = None;
        while round % 2 == 1 && child.is_none() {
            let all = host.pids().unwrap().into_iter().filter_map(|p| ProcStat::read(&host, p).ok().flatten());
            child = all.into_iter().find(|s| s.ppid == pid && s.session == pid);
        }
        assert_eq!(identity.state(&host), PidState::Reused);
        let refused = VerifiedProcess::open(&identity).unwrap_err();
        assert!(matches!(refused, VerifyError::NotIt { state: PidState::Reused, .. }), "{refused}");
        assert!(held.exited().unwrap(), "a pidfd opened before stays with the dead process");
        signaller.send(&held, b70_procguard::ProcessSignal::Kill).unwrap();
        let session = Session { leader: identity, token: Some("ours".into()) };
        let outcome = stop(&signaller, &session, firm).unwrap();
        assert!(outcome.ended && outcome.leftovers_ended.is_empty(), "{outcome:?}");
        assert!(session.members().unwrap().verified.is_empty());
        assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
        spared += 1;
        if let Some(child) = child {
            // Its leader dies too; the child is left with our session's number and must not pass for ours.
            stranger.kill().unwrap();
            stranger.wait().unwrap();
            let outcome = stop(&signaller, &session, firm).unwrap();
            assert_eq!(outcome.unverified.iter().map(|u| u.pid).collect::<Vec<_>>(), [child.pid]);
            let orphan = ProcessIdentity::of(&host, child.pid).unwrap().unwrap();
            assert_eq!(orphan.state(&host), PidState::Running);
            let other = Signaller::new();
            other.send(&VerifiedProcess::open(&orphan).unwrap(), b70_procguard::ProcessSignal::Kill).unwrap();
        } else {
            stranger.kill().unwrap();
            stranger.wait().unwrap();
        }
    }
    let delivered = signaller.log().iter().filter(|r| r.outcome == b70_procguard::SignalOutcome::Delivered).count();
    assert_eq!(delivered, 0);
    println!("{spared} pid reuse rounds: {delivered} signals delivered to the new owners of the number");
}

#[test]
#[ignore = "needs root and a pid namespace: cargo xtask test --all"]
fn a_scan_inside_a_pid_namespace_says_what_it_cannot_see() {
    if in_pid_namespace("a_scan_inside_a_pid_namespace_says_what_it_cannot_see") {
        let cards = b70_procguard::Cards::assumed(&["0000:03:00.0".parse().unwrap()]);
        let usage = Usage::scan(&Host::real(), &cards, &UsageOptions::default());
        assert_eq!(usage.cards[0].verdict, b70_procguard::CardVerdict::Unknown);
        assert!(usage.unreadable.iter().any(|u| u.what.contains("pid namespace")), "{usage:?}");
    }
}

const OTHER_USER: &str = "B70_TEST_AS_OTHER_USER";

/// Runs one test of this binary as user and group 65534.
fn as_nobody(test: &str, argument: &str) {
    let dir = tempfile::Builder::new().prefix("b70-other-user").tempdir_in("/tmp").unwrap();
    let copy = dir.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    for path in [dir.path(), copy.as_path()] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(OTHER_USER, argument)
        .current_dir("/")
        .output()
        .expect("setpriv (util-linux) is needed by this test: install it");
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}

#[test]
#[ignore = "needs root to become another user: cargo xtask test --all"]
fn users_exclude_each_other() {
    let pci = "0000:03:00.0".parse().unwrap();
    if let Some(path) = std::env::var_os(OTHER_USER) {
        let root = LeaseRoot::open(path.as_ref()).unwrap();
        let owner = LeaseOwner::this_process("other user").unwrap();
        let e = root.acquire(pci, LeaseKind::Card, &owner, Duration::ZERO).unwrap_err();
        let LeaseError::Held { owner: Some(holder), .. } = e else { panic!("{e}") };
        assert_eq!(holder.command, "first user");
        assert!(root.status(&Host::real(), pci, LeaseKind::Card).unwrap().held);
        // Another card is free for anybody, in a file that this user makes.
        drop(
            root.acquire(
                "0000:07:00.0".parse::<b70_procguard::PciAddress>().unwrap(),
                LeaseKind::Card,
                &owner,
                Duration::ZERO,
            )
            .unwrap(),
        );
        return;
    }
    let dir = tempfile::Builder::new().prefix("b70-leases").tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = dir.path().join("leases");
    let root = LeaseRoot::open(&path).unwrap();
    let owner = LeaseOwner::this_process("first user").unwrap();
    let lease = root.acquire(pci, LeaseKind::Card, &owner, Duration::ZERO).unwrap();
    as_nobody("users_exclude_each_other", path.to_str().unwrap());
    drop(lease);
    // A file made by the other user in the sticky directory can be locked by root as well.
    drop(
        root.acquire(
            "0000:07:00.0".parse::<b70_procguard::PciAddress>().unwrap(),
            LeaseKind::Card,
            &owner,
            Duration::ZERO,
        )
        .unwrap(),
    );
}

#[test]
#[ignore = "needs root to become another user: cargo xtask test --all"]
fn an_ordinary_user_is_told_that_the_scan_is_blind() {
    const TEST: &str = "an_ordinary_user_is_told_that_the_scan_is_blind";
    if let Some(pid) = std::env::var(OTHER_USER).ok().and_then(|text| text.parse().ok()) {
        let cards = b70_procguard::Cards::assumed(&["0000:03:00.0".parse().unwrap()]);
        let usage = Usage::scan(&Host::real(), &cards, &UsageOptions::default());
        assert_ne!(usage.cards[0].verdict, b70_procguard::CardVerdict::Free);
        assert!(usage.unreadable.iter().any(|u| u.pid == Some(pid)), "{:?}", usage.unreadable);
        let other = ProcessIdentity::of(&Host::real(), pid).unwrap().unwrap();
        let process = VerifiedProcess::open(&other).expect("verifying needs no rights");
        let signaller = Signaller::new();
        // Not SIGCONT: the kernel lets every process of a session send it to the others.
        let e = signaller.send(&process, b70_procguard::ProcessSignal::Term).unwrap_err();
        assert!(e.to_string().contains("another user"), "{e}");
        return;
    }
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    as_nobody(TEST, &other.id().to_string());
    assert!(other.try_wait().unwrap().is_none(), "nobody cannot end a process of root");
    other.kill().unwrap();
    other.wait().unwrap();
}
