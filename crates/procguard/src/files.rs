//! Which processes have a file open or mapped: asked before a cached copy is removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{Host, is_gone};

/// How a process uses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileUse {
    /// An open descriptor.
    Open,
    /// A memory mapping; the descriptor may be closed long since.
    Mapped,
    /// It is the running program.
    Program,
    /// Its working directory lies there.
    WorkingDirectory,
}

/// A process that uses a file asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileUser {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// How.
    pub uses: Vec<FileUse>,
    /// Which of the files, as it knows them.
    pub paths: Vec<String>,
}

/// Everything known about the use of some files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesInUse {
    /// Users, ascending by pid.
    pub users: Vec<FileUser>,
    /// Processes that could not be looked at: they may use the files as well.
    pub unreadable: Vec<u32>,
}

impl FilesInUse {
    /// Is it certain that nobody uses them? An unreadable process makes that uncertain.
    pub fn certainly_unused(&self) -> bool {
        self.users.is_empty() && self.unreadable.is_empty()
    }
}

/// The files asked about.
#[derive(Debug, Clone, Default)]
struct Wanted {
    /// (device, inode).
    inodes: BTreeSet<(u64, u64)>,
    paths: BTreeSet<String>,
    beneath: Option<String>,
}

/// At most this many files are enumerated beneath a directory; beyond it only paths are compared.
const MAX_WALK: usize = 100_000;

/// Who uses this file? Compared by device and inode, and for mappings also by path, because some file systems (btrfs,
/// overlays) show mappings under another device number than `stat`.
pub fn path_in_use(host: &Host, path: &Path) -> io::Result<FilesInUse> {
    let meta = fs::metadata(path)?;
    let path = fs::canonicalize(path)?;
    scan(
        host,
        &Wanted {
            inodes: BTreeSet::from([(meta.dev(), meta.ino())]),
            paths: BTreeSet::from([path.to_string_lossy().into_owned()]),
            beneath: None,
        },
    )
}

/// Who uses any file beneath this directory? Files already removed but still held count, by the path they had.
pub fn directory_in_use(host: &Host, directory: &Path) -> io::Result<FilesInUse> {
    let directory = fs::canonicalize(directory)?;
    let mut wanted = Wanted {
        beneath: Some(format!("{}/", directory.to_string_lossy().trim_end_matches('/'))),
        ..Wanted::default()
    };
    let mut open: Vec<PathBuf> = vec![directory];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(e) if is_gone(&e) => continue,
                Err(e) => return Err(e),
            };
            if meta.is_dir() {
                open.push(entry.path());
            } else if meta.is_file() && wanted.inodes.len() < MAX_WALK {
                wanted.inodes.insert((meta.dev(), meta.ino()));
            }
        }
    }
    scan(host, &wanted)
}

impl Wanted {
    fn path(&self, path: &str) -> bool {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        self.paths.contains(path)
            || self
                .beneath
                .as_ref()
                .is_some_and(|dir| path.starts_with(dir.as_str()) || path == dir.trim_end_matches('/'))
    }

    fn inode(&self, device: u64, inode: u64) -> bool {
        self.inodes.contains(&(device, inode))
    }
}

fn scan(host: &Host, wanted: &Wanted) -> io::Result<FilesInUse> {
    let mut result = FilesInUse { users: Vec::new(), unreadable: Vec::new() };
    for pid in host.pids()? {
        let mut hits: BTreeMap<FileUse, BTreeSet<String>> = BTreeMap::new();
        match process(host, pid, wanted, &mut hits) {
            Ok(()) => {}
            Err(e) if is_gone(&e) => {}
            Err(_) => result.unreadable.push(pid),
        }
        if !hits.is_empty() {
            let comm =
                host.read_text(&format!("/proc/{pid}/comm")).map(|c| c.trim_end().to_owned()).unwrap_or_default();
            let paths: BTreeSet<String> = hits.values().flatten().cloned().collect();
            result.users.push(FileUser {
                pid,
                comm,
                uses: hits.into_keys().collect(),
                paths: paths.into_iter().collect(),
            });
        }
    }
    Ok(result)
}

