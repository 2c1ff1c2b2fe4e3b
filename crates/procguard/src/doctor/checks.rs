//! The checks themselves.

use super::{Check, CheckStatus as S};
use crate::{
    affinity::{AffinityMask, Hierarchy, get, level_zero_variable, parse_affinity_mask, parse_selector},
    cards::Cards,
    host::Host,
    klog::{self, KernelLog},
    record::shm_space,
};

/// Below this a server with pinned host memory fails: llama.cpp locks staging buffers and, with mlock, the model.
const MEMLOCK_WANTED: u64 = 8 << 30;
/// A B70's memory: device allocations cost about as much host memory.
const CARD_BYTES: u64 = 32 << 30;

fn check(name: &str, status: S, found: impl Into<String>, todo: impl Into<String>) -> Check {
    Check { name: name.into(), status, found: found.into(), todo: todo.into() }
}

fn size(bytes: u64) -> String {
    let (unit, shift) = if bytes < 1 << 30 { ("MiB", 20) } else { ("GiB", 30) };
    format!("{bytes} bytes ({:.1} {unit})", bytes as f64 / (1_u64 << shift) as f64)
}

pub(super) fn all(host: &Host, cards: &Cards, env: &[(String, String)]) -> Vec<Check> {
    vec![
        present(cards),
        render_group(host, cards),
        scan_rights(host),
        memlock(host),
        memory(host, cards),
        shm(host),
        remove_ipc(host),
        kernel(host, cards),
        firmware(host, cards),
        log(host, cards),
        numbering(cards, env),
        mask(cards, env),
        shader_cache(env),
    ]
}

fn present(cards: &Cards) -> Check {
    let intel: Vec<String> =
        cards.cards.iter().filter(|c| c.is_level_zero_capable()).map(|c| format!("{} {}", c.pci, c.name)).collect();
    let unbound: Vec<String> = cards
        .cards
        .iter()
        .filter(|c| c.vendor_id == "0x8086" && c.driver.is_none())
        .map(|c| c.pci.to_string())
        .collect();
    if !unbound.is_empty() {
        return check(
            "cards",
            S::Fail,
            format!("no driver is bound to {}", unbound.join(", ")),
            "Load the xe driver; look for probe errors in the kernel log.",
        );
    }
    if intel.is_empty() {
        return check(
            "cards",
            S::Warn,
            "no card with the xe or i915 driver",
            "Nothing here can run on an Intel GPU; on a trial host pass --no-gpu.",
        );
    }
    check("cards", S::Ok, intel.join(", "), "")
}

fn render_group(host: &Host, cards: &Cards) -> Check {
    let capable: Vec<_> = cards.cards.iter().filter(|c| c.is_level_zero_capable()).collect();
    let closed: Vec<String> = capable.iter().filter(|c| !c.is_openable()).map(|c| c.pci.to_string()).collect();
    if capable.is_empty() {
        return check("render-group", S::Unknown, "there is no render node to open", "");
    }
    if closed.is_empty() {
        return check("render-group", S::Ok, "this user can open every render node", "");
    }
    let member = host.read_text("/etc/group").ok().map(|g| {
        let render =
            g.lines().find(|l| l.starts_with("render:")).and_then(|l| l.split(':').nth(2)).unwrap_or("").to_owned();
        let groups = host.read_text("/proc/self/status").unwrap_or_default();
        let groups = groups.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or("").to_owned();
        groups.split_ascii_whitespace().any(|g| g == render)
    });
    let todo = match member {
        Some(true) => {
            "You are in group render and still cannot open the nodes: check their mode and owner, and the container's device list."
        }
        _ => {
            "Add the user to group render (usermod -aG render USER) and log in again; until then ordinals of the other cards shift."
        }
    };
    check("render-group", S::Fail, format!("this user cannot open the render node of {}", closed.join(", ")), todo)
}

