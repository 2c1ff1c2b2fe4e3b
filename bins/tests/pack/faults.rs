//! Death at every step, failing writes, several runs at once, interruption: nothing partial is ever admitted, and the next
//! run continues.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::models::{Tensor, write_json};
use crate::common::{Lab, Ran, command, ends, flip, payload, text, walk};
use b70_gguf::GgmlType;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const TWO: [Tensor<'static>; 3] = [
    (b"blk.0.ffn_up.weight", GgmlType::Q4_0, &[64, 32]),
    (b"blk.0.norm", GgmlType::F32, &[64]),
    (b"blk.1.ffn_up.weight", GgmlType::Q4_0, &[64, 32]),
];

/// A lab whose plan has the two tensors of [`TWO`].
fn two() -> Lab {
    let lab = Lab::with(&TWO);
    let mut plan = crate::common::models::mini_plan("two");
    plan["rules"] = json!([plan["rules"][0]]);
    plan["rules"][0]["slot_stride"] = json!(1);
    write_json(&lab.plan, &plan);
    lab
}

/// The files of the set that must have exactly these bytes whenever they have their names.
fn fixed(root: &Path) -> BTreeMap<String, Vec<u8>> {
    walk(root).into_iter().filter(|(name, _)| ends(name, ".bin") || ends(name, ".tsv")).collect()
}

/// Checks a root that a run left in the middle of its work.
fn nothing_partial(lab: &Lab, reference: &BTreeMap<String, Vec<u8>>, when: &str) {
    for (name, bytes) in walk(&lab.root) {
        if name.starts_with(".locks/") || name.contains("/.b70-tmp-") {
            continue;
        }
        match reference.get(&name) {
            Some(expected) => assert!(bytes == *expected, "{when}: {name} is partial"),
            None if ends(&name, ".json") => {
                serde_json::from_slice::<Value>(&bytes).unwrap_or_else(|error| panic!("{when}: {name}: {error}"));
            }
            None => assert!(name.ends_with("/SHA256SUMS") && bytes.ends_with(b"\n"), "{when}: {name}"),
        }
    }
    let key = lab.set_key();
    let shallow = lab.pack("verify", &["--set-key", &key]);
    if shallow.code == Some(0) {
        lab.pack("verify", &["--set-key", &key, "--deep"]).exits(0);
    } else {
        let json = shallow.json();
        assert!(json["error"].is_object() || json["status"] == "failed", "{when}: {json:#}");
    }
}

fn continues(lab: &Lab, reference: &BTreeMap<String, Vec<u8>>, when: &str) {
    lab.pack("prepare", &lab.mini()).exits(0);
    assert!(lab.verify(&["--deep"]).is_empty(), "{when}");
    assert_eq!(fixed(&lab.root), *reference, "{when}");
    assert!(walk(&lab.root).keys().all(|name| !name.contains(".b70-tmp-")), "{when}: temporary files are swept");
}

