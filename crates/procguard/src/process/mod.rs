//! Who a process is, beyond a number that the kernel reuses.

mod session;
mod signal;
mod stop;

pub use session::{SESSION_TOKEN_VARIABLE, Session, SessionMembers, Unverified};
pub use signal::{ProcessSignal, SignalError, SignalOutcome, SignalRecord, Signaller, VerifiedProcess, VerifyError};
pub use stop::{StopOutcome, StopPolicy, stop};

use std::{fmt, io};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{Host, is_gone};

/// `PF_KTHREAD` of the kernel's `include/linux/sched.h`, as seen in field 9 of `stat`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// What `/proc/PID/stat` says, as far as the guards need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Process id.
    pub pid: u32,
    /// Name of the executable as the kernel keeps it: at most 15 bytes, and the process may change it.
    pub comm: String,
    /// State letter: `R S D T t Z X x I …`.
    pub state: char,
    /// Parent's id, 0 for none.
    pub ppid: u32,
    /// Process group.
    pub pgrp: u32,
    /// Session.
    pub session: u32,
    /// Kernel flags (`PF_*`).
    pub flags: u32,
    /// Threads still there; more than one beside a `Z` state means that only the first thread has ended.
    pub threads: u32,
    /// Start time in clock ticks since boot. Survives `execve`.
    pub start_time: u64,
}

impl ProcStat {
    /// Parses the file's bytes. The name is cut at the *last* `)`: it may contain spaces and brackets itself.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let open = bytes.iter().position(|&b| b == b'(')?;
        let close = bytes.iter().rposition(|&b| b == b')')?;
        let pid = std::str::from_utf8(bytes.get(..open)?).ok()?.trim().parse().ok()?;
        let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // `rest` starts with field 3; start time is field 22.
        let id = |n: usize| fields.get(n)?.parse::<i64>().ok().map(|v| u32::try_from(v).unwrap_or(0));
        Some(Self {
            pid,
            comm,
            state: fields.first()?.chars().next()?,
            ppid: id(1)?,
            pgrp: id(2)?,
            session: id(3)?,
            flags: fields.get(6)?.parse().ok()?,
            threads: id(17)?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// Reads one process; `Ok(None)` when there is none of that number.
    pub fn read(host: &Host, pid: u32) -> io::Result<Option<Self>> {
        match host.read(&format!("/proc/{pid}/stat")) {
            Ok(bytes) => match Self::parse(&bytes) {
                Some(stat) if stat.pid == pid => Ok(Some(stat)),
                _ => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("/proc/{pid}/stat is not in the expected form"),
                )),
            },
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Is it a thread of the kernel, which has no files and no environment?
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Has it exited already? A zombie keeps its number, holds no memory, and still "receives" signals.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// The identity of a process for all time: boot, number and start. Executable and command line are not part of it,
/// because a launcher changes them by `exec` and stays the same process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessIdentity {
    /// `/proc/sys/kernel/random/boot_id`: start times begin again at each boot.
    pub boot_id: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Inode of the pid namespace in which the number counts, if it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} started at tick {}", self.pid, self.start_time)
    }
}

/// What became of a recorded process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum PidState {
    /// No process has that number now, or it was another boot.
    Absent,
    /// The very process, alive.
    Running,
    /// The very process, exited and not yet collected by its parent.
    Zombie,
    /// Another process has the number now.
    Reused,
    /// The machine was booted since: the number means nothing.
    Stale,
    /// It could not be determined; treat it as alive and as not ours.
    Unverifiable(String),
}

impl PidState {
    /// The word used in tables and JSON rows.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Running => "running",
            Self::Zombie => "zombie",
            Self::Reused => "reused",
            Self::Stale => "stale",
            Self::Unverifiable(_) => "unverifiable",
        }
    }
}

