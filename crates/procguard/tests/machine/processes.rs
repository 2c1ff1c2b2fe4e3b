//! Identity, signals, sessions.

use std::time::{Duration, Instant};

use b70_procguard::{
    Cards, GpuRef, Host, PidState, ProcStat, ProcessIdentity, ProcessSignal, Session, SignalOutcome, Signaller,
    StopPolicy, Usage, UsageOptions, VerifiedProcess, VerifyError, ancestors, stop,
};

use crate::support::{Helper, alive, numbers, session, shell, wait_for};

const POLITE: StopPolicy = StopPolicy { term_wait: Duration::from_secs(10), kill_wait: None };
const FIRM: StopPolicy = StopPolicy { term_wait: Duration::from_millis(60), kill_wait: Some(Duration::from_secs(10)) };

#[test]
fn an_exited_child_is_a_zombie_until_collected_and_then_absent() {
    let mut helper = shell("exit 0");
    let identity = helper.identity();
    let host = Host::real();
    wait_for("the exit", || identity.state(&host) == PidState::Zombie);
    let refused = VerifiedProcess::open(&identity).unwrap_err();
    assert!(matches!(refused, VerifyError::NotIt { state: PidState::Zombie, .. }), "{refused}");
    helper.0.wait().unwrap();
    assert!(matches!(identity.state(&host), PidState::Absent | PidState::Reused));
}

#[test]
fn another_start_time_is_another_process_and_gets_no_signal() {
    let helper = shell("exec sleep 60");
    let mut identity = helper.identity();
    identity.start_time -= 1;
    assert!(matches!(VerifiedProcess::open(&identity), Err(VerifyError::NotIt { state: PidState::Reused, .. })));
    let signaller = Signaller::new();
    let outcome = stop(&signaller, &Session { leader: identity, token: None }, FIRM).unwrap();
    assert!(outcome.ended && signaller.log().is_empty());
    assert!(alive(helper.pid()));
}

#[test]
fn a_signal_after_the_exit_reaches_nobody_and_is_logged_so() {
    let mut helper = shell("exec sleep 60");
    let process = VerifiedProcess::open(&helper.identity()).unwrap();
    let signaller = Signaller::new();
    assert_eq!(signaller.send(&process, ProcessSignal::Kill).unwrap(), SignalOutcome::Delivered);
    assert!(process.wait_exit(Instant::now() + Duration::from_secs(10)).unwrap());
    assert_eq!(
        signaller.send(&process, ProcessSignal::Term).unwrap(),
        SignalOutcome::AlreadyGone,
        "a zombie takes no signal"
    );
    helper.0.wait().unwrap();
    assert_eq!(signaller.send(&process, ProcessSignal::Term).unwrap(), SignalOutcome::AlreadyGone);
    assert_eq!(signaller.log().len(), 3);
}

#[test]
fn a_server_that_ignores_term_is_left_alone_unless_killing_is_asked_for() {
    let (helper, session) = session("trap '' TERM; while :; do sleep 0.02; done", "ignores-term");
    // The trap is set once the shell has begun its loop.
    wait_for("the loop", || {
        b70_procguard::Host::real().read_text(&format!("/proc/{}/status", helper.pid())).is_ok_and(|s| {
            s.lines()
                .find_map(|l| l.strip_prefix("SigIgn:"))
                .and_then(|m| u64::from_str_radix(m.trim(), 16).ok())
                .is_some_and(|m| m >> 14 & 1 == 1)
        })
    });
    let signaller = Signaller::new();
    let patient = StopPolicy { term_wait: Duration::from_millis(50), kill_wait: None };
    let outcome = stop(&signaller, &session, patient).unwrap();
    assert!(!outcome.ended && !outcome.killed && outcome.stuck_state.is_some());
    assert!(alive(helper.pid()));
    assert_eq!(signaller.log().iter().map(|r| r.signal).collect::<Vec<_>>(), [ProcessSignal::Term], "one TERM only");
    let outcome = stop(&signaller, &session, FIRM).unwrap();
    assert!(outcome.ended && outcome.killed);
}

