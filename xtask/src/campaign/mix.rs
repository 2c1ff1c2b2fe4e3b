//! Eight processes at once that prepare, stage, verify, collect and drop the same things.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lab::{Lab, Numbers, text, tree};
use super::{Size, Tally};
use crate::failure::Failure;

const PROCESSES: u64 = 8;

/// A command of the mix, and the verdicts that are right at any moment.
struct Part {
    name: &'static str,
    program: &'static str,
    args: Vec<String>,
    may: &'static [i32],
}

fn parts(lab: &Lab) -> Vec<Part> {
    let (model, packs) = (text(&lab.model), text(&lab.disk("packs")));
    let (ram, models) = (text(&lab.memory("ram")), text(&lab.memory("models")));
    let set = ["--cache-root", &packs];
    let stage = ["--cache-root", &packs, "--ram-root", &ram];
    let cache = ["--model", &model, "--sha256", &lab.sha256, "--cache-root", &models];
    let part = |name, program, args: Vec<&str>, may| Part {
        name,
        program,
        args: args.into_iter().map(str::to_owned).collect(),
        may,
    };
    let with = |first: &[&'static str], rest: &[&str]| -> Vec<String> {
        first.iter().map(|word| (*word).to_owned()).chain(rest.iter().map(|word| (*word).to_owned())).collect()
    };
    let prepare =
        with(&["prepare", "--jobs", "1"], &[&["--model", &model, "--sha256", &lab.sha256], &set[..]].concat());
    let list = [
        ("prepare", "b70-pack", prepare, &[0][..]),
        // The first prepare is done before the others start: from then on the set is whole, whatever happens.
        ("verify", "b70-pack", with(&["verify", "--deep"], &set), &[0]),
        ("gc", "b70-pack", with(&["gc", "--execute"], &set), &[0]),
        ("stage", "b70-pack", with(&["stage-ram", "--min-free", "1048576"], &stage), &[0]),
        ("validate", "b70-pack", with(&["stage-validate", "--deep"], &stage), &[0]),
        ("list", "b70-pack", with(&["list"], &set), &[0]),
        ("cache", "b70-cache", with(&["prepare", "--min-free", "1", "--no-measure"], &cache), &[0]),
        // Another process may have dropped the copy, which is not damage.
        ("cache verify", "b70-cache", with(&["verify"], &cache), &[0, 1]),
        ("drop", "b70-cache", with(&["drop", "--execute"], &cache), &[0, 1]),
    ];
    list.into_iter()
        .map(|(name, program, args, may)| part(name, program, args.iter().map(String::as_str).collect(), may))
        .collect()
}

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let parts = parts(lab);
    for name in ["prepare", "stage"] {
        let part = parts.iter().find(|part| part.name == name).map_or(&parts[0], |part| part);
        lab.must(part.program, &part.args)?;
    }
    let until = Instant::now() + Duration::from_secs(size.pick(6, 150));
    let shared = Mutex::new(Tally::default());
    let failed = std::thread::scope(|scope| {
        let (parts, shared) = (&parts, &shared);
        let processes: Vec<_> = (0..PROCESSES)
            .map(|index| scope.spawn(move || one_process(lab, parts, seed ^ (index << 32), until, shared)))
            .collect();
        processes.into_iter().filter_map(|process| process.join().ok()).find_map(Result::err)
    });
    if let Some(failure) = failed {
        return Err(failure);
    }
    tally.merge(shared.into_inner().unwrap_or_default());
    tally.add("processes at once", PROCESSES);
    // Afterwards all of it is whole, and nothing else is there.
    for name in ["prepare", "verify", "stage", "validate", "gc", "cache"] {
        let part = parts.iter().find(|part| part.name == name).map_or(&parts[0], |part| part);
        let ran = lab.run(part.program, &part.args)?;
        if ran.code != Some(0) {
            tally.violation(format!("{name} after the mix: {}", ran.brief()));
        }
    }
    for root in [lab.disk("packs"), lab.memory("ram"), lab.memory("models")] {
        nothing_left(&root, tally);
    }
    Ok(())
}

fn one_process(lab: &Lab, parts: &[Part], seed: u64, until: Instant, shared: &Mutex<Tally>) -> Result<(), Failure> {
    let mut numbers = Numbers(seed);
    while Instant::now() < until {
        let part = numbers.pick(parts);
        let ran = lab.run(part.program, &part.args)?;
        let Ok(mut tally) = shared.lock() else { return Ok(()) };
        tally.count("runs");
        tally.count(format!("of {}", part.name));
        if let Some(fault) = ran.fault() {
            tally.violation(format!("{}: {fault}", part.name));
        } else if !ran.code.is_some_and(|code| part.may.contains(&code)) {
            tally.violation(format!("{}: {}", part.name, ran.brief()));
        } else if ran.code == Some(1) {
            let document = ran.json().unwrap_or_default();
            // A drop is blocked while another process has the entry in its hands.
            let absent = document["error"]["kind"] == "not-found"
                || document["plan"].as_array().is_some_and(|plan| plan.iter().any(|step| step["allowed"] == false))
                || document["entries"].as_array().is_some_and(|entries| {
                    entries.iter().all(|entry| entry["reason"].as_str().is_some_and(|why| !why.contains("differs")))
                });
            if !absent {
                tally.violation(format!("{}: not absent but damaged: {}", part.name, ran.brief()));
            }
        }
    }
    Ok(())
}

fn nothing_left(root: &Path, tally: &mut Tally) {
    let left: Vec<String> = tree(root).into_keys().filter(|name| name.contains(".b70-tmp-")).collect();
    if !left.is_empty() {
        tally.violation(format!("temporaries are left in {}: {left:?}", root.display()));
    }
}
