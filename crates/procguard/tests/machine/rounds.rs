//! Randomised rounds of starting, stopping and killing, with strangers beside them that nothing may touch.

use std::{collections::BTreeSet, time::Duration};

use b70_procguard::{
    Host, ProcessIdentity, ProcessSignal, Session, SignalOutcome, Signaller, StopPolicy, VerifiedProcess, stop,
};
use b70_testkit::Dice;

use crate::support::{Helper, alive, numbers, session, shell, wait_for};

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Strangers whose exit status tells whether they ever got a TERM.
fn strangers() -> Vec<Helper> {
    (0..3).map(|_| shell("trap 'exit 77' TERM; while :; do sleep 0.2; done")).collect()
}

#[test]
fn no_stranger_is_ever_signalled() {
    let rounds = variable("B70_ROUNDS", 50);
    let seed = variable("B70_SEED", 0x9e37_79b9_7f4a_7c15);
    let mut random = Dice(seed);
    let host = Host::real();
    let dir = tempfile::tempdir().unwrap();
    let mut strangers = strangers();
    let signaller = Signaller::new();
    // (pid, start time) of everything that this test started to be stopped.
    let mut own: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut kinds = [0_u32; 8];
    for round in 0..rounds {
        let file = dir.path().join(format!("round-{round}"));
        let path = file.display();
        let kind = random.below(8) as usize;
        kinds[kind] += 1;
        let (script, children) = match kind {
            0 | 6 | 7 => ("exec sleep 300".to_owned(), 0),
            1 => (format!("trap '' TERM; echo $$ >> {path}; exec sleep 300"), 1),
            2 => (format!("sleep 300 & echo $! >> {path}; sleep 300 & echo $! >> {path}; wait"), 2),
            // (An ignored signal stays ignored through `exec`.) The leader ends at once and leaves a child behind.
            3 => (format!("sleep 300 & echo $! >> {path}"), 1),
            // A child that ignores TERM outlives its obedient leader.
            4 => (format!("sh -c 'trap \"\" TERM; echo $$ >> {path}; exec sleep 300' & wait"), 1),
            // Ends by itself.
            _ => ("exit 3".to_owned(), 0),
        };
        let token = format!("round-{round}");
        let (mut helper, mut target) = session(&script, &token);
        own.insert((target.leader.pid, target.leader.start_time));
        for pid in numbers(&file, children) {
            if let Ok(Some(child)) = ProcessIdentity::of(&host, pid) {
                own.insert((child.pid, child.start_time));
            }
        }
        if kind == 3 || kind == 5 {
            helper.0.wait().unwrap();
        }
        match kind {
            // Killed from outside and collected: the number is free for anybody.
            6 => {
                helper.0.kill().unwrap();
                helper.0.wait().unwrap();
            }
            // A record that names a stranger's number with the dead process's start: what a reused number looks like.
            7 => {
                let stranger = &strangers[random.below(3) as usize];
                target = Session { leader: ProcessIdentity { pid: stranger.pid(), ..target.leader }, token: None };
                if target.leader.start_time == stranger.identity().start_time {
                    continue;
                }
            }
            _ => {}
        }
        let kill_wait = (random.below(4) != 0 || matches!(kind, 1 | 4)).then_some(Duration::from_secs(10));
        let policy =
            StopPolicy { term_wait: Duration::from_millis(if kind == 1 || kind == 4 { 15 } else { 5000 }), kill_wait };
        let outcome = stop(&signaller, &target, policy).unwrap();
        assert!(
            outcome.ended && outcome.leftovers_alive.is_empty() && outcome.unverified.is_empty(),
            "kind {kind}: {outcome:?}"
        );
        drop(helper);
        if children > 0 {
            wait_for("the children's end", || numbers(&file, children).iter().all(|p| !alive(*p)));
        }
    }
    let log = signaller.log();
    let delivered: Vec<_> = log.iter().filter(|r| r.outcome == SignalOutcome::Delivered).collect();
    let unknown: Vec<_> = delivered.iter().filter(|r| !own.contains(&(r.target.pid, r.target.start_time))).collect();
    assert!(unknown.is_empty(), "signalled but never started here: {unknown:?} (B70_SEED={seed})");
    let touched = log.iter().filter(|r| strangers.iter().any(|s| s.pid() == r.target.pid)).count();
    assert_eq!(touched, 0, "B70_SEED={seed}");
    for stranger in &mut strangers {
        assert!(stranger.0.try_wait().unwrap().is_none(), "a stranger ended (B70_SEED={seed})");
        let process = VerifiedProcess::open(&stranger.identity()).unwrap();
        signaller.send(&process, ProcessSignal::Term).unwrap();
        assert_eq!(stranger.0.wait().unwrap().code(), Some(77), "the strangers' trap works, so silence meant silence");
    }
    println!(
        "{rounds} rounds (seed {seed}, kinds {kinds:?}): {} signals delivered, {} to processes of this test, {touched} to strangers",
        delivered.len(),
        delivered.len() - unknown.len(),
    );
}