#[test]
fn helpers_that_outlive_the_server_are_swept_and_those_that_left_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let path = file.display();
    // One child stays in the session, one leaves it by setsid.
    let (mut helper, session) = session(
        &format!("sleep 300 & echo $! >> {path}; setsid sh -c 'echo $$ >> {path}; exec sleep 300' & wait"),
        "outlive",
    );
    let pids = numbers(&file, 2);
    let (stayed, left) = {
        let sid = |p: u32| ProcStat::read(&Host::real(), p).unwrap().unwrap().session;
        let (a, b) = (pids[0], pids[1]);
        if sid(a) == helper.pid() { (a, b) } else { (b, a) }
    };
    let left_identity = ProcessIdentity::of(&Host::real(), left).unwrap().unwrap();
    let signaller = Signaller::new();
    let outcome = stop(&signaller, &session, POLITE).unwrap();
    helper.0.wait().unwrap();
    assert!(outcome.ended, "{outcome:?}");
    assert_eq!(outcome.leftovers_ended.iter().map(|i| i.pid).collect::<Vec<_>>(), [stayed]);
    assert!(!alive(stayed) && alive(left));
    assert!(signaller.log().iter().all(|r| r.target.pid != left));
    signaller.send(&VerifiedProcess::open(&left_identity).unwrap(), ProcessSignal::Kill).unwrap();
}

#[test]
fn a_session_whose_leader_is_gone_is_known_by_its_token_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let (mut helper, session) = session(&format!("sleep 300 & echo $! >> {}", file.display()), "orphans");
    helper.0.wait().unwrap();
    let orphan = numbers(&file, 1)[0];
    let signaller = Signaller::new();
    let without = Session { token: None, ..session.clone() };
    let wrong = Session { token: Some("another".into()), ..session.clone() };
    for stranger in [&without, &wrong] {
        let outcome = stop(&signaller, stranger, FIRM).unwrap();
        assert_eq!(outcome.unverified.iter().map(|u| u.pid).collect::<Vec<_>>(), [orphan], "{outcome:?}");
        assert!(alive(orphan));
    }
    assert!(signaller.log().is_empty());
    let outcome = stop(&signaller, &session, POLITE).unwrap();
    assert_eq!(outcome.leftovers_ended.len(), 1);
    wait_for("the orphan's end", || !alive(orphan));
}

#[test]
fn the_line_of_parents_is_walked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pids");
    let helper = shell(&format!("sh -c 'echo $$ >> {}; sleep 60; true'; true", file.display()));
    let child = numbers(&file, 1)[0];
    let line: Vec<u32> = ancestors(&Host::real(), child).unwrap().iter().map(|s| s.pid).collect();
    assert_eq!(line[..3], [child, helper.pid(), std::process::id()]);
    let identity = ProcessIdentity::of(&Host::real(), child).unwrap().unwrap();
    Signaller::new().send(&VerifiedProcess::open(&identity).unwrap(), ProcessSignal::Kill).unwrap();
}

#[test]
fn a_ggml_process_with_a_mask_blocks_the_masked_cards() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("llama-server");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let child = std::process::Command::new(&program).arg("60").env("ZE_AFFINITY_MASK", "0,1").spawn().unwrap();
    let helper = Helper(child);
    let cards = Cards::assumed(&["0000:03:00.0", "0000:07:00.0", "0000:43:00.0"].map(|a| a.parse().unwrap()));
    let options = UsageOptions { fdinfo: false, ..UsageOptions::default() };
    let usage = Usage::scan(&Host::real(), &cards, &options);
    let owned: Vec<bool> = usage.cards.iter().map(|c| c.owners.iter().any(|o| o.pid == helper.pid())).collect();
    assert_eq!(owned, [true, true, false], "{usage:#?}");
    assert!(cards.resolve(GpuRef::Ordinal(2)).is_ok());
    let ignoring = UsageOptions { ignore: [helper.pid()].into(), ..options };
    let usage = Usage::scan(&Host::real(), &cards, &ignoring);
    assert!(usage.cards.iter().all(|c| c.owners.iter().all(|o| o.pid != helper.pid())));
}