fn process(host: &Host, pid: u32, wanted: &Wanted, hits: &mut BTreeMap<FileUse, BTreeSet<String>>) -> io::Result<()> {
    let mut hit = |how: FileUse, path: &str| {
        hits.entry(how).or_default().insert(path.to_owned());
    };
    for name in host.list(&format!("/proc/{pid}/fd"))? {
        let fd = format!("/proc/{pid}/fd/{name}");
        let Ok(link) = host.link(&fd) else { continue };
        if wanted.path(&link) || same_inode(host, &fd, &link, wanted) {
            hit(FileUse::Open, &link);
        }
    }
    for (name, how) in [("exe", FileUse::Program), ("cwd", FileUse::WorkingDirectory)] {
        let path = format!("/proc/{pid}/{name}");
        match host.link(&path) {
            Ok(link) if wanted.path(&link) || same_inode(host, &path, &link, wanted) => hit(how, &link),
            _ => {}
        }
    }
    for line in host.read_text(&format!("/proc/{pid}/maps"))?.lines() {
        if let Some((device, inode, path)) = parse_map(line)
            && (wanted.inode(device, inode) || wanted.path(path))
        {
            hit(FileUse::Mapped, path);
        }
    }
    Ok(())
}

fn same_inode(host: &Host, fd_path: &str, link: &str, wanted: &Wanted) -> bool {
    if wanted.inodes.is_empty() || !host.is_real() || !link.starts_with('/') {
        return false;
    }
    // No synchronisation: a descriptor on a dead network file system must not hang the scan.
    let Ok(stat) = rustix::fs::statx(CWD, fd_path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) else { return false };
    wanted.inode(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

/// `start-end perms offset major:minor inode   path`; `None` for anonymous memory.
fn parse_map(line: &str) -> Option<(u64, u64, &str)> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let (head, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        head
    };
    let (_, _, _, device, inode) = (field(), field(), field(), field(), field());
    let path = rest.trim_start_matches(' ');
    let (major, minor) = device.split_once(':')?;
    let device = rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode: u64 = inode.parse().ok()?;
    (inode != 0).then_some((device, inode, path))
}

/// Processes with a descriptor on that inode, as far as their files can be read.
pub(crate) fn open_pids(host: &Host, device: u64, inode: u64) -> Vec<u32> {
    let wanted = Wanted { inodes: BTreeSet::from([(device, inode)]), ..Wanted::default() };
    let holds = |pid: &u32| {
        host.list(&format!("/proc/{pid}/fd")).unwrap_or_default().iter().any(|name| {
            let fd = format!("/proc/{pid}/fd/{name}");
            host.link(&fd).is_ok_and(|link| same_inode(host, &fd, &link, &wanted))
        })
    };
    host.pids().unwrap_or_default().into_iter().filter(holds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_with_blanks_in_the_path() {
        let line =
            "7f1c2c000000-7f1c2c021000 r--s 00000000 00:1a 4242                       /dev/shm/a model.gguf (deleted)";
        let (device, inode, path) = parse_map(line).unwrap();
        assert_eq!((device, inode, path), (rustix::fs::makedev(0, 0x1a), 4242, "/dev/shm/a model.gguf (deleted)"));
        assert_eq!(parse_map("7ffd1000-7ffd2000 rw-p 00000000 00:00 0 [stack]"), None);
        assert_eq!(parse_map(""), None);
    }

    #[test]
    fn this_process_is_found_by_descriptor_and_by_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        let file = fs::File::create(&path).unwrap();
        let host = Host::real();
        let me = std::process::id();
        let finds = |r: &FilesInUse| r.users.iter().any(|u| u.pid == me && u.uses == [FileUse::Open]);
        assert!(finds(&path_in_use(&host, &path).unwrap()));
        assert!(finds(&directory_in_use(&host, dir.path()).unwrap()));
        fs::remove_file(&path).unwrap();
        assert!(finds(&directory_in_use(&host, dir.path()).unwrap()), "a removed file that is still held counts");
        drop(file);
        let after = directory_in_use(&host, dir.path()).unwrap();
        assert!(after.users.iter().all(|u| u.pid != me), "{after:?}");
    }

    proptest::proptest! {
        #[test]
        fn no_map_line_panics(line in ".{0,80}") {
            let _ = parse_map(&line);
        }
    }
}
