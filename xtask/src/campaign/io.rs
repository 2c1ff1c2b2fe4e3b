//! ENOSPC and EIO at every call that writes, by a tracer that makes the N-th call fail, and on mounts of a few pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::lab::{Lab, Numbers, Ran, remove};
use super::operations::Operation;
use super::{Size, Tally, operations};
use crate::failure::{AtPath as _, Failure};

const ENOSPC: (&str, &str) = ("ENOSPC", "28");
const EIO: (&str, &str) = ("EIO", "5");

/// Class of calls, and how they fail.
const FAULTS: [(&str, &[(&str, &str)]); 7] = [
    ("write", &[ENOSPC, EIO]),
    ("fsync", &[EIO]),
    ("alloc", &[ENOSPC, EIO]),
    ("name", &[ENOSPC, EIO]),
    ("make", &[ENOSPC, EIO]),
    ("remove", &[EIO]),
    ("read", &[EIO]),
];

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let mut numbers = Numbers(seed);
    let operations = operations::all(lab)?;
    tally.add("commands", operations.len() as u64);
    if cfg!(target_arch = "x86_64") {
        let injector = lab.compile("injector", include_str!("injector.c"), &[])?;
        for operation in &operations {
            every_call(lab, &injector, operation, size, &mut numbers, tally)?;
        }
    } else {
        tally.note("failing calls: the injector knows x86-64 only");
    }
    small_mounts(lab, &operations, size, tally)
}

struct Injector<'a> {
    lab: &'a Lab,
    program: &'a Path,
    operation: &'a Operation,
}

impl Injector<'_> {
    /// Runs the command with the N-th call of the class failing; also how many calls there were, and whether one failed.
    fn run(&self, class: &str, errno: &str, n: u64) -> Result<(Ran, u64, bool), Failure> {
        let report = self.lab.disk("injector-report");
        let (program, args) = &self.operation.call;
        let mut command = Command::new(self.program);
        self.lab.clean(&mut command);
        // Folders on disk and in memory have the same prefix after their parents.
        let folder = if self.operation.is_in_memory(self.lab) { self.lab.memory("") } else { self.lab.disk("") };
        command.arg(folder).args([class, errno, &n.to_string()]).arg(&report);
        command.arg(self.lab.executable(program)).arg("--json").args(args);
        let ran = self.lab.spawn(&mut command)?.finish();
        let said = fs::read_to_string(&report).at("read", &report)?;
        let mut numbers = said.split_ascii_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (seen, failed) = (numbers.next().unwrap_or(0), numbers.next() == Some(1));
        Ok((ran, seen, failed))
    }
}

fn every_call(
    lab: &Lab,
    program: &Path,
    operation: &Operation,
    size: Size,
    numbers: &mut Numbers,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let injector = Injector { lab, program, operation };
    // Each class in the long form; one that is drawn in the short form.
    let drawn = numbers.below(FAULTS.len());
    for (index, (class, errors)) in FAULTS.into_iter().enumerate() {
        if size == Size::Short && index != drawn && class != "write" {
            continue;
        }
        operation.reset(lab)?;
        let (ran, calls, _) = injector.run(class, "0", 0)?;
        if ran.code != Some(0) {
            tally.violation(format!("{} under the tracer: {}", operation.name, ran.brief()));
            return Ok(());
        }
        // The schemas are hundreds of files written by one function.
        let at_most = size.pick(1, 120);
        for (name, errno) in errors {
            let chosen: Vec<u64> = if calls <= at_most {
                (1..=calls).collect()
            } else if at_most == 1 {
                vec![numbers.next() % calls + 1]
            } else {
                (0..at_most).map(|index| index * calls / at_most + 1).collect()
            };
            for n in chosen {
                if lab.is_late() {
                    return Ok(());
                }
                operation.reset(lab)?;
                let (ran, _, failed) = injector.run(class, errno, n)?;
                if !failed {
                    tally.count("calls not reached");
                    continue;
                }
                tally.count(format!("{class} {name}"));
                tally.count("failed calls");
                let when = format!("with {name} at {class} {n} of {calls}");
                judge(operation, &ran, &when, tally);
                operation.check(lab, &when, &ran, tally)?;
            }
        }
    }
    Ok(())
}

/// A failed call is one clear error, or was no obstacle.
fn judge(operation: &Operation, ran: &Ran, when: &str, tally: &mut Tally) {
    if let Some(fault) = ran.fault() {
        tally.violation(format!("{} {when}: {fault}", operation.name));
        return;
    }
    match ran.code {
        Some(0) => tally.count("commands that succeeded all the same"),
        Some(1 | 2) => {
            tally.count("commands that failed");
            let document = ran.json().unwrap_or_default();
            let says = document["error"]["message"].is_string() || document["status"] == "failed" || {
                // A list of findings, each with its reason.
                document["entries"].is_array() || document["files"].is_array()
            };
            if !says || document["error"]["kind"] == "interrupted" {
                tally.violation(format!("{} {when}: no clear error: {}", operation.name, ran.brief()));
            }
        }
        code => tally.violation(format!("{} {when}: exit code {code:?}", operation.name)),
    }
}

/// A mount that ends with its value.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).ok()?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        command.output().is_ok_and(|output| output.status.success()).then(|| Self(at.to_path_buf()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// Folders of a few pages or a few inodes, full from the start or while something is written.
fn small_mounts(lab: &Lab, operations: &[Operation], size: Size, tally: &mut Tally) -> Result<(), Failure> {
    let probe = lab.disk("mount-probe");
    if Mount::new(&probe, "size=4k").is_none() {
        tally.note("small mounts: they need root and the right to mount");
        return Ok(());
    }
    let pages: Vec<String> = (1..=size.pick(1, 60)).map(|n| format!("size={}k", n * size.pick(40, 8))).collect();
    let inodes: Vec<String> = (2..=size.pick(1, 24)).map(|n| format!("nr_inodes={n}")).collect();
    for operation in operations.iter().filter(|operation| operation.starts_empty()) {
        for options in pages.iter().chain(&inodes) {
            if lab.is_late() {
                return Ok(());
            }
            remove(operation.folder())?;
            let Some(mount) = Mount::new(operation.folder(), options) else { continue };
            let ran = lab.run(operation.call.0, &operation.call.1)?;
            let when = format!("on a mount with {options}");
            tally.count("small mounts");
            judge(operation, &ran, &when, tally);
            operation.only_whole_files(&when, tally);
            drop(mount);
            remove(operation.folder())?;
        }
    }
    Ok(())
}
