//! What the kernel's log says about a card: resets, faults, dumps, loss.

use std::io::{self, Read as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use b70_manifest::PciAddress;

use crate::host::Host;

/// Where a recorded tree keeps the log's lines.
pub(crate) const RECORDED_LOG: &str = "/kmsg.txt";
/// The kernel's buffer is at most a few MiB; more than this is not read.
const MAX_LOG: usize = 16 << 20;

/// What happened, the gravest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KernelEventKind {
    /// The GPU touched memory that it may not or that is not there ("CAT error", unsuccessful fault response).
    MemoryFault,
    /// A job did not finish in time.
    JobTimeout,
    /// One engine was reset. The process that used it often never recovers.
    EngineReset,
    /// A whole GT was reset.
    GtReset,
    /// A device core dump was made.
    Coredump,
    /// A reset itself failed.
    ResetFailed,
    /// The driver gave the device up: nothing works until it is rebound or the machine is rebooted.
    Wedged,
    /// The device is gone from the bus.
    DeviceLost,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelEvent {
    /// Which card.
    pub pci: PciAddress,
    /// What.
    pub kind: KernelEventKind,
    /// Microseconds since boot, where the line has a time.
    pub at_usec: Option<u64>,
    /// The driver that says so.
    pub driver: String,
    /// The message.
    pub message: String,
}

/// The log, or why there is none. Not being able to read it never means that nothing happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum KernelLog {
    /// Read, with these events in order. The kernel's buffer is a ring: what is older than its first line is unknown.
    Read {
        /// All events of xe and i915 cards.
        events: Vec<KernelEvent>,
        /// Time of the oldest line still in the buffer, microseconds since boot.
        since_usec: Option<u64>,
    },
    /// It could not be read.
    Unreadable {
        /// Why, and what would help.
        reason: String,
    },
}

impl KernelLog {
    /// Reads `/dev/kmsg`, or the recorded lines of a tree.
    pub fn read(host: &Host) -> Self {
        let lines = if host.is_real() { read_kmsg() } else { host.read_text(RECORDED_LOG) };
        match lines {
            Ok(text) => Self::from_text(&text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Self::Unreadable { reason: "there is no kernel log here".into() }
            }
            Err(e) => {
                Self::Unreadable { reason: format!("{e}; reading it takes root, or sysctl kernel.dmesg_restrict=0") }
            }
        }
    }

    /// Parses lines of `/dev/kmsg`, of `dmesg` (`[  12.3] …`) or of a journal.
    pub fn from_text(text: &str) -> Self {
        let since_usec = text.lines().find_map(|l| split_line(l).0);
        Self::Read { events: text.lines().filter_map(parse_line).collect(), since_usec }
    }

    /// Events of one card, `None` if the log could not be read.
    pub fn of(&self, pci: PciAddress) -> Option<Vec<&KernelEvent>> {
        match self {
            Self::Read { events, .. } => Some(events.iter().filter(|e| e.pci == pci).collect()),
            Self::Unreadable { .. } => None,
        }
    }
}

/// Does a line belong into a recorded tree: does it speak of a graphics driver's device?
pub(crate) fn concerns_gpu(line: &str) -> bool {
    let (_, message) = split_line(line);
    device(message).is_some()
}

