//! How much room there is: the least of what the file system, memory and every cgroup above us leave.
//!
//! `df` alone lies in a container: a tmpfs of 25 GB may be visible under a memory limit of 5 GB, and the end is an OOM
//! kill, not `ENOSPC`. For a file system in memory all three limits count; for a disk only its own.

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::identity::file_system_of;
use crate::path::Root;

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Limit {
    /// Where it comes from: `statvfs`, `MemAvailable`, `cgroup <directory>`.
    pub source: String,
    /// Bytes that may still be taken.
    pub available_bytes: u64,
}

/// The room at a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Headroom {
    /// Every limit that applies, with its source. A file system without a limit of its own contributes none.
    pub limits: Vec<Limit>,
    /// Files that may still be created; `None` where the file system does not count them.
    pub available_inodes: Option<u64>,
}

impl Headroom {
    /// The least limit; `None` when nothing limits.
    pub fn least(&self) -> Option<&Limit> {
        self.limits.iter().min_by_key(|l| l.available_bytes)
    }

    /// Bytes that may still be taken.
    pub fn available_bytes(&self) -> u64 {
        self.least().map_or(u64::MAX, |l| l.available_bytes)
    }

    /// Refuses a plan that needs `bytes` in `files` new files and must leave `reserve` bytes: [`Error::Headroom`], or
    /// [`Error::NoSpace`] for inodes.
    pub fn require(&self, path: &Path, bytes: u64, files: u64, reserve: u64) -> Result<()> {
        if let Some(limit) = self.least()
            && bytes.saturating_add(reserve) > limit.available_bytes
        {
            return Err(Error::Headroom {
                path: path.to_path_buf(),
                needed: bytes,
                reserve,
                available: limit.available_bytes,
                source_name: limit.source.clone(),
            });
        }
        match self.available_inodes {
            Some(inodes) if inodes < files => Err(Error::NoSpace {
                path: path.to_path_buf(),
                needed: bytes,
                source: std::io::Error::new(
                    std::io::ErrorKind::StorageFull,
                    format!("{files} files needed, {inodes} inodes free"),
                ),
            }),
            _ => Ok(()),
        }
    }
}

/// Measures the room at `dir`. `host` is the folder with `proc` and `sys`, `/` for this machine.
pub fn headroom(dir: &Root, host: &Path) -> Result<Headroom> {
    let mut limits = Vec::new();
    let stat = rustix::fs::fstatvfs(dir).map_err(|e| Error::io("stat the file system of", dir.path(), e))?;
    // tmpfs mounted with size=0 has no limit and reports 0 blocks in all and 0 free.
    if stat.f_blocks != 0 {
        let available_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        limits.push(Limit { source: "statvfs".to_owned(), available_bytes });
    }
    let available_inodes = (stat.f_files != 0).then_some(stat.f_favail);
    if file_system_of(dir, dir.path())?.kind.in_memory() {
        limits.extend(memory_limits(host)?);
    }
    Ok(Headroom { limits, available_inodes })
}

/// What limits memory: `MemAvailable`, and every cgroup above this process.
pub fn memory_limits(host: &Path) -> Result<Vec<Limit>> {
    let meminfo = host.join("proc/meminfo");
    let text = std::fs::read_to_string(&meminfo).map_err(|e| Error::io("read", &meminfo, e))?;
    let available = meminfo_bytes(&text, "MemAvailable")
        .map(|available_bytes| Limit { source: "MemAvailable".to_owned(), available_bytes });
    Ok(available.into_iter().chain(cgroup_limits(host)).collect())
}

/// A line of `/proc/meminfo` in bytes.
///
/// ```
/// assert_eq!(b70_store::meminfo_bytes("MemTotal: 9 kB\nMemAvailable:   2 kB\n", "MemAvailable"), Some(2048));
/// ```
pub fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The room in each memory cgroup from ours up to the root of its hierarchy, v1 and v2.
fn cgroup_limits(host: &Path) -> Vec<Limit> {
    let Ok(text) = std::fs::read_to_string(host.join("proc/self/cgroup")) else { return Vec::new() };
    let mount = host.join("sys/fs/cgroup");
    let mut limits = Vec::new();
    // Lines of /proc/self/cgroup: `hierarchy:controllers:path`; hierarchy 0 without controllers is v2.
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let v1 = controllers.split(',').any(|c| c == "memory");
        let bases = if v1 {
            vec![mount.join("memory")]
        } else if hierarchy == "0" && controllers.is_empty() {
            // In the hybrid layout v2 lies beside the v1 controllers.
            vec![mount.join("unified"), mount.clone()]
        } else {
            continue;
        };
        for base in bases.into_iter().filter(|b| b.is_dir()) {
            // Without a cgroup namespace of its own a container sees the host's path here, but only its own subtree
            // in the mount: then the mount's root is the group.
            let names = path.trim_start_matches('/');
            let mut dir = if base.join(names).is_dir() { base.join(names) } else { base.clone() };
            loop {
                if let Some(available_bytes) = cgroup_room(&dir, v1) {
                    limits.push(Limit { source: format!("cgroup {}", dir.display()), available_bytes });
                }
                if dir == base || !dir.pop() {
                    break;
                }
            }
        }
    }
    limits
}

/// Limit minus use, where use leaves out file pages that the kernel would drop first (`inactive_file`): the staging
/// itself reads its source through the page cache, which is charged here too.
fn cgroup_room(dir: &Path, v1: bool) -> Option<u64> {
    let (limit, current, inactive) = if v1 {
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    } else {
        ("memory.max", "memory.current", "inactive_file")
    };
    let number = |name: &str| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    // v2 writes `max`, which is not a number; v1 a number near 2⁶³.
    let limit = number(limit).filter(|&l| l < 1 << 62)?;
    let current = number(current)?;
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let inactive =
        stat.lines().find_map(|l| l.strip_prefix(inactive)?.strip_prefix(' ')?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(current.saturating_sub(inactive)))
}
