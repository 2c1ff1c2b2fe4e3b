//! Children: this test executable again, with faults in its environment. They work in memory, where an fsync costs
//! nothing: what survives a SIGKILL is the same on any file system.

use super::*;

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
            temp.commit(&name("target"), OnExisting::ReplaceDamaged, expected, &Progress::NONE)?;
        }
        "replace" => drop(replace_bytes(top, &name("target"), &good(), 0o644)?),
        "dir-new" | "dir-repair" => {
            let staging = HiddenDir::create(top)?;
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
            temp.commit(&name("target"), OnExisting::Fail, None, &Progress::NONE)?;
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
            temp.commit(&name("target"), OnExisting::Fail, None, &Progress::NONE)?;
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
    let mut command = child("crash::child_entry", scenario, dir.path());
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
            let mut command = child("crash::child_entry", scenario, dir.path());
            let output = run(command.env("B70_FAULT_STEP", at.to_string()).envs(extra.iter().copied()));
            assert!(killed(&output), "{scenario} at step {at} of {steps}: {output:?}");
            kills += 1;
            let after = state(scenario, dir.path());
            assert!(after == before || after == State::New, "{scenario} at {at}: {before:?} became {after:?}");

            let output = run(child("crash::child_entry", scenario, dir.path()).envs(extra.iter().copied()));
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
    let mut command: Command = child("crash::child_entry", scenario, dir);
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
                        let mut command = child("crash::child_entry", scenario, dir.path());
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
    let staging = HiddenDir::create(&top).expect("made");
    let alive = staging.root().path().to_path_buf();
    let sweep = sweep_orphans(&top).expect("swept");
    assert_eq!((sweep.removed(), sweep.found.len()), (2, 3), "{sweep:?}");
    assert!(sweep.found.iter().any(|o| o.path == alive && o.kept_because == Some("its maker is alive")));
    assert!(alive.is_dir() && dir.path().join(".b70-other").is_file());
    drop(staging);
    assert_eq!(sweep_orphans(&top).expect("swept").found, []);
}
