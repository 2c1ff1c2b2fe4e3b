//! Ending a server: ask once, wait, and only if told to, kill; then what is left of its session.

use std::{
    io,
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    PidState, ProcStat, ProcessIdentity, ProcessSignal, Session, Signaller, Unverified, VerifiedProcess, VerifyError,
};
use crate::host::Host;

/// How long to wait, and whether to kill.
#[derive(Debug, Clone, Copy)]
pub struct StopPolicy {
    /// After TERM, wait this long. llama-server ends its current batch first, which can take a minute.
    pub term_wait: Duration,
    /// If set: KILL when TERM was not enough, and wait this long for the kernel to take the process down.
    pub kill_wait: Option<Duration>,
}

/// What came of a stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StopOutcome {
    /// The recorded process has exited.
    pub ended: bool,
    /// It had to be killed.
    pub killed: bool,
    /// State letter of a process that did not end; `D` means stuck in the kernel, and its GPU memory is still held.
    pub stuck_state: Option<char>,
    /// Other members of its session that were ended too.
    pub leftovers_ended: Vec<ProcessIdentity>,
    /// Members that are still there.
    pub leftovers_alive: Vec<ProcessIdentity>,
    /// Processes with the session's number that are not provably ours; not signalled.
    pub unverified: Vec<Unverified>,
}

/// Stops the recorded process and sweeps its session. Nothing but verified members is ever signalled.
///
/// One TERM only: a second one makes llama-server exit at once and lose its log, so the process is asked alone, not by
/// its group. Its helpers (a `tee`, a launching shell) end by themselves or are swept afterwards.
///
/// # Errors
/// An I/O error of `/proc`. A process that is gone or reused is not an error: `ended` is true and nothing was sent.
pub fn stop(signaller: &Signaller, session: &Session, policy: StopPolicy) -> io::Result<StopOutcome> {
    let mut outcome = StopOutcome {
        ended: true,
        killed: false,
        stuck_state: None,
        leftovers_ended: Vec::new(),
        leftovers_alive: Vec::new(),
        unverified: Vec::new(),
    };
    // Members found while the leader lives are ours beyond doubt, and their pidfds keep them so after its end.
    let mut held = Vec::new();
    match VerifiedProcess::open(&session.leader) {
        Ok(process) => {
            held = session.members()?.verified;
            let (ended, killed) = end(signaller, &process, policy)?;
            (outcome.ended, outcome.killed) = (ended, killed);
            if !ended {
                outcome.stuck_state = ProcStat::read(&Host::real(), process.identity().pid)?.map(|s| s.state);
            }
        }
        Err(VerifyError::NotIt { state: PidState::Reused | PidState::Stale, .. }) => return Ok(outcome),
        Err(VerifyError::NotIt { .. }) => {}
        Err(VerifyError::Unverifiable { source, .. }) => return Err(source),
    }
    if !outcome.ended {
        return Ok(outcome);
    }
    sweep(signaller, session, held, policy, &mut outcome)?;
    Ok(outcome)
}

fn end(signaller: &Signaller, process: &VerifiedProcess, policy: StopPolicy) -> io::Result<(bool, bool)> {
    signaller.send(process, ProcessSignal::Term).map_err(io::Error::other)?;
    if process.wait_exit(Instant::now() + policy.term_wait)? {
        return Ok((true, false));
    }
    let Some(kill_wait) = policy.kill_wait else { return Ok((false, false)) };
    signaller.send(process, ProcessSignal::Kill).map_err(io::Error::other)?;
    Ok((process.wait_exit(Instant::now() + kill_wait)?, true))
}

fn sweep(
    signaller: &Signaller,
    session: &Session,
    mut held: Vec<VerifiedProcess>,
    policy: StopPolicy,
    outcome: &mut StopOutcome,
) -> io::Result<()> {
    // A member may fork while it is being ended; a few rounds, then what is left is reported.
    for _ in 0..4 {
        let members = session.members()?;
        let mut rest: Vec<VerifiedProcess> = Vec::new();
        for member in held.drain(..).chain(members.verified) {
            let known = rest.iter().any(|m| m.identity() == member.identity());
            if member.identity() != &session.leader && !known && !member.exited()? {
                rest.push(member);
            }
        }
        outcome.unverified = members.unverified;
        outcome.unverified.retain(|u| rest.iter().all(|m| m.identity().pid != u.pid));
        if rest.is_empty() {
            outcome.leftovers_alive.clear();
            return Ok(());
        }
        for member in &rest {
            signaller.send(member, ProcessSignal::Term).map_err(io::Error::other)?;
        }
        let deadline = Instant::now() + policy.term_wait;
        let mut alive = Vec::new();
        for member in rest {
            if member.wait_exit(deadline)? {
                outcome.leftovers_ended.push(member.identity().clone());
            } else {
                alive.push(member);
            }
        }
        if let Some(kill_wait) = policy.kill_wait {
            for member in &alive {
                signaller.send(member, ProcessSignal::Kill).map_err(io::Error::other)?;
            }
            let deadline = Instant::now() + kill_wait;
            let mut still = Vec::new();
            for member in alive {
                if member.wait_exit(deadline)? {
                    outcome.killed = true;
                    outcome.leftovers_ended.push(member.identity().clone());
                } else {
                    still.push(member);
                }
            }
            alive = still;
        }
        outcome.leftovers_alive = alive.iter().map(|m| m.identity().clone()).collect();
        if !alive.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}
