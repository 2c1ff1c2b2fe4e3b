//! Headroom from recorded trees, default roots from given environments, refusal of roots.

mod common;

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use b70_store::{
    Error, FsKind, RootKind, Scope, default_root, file_system_of, git_work_tree, headroom, identity_of, open_or_create,
    open_ram_root, refuse_in_git,
};
use b70_testkit::memory;

use common::{disk, root};

const MIB: u64 = 1 << 20;

/// A host as /proc and /sys would show it.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(cgroup: &str) -> Self {
        let host = Self { dir: disk() };
        host.write("proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   10240000 kB\n");
        host.write("proc/self/cgroup", cgroup);
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    fn v2(&self, group: &str, max: &str, current: u64, inactive: u64) {
        self.write(&format!("sys/fs/cgroup/{group}/memory.max"), &format!("{max}\n"));
        self.write(&format!("sys/fs/cgroup/{group}/memory.current"), &format!("{current}\n"));
        self.write(&format!("sys/fs/cgroup/{group}/memory.stat"), &format!("anon 1\ninactive_file {inactive}\n"));
    }

    fn limits(&self, dir: &Path) -> Vec<(String, u64)> {
        let room = headroom(&root(dir), self.dir.path()).expect("measured");
        let cut = format!("cgroup {}", self.dir.path().join("sys/fs/cgroup").display());
        room.limits.into_iter().map(|l| (l.source.replace(&cut, "cgroup "), l.available_bytes)).collect()
    }
}

fn get(limits: &[(String, u64)], source: &str) -> Option<u64> {
    limits.iter().find(|(s, _)| s == source).map(|(_, b)| *b)
}

#[test]
fn every_cgroup_above_us_counts_in_version_2() {
    let host = Host::new("0::/user.slice/job\n");
    host.v2("user.slice/job", "max", 100 * MIB, 0);
    host.v2("user.slice", &(5000 * MIB).to_string(), 4000 * MIB, 500 * MIB);
    let limits = host.limits(memory().path());
    assert_eq!(get(&limits, "cgroup /user.slice"), Some(1500 * MIB), "{limits:?}");
    assert_eq!(get(&limits, "MemAvailable"), Some(10_240_000 * 1024));
    assert_eq!(limits.iter().filter(|(s, _)| s.starts_with("cgroup")).count(), 1, "`max` is not a limit");
    assert!(get(&limits, "statvfs").is_some());
    // Over its limit a group has no room, and the arithmetic does not wrap.
    host.v2("user.slice/job", "1", 100 * MIB, 0);
    assert_eq!(get(&host.limits(memory().path()), "cgroup /user.slice/job"), Some(0));
}

#[test]
fn version_1_and_containers_that_see_the_hosts_path() {
    let host = Host::new("5:cpu,cpuacct:/x\n4:memory:/docker/0123\n0::/\n");
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", &format!("{}\n", 2000 * MIB));
    host.write("sys/fs/cgroup/memory/memory.usage_in_bytes", &format!("{}\n", 1500 * MIB));
    host.write("sys/fs/cgroup/memory/memory.stat", &format!("inactive_file 7\ntotal_inactive_file {}\n", 250 * MIB));
    let limits = host.limits(memory().path());
    assert_eq!(get(&limits, "cgroup /memory"), Some(750 * MIB), "{limits:?}");
    // The number that version 1 writes for "no limit".
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(get(&host.limits(memory().path()), "cgroup /memory"), None);
}

#[test]
fn a_disk_is_limited_by_itself_alone() {
    let host = Host::new("0::/job\n");
    host.v2("job", "1", 1, 0);
    let limits = host.limits(disk().path());
    let sources: Vec<_> = limits.iter().map(|(s, _)| s.as_str()).collect();
    assert_eq!(sources, ["statvfs"], "page cache is given back");
}

#[test]
fn a_plan_that_does_not_fit_is_refused_with_the_limit_that_refuses_it() {
    let host = Host::new("0::/job\n");
    host.v2("job", &(100 * MIB).to_string(), 40 * MIB, 0);
    let dir = memory();
    let room = headroom(&root(dir.path()), host.dir.path()).expect("measured");
    assert_eq!(room.available_bytes(), 60 * MIB);
    room.require(dir.path(), 50 * MIB, 10, 10 * MIB).expect("fits exactly");
    let error = room.require(dir.path(), 50 * MIB + 1, 10, 10 * MIB).expect_err("one byte too many");
    assert!(error.to_string().contains("/job)"), "{error}");
    assert!(matches!(room.require(dir.path(), u64::MAX, 1, 1), Err(Error::Headroom { .. })));
}

#[test]
fn this_machine_has_a_headroom() {
    let room = headroom(&root(memory().path()), Path::new("/")).expect("measured");
    assert!(room.least().is_some() && room.available_bytes() > 0, "{room:?}");
}

fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
}

