//! Tests with real mounts: full file systems, coarse time stamps, overlays, read-only folders. They need root.

#![allow(clippy::match_wildcard_for_single_variants, reason = "a panic shows whatever it was")]
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use b70_store::{
    Error, Expected, Extras, FsKind, HashOptions, HiddenDir, LeaseEvidence, OnExisting, Progress, Quiet, Receipt,
    ReceiptReason, ReceiptVerdict, Subject, TempFile, Trust, admit, examine, headroom, issue, make_immutable,
    open_ram_root, probe_immutable, publish_bytes, replace_bytes, sweep_orphans,
};
use b70_testkit::writers::{SharedMap, StalledWrite, exchange_extents, flip_through_map, open_to_write};
use b70_testkit::{bytes, memory};

use common::{child, disk, job, name, root, run, tree};

/// A mount, undone when dropped.
struct Mount {
    at: PathBuf,
    _dir: tempfile::TempDir,
}

fn command(program: &str, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("{program} cannot be started ({e}): install it and run as root"));
    assert!(
        output.status.success(),
        "{program} {arguments:?} failed: {}\nThese tests need root and CAP_SYS_ADMIN.",
        String::from_utf8_lossy(&output.stderr)
    );
}

impl Mount {
    fn new(make: impl FnOnce(&Path, &str)) -> Self {
        let dir = disk();
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).expect("made");
        make(dir.path(), at.to_str().expect("utf-8"));
        Self { at, _dir: dir }
    }

    fn tmpfs(options: &str) -> Self {
        Self::new(|_, at| command("mount", &["-t", "tmpfs", "-o", &format!("mode=0755,{options}"), "tmpfs", at]))
    }

    /// ext4 whose inodes have room for whole seconds only, and none for a creation time.
    fn coarse() -> Self {
        Self::new(|dir, at| {
            let image = dir.join("image");
            std::fs::File::create(&image).and_then(|f| f.set_len(64 << 20)).expect("an image");
            let image = image.to_str().expect("utf-8");
            command("mkfs.ext4", &["-q", "-F", "-I", "128", image]);
            command("mount", &["-o", "loop", image, at]);
        })
    }

    fn overlay() -> Self {
        Self::new(|dir, at| {
            for part in ["lower", "upper", "work"] {
                std::fs::create_dir(dir.join(part)).expect("made");
            }
            let dir = dir.display();
            let options = format!("lowerdir={dir}/lower,upperdir={dir}/upper,workdir={dir}/work");
            command("mount", &["-t", "overlay", "-o", &options, "overlay", at]);
        })
    }

    fn remount(&self, options: &str) {
        command("mount", &["-o", &format!("remount,{options}"), self.at.to_str().expect("utf-8")]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

fn no_space<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(e @ Error::NoSpace { .. }) => assert!(e.to_string().contains("free space"), "{e}"),
        other => panic!("{other:?}"),
    }
}

/// Between fork and exec a child of another test's thread holds copies of our handles, and with them the blocks of an
/// unnamed file: what must become true may take a moment.
fn eventually(condition: impl Fn() -> bool, what: &str) {
    for _ in 0..200 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what}");
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn a_full_tmpfs() {
    let mount = Mount::tmpfs("size=8m");
    let top = root(&mount.at);
    let room = || headroom(&top, Path::new("/")).expect("measured").available_bytes();
    let before = room();
    assert!(before <= 8 << 20);

    // A reservation that does not fit is refused before any byte, and gives every block back.
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    no_space(temp.reserve(64 << 20));
    eventually(|| room() == before, "the refused reservation kept nothing");
    drop(temp);
    // Without one, the kernel accepts what fits and a short write is followed by the error.
    for named in [false, true] {
        let mut temp = TempFile::create(&top, 0o444).expect("made");
        assert!(temp.is_unnamed());
        no_space(temp.write_all(&bytes(16 << 20, 1)));
        drop(temp);
        let output = run(child("child_entry", "fill", &mount.at).envs(named.then_some(("B70_FAULT_NO_TMPFILE", "1"))));
        assert!(String::from_utf8_lossy(&output.stdout).contains("\nno space"), "{output:?}");
        assert_eq!(tree(&mount.at), [], "no name is left behind");
        eventually(|| room() == before, "no block is left behind");
    }
    // Full to the last block: publishes fail, what is there stays.
    publish_bytes(&top, &name("old"), b"old", 0o644, OnExisting::Fail).expect("published");
    let filler = mount.at.join("filler");
    std::fs::write(&filler, vec![1; room() as usize]).expect("fills it");
    no_space(replace_bytes(&top, &name("old"), b"new", 0o644));
    no_space(publish_bytes(&top, &name("x"), b"x", 0o644, OnExisting::Fail));
    assert_eq!(std::fs::read(mount.at.join("old")).expect("there"), b"old");
    assert_eq!(tree(&mount.at).len(), 2);
    // Clean-up works on a full disk, and afterwards so does publishing.
    top.remove_file(&name("filler")).expect("removed");
    replace_bytes(&top, &name("old"), b"new", 0o644).expect("published");
}

