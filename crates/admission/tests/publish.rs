//! Atomic publish: outcomes, faults at every write, death at every step, several publishers at once.

#![allow(clippy::match_wildcard_for_single_variants, reason = "a panic shows whatever it was")]
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

mod common;

use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use b70_admission::{
    Content, DirOutcome, Error, OnExisting, Outcome, Progress, Reservation, Root, Sha256, StagingDir, TempFile,
    fault_step, publish_bytes, replace_bytes, sweep_orphans,
};

use common::{bytes, child, disk, job, killed, memory, name, root, run, tree};

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
    let mut temp = TempFile::create(dir)?;
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
        let commit = |data: &[u8], on_existing| {
            write_in_pieces(&top, data)?.commit(&target, 0o444, on_existing, None, &Progress::NONE)
        };

        let made = commit(&good(), OnExisting::Fail).expect("published");
        assert_eq!((made.outcome, made.content), (Outcome::Created, Content::of(&good())));
        assert_eq!((std::fs::read(&path).expect("there"), mode(&path)), (good(), 0o444));
        let inode = path.metadata().expect("there").ino();

        assert!(matches!(commit(&good(), OnExisting::Fail), Err(Error::Exists { .. })));
        for on_existing in [OnExisting::KeepIfVerified, OnExisting::ReplaceDamaged] {
            assert_eq!(commit(&good(), on_existing).expect("verified").outcome, Outcome::Kept);
        }
        assert_eq!(path.metadata().expect("there").ino(), inode, "a good incumbent stays");

        for bad in [damaged(), good()[1..].to_vec(), vec![]] {
            std::fs::remove_file(&path).expect("removed");
            std::fs::write(&path, &bad).expect("damaged");
            let reader = std::fs::File::open(&path).expect("open");
            assert!(matches!(commit(&good(), OnExisting::KeepIfVerified), Err(Error::Damaged { .. })));
            assert_eq!(std::fs::read(&path).expect("there"), bad, "left as it was");
            assert_eq!(commit(&good(), OnExisting::ReplaceDamaged).expect("repaired").outcome, Outcome::Repaired);
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
    let mut temp = TempFile::create(&top).expect("made");
    assert_eq!(temp.reserve(50 << 20).expect("reserved"), Reservation::Reserved);
    temp.write_all(b"short").expect("written");
    let made = temp.commit(&name("f"), 0o444, OnExisting::Fail, None, &Progress::NONE).expect("published");
    let meta = made.path.metadata().expect("there");
    assert_eq!((meta.len(), meta.blocks() <= 64), (5, true));
}

#[test]
fn positioned_writes_are_digested_from_the_file() {
    let dir = disk();
    let top = root(dir.path());
    let data = good();
    let mut temp = TempFile::create(&top).expect("made");
    let mut pieces: Vec<(usize, &[u8])> = data.chunks(7777).enumerate().map(|(i, c)| (i * 7777, c)).collect();
    pieces.reverse();
    for (offset, piece) in pieces {
        temp.write_at(offset as u64, piece).expect("written");
    }
    assert_eq!((temp.len(), temp.sha256_so_far()), (LEN as u64, None));
    let expected = Some(Sha256::of(&data));
    let made = temp.commit(&name("f"), 0o444, OnExisting::Fail, expected, &Progress::NONE).expect("published");
    assert_eq!(made.content, Content::of(&data));

    // A hole that was never written is zeros, and is digested as such.
    let mut temp = TempFile::create(&top).expect("made");
    temp.write_at(5, b"x").expect("written");
    let made = temp.commit(&name("g"), 0o444, OnExisting::Fail, None, &Progress::NONE).expect("published");
    assert_eq!(made.content, Content::of(b"\0\0\0\0\0x"));
}