#[test]
fn default_roots() {
    let root_of = |kind, pairs: &[(&str, &str)]| default_root(kind, &env(pairs), 1000).map_err(|e| e.to_string());
    let home = [("HOME", "/home/u")];
    assert_eq!(root_of(RootKind::Cache, &home), Ok(PathBuf::from("/home/u/.cache/b70kit")));
    assert_eq!(root_of(RootKind::State, &home), Ok(PathBuf::from("/home/u/.local/state/b70kit")));
    assert_eq!(root_of(RootKind::Artifact, &home), Ok(PathBuf::from("/home/u/.local/state/b70kit/artifacts")));
    assert_eq!(root_of(RootKind::Ram, &[]), Ok(PathBuf::from("/dev/shm/b70kit-1000")));
    let xdg = [("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c"), ("XDG_STATE_HOME", "relative")];
    assert_eq!(root_of(RootKind::Cache, &xdg), Ok(PathBuf::from("/c/b70kit")));
    assert_eq!(root_of(RootKind::State, &xdg), Ok(PathBuf::from("/home/u/.local/state/b70kit")), "relative: ignored");
    let own = [("B70_CACHE_ROOT", "/own"), ("XDG_CACHE_HOME", "/c"), ("B70_STATE_ROOT", ""), ("HOME", "/home/u")];
    assert_eq!(root_of(RootKind::Cache, &own), Ok(PathBuf::from("/own")));
    assert_eq!(root_of(RootKind::State, &own), Ok(PathBuf::from("/home/u/.local/state/b70kit")), "empty: unset");
    let error = root_of(RootKind::Cache, &[("HOME", "relative")]).expect_err("no root");
    assert!(error.contains("B70_CACHE_ROOT") && error.contains("XDG_CACHE_HOME"), "{error}");
}

#[test]
fn roots_in_git_work_trees_are_refused() {
    // Not beneath this repository: there every folder is in a work tree.
    let dir = tempfile::tempdir().expect("a folder");
    let real = dir.path().canonicalize().expect("there");
    std::fs::create_dir_all(real.join("repo/.git")).expect("made");
    std::fs::create_dir_all(real.join("linked")).expect("made");
    std::fs::write(real.join("linked/.git"), "gitdir: elsewhere").expect("written");
    symlink("repo", real.join("alias")).expect("linked");
    assert_eq!(git_work_tree(&real).expect("asked"), None);
    for (inside, tree) in [
        ("repo", "repo"),
        ("repo/not/yet/made", "repo"),
        ("linked/x", "linked"),
        ("alias", "repo"),
        ("alias/not/yet", "repo"),
    ] {
        let path = real.join(inside);
        match refuse_in_git(&path, false) {
            Err(Error::RootInGit { repository, .. }) => assert_eq!(repository, real.join(tree), "{inside}"),
            other => panic!("{inside}: {other:?}"),
        }
        refuse_in_git(&path, true).expect("allowed");
    }
    refuse_in_git(&real.join("elsewhere"), false).expect("no work tree");
}

#[test]
fn roots_are_created_with_their_mode_and_opened_again() {
    let dir = disk();
    let path = dir.path().join("a/b/c");
    let made = open_or_create(&path, 0o700).expect("made");
    assert_eq!(made.path(), path);
    let mode = |p: &Path| p.metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o700, 0o755));
    open_or_create(&path, 0o755).expect("opened");
    assert_eq!(mode(&path), 0o700, "an existing folder stays as it is");
    std::fs::write(dir.path().join("file"), "").expect("written");
    assert!(open_or_create(&dir.path().join("file"), 0o755).is_err());
    assert!(open_or_create(&dir.path().join("file/x"), 0o755).is_err());
}

#[test]
fn the_ram_root_must_be_ours_alone() {
    let dir = memory();
    let me = dir.path().metadata().expect("there").uid();
    let path = dir.path().join("b70kit");
    let opened = open_ram_root(&path, me).expect("made");
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o7777, 0o700);
    drop(opened);
    open_ram_root(&path, me).expect("opened again");
    let refused = |path: &Path, uid| match open_ram_root(path, uid) {
        Err(Error::RootUnsafe { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    if me == 0 {
        // What root prepared may be read by others.
        open_ram_root(&path, 1000).expect("opened");
    } else {
        assert!(refused(&path, me + 1).contains("belongs to user"));
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).expect("set");
    assert!(refused(&path, me).contains("others can write"));
    symlink(&path, dir.path().join("link")).expect("linked");
    assert!(refused(&dir.path().join("link"), me).contains("link"));
    std::fs::write(dir.path().join("file"), "").expect("written");
    assert!(refused(&dir.path().join("file"), me).contains("expected a directory"));
}

#[test]
fn identities_tell_files_apart_and_file_systems_their_kind() {
    let (on_disk, in_memory) = (disk(), memory());
    let kind = |dir: &Path| file_system_of(root(dir), dir).expect("asked").kind;
    assert_eq!(kind(in_memory.path()), FsKind::Tmpfs);
    assert!(!kind(on_disk.path()).in_memory());
    assert_eq!(kind(Path::new("/proc")), FsKind::Other);
    let path = in_memory.path().join("f");
    std::fs::write(&path, "x").expect("written");
    let look = || identity_of(std::fs::File::open(&path).expect("open"), &path).expect("looked");
    let first = look();
    assert_eq!(first.differences(&look(), Scope::Memory), []);
    std::fs::write(&path, "yy").expect("written");
    let second = look();
    assert!(first.same_file(&second));
    let fields: Vec<_> = first.differences(&second, Scope::Disk).iter().map(|c| c.field).collect();
    assert!(fields.starts_with(&["size"]) && fields.contains(&"ctime_ns"), "{fields:?}");
}