/// Runs a prepare under a fault at its first, second, … step until one run no longer meets it; returns how many did.
fn at_every_step(
    environment: impl Fn(u64) -> Vec<(&'static str, String)>,
    start: impl Fn(&Lab),
    check: impl Fn(&Ran, &str),
) -> u64 {
    let lab = two();
    lab.pack("prepare", &lab.mini()).exits(0);
    let reference = fixed(&lab.root);
    for step in 1..2000 {
        fs::remove_dir_all(&lab.root).expect("the cache root");
        start(&lab);
        let environment = environment(step);
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
        let ran = lab.pack_with("prepare", &[&lab.mini()[..], &["--jobs", "2"]].concat(), &environment);
        let when = format!("{environment:?}");
        if ran.code == Some(0) {
            assert_eq!(fixed(&lab.root), reference);
            assert!(lab.verify(&["--deep"]).is_empty());
            return step - 1;
        }
        check(&ran, &when);
        nothing_partial(&lab, &reference, &when);
        continues(&lab, &reference, &when);
    }
    panic!("the prepare never got past its faults");
}

fn killed(ran: &Ran, when: &str) {
    assert_eq!(ran.signal, Some(9), "{when}: {ran:#?}");
}

#[test]
fn killed_at_every_step() {
    let steps = at_every_step(|step| vec![("B70_FAULT_STEP", step.to_string())], |_| (), killed);
    assert!(steps > 40, "{steps} steps");
    println!("killed at each of {steps} steps");
}

#[test]
fn killed_at_every_step_without_unnamed_files() {
    let environment = |step: u64| vec![("B70_FAULT_STEP", step.to_string()), ("B70_FAULT_NO_TMPFILE", "1".to_owned())];
    let steps = at_every_step(environment, |_| (), killed);
    assert!(steps > 40, "{steps} steps");
}

#[test]
fn killed_at_every_step_of_a_repair() {
    let damage = |lab: &Lab| {
        lab.pack("prepare", &lab.mini()).exits(0);
        let set = lab.set();
        flip(&payload(&set, 0), 5);
        fs::remove_file(payload(&set, 1)).expect("a payload");
        flip(&set.join("runtime-index.tsv"), 5);
    };
    let lab = two();
    lab.pack("prepare", &lab.mini()).exits(0);
    let reference = fixed(&lab.root);
    for step in 1..2000 {
        fs::remove_dir_all(&lab.root).expect("the cache root");
        damage(&lab);
        let step = step.to_string();
        let ran = lab.pack_with("prepare", &[&lab.mini()[..], &["--jobs", "1"]].concat(), &[("B70_FAULT_STEP", &step)]);
        if ran.code == Some(0) {
            assert!(lab.verify(&["--deep"]).is_empty());
            return;
        }
        killed(&ran, &step);
        // What was damaged may still be, and then deep verification says so; what is said to be ready is.
        let deep = lab.pack("verify", &["--set-key", &lab.set_key(), "--deep"]);
        assert_eq!(deep.code == Some(0), fixed(&lab.root) == reference, "{step}: {deep:#?}");
        continues(&lab, &reference, &step);
    }
    panic!("the repair never got past its faults");
}

#[test]
fn a_failing_write_or_fsync_is_one_clear_error() {
    for (variable, value, count) in
        [("B70_FAULT_WRITE", "enospc", 5), ("B70_FAULT_WRITE", "eio", 5), ("B70_FAULT_FSYNC", "eio", 10)]
    {
        let environment = |step: u64| vec![(variable, format!("{value}:{step}"))];
        let steps = at_every_step(
            environment,
            |_| (),
            |ran, when| {
                let error = &ran.json()["error"];
                // Never "interrupted": the worker that failed is heard, not those that stopped because of it.
                assert!(matches!(ran.code, Some(1 | 2)), "{when}: {ran:#?}");
                assert_ne!(error["kind"], "interrupted", "{when}");
                assert!(error["message"].is_string() && error["path"].is_string(), "{when}: {error:#}");
            },
        );
        assert!(steps >= count, "{variable}={value}: {steps}");
    }
}

#[test]
fn short_writes_change_nothing() {
    let lab = Lab::new();
    lab.prepare();
    let expected = fixed(&lab.root);
    fs::remove_dir_all(&lab.root).expect("the cache root");
    lab.pack_with("prepare", &lab.mini(), &[("B70_FAULT_WRITE", "short:*")]).exits(0);
    assert_eq!(fixed(&lab.root), expected);
    assert!(lab.verify(&["--deep"]).is_empty());
}

#[test]
fn four_prepares_at_once_make_one_set() {
    for flock in [None, Some("unsupported"), Some("lie")] {
        let lab = Lab::new();
        let children: Vec<_> = (0..4)
            .map(|_| {
                let mut child = command();
                child.args(lab.arguments("prepare", &lab.mini())).stdout(Stdio::piped()).stderr(Stdio::piped());
                child.envs(flock.map(|how| ("B70_FAULT_FLOCK", how)));
                child.spawn().expect("the executable was built with the tests")
            })
            .collect();
        let mut packed = 0;
        for child in children {
            let ran = Ran::from(child.wait_with_output().expect("an output")).exits(0);
            packed += ran.json()["packed"].as_u64().expect("a count");
        }
        if flock.is_none() {
            assert_eq!(packed, 4, "with locks, one packs and the others reuse");
        }
        assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty());
        assert_eq!(lab.pack("list", &[]).json()["sets"].as_array().expect("a list").len(), 1);
        assert!(lab.files().iter().all(|name| !name.contains(".b70-tmp-")));
    }
}

