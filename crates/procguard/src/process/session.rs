//! The processes a started server left behind: its session.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PidState, ProcStat, ProcessIdentity, VerifiedProcess, environment};
use crate::host::{Host, is_gone};

/// The variable whose value marks every process of a session, by inheritance.
pub const SESSION_TOKEN_VARIABLE: &str = "B70_SESSION_TOKEN";

/// A session that the kit created: its leader was started with `setsid`, and every process in it descends from it.
///
/// A session's number is its leader's pid, so it is as reusable as that once leader *and* members are gone. While
/// the leader lives (or is an uncollected zombie) membership of the number proves descent. After that it does not, and
/// only the token, a random value in [`SESSION_TOKEN_VARIABLE`] of the leader's environment, tells ours from others.
/// What leaves the session by its own `setsid` is not found; a cgroup would be needed for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The process that called `setsid`.
    pub leader: ProcessIdentity,
    /// The mark in its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A process with the session's number that could not be shown to belong to it: never signalled, to be reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unverified {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Why it does not count as ours.
    pub reason: String,
}

/// Who is in a session now.
#[derive(Debug, Default)]
pub struct SessionMembers {
    /// Verified members, each with its own pidfd, in order of start. The leader is among them while it lives.
    pub verified: Vec<VerifiedProcess>,
    /// Same number, no proof.
    pub unverified: Vec<Unverified>,
}

impl Session {
    /// Finds the members alive now, each verified by its own pidfd.
    pub fn members(&self) -> std::io::Result<SessionMembers> {
        let host = Host::real();
        let mut found = SessionMembers::default();
        if self.leader.state(&host) == PidState::Stale {
            return Ok(found);
        }
        let mut candidates = Vec::new();
        for pid in host.pids()? {
            match ProcStat::read(&host, pid) {
                Ok(Some(stat))
                    if stat.session == self.leader.pid
                        && !stat.is_dead()
                        && stat.start_time >= self.leader.start_time =>
                {
                    candidates.push(stat);
                }
                _ => {}
            }
        }
        candidates.sort_by_key(|s| (s.start_time, s.pid));
        for stat in candidates {
            let identity = ProcessIdentity { pid: stat.pid, start_time: stat.start_time, ..self.leader.clone() };
            let Ok(process) = VerifiedProcess::open(&identity) else { continue };
            // Asked again with the pidfd open: the process may have left by `setsid` in between.
            match ProcStat::read(&host, stat.pid) {
                Ok(Some(now)) if now.session == self.leader.pid && now.start_time == stat.start_time => {}
                _ => continue,
            }
            match self.is_member(&host, stat.pid) {
                Ok(()) => found.verified.push(process),
                Err(reason) => found.unverified.push(Unverified { pid: stat.pid, comm: stat.comm, reason }),
            }
        }
        Ok(found)
    }

    fn is_member(&self, host: &Host, pid: u32) -> Result<(), String> {
        // Read *after* the member's session: a leader alive now has owned the number ever since it started.
        match self.leader.state(host) {
            PidState::Running | PidState::Zombie => return Ok(()),
            PidState::Reused => return Err("the session's number belongs to another process now".into()),
            _ => {}
        }
        let Some(token) = &self.token else {
            return Err("the session's leader is gone and the session has no token to know its members by".into());
        };
        match environment(host, pid) {
            Ok(env) if env.iter().any(|(k, v)| k == SESSION_TOKEN_VARIABLE && v == token) => Ok(()),
            Ok(_) => Err(format!("the session's leader is gone and {SESSION_TOKEN_VARIABLE} is another or not set")),
            Err(e) if is_gone(&e) => Err("it exited while it was looked at".into()),
            Err(e) => Err(format!("the session's leader is gone and the environment cannot be read: {e}")),
        }
    }
}
