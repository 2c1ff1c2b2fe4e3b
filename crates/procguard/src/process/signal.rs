//! Signals, only through a pidfd whose process was verified.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PidState, ProcStat, ProcessIdentity, boot_id};
use crate::host::Host;

/// The signals the guards ever send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum ProcessSignal {
    /// Ask to end.
    Term,
    /// The same, as from a terminal.
    Int,
    /// End without asking.
    Kill,
    /// Suspend.
    Stop,
    /// Resume.
    Cont,
}

impl ProcessSignal {
    fn raw(self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Int => Signal::INT,
            Self::Kill => Signal::KILL,
            Self::Stop => Signal::STOP,
            Self::Cont => Signal::CONT,
        }
    }
}

/// Why a process is not the recorded one, or cannot be shown to be.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is gone, exited, another one, or of another boot: there is nothing to signal.
    #[error("{identity} is {}: nothing is signalled", state.word())]
    NotIt {
        /// Whom the record names.
        identity: ProcessIdentity,
        /// What became of it.
        state: PidState,
    },
    /// The kernel would not say.
    #[error("{identity} cannot be verified: {source}; nothing is signalled")]
    Unverifiable {
        /// Whom the record names.
        identity: ProcessIdentity,
        /// What failed.
        source: io::Error,
    },
}

/// A handle on the very process an identity names. Holding it, the number cannot come to mean another process:
/// the pidfd refers to the process, not to the number.
#[derive(Debug)]
pub struct VerifiedProcess {
    identity: ProcessIdentity,
    comm: String,
    fd: OwnedFd,
}

impl VerifiedProcess {
    /// Opens a pidfd, compares boot and start time, then asks the pidfd whether its process still lives.
    ///
    /// Order matters: were the pidfd's process dead and the number reused, the comparison might have read the new
    /// owner of the number; a pidfd that is not readable afterwards proves that what was read belonged to it.
    pub fn open(identity: &ProcessIdentity) -> Result<Self, VerifyError> {
        let not_it = |state| VerifyError::NotIt { identity: identity.clone(), state };
        let unverifiable = |source: io::Error| VerifyError::Unverifiable { identity: identity.clone(), source };
        let host = Host::real();
        let pid = i32::try_from(identity.pid).ok().and_then(Pid::from_raw).ok_or_else(|| not_it(PidState::Absent))?;
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => {
                let same_boot = boot_id(&host).map_err(unverifiable)? == identity.boot_id;
                return Err(not_it(if same_boot { PidState::Absent } else { PidState::Stale }));
            }
            Err(e) => return Err(unverifiable(e.into())),
        };
        match identity.state(&host) {
            PidState::Running => {}
            PidState::Unverifiable(why) => return Err(unverifiable(io::Error::other(why))),
            state => return Err(not_it(state)),
        }
        let comm = match ProcStat::read(&host, identity.pid) {
            Ok(Some(stat)) if stat.start_time == identity.start_time => stat.comm,
            Ok(_) => return Err(not_it(PidState::Absent)),
            Err(e) => return Err(unverifiable(e)),
        };
        if has_exited(fd.as_fd(), Some(Duration::ZERO)).map_err(unverifiable)? {
            return Err(not_it(PidState::Zombie));
        }
        Ok(Self { identity: identity.clone(), comm, fd })
    }

    /// Opens the process that has this number *now*, for one that the caller has just started and not collected.
    pub fn of_child(pid: u32) -> io::Result<Self> {
        let identity = ProcessIdentity::of(&Host::real(), pid)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no process {pid}")))?;
        Self::open(&identity).map_err(io::Error::other)
    }

    /// Who it is.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// Its name when it was verified.
    pub fn comm(&self) -> &str {
        &self.comm
    }

    /// Has it exited (collected or not)?
    pub fn exited(&self) -> io::Result<bool> {
        has_exited(self.fd.as_fd(), Some(Duration::ZERO))
    }

    /// Waits for its exit; `false` when the deadline came first.
    pub fn wait_exit(&self, deadline: Instant) -> io::Result<bool> {
        has_exited(self.fd.as_fd(), Some(deadline.saturating_duration_since(Instant::now())))
    }
}

fn has_exited(fd: BorrowedFd<'_>, wait: Option<Duration>) -> io::Result<bool> {
    let until = wait.map(|w| Instant::now() + w);
    loop {
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        let timeout = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: i64::from(l.subsec_nanos()) });
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// What came of sending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignalOutcome {
    /// The kernel took it.
    Delivered,
    /// The process had exited; nobody got it.
    AlreadyGone,
    /// The kernel refused.
    Refused(String),
}

/// One line of a signaller's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignalRecord {
    /// Who was meant.
    pub target: ProcessIdentity,
    /// Its name when it was verified.
    pub comm: String,
    /// What was sent.
    pub signal: ProcessSignal,
    /// What came of it.
    pub outcome: SignalOutcome,
    /// When, unix seconds.
    pub at_unix: u64,
}

/// The kernel refused a signal.
#[derive(Debug, thiserror::Error)]
#[error(
    "{signal:?} to {target} ({comm}) was refused: {source}; it belongs to another user, so stop it as that user or as root"
)]
pub struct SignalError {
    target: ProcessIdentity,
    comm: String,
    signal: ProcessSignal,
    source: io::Error,
}

/// The only sender of signals in the kit; keeps a log of every one.
///
/// It takes no numbers: a [`VerifiedProcess`] is the proof that the target is the recorded process.
#[derive(Debug, Default)]
pub struct Signaller {
    log: Mutex<Vec<SignalRecord>>,
}

impl Signaller {
    /// A signaller with an empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends one signal. A process that exited in the meantime gets nothing and is not an error.
    pub fn send(&self, target: &VerifiedProcess, signal: ProcessSignal) -> Result<SignalOutcome, SignalError> {
        // A zombie would "take" the signal; say what is true instead.
        let sent = if target.exited().unwrap_or(false) {
            Err(rustix::io::Errno::SRCH)
        } else {
            pidfd_send_signal(&target.fd, signal.raw())
        };
        let outcome = match sent {
            Ok(()) => SignalOutcome::Delivered,
            Err(rustix::io::Errno::SRCH) => SignalOutcome::AlreadyGone,
            Err(e) => SignalOutcome::Refused(e.to_string()),
        };
        let at_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(SignalRecord {
            target: target.identity.clone(),
            comm: target.comm.clone(),
            signal,
            outcome: outcome.clone(),
            at_unix,
        });
        match sent {
            Err(e) if e != rustix::io::Errno::SRCH => Err(SignalError {
                target: target.identity.clone(),
                comm: target.comm.clone(),
                signal,
                source: e.into(),
            }),
            _ => Ok(outcome),
        }
    }

    /// Everything sent so far, in order.
    pub fn log(&self) -> Vec<SignalRecord> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
