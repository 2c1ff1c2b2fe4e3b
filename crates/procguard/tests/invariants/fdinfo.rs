//! What must hold for every text of the kernel's files: fdinfo, /proc/PID/stat, /proc/net/tcp, and the log. The replay
//! test and the fuzz target share it.

use b70_procguard::{FdInfo, KernelLog, ProcStat, TcpSocket};

/// The same bytes as each of the files.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    fdinfo(&text);
    stat(bytes);
    for line in text.lines() {
        socket(line);
    }
    log(&text);
}

fn fdinfo(text: &str) {
    let info = match FdInfo::parse(text) {
        Ok(Some(info)) => info,
        Ok(None) => return,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(text.contains("drm-"), "only a driver's line can be a lost figure");
            return;
        }
    };
    assert!(!info.driver.is_empty(), "without a driver it is not a DRM descriptor");
    let held = |prefixes: [&str; 2]| {
        let regions = info.regions.iter().filter(|(name, _)| prefixes.iter().any(|p| name.starts_with(p)));
        regions.fold(0_u64, |sum, (_, region)| sum.saturating_add(region.held()))
    };
    assert_eq!(info.vram(), held(["vram", "local"]));
    assert_eq!(info.host_memory(), held(["gtt", "system"]));
    assert!(!info.worked_until(&info), "no work between a sample and itself");
    // What another kernel adds changes nothing of what is known.
    let longer = format!("{text}\nflags:\t02\ndrm-purgeable-vram0:\t0\nunknown\n");
    assert_eq!(FdInfo::parse(&longer), Ok(Some(info.clone())));
    // A figure that cannot be read is never no use.
    let damaged = format!("{text}\ndrm-resident-vram0: many\n");
    assert!(FdInfo::parse(&damaged).is_err());
}

fn stat(bytes: &[u8]) {
    let Some(stat) = ProcStat::parse(bytes) else { return };
    let open = bytes.iter().position(|byte| *byte == b'(').expect("it has a name");
    let close = bytes.iter().rposition(|byte| *byte == b')').expect("it has a name");
    assert!(open < close);
    assert_eq!(stat.comm, String::from_utf8_lossy(&bytes[open + 1..close]));
    // A process chooses its name: whatever it is, the fields after it stay the same.
    let mut renamed = bytes[..=open].to_vec();
    renamed.extend_from_slice(b") R 1 1 (x) Z 2 (");
    renamed.extend_from_slice(&bytes[close..]);
    let again = ProcStat::parse(&renamed).expect("only the name changed");
    assert_eq!(again.comm, ") R 1 1 (x) Z 2 (");
    assert_eq!(ProcStat { comm: stat.comm.clone(), ..again }, stat);
    let _ = (stat.is_kernel_thread(), stat.is_dead());
}

fn socket(line: &str) {
    let Some(socket) = TcpSocket::parse(line) else { return };
    let again = TcpSocket::parse(&format!("  {}  ", line.split_ascii_whitespace().collect::<Vec<_>>().join("   ")));
    assert_eq!(again, Some(socket), "columns are words");
}

fn log(text: &str) {
    let KernelLog::Read { events, .. } = KernelLog::from_text(text) else { panic!("text is always readable") };
    assert!(events.len() <= text.lines().count());
    let mut rest = text.lines();
    for event in &events {
        assert!(!event.driver.is_empty());
        let line = rest.find(|line| line.contains(&event.message));
        assert!(line.is_some(), "events are lines, in order: {event:?}");
    }
    // The log is a ring: what is cut from its start changes nothing of what follows.
    if let Some((_, later)) = text.split_once('\n') {
        let KernelLog::Read { events: cut, .. } = KernelLog::from_text(later) else { panic!("readable") };
        assert!(events.ends_with(&cut) && events.len() - cut.len() <= 1);
    }
}
