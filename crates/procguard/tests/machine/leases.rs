//! Leases between real processes.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use b70_procguard::{Host, LeaseError, LeaseKind, LeaseOwner, LeaseRoot, PciAddress};

use crate::support::{python, wait_for};

fn pci() -> PciAddress {
    "0000:03:00.0".parse().unwrap()
}

fn root(dir: &Path) -> LeaseRoot {
    LeaseRoot::open(&dir.join("leases")).unwrap()
}

fn me() -> LeaseOwner {
    LeaseOwner::this_process("test").unwrap()
}

const NOW: Duration = Duration::ZERO;

#[test]
fn a_lease_excludes_tells_who_holds_it_and_ends_with_its_guard() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    assert_eq!(fs::metadata(root.path()).unwrap().permissions().mode() & 0o7777, 0o1777);
    let lease = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap();
    assert_eq!(
        fs::metadata(lease.path()).unwrap().permissions().mode() & 0o777,
        0o666,
        "every user must be able to lock it"
    );
    let e = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap_err();
    assert!(e.to_string().contains(&format!("pid {}", std::process::id())), "{e}");
    let LeaseError::Held { waited, .. } =
        root.acquire(pci(), LeaseKind::Card, &me(), Duration::from_millis(100)).unwrap_err()
    else {
        panic!()
    };
    assert!(waited >= Duration::from_millis(100));
    let measuring = root.acquire(pci(), LeaseKind::Measuring, &me(), NOW).expect("the second lock is another one");
    let list = root.list(&Host::real()).unwrap();
    assert!(list.len() == 2 && list.iter().all(|s| s.held && s.holders == [std::process::id()]), "{list:?}");
    assert_eq!(list[0].owner.as_ref().unwrap().command, "test");
    let file = lease.path().to_owned();
    drop((lease, measuring));
    assert!(root.list(&Host::real()).unwrap().iter().all(|s| !s.held && s.owner.is_none() && s.holders.is_empty()));
    assert!(file.exists(), "a lock file is never removed");
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    drop(root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap());
}

#[test]
fn a_holder_that_is_killed_frees_the_lease_and_leaves_a_label_nobody_believes() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    drop(root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap());
    let file = root.path().join("0000:03:00.0.lock");
    let script = "import fcntl,sys,time,os
f=open(sys.argv[1],'r+'); fcntl.flock(f,fcntl.LOCK_EX)
f.write('{\"pid\":%d,\"start_time\":1,\"command\":\"other\",\"since_unix\":5}\\n'%os.getpid()); f.flush(); time.sleep(300)";
    let mut helper = python(script, &[file.to_str().unwrap()]);
    wait_for("the helper's lock", || fs::metadata(&file).unwrap().len() > 0);
    let status = root.status(&Host::real(), pci(), LeaseKind::Card).unwrap();
    assert!(status.held && status.holders == [helper.pid()], "{status:?}");
    let LeaseError::Held { owner, .. } = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap_err() else {
        panic!()
    };
    assert_eq!(owner.unwrap().command, "other");
    helper.0.kill().unwrap();
    helper.0.wait().unwrap();
    assert!(!root.status(&Host::real(), pci(), LeaseKind::Card).unwrap().held);
    drop(root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap());
}

#[test]
fn an_inherited_lease_lives_as_long_as_the_child() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    // Without asking for it, a child does not inherit.
    let lease = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    drop(lease);
    let mut lease =
        root.acquire(pci(), LeaseKind::Card, &me(), Duration::from_secs(5)).expect("the child does not hold it");
    child.kill().unwrap();
    child.wait().unwrap();

    lease.make_inheritable().unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let identity = b70_procguard::ProcessIdentity::of(&Host::real(), child.id()).unwrap().unwrap();
    lease.set_owner(&LeaseOwner::of(&identity, "sleep 60")).unwrap();
    lease.leave();
    let status = root.status(&Host::real(), pci(), LeaseKind::Card).unwrap();
    // Other tests of this binary start children meanwhile, which inherit it too for a moment.
    assert!(status.held && status.owner.unwrap().pid == child.id() && status.holders.contains(&child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(root.acquire(pci(), LeaseKind::Card, &me(), Duration::from_secs(30)).unwrap());
}

#[test]
fn only_one_of_many_holds_it_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    let inside = AtomicU32::new(0);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..10 {
                    let lease = root.acquire(pci(), LeaseKind::Card, &me(), Duration::from_secs(60)).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    root.status(&Host::real(), pci(), LeaseKind::Card).unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(lease);
                }
            });
        }
    });
}

#[test]
fn traps_in_a_shared_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let lock = root.path().join("0000:03:00.0.lock");
    let refused = |what: &str| {
        let e = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap_err();
        assert!(matches!(e, LeaseError::Unsafe { .. }), "{what}: {e}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{what}");
    };
    symlink(&victim, &lock).unwrap();
    refused("a link");
    fs::remove_file(&lock).unwrap();
    fs::hard_link(&victim, &lock).unwrap();
    refused("a second name");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    refused("a directory");
    fs::remove_dir(&lock).unwrap();
    assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
    refused("a pipe");

    let link = dir.path().join("link");
    symlink(root.path(), &link).unwrap();
    assert!(matches!(LeaseRoot::open(&link), Err(LeaseError::Unsafe { .. })));
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let e = LeaseRoot::open(&open).unwrap_err().to_string();
    assert!(e.contains("chmod 1777"), "{e}");
    assert!(matches!(LeaseRoot::open(&victim), Err(LeaseError::Unsafe { .. })));
    assert!(matches!(LeaseRoot::open_existing(&dir.path().join("none")), Err(LeaseError::Io { .. })));
}

#[test]
fn a_lock_file_that_was_removed_and_made_again_is_not_two_locks() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(dir.path());
    let first = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap();
    let inode = fs::metadata(first.path()).unwrap().ino();
    drop(first);
    let keep = fs::File::open(root.path().join("0000:03:00.0.lock")).unwrap();
    fs::remove_file(root.path().join("0000:03:00.0.lock")).unwrap();
    let again = root.acquire(pci(), LeaseKind::Card, &me(), NOW).unwrap();
    assert_ne!(fs::metadata(again.path()).unwrap().ino(), inode);
    assert!(root.acquire(pci(), LeaseKind::Card, &me(), NOW).is_err());
    drop(keep);
}