#[test]
fn wrong_content_and_cancellation_leave_nothing() {
    let dir = disk();
    let top = root(dir.path());
    let wrong = Some(Sha256::EMPTY);
    let temp = write_in_pieces(&top, &good()).expect("written");
    match temp.commit(&name("f"), 0o444, OnExisting::ReplaceDamaged, wrong, &Progress::NONE) {
        Err(Error::Sha256 { expected, found, .. }) => {
            assert_eq!((expected, found), (Sha256::EMPTY, Sha256::of(&good())));
        }
        other => panic!("{other:?}"),
    }
    let mut temp = TempFile::create(&top).expect("made");
    temp.write_at(0, b"x").expect("written");
    assert!(temp.commit(&name("f"), 0o444, OnExisting::Fail, wrong, &Progress::NONE).is_err());

    let cancel = AtomicBool::new(true);
    let progress = Progress::NONE.with_cancel(&cancel);
    let temp = write_in_pieces(&top, &good()).expect("written");
    let result = temp.commit(&name("f"), 0o444, OnExisting::Fail, None, &progress);
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
    let mut temp = TempFile::create(&top).expect("made");
    temp.copy_from(&source, &path, len, &Progress::NONE).expect("copied");
    assert_eq!(temp.sha256_so_far(), Some(Sha256::of(&good())));
    for wrong in [len - 1, len + 1, 0] {
        let mut temp = TempFile::create(&top).expect("made");
        let result = temp.copy_from(&source, &path, wrong, &Progress::NONE);
        assert!(matches!(result, Err(Error::ChangedWhileReading { .. })), "{wrong}: {result:?}");
    }
}