fn scan_rights(host: &Host) -> Check {
    let own = host.link("/proc/self/ns/pid");
    if host.uid() == 0 {
        return match own {
            Ok(link) if link == "pid:[4026531836]" => {
                check("scan-rights", S::Ok, "root, in the first pid namespace: every process can be looked at", "")
            }
            _ => check(
                "scan-rights",
                S::Warn,
                "a pid namespace that may hide other processes",
                "Run outside the container, or every card's verdict stays unknown.",
            ),
        };
    }
    let status = host.read_text("/proc/self/status").unwrap_or_default();
    let caps =
        status.lines().find_map(|l| l.strip_prefix("CapEff:")).and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    // CAP_SYS_PTRACE is number 19.
    if caps.is_some_and(|c| c >> 19 & 1 == 1) {
        return check("scan-rights", S::Ok, "CAP_SYS_PTRACE: other users' processes can be looked at", "");
    }
    check(
        "scan-rights",
        S::Warn,
        "an ordinary user: other users' open files cannot be looked at, so cards that seem unused read unknown",
        "Run as root, or give the unit CAP_SYS_PTRACE (AmbientCapabilities=CAP_SYS_PTRACE).",
    )
}

fn memlock(host: &Host) -> Check {
    let limits = match host.read_text("/proc/self/limits") {
        Ok(text) => text,
        Err(e) => return check("memlock", S::Unknown, format!("/proc/self/limits: {e}"), ""),
    };
    let soft = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"))
        .and_then(|l| l.split_ascii_whitespace().next());
    match soft {
        Some("unlimited") => check("memlock", S::Ok, "unlimited", ""),
        Some(text) => match text.parse::<u64>() {
            Ok(bytes) if bytes >= MEMLOCK_WANTED => check("memlock", S::Ok, size(bytes), ""),
            Ok(bytes) => check(
                "memlock",
                S::Warn,
                size(bytes),
                "Raise it where servers are started: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited.",
            ),
            Err(_) => check("memlock", S::Unknown, format!("limit {text:?}"), ""),
        },
        None => check("memlock", S::Unknown, "/proc/self/limits has no such line", ""),
    }
}

fn memory(host: &Host, cards: &Cards) -> Check {
    let text = host.read_text("/proc/meminfo").unwrap_or_default();
    let Some(bytes) = b70_store::meminfo_bytes(&text, "MemAvailable") else {
        return check("memory", S::Unknown, "/proc/meminfo has no MemAvailable", "");
    };
    let b70s = cards.cards.iter().filter(|c| c.device_id == "0xe223").count() as u64;
    let wanted = CARD_BYTES.saturating_mul(b70s);
    if bytes >= wanted {
        return check("memory", S::Ok, format!("available: {}", size(bytes)), "");
    }
    check(
        "memory",
        S::Warn,
        format!("available: {}, less than the {b70s} B70's {}", size(bytes), size(wanted)),
        "Device memory of a B70 costs host memory about one to one: keep the models' total below what is available, or add RAM.",
    )
}

fn shm(host: &Host) -> Check {
    let space = match host.record_info() {
        Some(info) => info.dev_shm,
        None => shm_space(),
    };
    match space {
        None => check("dev-shm", S::Unknown, "/dev/shm cannot be measured", "Name another RAM root with --ram-root."),
        Some(s) if s.available_bytes < 16 << 30 => check(
            "dev-shm",
            S::Warn,
            format!("{} free of {}", size(s.available_bytes), size(s.size_bytes)),
            "A model copy and a pack set may not fit: remount it larger (mount -o remount,size=…) or name another tmpfs.",
        ),
        Some(s) => check("dev-shm", S::Ok, format!("{} free of {}", size(s.available_bytes), size(s.size_bytes)), ""),
    }
}

/// `RemoveIPC=` of logind: the last assignment in the main file and then the drop-ins wins; the default is yes.
fn remove_ipc(host: &Host) -> Check {
    let mut files = vec!["/etc/systemd/logind.conf".to_owned()];
    files.extend(
        host.list("/etc/systemd/logind.conf.d")
            .unwrap_or_default()
            .into_iter()
            .filter(|n| n.strip_suffix(".conf").is_some())
            .map(|n| format!("/etc/systemd/logind.conf.d/{n}")),
    );
    let mut any = false;
    let mut value = true;
    for file in files {
        let Ok(text) = host.read_text(&file) else { continue };
        any = true;
        for line in text.lines().map(str::trim) {
            if let Some(v) = line.strip_prefix("RemoveIPC").and_then(|l| l.trim_start().strip_prefix('=')) {
                value = !matches!(v.trim().to_ascii_lowercase().as_str(), "no" | "false" | "off" | "0" | "n" | "f");
            }
        }
    }
    if !any && host.is_real() && matches!(host.exists("/run/systemd/system"), Ok(false)) {
        return check("remove-ipc", S::Ok, "no systemd here, nothing sweeps /dev/shm", "");
    }
    if !value {
        return check("remove-ipc", S::Ok, "RemoveIPC=no", "");
    }
    if host.uid() == 0 {
        return check("remove-ipc", S::Ok, "RemoveIPC is on; it spares root and system users", "");
    }
    check(
        "remove-ipc",
        S::Warn,
        "RemoveIPC is on: when your last session ends, your files in /dev/shm are removed",
        "Enable lingering (loginctl enable-linger), run as a system user, use a tmpfs of your own, or set RemoveIPC=no.",
    )
}

