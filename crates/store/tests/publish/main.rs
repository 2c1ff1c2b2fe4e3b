//! Atomic publish: outcomes, faults at every write, death at every step, several publishers at once.

#![allow(clippy::match_wildcard_for_single_variants, reason = "a panic shows whatever it was")]
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

#[path = "../common/mod.rs"]
mod common;
mod crash;

use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use b70_store::{
    Content, Digests, DirOutcome, Error, HiddenDir, OnExisting, Progress, PublishOutcome, Reservation, Root, Sha256,
    TempFile, fault_step, publish_bytes, replace_bytes, sweep_orphans,
};
use b70_testkit::{bytes, memory};

use common::{child, disk, job, killed, name, root, run, tree};

const LEN: usize = 300_000;

fn good() -> Vec<u8> {
    bytes(LEN, 42)
}

fn damaged() -> Vec<u8> {
    let mut data = good();
    data[LEN / 2] ^= 1;
    data
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("there").permissions().mode() & 0o7777
}

fn write_in_pieces(dir: &Root, data: &[u8]) -> Result<TempFile, Error> {
    let mut temp = TempFile::create(dir, 0o444)?;
    temp.reserve(data.len() as u64)?;
    for piece in data.chunks(100_000) {
        temp.write_all(piece)?;
    }
    Ok(temp)
}

#[test]
fn every_outcome_on_disk_and_in_memory() {
    for dir in [disk(), memory()] {
        let top = root(dir.path());
        let target = name("payload.bin");
        let path = dir.path().join("payload.bin");
        let commit =
            |data: &[u8], on_existing| write_in_pieces(&top, data)?.commit(&target, on_existing, None, &Progress::NONE);

        let made = commit(&good(), OnExisting::Fail).expect("published");
        assert_eq!((made.outcome, made.content), (PublishOutcome::Created, Content::of(&good())));
        assert_eq!((std::fs::read(&path).expect("there"), mode(&path)), (good(), 0o444));
        let inode = path.metadata().expect("there").ino();

        assert!(matches!(commit(&good(), OnExisting::Fail), Err(Error::Exists { .. })));
        for on_existing in [OnExisting::KeepIfVerified, OnExisting::ReplaceDamaged] {
            assert_eq!(commit(&good(), on_existing).expect("verified").outcome, PublishOutcome::Kept);
        }
        assert_eq!(path.metadata().expect("there").ino(), inode, "a good incumbent stays");

        for bad in [damaged(), good()[1..].to_vec(), vec![]] {
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, &bad).expect("damaged");
            let reader = std::fs::File::open(&path).expect("open");
            assert!(matches!(commit(&good(), OnExisting::KeepIfVerified), Err(Error::Damaged { .. })));
            assert_eq!(std::fs::read(&path).expect("there"), bad, "left as it was");
            assert_eq!(
                commit(&good(), OnExisting::ReplaceDamaged).expect("repaired").outcome,
                PublishOutcome::Repaired
            );
            assert_eq!((std::fs::read(&path).expect("there"), mode(&path)), (good(), 0o444));
            // Whoever has the old file open still sees the old bytes: nothing was overwritten in place.
            assert_eq!(reader.metadata().expect("open").len(), bad.len() as u64);
        }
        assert_eq!(tree(dir.path()).len(), 1, "nothing else is left");
    }
}

#[test]
fn the_mode_is_what_was_asked_for_whatever_the_umask() {
    let dir = disk();
    let top = root(dir.path());
    for (text, bits) in [("a", 0o644), ("b", 0o444), ("c", 0o600), ("d", 0o666)] {
        publish_bytes(&top, &name(text), b"x", bits, OnExisting::Fail).expect("published");
        assert_eq!(mode(&dir.path().join(text)), bits);
    }
    top.create_dir_durable(&name("p/q"), 0o777).expect("made");
    assert_eq!((mode(&dir.path().join("p")), mode(&dir.path().join("p/q"))), (0o777, 0o777));
}

#[test]
fn empty_and_unaligned_files() {
    let dir = disk();
    let top = root(dir.path());
    for len in [0, 1, 4095, 4097] {
        let data = bytes(len, 3);
        let made = publish_bytes(&top, &name(&format!("f{len}")), &data, 0o444, OnExisting::Fail).expect("published");
        assert_eq!((made.content, std::fs::read(&made.path).expect("there")), (Content::of(&data), data));
    }
}

#[test]
fn a_reservation_beyond_the_content_is_given_back() {
    let dir = disk();
    let top = root(dir.path());
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    assert_eq!(temp.reserve(50 << 20).expect("reserved"), Reservation::Reserved);
    temp.write_all(b"short").expect("written");
    let made = temp.commit(&name("f"), OnExisting::Fail, None, &Progress::NONE).expect("published");
    let meta = made.path.metadata().expect("there");
    assert_eq!((meta.len(), meta.blocks() <= 64), (5, true));
}

#[test]
fn positioned_writes_are_digested_from_the_file() {
    let dir = disk();
    let top = root(dir.path());
    let data = good();
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    let mut pieces: Vec<(usize, &[u8])> = data.chunks(7777).enumerate().map(|(i, c)| (i * 7777, c)).collect();
    pieces.reverse();
    for (offset, piece) in pieces {
        temp.write_at(offset as u64, piece).expect("written");
    }
    temp.close().expect("closed");
    assert_eq!((temp.len(), temp.written()), (LEN as u64, Digests::default()));
    let expected = Some(Sha256::of(&data));
    let made = temp.commit(&name("f"), OnExisting::Fail, expected, &Progress::NONE).expect("published");
    assert_eq!(made.content, Content::of(&data));

    // A hole that was never written is zeros, and is digested as such.
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    temp.write_at(5, b"x").expect("written");
    let made = temp.commit(&name("g"), OnExisting::Fail, None, &Progress::NONE).expect("published");
    assert_eq!(made.content, Content::of(b"\0\0\0\0\0x"));
}

