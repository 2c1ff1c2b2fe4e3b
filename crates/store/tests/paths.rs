//! Names from documents cannot leave their root: shown by walking the whole tree afterwards.

mod common;

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use b70_store::{Error, NameFault, OnExisting, Progress, RelPath, Root, TempFile, publish_bytes, replace_bytes};
use proptest::prelude::*;

use common::{disk, name, root, tree};

#[test]
fn the_grammar() {
    let long = "x".repeat(256);
    let very_long = vec!["y".repeat(200); 25].join("/");
    for (bad, fault) in [
        ("", NameFault::Empty),
        ("/etc/passwd", NameFault::Absolute),
        ("//", NameFault::Absolute),
        ("a//b", NameFault::EmptyComponent),
        ("a/", NameFault::EmptyComponent),
        (".", NameFault::Dots),
        ("..", NameFault::Dots),
        ("a/../b", NameFault::Dots),
        ("a/./b", NameFault::Dots),
        ("../../x", NameFault::Dots),
        ("a\nb", NameFault::Control),
        ("a\tb", NameFault::Control),
        ("a\0b", NameFault::Control),
        ("a\u{7f}", NameFault::Control),
        ("a\u{85}", NameFault::Control),
        ("..\\x", NameFault::Backslash),
        (&long, NameFault::TooLong),
        (&very_long, NameFault::TooLong),
    ] {
        match RelPath::new(bad) {
            Err(Error::Name { fault: found, .. }) => assert_eq!(found, fault, "{bad:?}"),
            other => panic!("{bad:?}: {other:?}"),
        }
        let json = serde_json::to_string(bad).expect("a string");
        assert!(serde_json::from_str::<RelPath>(&json).is_err(), "{bad:?} through serde");
    }
    for good in ["a", "tensors/00ff.bin", "...", "..a", "a..", ".hidden", "Modell groß.gguf", "a b'c\"d", "sha256-.."]
    {
        assert_eq!(RelPath::new(good).expect(good).to_string(), good);
    }
    assert!(serde_json::from_str::<RelPath>(r#"{"hex":"2e2e"}"#).is_err(), "`..` in the other form");
    assert!(serde_json::from_str::<RelPath>(r#"{"hex":"2e2"}"#).is_err());
}

#[test]
fn order_is_by_component() {
    let mut names = ["a-b", "a/b", "a", "a.x/c", "b"].map(name);
    names.sort();
    assert_eq!(names.map(|n| n.to_string()), ["a", "a/b", "a-b", "a.x/c", "b"]);
}

/// A root among bait: links of every kind lead to the outside, which must stay as it is.
fn baited() -> (tempfile::TempDir, Root) {
    let dir = disk();
    let outside = dir.path().join("outside");
    let inside = dir.path().join("root");
    std::fs::create_dir_all(outside.join("deep")).expect("made");
    std::fs::create_dir_all(inside.join("sub/real")).expect("made");
    std::fs::write(outside.join("secret"), "secret").expect("written");
    std::fs::write(inside.join("sub/file"), "file").expect("written");
    symlink("../outside/secret", inside.join("link-file")).expect("linked");
    symlink("../outside", inside.join("link-dir")).expect("linked");
    symlink(outside.join("secret"), inside.join("link-absolute")).expect("linked");
    symlink("sub", inside.join("link-within")).expect("linked");
    symlink("nowhere", inside.join("link-dangling")).expect("linked");
    symlink("/proc/self/root", inside.join("link-magic")).expect("linked");
    std::fs::hard_link(inside.join("sub/file"), inside.join("hard")).expect("linked");
    let root = root(&inside);
    (dir, root)
}

#[test]
fn links_are_refused_by_name() {
    let (dir, root) = baited();
    let before = tree(dir.path());
    for bad in [
        "link-file",
        "link-dir",
        "link-dir/secret",
        "link-dir/deep",
        "link-absolute",
        "link-within",
        "link-within/file",
        "link-dangling",
        "link-magic",
        "link-magic/etc/passwd",
    ] {
        let rel = name(bad);
        for result in [
            root.open_file(&rel).map(drop),
            root.read(&rel, 100).map(drop),
            root.stat(&rel).map(drop),
            root.dir(&rel).map(drop),
            root.create_dir_durable(&rel.join(&name("new")).expect("a name"), 0o755).map(drop),
        ] {
            match result {
                Err(Error::Escapes { path }) => assert!(path.starts_with(root.path()), "{}", path.display()),
                other => panic!("{bad}: {other:?}"),
            }
        }
    }
    assert_eq!(root.read(&name("sub/file"), 100).expect("a plain file"), b"file");
    assert_eq!(root.read(&name("hard"), 100).expect("a hard link is a file"), b"file");
    // Publishing onto a link neither follows nor replaces it.
    for on_existing in [OnExisting::Fail, OnExisting::KeepIfVerified, OnExisting::ReplaceDamaged] {
        for bad in ["link-file", "link-dangling", "link-dir"] {
            assert!(publish_bytes(&root, &name(bad), b"evil", 0o644, on_existing).is_err(), "{bad}");
            assert!(replace_bytes(&root, &name(bad), b"evil", 0o644).is_err(), "{bad}");
        }
    }
    assert!(matches!(publish_bytes(&root, &name("sub/x"), b"", 0o644, OnExisting::Fail), Err(Error::Name { .. })));
    assert_eq!(tree(dir.path()), before, "nothing was made, changed or removed anywhere");
}

#[test]
fn directories_and_special_files_are_no_files() {
    let dir = disk();
    std::fs::create_dir(dir.path().join("d")).expect("made");
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("a FIFO");
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("a socket");
    let top = root(dir.path());
    let dev = root("/dev");
    for (root, text, kind) in
        [(&top, "d", "directory"), (&top, "fifo", "FIFO"), (&top, "s", "socket"), (&dev, "null", "character device")]
    {
        match root.open_file(&name(text)) {
            Err(Error::Kind { path, found, .. }) => assert_eq!((path, found), (root.path().join(text), kind)),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(top.dir(&name("fifo")), Err(Error::Kind { .. })));
    let kinds: Vec<_> = top.list().expect("listed").into_iter().map(|e| (e.name.to_string(), e.kind.name())).collect();
    assert_eq!(kinds, [("d".into(), "directory"), ("fifo".into(), "FIFO"), ("s".into(), "socket")]);
}

#[test]
fn a_root_may_be_reached_by_a_link_but_only_if_asked() {
    let dir = disk();
    std::fs::create_dir(dir.path().join("real")).expect("made");
    symlink("real", dir.path().join("link")).expect("linked");
    std::fs::write(dir.path().join("file"), "").expect("written");
    assert!(Root::open(dir.path().join("link")).is_ok());
    assert!(matches!(Root::open_nofollow(dir.path().join("link")), Err(Error::Escapes { .. })));
    assert!(matches!(Root::open(dir.path().join("file")), Err(Error::Kind { .. })));
    assert!(matches!(Root::open(dir.path().join("no")), Err(Error::Missing { .. })));
}

#[test]
fn listings_name_what_no_document_could_carry() {
    let dir = disk();
    std::fs::write(dir.path().join("bad\nname"), "").expect("written");
    let top = root(dir.path());
    assert!(matches!(top.list(), Err(Error::Name { fault: NameFault::Control, .. })));
    assert!(top.walk(10).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Random names out of the pieces attacks are made of: whatever happens, the world outside stays as it was.
    #[test]
    fn nothing_escapes(pieces in prop::collection::vec(prop::sample::select(vec![
        "..", ".", "/", "//", "sub", "link-dir", "link-file", "link-within", "link-magic", "file", "secret", "real", "\\", "\n", "\0", "a", "outside", "root",
    ]), 1..8), raw in prop::collection::vec(any::<u8>(), 0..6)) {
        use std::ffi::OsStr;
        thread_local!(static BAIT: (tempfile::TempDir, Root, common::Tree) = {
            let (dir, root) = baited();
            let outside = tree(&dir.path().join("outside"));
            (dir, root, outside)
        });
        let mut text = pieces.join("/").into_bytes();
        text.extend(raw);
        BAIT.with(|(dir, root, outside)| {
            if let Ok(rel) = RelPath::new(OsStr::from_bytes(&text)) {
                if let Ok(bytes) = root.read(&rel, 100) {
                    assert_ne!(bytes, b"secret");
                }
                if let Ok(made) = root.create_dir_durable(&rel, 0o700) {
                    let real = made.path().canonicalize().expect("there");
                    assert!(real.starts_with(dir.path().join("root").canonicalize().expect("there")));
                    let _ = publish_bytes(&made, &name("payload"), b"x", 0o600, OnExisting::ReplaceDamaged);
                }
                if let Ok(temp) = TempFile::create(root, 0o444) {
                    let _ = temp.commit(&rel, OnExisting::ReplaceDamaged, None, &Progress::NONE);
                }
                let _ = root.remove_file(&rel);
            }
            assert_eq!(&tree(&dir.path().join("outside")), outside);
            let top: Vec<_> = std::fs::read_dir(dir.path()).expect("there").map(|e| e.expect("there").file_name()).collect();
            assert_eq!(top.len(), 2, "{top:?}");
            assert!(!Path::new("/payload").exists());
        });
    }
}

#[test]
fn a_file_that_is_replaced_again_and_again_can_be_opened() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = b70_testkit::memory();
    let (top, file) = (root(dir.path()), name("target"));
    let target = dir.path().join("target");
    std::fs::write(&target, "0").expect("written");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = dir.path().join("other");
            while !stop.load(Ordering::Relaxed) {
                std::fs::write(&other, "1").expect("written");
                std::fs::rename(&other, &target).expect("renamed");
            }
        });
        let opened = (0..20_000).try_for_each(|_| {
            top.open_file(&file)?;
            b70_store::open_source(&target).map(drop)
        });
        stop.store(true, Ordering::Relaxed);
        opened.expect("there is always a file of this name");
    });
}

#[test]
#[expect(unsafe_code, reason = "no safe crate sets a lease")]
fn a_lease_that_nobody_gives_back_is_waited_for_two_seconds() {
    use std::os::fd::AsRawFd as _;
    const F_SETSIG: libc::c_int = 10;
    let dir = disk();
    let path = dir.path().join("held");
    std::fs::write(&path, "x").expect("written");
    let holder = std::fs::File::options().read(true).write(true).open(&path).expect("open");
    // SAFETY: integer arguments on a descriptor that is open. The signal for the break is one that is ignored.
    let held = unsafe {
        libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(held, 0, "a lease: {}", std::io::Error::last_os_error());
    let began = std::time::Instant::now();
    let error = root(dir.path()).open_file(&name("held")).expect_err("it is held");
    assert!(error.to_string().contains("holds a lease"), "{error}");
    assert!((1..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    drop(holder);
    root(dir.path()).open_file(&name("held")).expect("it was given back");
}

#[test]
fn a_tree_of_twenty_thousand_levels_is_removed_without_a_stack_for_it() {
    let dir = disk();
    let top = root(dir.path());
    let mut at =
        rustix::fs::openat(rustix::fs::CWD, dir.path(), rustix::fs::OFlags::DIRECTORY, 0.into()).expect("open");
    for _ in 0..20_000 {
        rustix::fs::mkdirat(&at, "d", 0o755.into()).expect("made");
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, 0.into()).expect("open");
    }
    drop(at);
    let removed = std::thread::Builder::new().stack_size(128 << 10).spawn(move || top.remove_tree(&name("d")));
    removed.expect("a thread").join().expect("no overflow").expect("removed");
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
}
