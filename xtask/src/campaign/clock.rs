//! A wall clock that jumps by a day or a year between or during commands: what was tampered with is never trusted.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::lab::{Lab, Numbers, Ran, remove, text, tree};
use super::{Size, Tally};
use crate::failure::{AtPath as _, Failure};

const DAY: i64 = 86_400;
const STEPS: [i64; 5] = [0, DAY, -DAY, 365 * DAY, -365 * DAY];

struct Clocked<'a> {
    lab: &'a Lab,
    shim: PathBuf,
}

impl Clocked<'_> {
    fn run(&self, shift: i64, args: &[&str]) -> Result<Ran, Failure> {
        let mut command = self.lab.command("b70-pack", args);
        command.env("LD_PRELOAD", &self.shim).env("CLOCK_SHIFT", shift.to_string());
        Ok(self.lab.spawn(&mut command)?.finish())
    }
}

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let shim = lab.compile("clock.so", include_str!("clock.c"), &["-shared", "-fPIC"])?;
    let clocked = Clocked { lab, shim };
    let mut numbers = Numbers(seed);
    let model = text(&lab.model);
    for round in 0..size.pick(1, 8) {
        for at_making in STEPS {
            for at_reading in STEPS {
                if lab.is_late() {
                    return Ok(());
                }
                if size == Size::Short && at_making != 0 && at_reading != 0 && at_making != -at_reading {
                    continue;
                }
                // A root on disk and a stage in memory, made under one clock and read under another.
                let (packs, ram) = (lab.disk("packs"), lab.memory("ram"));
                remove(&packs)?;
                remove(&ram)?;
                let root = text(&packs);
                let prepare = ["prepare", "--model", &model, "--sha256", &lab.sha256, "--cache-root", &root];
                let made = clocked.run(at_making, &prepare)?;
                let stage = ["--cache-root", &root, "--ram-root", &text(&ram)];
                let staged = clocked.run(at_making, &[&["stage-ram", "--min-free", "1048576"], &stage[..]].concat())?;
                let when = format!("made at {at_making:+} s, read at {at_reading:+} s, round {round}");
                for ran in [&made, &staged] {
                    if ran.code != Some(0) {
                        tally.violation(format!("{when}: {}", ran.brief()));
                    }
                }
                if round == 0 && at_making != 0 {
                    moved(&packs, at_making, tally);
                }
                let validate = [&["stage-validate"], &stage[..]].concat();
                let whole = clocked.run(at_reading, &validate)?;
                tally.count("stages read under another clock");
                if whole.code != Some(0) {
                    tally.violation(format!("{when}: a good stage is refused: {}", whole.brief()));
                }
                let payloads: Vec<PathBuf> =
                    tree(&ram).into_keys().filter(|name| name.ends_with(".bin")).map(|name| ram.join(name)).collect();
                let victim = numbers.pick(&payloads);
                tamper(victim, &mut numbers)?;
                tally.count("tamperings");
                let hurt = clocked.run(at_reading, &validate)?;
                if hurt.code == Some(0) {
                    tally.violation(format!("{when}: a tampered stage is trusted: {}", hurt.brief()));
                }
            }
        }
    }
    Ok(())
}

/// A shim that moves nothing would prove nothing.
fn moved(packs: &Path, shift: i64, tally: &mut Tally) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let manifests = tree(packs).into_iter().filter(|(name, _)| name.ends_with("/manifest.json"));
    for (_, bytes) in manifests {
        let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let created = document["created_unix"].as_i64().unwrap_or(0);
        let expected = i64::try_from(now).unwrap_or(0) + shift;
        if (created - expected).abs() > 3600 {
            tally.violation(format!("the clock was not moved: created_unix is {created}, expected about {expected}"));
        }
        tally.count("clocks seen to be moved");
    }
}

fn tamper(path: &Path, numbers: &mut Numbers) -> Result<(), Failure> {
    let metadata = fs::metadata(path).at("look at", path)?;
    let mut bytes = fs::read(path).at("read", path)?;
    let at = numbers.below(bytes.len());
    bytes[at] ^= 1 << numbers.below(8);
    fs::set_permissions(path, Permissions::from_mode(0o644)).at("change the mode of", path)?;
    fs::write(path, bytes).at("write", path)?;
    let file = File::options().write(true).open(path).at("open", path)?;
    let modified = metadata.modified().at("look at", path)?;
    file.set_times(FileTimes::new().set_modified(modified)).at("set the times of", path)?;
    fs::set_permissions(path, metadata.permissions()).at("change the mode of", path)
}