/// This boot's id.
pub fn boot_id(host: &Host) -> io::Result<String> {
    let id = host.read_text("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    if id.is_empty() { Err(io::Error::new(io::ErrorKind::InvalidData, "boot_id is empty")) } else { Ok(id) }
}

/// Inode of the looking process's pid namespace.
pub fn pid_namespace(host: &Host) -> Option<u64> {
    host.link("/proc/self/ns/pid").ok()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

impl ProcessIdentity {
    /// Identity of the process that has this number now; `Ok(None)` if there is none.
    pub fn of(host: &Host, pid: u32) -> io::Result<Option<Self>> {
        let boot_id = boot_id(host)?;
        let Some(stat) = ProcStat::read(host, pid)? else { return Ok(None) };
        Ok(Some(Self { boot_id, pid, start_time: stat.start_time, pid_namespace: pid_namespace(host) }))
    }

    /// Identity of the calling process.
    pub fn of_self() -> io::Result<Self> {
        Self::of(&Host::real(), std::process::id())?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "/proc does not show the calling process; is it mounted for this pid namespace?",
            )
        })
    }

    /// Compares the record with what has the number now.
    pub fn state(&self, host: &Host) -> PidState {
        match boot_id(host) {
            Ok(now) if now != self.boot_id => return PidState::Stale,
            Ok(_) => {}
            Err(e) => return PidState::Unverifiable(format!("the boot id cannot be read: {e}")),
        }
        if let (Some(then), Some(now)) = (self.pid_namespace, pid_namespace(host))
            && then != now
        {
            return PidState::Unverifiable("the number was recorded in another pid namespace".into());
        }
        match ProcStat::read(host, self.pid) {
            Ok(None) => PidState::Absent,
            Ok(Some(stat)) if stat.start_time != self.start_time => PidState::Reused,
            Ok(Some(stat)) if stat.is_dead() => PidState::Zombie,
            Ok(Some(_)) => PidState::Running,
            Err(e) => PidState::Unverifiable(e.to_string()),
        }
    }
}

/// The process and its parents, nearest first, up to pid 1. A GPU's owner is often the child of a service's main
/// process, so "is it ours" is asked of the whole line. Ends early where a parent is gone.
pub fn ancestors(host: &Host, pid: u32) -> io::Result<Vec<ProcStat>> {
    let mut line: Vec<ProcStat> = Vec::new();
    let mut next = pid;
    while next != 0 && !line.iter().any(|s| s.pid == next) {
        let Some(stat) = ProcStat::read(host, next)? else { break };
        // A parent cannot be younger than its child: the number was reused between two reads.
        if line.last().is_some_and(|child| child.start_time < stat.start_time) {
            break;
        }
        next = stat.ppid;
        line.push(stat);
    }
    Ok(line)
}

/// Arguments of a process, empty for kernel threads and zombies.
pub fn command_line(host: &Host, pid: u32) -> io::Result<Vec<String>> {
    Ok(split_nul(&host.read(&format!("/proc/{pid}/cmdline"))?))
}

/// Environment of a process *as it was at its last exec*; later changes are invisible from outside.
pub fn environment(host: &Host, pid: u32) -> io::Result<Vec<(String, String)>> {
    let entries = split_nul(&host.read(&format!("/proc/{pid}/environ"))?);
    Ok(entries.into_iter().filter_map(|e| e.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()))).collect())
}

pub(crate) fn split_nul(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|&b| b == 0).map(|p| String::from_utf8_lossy(p).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = b"14382 (a) R 1 (b) S 77 14382 14000 0 -1 4194304 94 0 0 0 0 0 0 0 20 0 1 0 123456 2203648 183 18446744073709551615 1 1 0";
        let stat = ProcStat::parse(line).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state), (14382, "a) R 1 (b", 'S'));
        assert_eq!((stat.ppid, stat.pgrp, stat.session, stat.start_time), (77, 14382, 14000, 123_456));
        assert!(!stat.is_kernel_thread());
    }

    #[test]
    fn kernel_threads_and_the_dead_are_recognised() {
        let kthread = ProcStat::parse(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0").unwrap();
        assert!(kthread.is_kernel_thread());
        let zombie = ProcStat::parse(b"9 (x) Z 1 9 9 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0").unwrap();
        assert!(zombie.is_dead());
    }

    #[test]
    fn this_process_is_running_and_its_line_of_parents_ends() {
        let host = Host::real();
        let me = ProcessIdentity::of_self().unwrap();
        assert_eq!(me.state(&host), PidState::Running);
        let line = ancestors(&host, me.pid).unwrap();
        assert_eq!(line[0].pid, me.pid);
        let other = ProcessIdentity { start_time: me.start_time + 1, ..me.clone() };
        assert_eq!(other.state(&host), PidState::Reused);
        let rebooted = ProcessIdentity { boot_id: "another".into(), ..me };
        assert_eq!(rebooted.state(&host), PidState::Stale);
    }

    #[test]
    fn arguments_keep_empty_ones() {
        assert_eq!(split_nul(b"a\0\0b\0"), ["a", "", "b"]);
        assert!(split_nul(b"").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_stat_panics(bytes: Vec<u8>) {
            let _ = ProcStat::parse(&bytes);
        }

        #[test]
        fn no_stat_like_line_panics(line in "[0-9]{1,4} \\(.{0,8}\\) [A-Z]( -?[0-9]{1,20}){0,25}") {
            let _ = ProcStat::parse(line.as_bytes());
        }
    }
}