#[test]
fn wrong_content_and_cancellation_leave_nothing() {
    let dir = disk();
    let top = root(dir.path());
    let wrong = Some(Sha256::EMPTY);
    let temp = write_in_pieces(&top, &good()).expect("written");
    match temp.commit(&name("f"), OnExisting::ReplaceDamaged, wrong, &Progress::NONE) {
        Err(Error::Sha256 { expected, found, .. }) => {
            assert_eq!((expected, found), (Sha256::EMPTY, Sha256::of(&good())));
        }
        other => panic!("{other:?}"),
    }
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    temp.write_at(0, b"x").expect("written");
    assert!(temp.commit(&name("f"), OnExisting::Fail, wrong, &Progress::NONE).is_err());

    let cancel = AtomicBool::new(true);
    let progress = Progress::NONE.with_cancel(&cancel);
    let temp = write_in_pieces(&top, &good()).expect("written");
    let result = temp.commit(&name("f"), OnExisting::Fail, None, &progress);
    assert!(result.is_err_and(|e| e.is_cancelled()));
    assert_eq!(tree(dir.path()), []);
}

#[test]
fn copies_check_the_length() {
    let dir = disk();
    let top = root(dir.path());
    let path = dir.path().join("source");
    std::fs::write(&path, good()).expect("written");
    let source = std::fs::File::open(&path).expect("open");
    let len = LEN as u64;
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    temp.copy_from(&source, &path, len, &Progress::NONE).expect("copied");
    temp.close().expect("closed");
    assert_eq!(temp.written().content(), Some(Content::of(&good())));
    for wrong in [len - 1, len + 1, 0] {
        let mut temp = TempFile::create(&top, 0o444).expect("made");
        let result = temp.copy_from(&source, &path, wrong, &Progress::NONE);
        assert!(matches!(result, Err(Error::ChangedWhileReading { .. })), "{wrong}: {result:?}");
    }
}

#[test]
fn directories_every_outcome() {
    for dir in [disk(), memory()] {
        let top = root(dir.path());
        let build = || {
            let staging = HiddenDir::create(&top).expect("made");
            publish_bytes(staging.root(), &name("a"), b"A", 0o444, OnExisting::Fail).expect("published");
            let sub = staging.root().create_dir_durable(&name("sub"), 0o755).expect("made");
            publish_bytes(&sub, &name("b"), b"B", 0o444, OnExisting::Fail).expect("published");
            staging
        };
        let full = [("set", None), ("set/a", Some("A")), ("set/sub", None), ("set/sub/b", Some("B"))]
            .map(|(p, c)| (p.into(), c.map(|c| c.as_bytes().to_vec())));
        let verify = |incumbent: &Root| {
            let good = incumbent.read(&name("a"), 10).is_ok_and(|a| a == b"A");
            Ok((!good).then(|| "a differs".to_owned()))
        };
        drop(build());
        assert_eq!(tree(dir.path()), [], "an abandoned build leaves nothing");
        let made = build().commit(&name("set"), 0o755, |_| panic!("there is no incumbent")).expect("published");
        assert!(matches!(made, DirOutcome::Created(_)));
        assert_eq!((tree(dir.path()), mode(&dir.path().join("set"))), (full.to_vec(), 0o755));
        assert!(matches!(build().commit(&name("set"), 0o755, verify).expect("kept"), DirOutcome::Kept(_)));
        assert_eq!(tree(dir.path()), full);
        std::fs::remove_file(dir.path().join("set/a")).expect("removed");
        std::fs::write(dir.path().join("set/extra"), "junk").expect("written");
        match build().commit(&name("set"), 0o555, verify).expect("repaired") {
            DirOutcome::Repaired(_, why) => assert_eq!(why, "a differs"),
            other => panic!("{other:?}"),
        }
        assert_eq!((tree(dir.path()), mode(&dir.path().join("set"))), (full.to_vec(), 0o555));
        // A verdict that cannot be reached changes nothing.
        let error = build().commit(&name("set"), 0o755, |_| Err(Error::Cancelled));
        assert!(error.is_err_and(|e| e.is_cancelled()));
        assert_eq!(tree(dir.path()), full);
    }
}

#[test]
fn trees_are_removed_without_following_links() {
    let dir = disk();
    let top = root(dir.path());
    std::fs::create_dir_all(dir.path().join("keep/deep")).expect("made");
    std::fs::write(dir.path().join("keep/file"), "keep").expect("written");
    std::fs::create_dir_all(dir.path().join("gone/ro/x")).expect("made");
    std::os::unix::fs::symlink("../keep", dir.path().join("gone/link")).expect("linked");
    std::fs::write(dir.path().join("gone/bad\nname"), "").expect("written");
    std::fs::set_permissions(dir.path().join("gone/ro"), PermissionsExt::from_mode(0o555)).expect("set");
    top.remove_tree(&name("gone")).expect("removed");
    let left: Vec<_> = tree(dir.path()).into_iter().map(|(p, _)| p.display().to_string()).collect();
    assert_eq!(left, ["keep", "keep/deep", "keep/file"]);
}