#[test]
fn child_entry() {
    let Some((what, dir)) = job() else { return };
    let top = root(dir);
    match what.as_str() {
        "fill" => {
            let mut temp = TempFile::create(&top, 0o444).expect("made");
            match temp.write_all(&bytes(16 << 20, 1)) {
                Err(Error::NoSpace { .. }) => println!("\nno space"),
                other => println!("\n{other:?}"),
            }
        }
        "issue" => {
            let files = [expected("f", &bytes(SIZE, 1))];
            match verdict(&top, &files, Quiet::Wait(std::time::Duration::from_secs(3))) {
                ReceiptVerdict::Trusted(receipt) => println!("\ntrusted {:?}", receipt.files[0].evidence),
                ReceiptVerdict::VerifiedUntrusted { reasons, .. } => println!("\nuntrusted {reasons:?}"),
            }
        }
        "write" => {
            let made = publish_bytes(&top, &name("x"), b"x", 0o644, OnExisting::Fail);
            println!("\n{}", made.expect_err("not allowed"));
        }
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn a_tmpfs_without_inodes() {
    let mount = Mount::tmpfs("size=8m,nr_inodes=3");
    let top = root(&mount.at);
    std::fs::write(mount.at.join("a"), "a").expect("written");
    std::fs::write(mount.at.join("b"), "b").expect("written");
    let room = headroom(&top, Path::new("/")).expect("measured");
    assert_eq!(room.available_inodes, Some(0));
    no_space(room.require(&mount.at, 1, 1, 0));
    no_space(TempFile::create(&top, 0o444));
    no_space(HiddenDir::create(&top));
    no_space(replace_bytes(&top, &name("a"), b"new", 0o644));
    no_space(top.create_dir_durable(&name("d"), 0o755));
    assert_eq!(tree(&mount.at).len(), 2);
    assert_eq!(std::fs::read(mount.at.join("a")).expect("there"), b"a");
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn a_tmpfs_without_a_limit() {
    let mount = Mount::tmpfs("size=0");
    let room = headroom(&root(&mount.at), Path::new("/")).expect("measured");
    assert!(room.limits.iter().all(|l| l.source != "statvfs"), "{room:?}");
    assert!(room.limits.iter().any(|l| l.source == "MemAvailable"));
    assert!(room.available_bytes() > 0);
}

const SIZE: usize = 5000;

fn expected(text: &str, data: &[u8]) -> Expected {
    Expected { name: name(text), size: data.len() as u64, sha256: Some(b70_store::Sha256::of(data)) }
}

fn with<T>(
    top: &b70_store::Root,
    files: &[Expected],
    quiet: Quiet,
    act: impl FnOnce(&Subject<'_>, &HashOptions<'_>) -> T,
) -> T {
    let bindings = BTreeMap::new();
    let subject = Subject { root: top, files, format: "test-v2", bindings: &bindings, extras: Extras::Ignore };
    act(&subject, &HashOptions { quiet, ..HashOptions::default() })
}

fn verdict(top: &b70_store::Root, files: &[Expected], quiet: Quiet) -> ReceiptVerdict {
    with(top, files, quiet, |subject, how| issue(subject, how).expect("the bytes are right"))
}

const WAIT: Quiet = Quiet::Wait(std::time::Duration::from_secs(3));

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn whole_second_time_stamps() {
    let mount = Mount::coarse();
    let top = root(&mount.at);
    // Without waiting, a file just written never gets a receipt: its next change could not be seen.
    for round in 0..100 {
        let data = bytes(SIZE, round);
        std::fs::write(mount.at.join("f"), &data).expect("written");
        match verdict(&top, &[expected("f", &data)], Quiet::GiveUp) {
            ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
                assert!(matches!(reasons.as_slice(), [ReceiptReason::NotQuiet { .. }]), "{reasons:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    // After the guard it does, and every later change shows, restored times or not.
    let files: Vec<Expected> = (0..40)
        .map(|i| {
            let data = bytes(SIZE, i);
            let path = mount.at.join(format!("g{i}"));
            std::fs::write(&path, &data).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("set");
            expected(&format!("g{i}"), &data)
        })
        .collect();
    let receipt = match verdict(&top, &files, WAIT) {
        ReceiptVerdict::Trusted(receipt) => *receipt,
        other => panic!("{other:?}"),
    };
    assert!(!receipt.fine_stamps && receipt.files.iter().all(|f| f.identity.btime_ns.is_none()));
    with(&top, &files, WAIT, |subject, how| {
        assert!(examine(subject, &receipt, how).expect("looked").is_trusted());
        for (i, file) in files.iter().enumerate() {
            let path = top.join(&file.name);
            let meta = path.metadata().expect("there");
            std::fs::write(&path, bytes(SIZE, 1000 + i as u64)).expect("written");
            let times = std::fs::FileTimes::new().set_modified(meta.modified().expect("there"));
            std::fs::File::open(&path).and_then(|f| f.set_times(times)).expect("restored");
        }
        let outcome = admit(subject, Ok(receipt), how).expect("decided");
        assert_eq!(outcome.changed.len(), 40, "zero false trust");
    });
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn overlays_are_denied_but_verified() {
    let mount = Mount::overlay();
    let top = root(&mount.at);
    let data = bytes(SIZE, 1);
    publish_bytes(&top, &name("f"), &data, 0o444, OnExisting::Fail).expect("published");
    assert_eq!(tree(&mount.at).len(), 1);
    let files = [expected("f", &data)];
    match verdict(&top, &files, WAIT) {
        ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
            assert!(matches!(reasons.as_slice(), [ReceiptReason::FileSystemDenied { kind: FsKind::Overlay, .. }]));
        }
        other => panic!("{other:?}"),
    }
    // A directory from the lower layer cannot always be exchanged; whatever happens, nothing half-done shows.
    let build = || {
        let staging = HiddenDir::create(&top).expect("made");
        publish_bytes(staging.root(), &name("a"), &data, 0o444, OnExisting::Fail).expect("published");
        staging.commit(&name("set"), 0o755, |_| Ok(Some("damaged".to_owned())))
    };
    build().expect("published");
    build().expect("repaired");
    assert_eq!(std::fs::read(mount.at.join("set/a")).expect("there"), data);
    assert_eq!(sweep_orphans(&top).expect("swept").found, []);
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn read_only_roots() {
    for (mount, trust) in [(Mount::tmpfs("size=8m"), Trust::Blake3), (Mount::coarse(), Trust::QuietFile)] {
        let data = bytes(SIZE, 1);
        std::fs::write(mount.at.join("f"), &data).expect("written");
        std::fs::set_permissions(mount.at.join("f"), PermissionsExt::from_mode(0o444)).expect("set");
        mount.remount("ro");
        let top = root(&mount.at);
        let before = tree(&mount.at);
        for error in [
            publish_bytes(&top, &name("x"), b"x", 0o644, OnExisting::Fail).expect_err("read-only"),
            replace_bytes(&top, &name("f"), b"x", 0o644).expect_err("read-only"),
            HiddenDir::create(&top).expect_err("read-only"),
            top.create_dir_durable(&name("d"), 0o755).map(drop).expect_err("read-only"),
            b70_store::lock(&top, &name("l"), "me", std::time::Duration::ZERO, &Progress::NONE).expect_err("read-only"),
        ] {
            assert!(error.to_string().contains("Read-only file system"), "{error}");
        }
        assert_eq!(tree(&mount.at), before);
        // Reading and even a receipt are possible; only it has to be kept elsewhere.
        let files = [expected("f", &data)];
        let receipt = match verdict(&top, &files, WAIT) {
            ReceiptVerdict::Trusted(receipt) => *receipt,
            other => panic!("{other:?}"),
        };
        assert!(receipt.store(&top, &name("r")).is_err());
        let elsewhere = memory();
        receipt.store(&root(elsewhere.path()), &name("r")).expect("stored");
        let loaded = Receipt::load(&root(elsewhere.path()), &name("r"));
        let outcome = with(&top, &files, WAIT, |s, how| admit(s, loaded, how)).expect("decided");
        assert_eq!(outcome.trust, trust);
    }
}

#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn a_new_tmpfs_with_the_same_numbers_is_another_one() {
    let data = bytes(SIZE, 1);
    let mount = Mount::tmpfs("size=8m");
    std::fs::write(mount.at.join("f"), &data).expect("written");
    let files = [expected("f", &data)];
    let receipt = match verdict(&root(&mount.at), &files, WAIT) {
        ReceiptVerdict::Trusted(receipt) => *receipt,
        other => panic!("{other:?}"),
    };
    command("umount", &[mount.at.to_str().expect("utf-8")]);
    command("mount", &["-t", "tmpfs", "-o", "mode=0755,size=8m", "tmpfs", mount.at.to_str().expect("utf-8")]);
    std::fs::write(mount.at.join("f"), &data).expect("written");
    let top = root(&mount.at);
    let examination = with(&top, &files, WAIT, |s, how| examine(s, &receipt, how)).expect("looked");
    assert!(!examination.is_trusted());
    let reasons = format!("{:?}", examination.all_reasons());
    assert!(reasons.contains("mnt_id"), "{reasons}");
}

/// Someone else's files: no lease without ownership, and no receipt without a lease.
#[test]
#[ignore = "needs root and mounts (mount, mkfs.ext4): cargo xtask test --all"]
fn files_of_another_user() {
    let data = bytes(SIZE, 1);
    for dir in [memory(), disk_for_others()] {
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
        std::fs::write(dir.path().join("f"), &data).expect("written");
        // The child is another executable file, since the build's folder may be closed to others.
        let program = dir.path().join("child");
        std::fs::copy(std::env::current_exe().expect("this test"), &program).expect("copied");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("set");
        let run_as_nobody = |what: &str| {
            let mut command = Command::new(&program);
            command.args(["child_entry", "--exact", "--nocapture"]).uid(65534).gid(65534);
            command.env("B70_TEST_JOB", what).env("B70_TEST_DIR", dir.path()).current_dir("/");
            String::from_utf8(run(&mut command).stdout).expect("utf-8")
        };
        let out = run_as_nobody("issue");
        assert!(out.contains("\nuntrusted [NoLeaseEvidence"), "{out}");
        let out = run_as_nobody("write");
        assert!(out.contains("Permission denied"), "{out}");
    }
    // A folder in /dev/shm that another user made first is refused.
    let dir = memory();
    let theirs = dir.path().join("b70kit-0");
    std::fs::create_dir(&theirs).expect("made");
    std::os::unix::fs::chown(&theirs, Some(65534), None).expect("given away");
    assert!(matches!(open_ram_root(&theirs, 0), Err(Error::RootUnsafe { .. })));
}

/// A scratch folder on a disk file system that others may enter, whatever the build's folder is on.
fn disk_for_others() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("store-").tempdir_in("/var/tmp").expect("a folder");
    let kind = b70_store::file_system_of(root(dir.path()), dir.path()).expect("asked").kind;
    assert!(kind.may_hold_receipts() && !kind.in_memory(), "/var/tmp must be on ext4, xfs or btrfs, is on {kind:?}");
    dir
}

impl Mount {
    /// A file system of that kind on a small image.
    fn image(kind: &str) -> Self {
        Self::new(|dir, at| {
            let image = dir.join("image");
            std::fs::File::create(&image).and_then(|f| f.set_len(400 << 20)).expect("an image");
            let image = image.to_str().expect("utf-8");
            command(&format!("mkfs.{kind}"), &["-q", image]);
            command("mount", &["-o", "loop", image, at]);
        })
    }
}

/// 64 KiB: every file system keeps them in extents of their own.
const BIG: usize = 64 << 10;

/// A file of its own folder, mode 0444, and what is expected of it.
fn victim(top: &b70_store::Root, data: &[u8]) -> Expected {
    replace_bytes(top, &name("f"), data, 0o444).expect("published");
    expected("f", data)
}

/// What a look by the receipt makes of the file: the rung and the bytes that were read, or none where it is refused.
fn look(top: &b70_store::Root, file: &Expected, receipt: &Receipt) -> Option<(Trust, u64)> {
    let how = |s: &Subject<'_>, how: &HashOptions<'_>| admit(s, Ok(receipt.clone()), how);
    let outcome = with(top, std::slice::from_ref(file), WAIT, how).expect("decided");
    outcome.is_admitted().then_some((outcome.trust, outcome.bytes_read))
}

/// What is immutable may rest unread: the kernel refuses root itself every way to change it, on each file system that knows the
/// flag. What could write before it was set is seen, and gets no receipt.
#[test]
#[ignore = "needs root, mounts and mkfs.xfs, mkfs.btrfs (packages xfsprogs, btrfs-progs): cargo xtask test --all"]
fn immutable_files_rest_unread_and_nothing_changes_them() {
    for kind in ["tmpfs", "ext4", "xfs", "btrfs"] {
        let mount = if kind == "tmpfs" { Mount::tmpfs("size=64m") } else { Mount::image(kind) };
        let top = root(&mount.at);
        probe_immutable(&top).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let (data, path) = (bytes(BIG, 1), mount.at.join("f"));
        let file = victim(&top, &data);
        let open = || top.open_file(&name("f")).expect("open");

        // A descriptor and a mapping from before: both can still write, and both are seen.
        let writer = open_to_write(&path);
        make_immutable(open(), &path).expect("made");
        let denied = |verdict| match verdict {
            ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
                assert!(
                    reasons.iter().any(|r| matches!(r, ReceiptReason::OpenForWriting { .. })),
                    "{kind}: {reasons:?}"
                );
            }
            other => panic!("{kind}: {other:?}"),
        };
        denied(verdict(&top, std::slice::from_ref(&file), WAIT));
        drop(writer);
        top.remove_file(&name("f")).expect("root removes what is immutable");
        let file = victim(&top, &data);
        let map = SharedMap::of(&path);
        make_immutable(open(), &path).expect("made");
        denied(verdict(&top, std::slice::from_ref(&file), WAIT));
        drop(map);

        let receipt = match verdict(&top, std::slice::from_ref(&file), WAIT) {
            ReceiptVerdict::Trusted(receipt) => *receipt,
            other => panic!("{kind}: {other:?}"),
        };
        assert_eq!(receipt.files[0].evidence, LeaseEvidence::Immutable);
        assert_eq!(look(&top, &file, &receipt), Some((Trust::Immutable, 0)), "{kind}");

        // Root, by every way.
        std::fs::write(mount.at.join("twin"), bytes(BIG, 2)).expect("written");
        let twin = mount.at.join("twin");
        let ways: [(&str, std::io::Result<()>); 8] = [
            ("write", std::fs::write(&path, b"x")),
            ("append", std::fs::File::options().append(true).open(&path).map(drop)),
            ("truncate", std::fs::File::options().write(true).truncate(true).open(&path).map(drop)),
            ("chmod", std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644))),
            ("rename over it", std::fs::rename(&twin, &path)),
            ("unlink", std::fs::remove_file(&path)),
            ("link", std::fs::hard_link(&path, mount.at.join("link"))),
            ("exchange extents", exchange_extents(&path)),
        ];
        for (way, done) in ways {
            let refused = done.expect_err(way);
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "{kind}, {way}: {refused}");
        }
        assert_eq!(look(&top, &file, &receipt), Some((Trust::Immutable, 0)), "{kind}");

        // With the flag gone, changed and set again, the times tell.
        command("chattr", &["-i", path.to_str().expect("utf-8")]);
        let (rung, read) = look(&top, &file, &receipt).expect("the bytes are the same");
        assert_eq!((rung, read), (Trust::Blake3, BIG as u64), "{kind}");
        flip_through_map(&path, 77, 1);
        make_immutable(open(), &path).expect("made");
        assert_eq!(look(&top, &file, &receipt), None, "{kind}");
        // A replacement clears the flag of what it replaces; so does the removal of a whole folder.
        replace_bytes(&top, &name("f"), &data, 0o444).expect("replaced");
        let folder = top.create_dir_durable(&name("folder"), 0o755).expect("made");
        publish_bytes(&folder, &name("g"), &data, 0o444, OnExisting::Fail).expect("published");
        make_immutable(folder.open_file(&name("g")).expect("open"), &mount.at).expect("made");
        top.remove_tree(&name("folder")).expect("removed");
        println!("{kind}: immutable holds against root; 8 ways refused");
    }
}

/// The writers that the first rule did not see, each against what stands now.
#[test]
#[ignore = "needs root, mounts and mkfs.xfs (package xfsprogs): cargo xtask test --all"]
fn writers_that_move_no_time_stamp() {
    // A mapping that reads first: on tmpfs nothing moves, so nothing there is believed unread.
    let mount = Mount::tmpfs("size=64m");
    let top = root(&mount.at);
    let data = bytes(BIG, 1);
    let issued = |top: &b70_store::Root, file: &Expected| match verdict(top, std::slice::from_ref(file), WAIT) {
        ReceiptVerdict::Trusted(receipt) => *receipt,
        other => panic!("{other:?}"),
    };
    let file = victim(&top, &data);
    let receipt = issued(&top, &file);
    assert_eq!(look(&top, &file, &receipt), Some((Trust::Blake3, BIG as u64)));
    let before = mount.at.join("f").metadata().expect("there");
    flip_through_map(&mount.at.join("f"), 9, 1);
    let after = mount.at.join("f").metadata().expect("there");
    println!("tmpfs, a mapping that read first: times moved: {}", before.modified().ok() != after.modified().ok());
    assert_eq!(look(&top, &file, &receipt), None);

    // Extents exchanged: root may open a file without permission to write, and then no time moves. The rung says that it is worth
    // what the owner is worth. Another owner has to take the permission first, which moves a time.
    for kind in ["ext4", "xfs"] {
        let mount = Mount::image(kind);
        let top = root(&mount.at);
        let file = victim(&top, &data);
        let receipt = issued(&top, &file);
        assert_eq!(look(&top, &file, &receipt), Some((Trust::QuietFile, 0)), "{kind}");
        let path = mount.at.join("f");
        let exchanged = exchange_extents(&path);
        println!("{kind}: root exchanges extents: {exchanged:?}; then {:?}", look(&top, &file, &receipt));
        exchanged.expect("the kernel exchanges them");
        assert!(std::fs::read(&path).expect("there") != data, "{kind}: other bytes");
        assert!(
            look(&top, &file, &receipt).is_none_or(|(trust, _)| trust == Trust::QuietFile),
            "{kind}: no other rung"
        );

        let file = victim(&top, &data);
        let receipt = issued(&top, &file);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("set");
        exchange_extents(&path).expect("the kernel exchanges them");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).expect("set");
        assert_eq!(look(&top, &file, &receipt), None, "{kind}: chmod moves a time, and what is read is refused");
    }

    // A write that stalls: its time is the one of its beginning. While it is under way there is no lease, and no receipt.
    for mount in [Mount::tmpfs("size=64m"), Mount::image("ext4"), Mount::image("xfs")] {
        let top = root(&mount.at);
        let file = victim(&top, &data);
        let stalled = StalledWrite::begin(&mount.at.join("f"), &[7; 4096]).expect("userfaultfd needs root");
        // Where the file system lets nobody read meanwhile, the hashing waits for the bytes, and finds them.
        let release = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            stalled.release().expect("written");
        });
        match with(&top, std::slice::from_ref(&file), WAIT, issue) {
            Ok(ReceiptVerdict::VerifiedUntrusted { reasons, .. }) => {
                assert!(reasons.iter().any(|r| matches!(r, ReceiptReason::OpenForWriting { .. })), "{reasons:?}");
            }
            Err(Error::Sha256 { .. }) => {}
            other => panic!("{other:?}"),
        }
        release.join().expect("released");
        let outcome = with(&top, std::slice::from_ref(&file), WAIT, issue);
        assert!(matches!(outcome, Err(Error::Sha256 { .. })), "{outcome:?}");
    }
}
