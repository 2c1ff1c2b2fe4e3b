//! Kernel locks between real processes.

mod common;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use b70_store::{Error, Progress, lock};

use common::{Talker, answer, child, disk, job, name, root, run};

const NOW: Duration = Duration::ZERO;

#[test]
fn child_entry() {
    let Some((what, dir)) = job() else { return };
    let top = root(dir);
    match what.as_str() {
        "hold" => {
            let guard = lock(&top, &name("l"), "b70-pack prepare", NOW, &Progress::NONE).expect("free");
            assert!(guard.is_some(), "this file system has locks");
            answer(|_| ());
        }
        "twice" => {
            let first = lock(&top, &name("l"), "first", NOW, &Progress::NONE);
            let second = lock(&top, &name("l"), "second", NOW, &Progress::NONE);
            let got = |lock: &Result<Option<_>, _>| lock.as_ref().map(Option::is_some).map_err(Error::is_timeout);
            println!("\n{:?} {:?}", got(&first), got(&second));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn the_holder_is_named_and_sigkill_frees_the_lock() {
    let dir = disk();
    let top = root(dir.path());
    let holder = Talker::start(&mut child("child_entry", "hold", dir.path()));
    let error = lock(&top, &name("l"), "me", Duration::from_millis(30), &Progress::NONE).expect_err("held");
    assert!(error.is_timeout());
    let message = error.to_string();
    assert!(message.contains("b70-pack prepare (pid ") && message.contains("since unix time"), "{message}");
    let cancel = AtomicBool::new(true);
    let waiting = lock(&top, &name("l"), "me", Duration::from_secs(60), &Progress::NONE.with_cancel(&cancel));
    assert!(waiting.expect_err("cancelled").is_cancelled());
    holder.kill();
    let guard = lock(&top, &name("l"), "me", Duration::from_secs(5), &Progress::NONE).expect("free again");
    drop(guard);
    assert!(dir.path().join("l").is_file(), "a lock file is never unlinked");
    assert_eq!(std::fs::read(dir.path().join("l")).expect("there"), b"", "and names nobody when free");
}

#[test]
fn missing_locks_are_said_and_lying_ones_do_no_harm() {
    for (fault, got) in
        [("lie", "Ok(true) Ok(true)"), ("unsupported", "Ok(false) Ok(false)"), ("none", "Ok(true) Err(true)")]
    {
        let dir = disk();
        let output = run(child("child_entry", "twice", dir.path()).env("B70_FAULT_FLOCK", fault));
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(out.lines().any(|l| l == got), "{fault}: {out}");
    }
}

#[test]
fn a_lock_file_that_is_a_link_or_a_directory_is_refused() {
    let dir = disk();
    let top = root(dir.path());
    std::fs::create_dir(dir.path().join("d")).expect("made");
    std::os::unix::fs::symlink("elsewhere", dir.path().join("s")).expect("linked");
    assert!(lock(&top, &name("d"), "me", NOW, &Progress::NONE).is_err());
    assert!(matches!(lock(&top, &name("s"), "me", NOW, &Progress::NONE), Err(Error::Escapes { .. })));
    assert!(!dir.path().join("elsewhere").exists());
}