pub(crate) fn read_kmsg() -> io::Result<String> {
    use rustix::{
        fs::{Mode, OFlags},
        io::Errno,
    };
    let fd = rustix::fs::open("/dev/kmsg", OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut file = std::fs::File::from(fd);
    let mut text = String::new();
    let mut record = vec![0; 8192];
    while text.len() < MAX_LOG {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(n) => {
                // One record a read; what follows its first line are tags.
                let line = String::from_utf8_lossy(&record[..n]).into_owned();
                text.push_str(line.lines().next().unwrap_or(""));
                text.push('\n');
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            // The record was overwritten while it was waited for: go on with the next.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::PIPE) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(text)
}

/// Time in microseconds and message of a line in any of the known forms.
fn split_line(line: &str) -> (Option<u64>, &str) {
    // priority,sequence,microseconds,flags;message
    if let Some((head, message)) = line.split_once(';')
        && let [_, _, usec, ..] = head.split(',').collect::<Vec<_>>().as_slice()
        && let Ok(usec) = usec.parse()
    {
        return (Some(usec), message);
    }
    // [seconds.microseconds] message
    let trimmed = line.trim_start();
    if let Some((stamp, message)) = trimmed.strip_prefix('[').and_then(|l| l.split_once(']'))
        && let Some((seconds, micros)) = stamp.trim().split_once('.')
        && let (Ok(seconds), Ok(micros)) = (seconds.parse::<u64>(), micros.parse::<u64>())
    {
        return (seconds.checked_mul(1_000_000).and_then(|s| s.checked_add(micros)), message.trim_start());
    }
    // … kernel: message
    (None, trimmed.split_once("kernel: ").map_or(trimmed, |(_, message)| message))
}

/// `driver address: rest` of a device message.
fn device(message: &str) -> Option<(&str, PciAddress, &str)> {
    let message = message.strip_prefix("pci ").unwrap_or(message);
    let (driver, rest) = message.split_once(' ')?;
    if !matches!(driver, "xe" | "i915") {
        return None;
    }
    let (address, rest) = rest.split_once(": ")?;
    Some((driver, address.parse().ok()?, rest))
}

fn parse_line(line: &str) -> Option<KernelEvent> {
    let (at_usec, message) = split_line(line);
    let (driver, pci, rest) = device(message)?;
    let kind = classify(&rest.to_ascii_lowercase())?;
    Some(KernelEvent { pci, kind, at_usec, driver: driver.to_owned(), message: rest.to_owned() })
}

/// Wordings of xe and i915 over several kernel versions, lower case. The gravest reading of a line wins.
fn classify(text: &str) -> Option<KernelEventKind> {
    use KernelEventKind as K;
    let has = |words: &[&str]| words.iter().all(|w| text.contains(w));
    let rules: &[(&[&str], K)] = &[
        (&["device lost"], K::DeviceLost),
        (&["device is gone"], K::DeviceLost),
        (&["fell off the bus"], K::DeviceLost),
        (&["declared device", "wedged"], K::Wedged),
        (&["device wedged"], K::Wedged),
        (&["needs recovery"], K::Wedged),
        (&["reset failed"], K::ResetFailed),
        (&["reset request failed"], K::ResetFailed),
        (&["failed to reset"], K::ResetFailed),
        (&["coredump has been created"], K::Coredump),
        (&["coredump snapshot"], K::Coredump),
        (&["reset started"], K::GtReset),
        (&["reset queued"], K::GtReset),
        (&["trying reset"], K::GtReset),
        (&["resetting chip"], K::GtReset),
        (&["engine reset"], K::EngineReset),
        (&["gpu hang"], K::EngineReset),
        (&["timedout job"], K::JobTimeout),
        (&["timed out job"], K::JobTimeout),
        (&["cat error"], K::MemoryFault),
        (&["fault response: unsuccessful"], K::MemoryFault),
        (&["page fault"], K::MemoryFault),
    ];
    // "coredump has been deleted" and informational lines fall through.
    rules.iter().find(|(words, _)| has(words)).map(|(_, kind)| *kind)
}

/// Version of the `GuC` firmware that a driver said it loaded, e.g. `70.58.0`, by card.
pub(crate) fn guc_version(text: &str, pci: PciAddress) -> Option<String> {
    text.lines().rev().find_map(|line| {
        let (_, address, rest) = device(split_line(line).1)?;
        let version = rest.split_once("GuC firmware")?.1.split_once("version ")?.1;
        let version: String = version.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        (address == pci && !version.is_empty()).then_some(version)
    })
}

/// Is a device core dump waiting in sysfs? Only the kernel's own link says so; an unreadable one is unknown.
pub fn has_devcoredump(host: &Host, pci: PciAddress) -> io::Result<bool> {
    host.exists(&format!("/sys/bus/pci/devices/{pci}/devcoredump"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<KernelEventKind> {
        match KernelLog::from_text(text) {
            KernelLog::Read { events, .. } => events.into_iter().map(|e| e.kind).collect(),
            KernelLog::Unreadable { reason } => panic!("{reason}"),
        }
    }

    #[test]
    fn lines_of_a_reset_are_recognised_in_order() {
        use KernelEventKind as K;
        let text = "\
[   79.482997] xe 0000:0b:00.0: [drm] Tile0: GT0: Engine memory CAT error [18]: class=ccs, logical_mask: 0x1, guc_id=11
[   79.482974] xe 0000:0b:00.0: [drm] Tile0: GT0: Fault response: Unsuccessful -EIO
[   80.1] xe 0000:0b:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=11
[   81.000100] xe 0000:0b:00.0: [drm] GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=11, flags=0x0
[   81.000200] xe 0000:0b:00.0: [drm] Xe device coredump has been created
[   81.000300] xe 0000:0b:00.0: [drm] Check your /sys/class/drm/card1/device/devcoredump/data
[   82.000000] xe 0000:0b:00.0: [drm] *ERROR* Tile0: GT0: reset failed (-ETIMEDOUT)
[   83.000000] xe 0000:0b:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:0b:00.0 as wedged.
[  385.104000] xe 0000:0b:00.0: [drm] Xe device coredump has been deleted.
[  386.000000] nvme 0000:01:00.0: reset failed
";
        assert_eq!(
            kinds(text),
            [K::MemoryFault, K::MemoryFault, K::EngineReset, K::JobTimeout, K::Coredump, K::ResetFailed, K::Wedged]
        );
    }

    #[test]
    fn all_forms_of_a_line_are_read() {
        for line in [
            "4,1234,81000200,-;xe 0000:0b:00.0: [drm] Xe device coredump has been created",
            "[   81.000200] xe 0000:0b:00.0: [drm] Xe device coredump has been created",
        ] {
            let KernelLog::Read { events, since_usec } = KernelLog::from_text(line) else { panic!("{line}") };
            assert_eq!((events[0].at_usec, since_usec), (Some(81_000_200), Some(81_000_200)), "{line}");
        }
        assert_eq!(
            kinds("Dec 07 07:03:57 host kernel: xe 0000:0b:00.0: [drm] GT0: Engine reset: x"),
            [KernelEventKind::EngineReset]
        );
    }

    #[test]
    fn the_firmware_version_is_read() {
        let text =
            "[4.0] xe 0000:03:00.0: [drm] Tile0: GT0: Using GuC firmware from xe/bmg_guc_70.bin version 70.58.0\n";
        assert_eq!(guc_version(text, "03:00.0".parse().unwrap()).as_deref(), Some("70.58.0"));
        assert_eq!(guc_version(text, "04:00.0".parse().unwrap()), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}", like in "[0-9,]{0,12};?\\[? ?[0-9.]{0,24}\\]? ?xe 0000:0[0-9]:00.0: .{0,20}") {
            let _ = KernelLog::from_text(&text);
            let _ = KernelLog::from_text(&like);
        }
    }
}
