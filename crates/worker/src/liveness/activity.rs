//! Does a process work, seen from outside?

use std::{net::SocketAddr, thread, time::Duration};

use b70_client::BaseUrl;
use b70_procguard::{Cards, Host, PciAddress, ProcStat, Usage, UsageOptions, UseEvidence, port_owners};

/// Between the two looks at a process.
const SAMPLE: Duration = Duration::from_millis(400);
/// Of one CPU, below which a process without a GPU counts as idle: its HTTP threads wake up now and then.
const IDLE_SHARE: f64 = 0.2;

/// What a process did between two looks.
#[derive(Debug, Clone, PartialEq)]
pub enum Activity {
    /// Its engines or its CPU threads worked.
    Working(String),
    /// Neither did.
    Idle(String),
    /// It is stopped, dead, or stuck in the kernel.
    Halted(String),
    /// It cannot be told.
    Unknown(String),
}

impl Activity {
    /// The sentence.
    pub fn text(&self) -> &str {
        let (Self::Working(text) | Self::Idle(text) | Self::Halted(text) | Self::Unknown(text)) = self;
        text
    }

    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Working(_) => "working",
            Self::Idle(_) => "idle",
            Self::Halted(_) => "halted",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Clock ticks a second in `/proc/PID/stat`; fixed at 100 by the kernel's interface on every supported platform.
const TICKS: f64 = 100.0;

/// CPU ticks the process has used, all threads.
fn cpu_ticks(host: &Host, pid: u32) -> Option<u64> {
    let stat = host.read_text(&format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // Fields 14 and 15, and this list starts with field 3.
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    ticks(11)?.checked_add(ticks(12)?)
}

/// Looks at a process twice. A process that holds a card's client is judged by its engines alone: a thread that waits for
/// a dead engine spins, so its CPU time proves nothing.
pub(super) fn observe(host: &Host, pid: u32, card: Option<PciAddress>) -> Activity {
    let state = match ProcStat::read(host, pid) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Activity::Halted(format!("process {pid} is gone")),
        Err(error) => return Activity::Unknown(format!("process {pid} cannot be read: {error}")),
    };
    match state.state {
        'T' | 't' => return Activity::Halted(format!("process {pid} is stopped (state {})", state.state)),
        'Z' | 'X' | 'x' => return Activity::Halted(format!("process {pid} has exited")),
        _ => {}
    }
    let before = cpu_ticks(host, pid);
    if let Ok(cards) = Cards::scan(host)
        && !cards.cards.is_empty()
    {
        let options = UsageOptions { sample: SAMPLE, deadline: Duration::from_secs(3), ..UsageOptions::default() };
        let usage = Usage::scan(host, &cards, &options);
        let mine = |owner: &&b70_procguard::Owner| owner.pid == pid;
        let owned: Vec<_> = usage
            .cards
            .iter()
            .filter(|c| card.is_none_or(|pci| pci == c.pci))
            .filter_map(|c| c.owners.iter().find(mine))
            .collect();
        if owned.iter().any(|owner| owner.evidence.contains(&UseEvidence::FdinfoActive)) {
            return Activity::Working(format!("engines of process {pid} worked within {:.1} s", SAMPLE.as_secs_f64()));
        }
        if owned.iter().any(|owner| owner.evidence.contains(&UseEvidence::FdinfoVram)) {
            let stuck = if state.state == 'D' { "; it waits in the kernel (state D)" } else { "" };
            return Activity::Idle(format!(
                "process {pid} holds memory of the card and its engines did nothing for {:.1} s{stuck}",
                SAMPLE.as_secs_f64()
            ));
        }
    } else {
        thread::sleep(SAMPLE);
    }
    match (before, cpu_ticks(host, pid)) {
        (Some(before), Some(after)) => {
            let share = after.saturating_sub(before) as f64 / TICKS / SAMPLE.as_secs_f64();
            let text = format!("process {pid} used {:.0} % of a CPU", share * 100.0);
            if share >= IDLE_SHARE { Activity::Working(text) } else { Activity::Idle(text) }
        }
        _ => Activity::Unknown(format!("the CPU time of process {pid} cannot be read")),
    }
}

/// The process that listens at a loopback address of this machine; none if it cannot be named, or if several do.
pub fn local_listener(host: &Host, url: &str) -> Option<u32> {
    let base = BaseUrl::parse(url).ok()?;
    if !base.is_loopback() {
        return None;
    }
    let ip = if base.host() == "localhost" { "127.0.0.1" } else { base.host().trim_matches(['[', ']']) };
    let address = SocketAddr::new(ip.parse().ok()?, base.port());
    let owners = port_owners(host, address).ok()?;
    let mut pids: Vec<u32> =
        owners.iter().filter(|o| o.state == "listening").flat_map(|o| o.holders.iter().map(|h| h.pid)).collect();
    pids.sort_unstable();
    pids.dedup();
    // A launcher's helpers may hold the socket too; the oldest is the server.
    pids.into_iter().min_by_key(|pid| ProcStat::read(host, *pid).ok().flatten().map_or(u64::MAX, |s| s.start_time))
}