#[test]
fn a_held_lock_is_waited_for_then_named() {
    let lab = Lab::new();
    let key = lab.set_key();
    fs::create_dir_all(lab.root.join(".locks")).expect("a folder");
    let lock = fs::File::create(lab.root.join(".locks").join(format!("{key}.lock"))).expect("a file");
    lock.lock().expect("a free lock");
    lab.pack("prepare", &[&lab.mini()[..], &["--wait", "0"]].concat()).fails(124, "lock-timeout");
    assert!(lab.files().is_empty());
    // Interrupted while it waits.
    let mut child = command();
    child.args(lab.arguments("prepare", &lab.mini())).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().expect("the executable was built with the tests");
    let pid = Pid::from_raw(child.id().try_into().expect("a process id")).expect("a process id");
    // The handler is installed before the lock file is opened.
    until(|| open_files(child.id()).any(|path| ends(&path, ".lock")));
    kill_process(pid, Signal::INT).expect("our own child");
    Ran::from(child.wait_with_output().expect("an output")).fails(130, "interrupted");
    assert!(lab.files().is_empty());
    drop(lock);
    assert_eq!(lab.prepare()["packed"], 4);
}

fn open_files(pid: u32) -> impl Iterator<Item = String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    links.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string()))
}

fn until(ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn interrupted_while_packing_keeps_what_was_finished() {
    let names: Vec<String> = (0..24).map(|index| format!("t{index}")).collect();
    let tensors: Vec<Tensor<'_>> =
        names.iter().map(|name| (name.as_bytes(), GgmlType::Q4_0, &[2048_u64, 512][..])).collect();
    let lab = Lab::with(&tensors);
    let arguments = ["--model", text(&lab.model), "--sha256", &lab.sha256, "--jobs", "1", "--kernel", "scalar"];
    for attempt in 0..10 {
        let mut child = command();
        child.args(lab.arguments("prepare", &arguments)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().expect("the executable was built with the tests");
        let pid = Pid::from_raw(child.id().try_into().expect("a process id")).expect("a process id");
        until(|| {
            lab.root.exists() && {
                let sidecar = |path: &Path| path.extension().is_some_and(|end| end == "json");
                let sets = fs::read_dir(&lab.root).into_iter().flatten().flatten();
                sets.flat_map(|set| fs::read_dir(set.path().join("tensors")).into_iter().flatten().flatten())
                    .any(|file| sidecar(&file.path()))
            }
        });
        kill_process(pid, Signal::INT).expect("our own child");
        let ran = Ran::from(child.wait_with_output().expect("an output"));
        if ran.code == Some(0) {
            // It was done before the signal came; once more from the start.
            fs::remove_dir_all(&lab.root).expect("the cache root");
            continue;
        }
        ran.fails(130, "interrupted");
        assert!(walk(&lab.root).keys().all(|name| !name.ends_with("manifest.json") && !name.contains(".b70-tmp-")));
        let kept = walk(&lab.root).keys().filter(|name| ends(name, ".json")).count();
        assert!(kept >= 1);
        lab.pack("verify", &[]).fails(2, "no-set");
        let prepared = lab.pack("prepare", &arguments).exits(0).json();
        assert_eq!(prepared["reused"], kept, "what was finished is reused");
        assert_eq!(prepared["packed"], 24 - kept);
        assert_eq!(prepared["repaired"], json!([]), "an ended run is not damage");
        assert_eq!(prepared["repaired_documents"], json!([]));
        assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty());
        println!("attempt {attempt}: {kept} kept");
        return;
    }
    panic!("ten runs ended before the signal");
}