#[test]
fn directories_every_outcome() {
    for dir in [disk(), memory()] {
        let top = root(dir.path());
        let build = || {
            let staging = StagingDir::create(&top).expect("made");
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

// ---- Children: this test executable again, with faults in its environment. They work in memory, where an fsync costs
// ---- nothing: what survives a SIGKILL is the same on any file system.

/// What a child does, by name. Each is one way of publishing; all of them want `target` to end up right.
const SCENARIOS: [&str; 6] = ["file-new", "file-repair", "file-kept", "replace", "dir-new", "dir-repair"];

#[test]
fn child_entry() {
    let Some((scenario, dir)) = job() else { return };
    let top = root(dir);
    match act(&scenario, &top) {
        Ok(()) => println!("\npublished"),
        // Not a panic: the parent reads what the error says.
        Err(e) => println!("\nerror: {e}"),
    }
}

fn act(scenario: &str, top: &Root) -> Result<(), Error> {
    sweep_orphans(top)?;
    match scenario {
        "file-new" | "file-repair" | "file-kept" => {
            let temp = write_in_pieces(top, &good())?;
            let expected = Some(Sha256::of(&good()));
            temp.commit(&name("target"), 0o444, OnExisting::ReplaceDamaged, expected, &Progress::NONE)?;
        }
        "replace" => drop(replace_bytes(top, &name("target"), &good(), 0o644)?),
        "dir-new" | "dir-repair" => {
            let staging = StagingDir::create(top)?;
            publish_bytes(staging.root(), &name("one"), &good(), 0o444, OnExisting::Fail)?;
            let sub = staging.root().create_dir_durable(&name("sub"), 0o755)?;
            publish_bytes(&sub, &name("two"), b"two", 0o444, OnExisting::Fail)?;
            fault_step("test.between");
            staging.commit(&name("target"), 0o755, |incumbent| {
                let good = incumbent.read(&name("one"), 1 << 20).is_ok_and(|b| b == good());
                Ok((!good).then(|| "one differs".to_owned()))
            })?;
        }
        "occupied" => {
            let temp = write_in_pieces(top, &good())?;
            temp.commit(&name("target"), 0o444, OnExisting::Fail, None, &Progress::NONE)?;
        }
        "scribble" | "vanish" => {
            let temp = write_in_pieces(top, &good())?;
            assert!(!temp.is_unnamed(), "run with B70_FAULT_NO_TMPFILE=1");
            let path = top.path().join(top.list()?[0].name.as_path());
            if scenario == "vanish" {
                std::fs::remove_file(path).expect("removed");
            } else {
                std::fs::File::options().write(true).open(path).and_then(|f| f.write_all_at(b"!", 7)).expect("written");
            }
            temp.commit(&name("target"), 0o444, OnExisting::Fail, None, &Progress::NONE)?;
        }
        other => panic!("{other}"),
    }
    Ok(())
}

#[test]
fn a_temporary_that_someone_touches_is_never_published() {
    for (scenario, says) in [("scribble", "read back differently"), ("vanish", "vanished before it was published")] {
        let dir = memory();
        let out = faulty(scenario, dir.path(), &[("B70_FAULT_NO_TMPFILE", "1".to_owned())]);
        assert!(out.contains(says), "{scenario}: {out}");
        assert_eq!(tree(dir.path()), [], "{scenario}");
    }
}

#[test]
fn an_occupied_name_is_never_overwritten() {
    for variables in [vec![], vec![("B70_FAULT_NO_TMPFILE", "1".to_owned())]] {
        let dir = memory();
        std::fs::write(dir.path().join("target"), "theirs").expect("written");
        let out = faulty("occupied", dir.path(), &variables);
        assert!(out.contains("already exists and was left as it is"), "{out}");
        assert_eq!(tree(dir.path()), [("target".into(), Some(b"theirs".to_vec()))]);
    }
}

/// Puts the incumbent of a scenario in place; says whether a damaged target may be seen before success.
fn prepare(scenario: &str, dir: &Path) {
    match scenario {
        "file-repair" | "replace" => std::fs::write(dir.join("target"), damaged()).expect("written"),
        "file-kept" => std::fs::write(dir.join("target"), good()).expect("written"),
        "dir-repair" => {
            std::fs::create_dir(dir.join("target")).expect("made");
            std::fs::write(dir.join("target/one"), damaged()).expect("written");
        }
        _ => {}
    }
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    Absent,
    Old,
    New,
}

/// What is at the final name. Anything but the old state as a whole or the new one as a whole is a failure.
fn state(scenario: &str, dir: &Path) -> State {
    let target = dir.join("target");
    let Ok(meta) = target.symlink_metadata() else { return State::Absent };
    if meta.is_file() {
        let bytes = std::fs::read(&target).expect("readable");
        return if bytes == good() && scenario != "file-kept" {
            assert_eq!(mode(&target), if scenario == "replace" { 0o644 } else { 0o444 });
            State::New
        } else {
            assert!(bytes == damaged() || bytes == good(), "{scenario}: a mixture under the final name");
            State::Old
        };
    }
    let found: Vec<_> = tree(&target).into_iter().map(|(p, c)| (p.display().to_string(), c)).collect();
    let new =
        [("one".to_owned(), Some(good())), ("sub".to_owned(), None), ("sub/two".to_owned(), Some(b"two".to_vec()))];
    if found == new {
        return State::New;
    }
    assert_eq!(found, [("one".to_owned(), Some(damaged()))], "{scenario}: a mixture under the final name");
    State::Old
}

fn steps_of(scenario: &str, extra: &[(&str, &str)]) -> u64 {
    let dir = memory();
    prepare(scenario, dir.path());
    let count = memory();
    let file = count.path().join("steps");
    let mut command = child("child_entry", scenario, dir.path());
    let output = run(command.env("B70_FAULT_COUNT_FILE", &file).envs(extra.iter().copied()));
    assert!(output.status.success(), "{scenario}: {output:?}");
    std::fs::read_to_string(file).expect("steps were counted").parse().expect("a number")
}

/// SIGKILL at every step of every way to publish; then the invariants, and the next run succeeds and cleans up.
fn kill_everywhere(extra: &[(&str, &str)]) -> u64 {
    let mut kills = 0;
    for scenario in SCENARIOS {
        let steps = steps_of(scenario, extra);
        assert!(steps >= 8, "{scenario}: only {steps} steps");
        for at in 1..=steps {
            let dir = memory();
            prepare(scenario, dir.path());
            let before = state(scenario, dir.path());
            let mut command = child("child_entry", scenario, dir.path());
            let output = run(command.env("B70_FAULT_STEP", at.to_string()).envs(extra.iter().copied()));
            assert!(killed(&output), "{scenario} at step {at} of {steps}: {output:?}");
            kills += 1;
            let after = state(scenario, dir.path());
            assert!(after == before || after == State::New, "{scenario} at {at}: {before:?} became {after:?}");

            let output = run(child("child_entry", scenario, dir.path()).envs(extra.iter().copied()));
            assert!(String::from_utf8_lossy(&output.stdout).contains("\npublished"), "{scenario} at {at}: {output:?}");
            let expected = if scenario == "file-kept" { State::Old } else { State::New };
            assert_eq!(state(scenario, dir.path()), expected, "{scenario} at {at}");
            let left = std::fs::read_dir(dir.path()).expect("there").count();
            assert_eq!(left, 1, "{scenario} at {at}: orphans after the next run: {:?}", tree(dir.path()));
        }
    }
    kills
}

#[test]
fn sigkill_at_every_step_of_every_publish() {
    let kills = kill_everywhere(&[]);
    println!("{kills} kills, unnamed temporaries");
}

#[test]
fn sigkill_at_every_step_without_unnamed_files() {
    let kills = kill_everywhere(&[("B70_FAULT_NO_TMPFILE", "1")]);
    println!("{kills} kills, named temporaries");
}

fn faulty(scenario: &str, dir: &Path, variables: &[(&str, String)]) -> String {
    let mut command: Command = child("child_entry", scenario, dir);
    let output = run(command.envs(variables.iter().map(|(k, v)| (*k, v.as_str()))));
    assert!(output.status.success(), "{scenario}: {output:?}");
    String::from_utf8(output.stdout).expect("utf-8")
}

#[test]
fn failing_writes_and_fsyncs_leave_nothing_and_say_why() {
    for named in [false, true] {
        for (fault, says) in [("enospc", "no space"), ("eio", "cannot write"), ("fsync", "cannot fsync")] {
            for scenario in SCENARIOS {
                let mut failures = 0;
                for n in 1..40 {
                    let dir = memory();
                    prepare(scenario, dir.path());
                    let before = tree(dir.path());
                    let mut variables = match fault {
                        "fsync" => vec![("B70_FAULT_FSYNC", format!("eio:{n}"))],
                        fault => vec![("B70_FAULT_WRITE", format!("{fault}:{n}"))],
                    };
                    if named {
                        variables.push(("B70_FAULT_NO_TMPFILE", "1".to_owned()));
                    }
                    let out = faulty(scenario, dir.path(), &variables);
                    if out.contains("\npublished") {
                        break;
                    }
                    failures += 1;
                    assert!(out.contains(says), "{scenario} {fault}:{n}: {out}");
                    // A failing fsync of the folder comes after the name: then the new state is complete.
                    if state(scenario, dir.path()) != State::New {
                        assert_eq!(tree(dir.path()), before, "{scenario} {fault}:{n}");
                    }
                    assert_ne!(n, 39, "{scenario} {fault} never succeeds");
                }
                assert!(failures > 0, "{scenario} {fault}: no fault was injected");
            }
        }
    }
}

#[test]
fn short_writes_are_hashed_as_accepted() {
    for fault in ["short:1", "short:2", "short:3", "short:*"] {
        for scenario in SCENARIOS {
            let dir = memory();
            prepare(scenario, dir.path());
            let out = faulty(scenario, dir.path(), &[("B70_FAULT_WRITE", fault.to_owned())]);
            assert!(out.contains("\npublished"), "{scenario} {fault}: {out}");
            assert_ne!(state(scenario, dir.path()), State::Absent);
        }
    }
}

#[test]
fn four_processes_publish_the_same_object_at_once() {
    for lock in ["", "lie", "unsupported"] {
        for named in [false, true] {
            for scenario in SCENARIOS {
                let dir = memory();
                prepare(scenario, dir.path());
                let children: Vec<_> = (0..4)
                    .map(|_| {
                        let mut command = child("child_entry", scenario, dir.path());
                        command.env("B70_FAULT_FLOCK", lock).stdout(std::process::Stdio::piped());
                        if named {
                            command.env("B70_FAULT_NO_TMPFILE", "1");
                        }
                        command.spawn().expect("the child starts")
                    })
                    .collect();
                for child in children {
                    let output = child.wait_with_output().expect("it ends");
                    let out = String::from_utf8_lossy(&output.stdout);
                    assert!(out.contains("\npublished"), "{scenario}, locks {lock:?}, named {named}: {out}");
                }
                let expected = if scenario == "file-kept" { State::Old } else { State::New };
                assert_eq!(state(scenario, dir.path()), expected, "{scenario}, locks {lock:?}");
                assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 1, "{:?}", tree(dir.path()));
            }
        }
    }
}

#[test]
fn a_sweep_takes_orphans_and_leaves_the_living() {
    let dir = disk();
    let top = root(dir.path());
    std::fs::write(dir.path().join(".b70-tmp-0123456789abcdef"), "orphan").expect("written");
    std::fs::create_dir_all(dir.path().join(".b70-tmp-fedcba9876543210/sub")).expect("made");
    std::fs::write(dir.path().join(".b70-other"), "not ours").expect("written");
    let staging = StagingDir::create(&top).expect("made");
    let alive = staging.root().path().to_path_buf();
    let sweep = sweep_orphans(&top).expect("swept");
    assert_eq!((sweep.removed(), sweep.found.len()), (2, 3), "{sweep:?}");
    assert!(sweep.found.iter().any(|o| o.path == alive && o.kept_because == Some("its maker is alive")));
    assert!(alive.is_dir() && dir.path().join(".b70-other").is_file());
    drop(staging);
    assert_eq!(sweep_orphans(&top).expect("swept").found, []);
}