fn kernel(host: &Host, cards: &Cards) -> Check {
    let release = match host.read_text("/proc/sys/kernel/osrelease") {
        Ok(text) => text.trim().to_owned(),
        Err(e) => return check("kernel", S::Unknown, format!("its release: {e}"), ""),
    };
    let mut parts = release.split(['.', '-']).map(|p| p.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let battlemage = cards
        .cards
        .iter()
        .any(|c| u16::from_str_radix(c.device_id.trim_start_matches("0x"), 16).is_ok_and(crate::cards::is_battlemage));
    // pidfd signals need 5.1, pidfd_open 5.3, openat2 5.6; reading others' fdinfo by ptrace rights 5.14.
    if version < (5, 14) {
        return check("kernel", S::Fail, release, "The guards need Linux 5.14 or later.");
    }
    if battlemage && version < (6, 17) {
        return check(
            "kernel",
            S::Warn,
            release,
            "B70 cards are reported to work from Linux 6.17 on, and best with 7.0 or later: update the kernel.",
        );
    }
    check("kernel", S::Ok, release, "")
}

fn firmware(host: &Host, cards: &Cards) -> Check {
    let text = if host.is_real() { klog::read_kmsg() } else { host.read_text(klog::RECORDED_LOG) }.unwrap_or_default();
    let mut found = Vec::new();
    let mut old = false;
    let mut missing = false;
    for card in cards.cards.iter().filter(|c| c.driver.as_deref() == Some("xe")) {
        match klog::guc_version(&text, card.pci).or_else(|| guc_from_debugfs(host, card.pci)) {
            Some(version) => {
                let mut parts = version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
                old |= (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (70, 54);
                found.push(format!("{} GuC {version}", card.pci));
            }
            None => missing = true,
        }
    }
    if old {
        return check(
            "firmware",
            S::Warn,
            found.join(", "),
            "Update linux-firmware: GuC 70.54 or later is wanted for Battlemage.",
        );
    }
    if missing || found.is_empty() {
        return check(
            "firmware",
            S::Unknown,
            "the GuC version is not in the kernel's buffer and debugfs cannot be read",
            "Look as root soon after boot.",
        );
    }
    check("firmware", S::Ok, found.join(", "), "")
}

fn guc_from_debugfs(host: &Host, pci: b70_manifest::PciAddress) -> Option<String> {
    let text = ["gt0", "tile0/gt0"]
        .iter()
        .find_map(|gt| host.read_text(&format!("/sys/kernel/debug/dri/{pci}/{gt}/uc/guc_info")).ok())?;
    let line = text.lines().find(|l| l.contains("found") || l.trim_start().starts_with("version"))?;
    let version = line.rsplit_once("found ").or_else(|| line.rsplit_once("version ")).map(|(_, v)| v)?;
    let version: String = version.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    (!version.is_empty()).then_some(version)
}

fn log(host: &Host, cards: &Cards) -> Check {
    match KernelLog::read(host) {
        KernelLog::Unreadable { reason } => check(
            "kernel-log",
            S::Unknown,
            reason,
            "A wedged card shows there first; allow the worker's user to read it.",
        ),
        KernelLog::Read { events, .. } if events.is_empty() => {
            check("kernel-log", S::Ok, "no reset, fault or dump of a card in the kernel's buffer", "")
        }
        KernelLog::Read { events, .. } => {
            let worst = events.iter().max_by_key(|e| e.kind);
            let text = worst.map_or_else(String::new, |w| {
                format!("{} events, the gravest on {}: {}", events.len(), w.pci, w.message)
            });
            let status =
                if worst.is_some_and(|w| w.kind >= klog::KernelEventKind::ResetFailed && cards.get(w.pci).is_some()) {
                    S::Fail
                } else {
                    S::Warn
                };
            check(
                "kernel-log",
                status,
                text,
                "Check every server on that card for tokens, not for health; a wedged card needs a rebind or a reboot.",
            )
        }
    }
}

fn numbering(cards: &Cards, env: &[(String, String)]) -> Check {
    let set: Vec<String> = ["ZE_ENABLE_PCI_ID_DEVICE_ORDER", "ZE_FLAT_DEVICE_HIERARCHY", "ZEL_DRIVERS_ORDER"]
        .into_iter()
        .filter_map(|n| level_zero_variable(env, n).map(|v| format!("{n}={v}")))
        .collect();
    let shadows: Vec<&str> =
        env.iter().map(|(k, _)| k.as_str()).filter(|k| k.starts_with("NEO_") && k.contains("ZE_")).collect();
    if !shadows.is_empty() {
        return check(
            "hierarchy",
            S::Warn,
            format!("{} override the plain variables", shadows.join(", ")),
            "Unset them: they win over what a launcher sets.",
        );
    }
    if level_zero_variable(env, "ZE_FLAT_DEVICE_HIERARCHY").is_some_and(|v| matches!(v, "FLAT" | "COMBINED")) {
        return check(
            "hierarchy",
            S::Warn,
            set.join(", "),
            "Masks of the form N.0 select nothing with it; use COMPOSITE or plain numbers.",
        );
    }
    let integrated = cards.cards.iter().any(|c| c.is_integrated() && c.is_level_zero_capable());
    if integrated && level_zero_variable(env, "ZE_ENABLE_PCI_ID_DEVICE_ORDER").is_some() {
        return check(
            "hierarchy",
            S::Warn,
            set.join(", "),
            "With an integrated GPU this changes which card is 0: name cards by PCI address.",
        );
    }
    check(
        "hierarchy",
        S::Ok,
        if set.is_empty() { "no variable changes the numbering".into() } else { set.join(", ") },
        "",
    )
}

fn mask(cards: &Cards, env: &[(String, String)]) -> Check {
    let hierarchy = Hierarchy::from_value(level_zero_variable(env, "ZE_FLAT_DEVICE_HIERARCHY"));
    let count = cards.cards.iter().filter(|c| c.is_level_zero_capable()).count() as u32;
    let value = level_zero_variable(env, "ZE_AFFINITY_MASK");
    let shown = format!("ZE_AFFINITY_MASK={:?}", value.unwrap_or(""));
    match parse_affinity_mask(value, hierarchy, count) {
        AffinityMask::Undefined(why) => {
            return check("mask", S::Fail, why, "Write it as plain numbers with commas, e.g. ZE_AFFINITY_MASK=0,1.");
        }
        AffinityMask::None if count > 0 => {
            return check("mask", S::Fail, format!("{shown} leaves no card of {count}"), "Correct or unset it.");
        }
        _ => {}
    }
    if let Some(text) = get(env, "ONEAPI_DEVICE_SELECTOR") {
        if let Err(e) = parse_selector(text) {
            return check("mask", S::Fail, e.to_string(), "Correct or unset it.");
        }
        if !["level_zero", "opencl", "cuda", "hip"].iter().any(|w| text.contains(w)) {
            return check(
                "mask",
                S::Fail,
                format!("ONEAPI_DEVICE_SELECTOR={text:?}"),
                "llama.cpp refuses it: name the backend in lower case, e.g. level_zero:0.",
            );
        }
    }
    check("mask", S::Ok, if value.is_some() { shown } else { "no mask in this environment".into() }, "")
}

fn shader_cache(env: &[(String, String)]) -> Check {
    match get(env, "SYCL_CACHE_PERSISTENT") {
        Some("1") => check(
            "sycl-cache",
            S::Fail,
            "SYCL_CACHE_PERSISTENT=1",
            "Unset it: llama.cpp's SYCL backend is reported to crash with it.",
        ),
        _ => check("sycl-cache", S::Ok, "no persistent kernel cache", ""),
    }
}
