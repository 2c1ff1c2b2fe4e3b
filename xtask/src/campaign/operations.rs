//! Every publishing command, the state it starts from, and what must hold whatever happened to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Tally;
use super::lab::{Lab, Ran, is_working_file, remove, text, tree};
use crate::failure::{AtPath as _, Failure};
use crate::process;

type Call = (&'static str, Vec<String>);
type Files = BTreeMap<String, Vec<u8>>;

/// What a verification may say after the command was hurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// Absent or whole.
    Publishes,
    /// Whole or absent, and absent in the end.
    Removes,
    /// Whole, always: the command works beside it.
    Spares,
}

/// One publishing command.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) call: Call,
    /// What is deleted before each trial; the first is where final names are looked at.
    clear: PathBuf,
    before: Vec<Call>,
    prepare: Option<fn(&Lab) -> Result<(), Failure>>,
    verify: Option<Call>,
    promise: Promise,
    /// The files of an undisturbed run: those whose bytes are always the same, and the names of the others.
    fixed: Files,
    varying: Vec<String>,
    start: Files,
}

fn call(program: &'static str, args: &[&str]) -> Call {
    (program, args.iter().map(|arg| (*arg).to_owned()).collect())
}

impl Operation {
    fn new(name: &'static str, call: Call, clear: PathBuf, promise: Promise) -> Self {
        Self {
            name,
            call,
            clear,
            before: Vec::new(),
            prepare: None,
            verify: None,
            promise,
            fixed: Files::new(),
            varying: Vec::new(),
            start: Files::new(),
        }
    }

    /// Brings about the state the command starts from.
    pub(crate) fn reset(&self, lab: &Lab) -> Result<(), Failure> {
        remove(&self.clear)?;
        for (program, args) in &self.before {
            lab.must(program, args)?;
        }
        self.prepare.map_or(Ok(()), |prepare| prepare(lab))
    }

    /// Learns what an undisturbed run leaves.
    fn learn(&mut self, lab: &Lab) -> Result<(), Failure> {
        self.reset(lab)?;
        self.start = tree(&self.clear);
        lab.must(self.call.0, &self.call.1)?;
        let first = tree(&self.clear);
        self.reset(lab)?;
        lab.must(self.call.0, &self.call.1)?;
        let second = tree(&self.clear);
        for (name, bytes) in first {
            // A receipt that could not be stored is made next time; nothing rests on its being there.
            if is_working_file(&name) || name.starts_with(".receipts/") || name.ends_with("/deep-validation.json") {
                continue;
            }
            // Two runs within a second may write the same time.
            let has_a_time = bytes.windows(8).any(|window| window == b"created_");
            if second.get(&name) == Some(&bytes) && !has_a_time {
                self.fixed.insert(name, bytes);
            } else {
                self.varying.push(name);
            }
        }
        Ok(())
    }

    /// Checks what a hurt run left, runs the command again, and checks that everything is well then.
    pub(crate) fn check(&self, lab: &Lab, when: &str, hurt: &Ran, tally: &mut Tally) -> Result<(), Failure> {
        let when = format!("{} {when}", self.name);
        self.nothing_partial(&when, tally);
        if let Some((program, args)) = &self.verify {
            let ran = lab.run(program, args)?;
            if let Some(fault) = ran.fault() {
                tally.violation(format!("{when}: verification: {fault}"));
            }
            match (ran.code, self.promise) {
                (Some(0), Promise::Publishes) => {
                    tally.count("whole after it");
                    self.everything_is_there(&when, tally);
                }
                (Some(0), _) => tally.count("whole after it"),
                (_, Promise::Spares) => tally.violation(format!("{when}: what it must spare: {}", ran.brief())),
                (_, Promise::Publishes | Promise::Removes) => {
                    tally.count("absent after it");
                    if hurt.code == Some(0) && self.promise == Promise::Publishes {
                        tally.violation(format!("{when}: it said 0 and nothing is there: {}", ran.brief()));
                    }
                }
            }
        } else if hurt.code == Some(0) {
            self.everything_is_there(&when, tally);
        }
        let again = lab.run(self.call.0, &self.call.1)?;
        // These never replace a file that is there.
        let refuses_to_replace = matches!(self.name, "worker assign" | "pack unpack")
            && matches!(again.code, Some(1 | 2))
            && self.is_complete();
        // What was removed already can be said to be absent.
        let nothing_left = self.promise == Promise::Removes && again.code == Some(1);
        if again.code != Some(0) && !refuses_to_replace && !nothing_left {
            tally.violation(format!("{when}: the next run fails: {}", again.brief()));
            return Ok(());
        }
        if let (Some((program, args)), true) = (&self.verify, self.promise != Promise::Removes) {
            let ran = lab.run(program, args)?;
            if ran.code != Some(0) {
                tally.violation(format!("{when}: not whole after the next run: {}", ran.brief()));
            }
        }
        self.everything_is_there(&when, tally);
        self.nothing_partial(&when, tally);
        let is_temporary = |name: &String| name.contains(".b70-tmp-") || name.ends_with(".tmp");
        let left: Vec<String> = tree(&self.clear).into_keys().filter(is_temporary).collect();
        if !left.is_empty() {
            tally.violation(format!("{when}: temporaries are left after the next run: {left:?}"));
        }
        Ok(())
    }

    /// Where it publishes.
    pub(crate) fn folder(&self) -> &Path {
        &self.clear
    }

    /// Does it publish into memory?
    pub(crate) fn is_in_memory(&self, lab: &Lab) -> bool {
        self.clear.starts_with(lab.memory(""))
    }

    /// Does it start from an empty or absent folder, with nothing but its own arguments?
    pub(crate) fn starts_empty(&self) -> bool {
        self.promise == Promise::Publishes && self.before.is_empty()
    }

    /// The first check alone: no final name has partial content.
    pub(crate) fn only_whole_files(&self, when: &str, tally: &mut Tally) {
        self.nothing_partial(&format!("{} {when}", self.name), tally);
    }

    fn is_complete(&self) -> bool {
        let now = tree(&self.clear);
        self.fixed.iter().all(|(name, bytes)| now.get(name) == Some(bytes))
    }

    fn everything_is_there(&self, when: &str, tally: &mut Tally) {
        let now = tree(&self.clear);
        for (name, bytes) in &self.fixed {
            if now.get(name) != Some(bytes) {
                tally.violation(format!("{when}: {name} is missing or another"));
            }
        }
        for name in self.varying.iter().filter(|name| !now.contains_key(*name)) {
            tally.violation(format!("{when}: {name} is missing"));
        }
    }

    fn nothing_partial(&self, when: &str, tally: &mut Tally) {
        for (name, bytes) in tree(&self.clear) {
            let is_receipt = name.starts_with(".receipts/") || name.ends_with("/deep-validation.json");
            let is_optional = is_receipt && bytes.ends_with(b"}\n");
            if is_working_file(&name) || is_optional || self.start.get(&name) == Some(&bytes) {
                continue;
            }
            let is_json = Path::new(&name).extension().is_some_and(|end| end == "json");
            let whole = match self.fixed.get(&name) {
                Some(expected) => *expected == bytes,
                // A set's documents carry times; in the start state there may be others of them.
                None if is_json => serde_json::from_slice::<serde_json::Value>(&bytes).is_ok(),
                None => (self.varying.contains(&name) || self.start.contains_key(&name)) && bytes.ends_with(b"\n"),
            };
            if !whole {
                tally.violation(format!("{when}: {name} is partial or unknown ({} bytes)", bytes.len()));
            }
        }
    }
}

/// All of them, each with what an undisturbed run leaves.
pub(crate) fn all(lab: &Lab) -> Result<Vec<Operation>, Failure> {
    use Promise::{Publishes, Removes, Spares};
    let (model, sha256) = (text(&lab.model), lab.sha256.clone());
    let ready = text(&lab.disk("ready"));
    lab.must("b70-pack", ["prepare", "--model", &model, "--sha256", &sha256, "--cache-root", &ready])?;
    let mut list = Vec::new();

    let packs = lab.disk("packs");
    let prepare =
        |root: &str| call("b70-pack", &["prepare", "--model", &model, "--sha256", &sha256, "--cache-root", root]);
    let deep = |root: &str| call("b70-pack", &["verify", "--deep", "--cache-root", root]);
    let mut one = Operation::new("pack prepare", prepare(&text(&packs)), packs.clone(), Publishes);
    one.verify = Some(deep(&text(&packs)));
    list.push(one);

    let stage = lab.memory("stage");
    let staged = |command: &str, more: &[&str]| {
        call("b70-pack", &[&[command, "--cache-root", &ready, "--ram-root", &text(&stage)], more].concat())
    };
    let mut one =
        Operation::new("pack stage-ram", staged("stage-ram", &["--min-free", "1048576"]), stage.clone(), Publishes);
    one.verify = Some(staged("stage-validate", &["--deep"]));
    list.push(one);

    let out = lab.disk("unpacked");
    let file = text(&out.join("tensor.bin"));
    let unpack = ["unpack", "--cache-root", &ready, "--tensor", "blk.0.ffn_up.weight", "--out", &file];
    let mut one = Operation::new("pack unpack", call("b70-pack", &unpack), out, Publishes);
    one.prepare = Some(|lab| make(&lab.disk("unpacked")));
    list.push(one);

    let collected = lab.disk("collected");
    let gc = call("b70-pack", &["gc", "--execute", "--cache-root", &text(&collected)]);
    let mut one = Operation::new("pack gc", gc, collected.clone(), Spares);
    one.before = vec![prepare(&text(&collected))];
    one.prepare = Some(leave_an_ended_prepare);
    one.verify = Some(deep(&text(&collected)));
    list.push(one);

    let models = lab.memory("models");
    let cached = |command: &str, more: &[&str]| {
        let select = [command, "--model", &model, "--sha256", &sha256, "--cache-root", &text(&models)];
        call("b70-cache", &[&select[..], more].concat())
    };
    let copy = cached("prepare", &["--min-free", "1", "--no-measure"]);
    let mut one = Operation::new("cache prepare", copy.clone(), models.clone(), Publishes);
    one.verify = Some(cached("verify", &[]));
    list.push(one);
    let mut one = Operation::new("cache drop", cached("drop", &["--execute"]), models.clone(), Removes);
    one.before = vec![copy];
    one.verify = Some(cached("verify", &[]));
    list.push(one);

    list.extend(registry(lab, &sha256)?);

    let golden = lab.disk("golden");
    let root = text(&golden);
    let sizes = ["--k", "256", "--n", "32", "--widths", "1,4", "--packed"];
    let set = call("b70-golden", &[&["prepare", "--artifact-root", &root], &sizes[..]].concat());
    let mut one = Operation::new("golden prepare", set, golden, Publishes);
    one.verify = Some(call("b70-golden", &["verify", "--artifact-root", &root]));
    list.push(one);

    let lane = lab.disk("workers.json");
    let fixture = process::workspace_root().join("fixtures/documents/lab/workers.json");
    fs::copy(&fixture, &lane).at("copy", &fixture)?;
    for (name, program, args, folder) in [
        ("manifest migrate", "b70-manifest", vec!["migrate", "workers.json", "--out"], "migrated"),
        (
            "worker assign",
            "b70-worker",
            vec!["assign", "--profile", "dflash5-screen", "--workers", "gpu2-candidate,gpu3-validation", "--out"],
            "assigned",
        ),
    ] {
        let file = text(&lab.disk(folder).join("workers.json"));
        let call_out = call(program, &[&args[..], &[&file]].concat());
        let mut one = Operation::new(name, call_out, lab.disk(folder), Publishes);
        one.prepare = Some(if folder == "migrated" {
            |lab| make(&lab.disk("migrated"))
        } else {
            |lab| make(&lab.disk("assigned"))
        });
        one.verify = Some(call("b70-manifest", &["validate", &file]));
        list.push(one);
    }
    let schemas = lab.disk("schemas");
    let every = call("b70-manifest", &["schema", "--all", "--out", &text(&schemas)]);
    list.push(Operation::new("manifest schema", every, schemas, Publishes));

    for operation in &mut list {
        operation.learn(lab)?;
    }
    Ok(list)
}

fn registry(lab: &Lab, sha256: &str) -> Result<Vec<Operation>, Failure> {
    let artifact = lab.disk("artifact");
    for (name, size) in [("a.bin", 4096_usize), ("b/c.bin", 20_000), ("b/d.txt", 3)] {
        let path = artifact.join(name);
        make(path.parent().unwrap_or(&artifact))?;
        fs::write(&path, name.repeat(size / name.len() + 1)).at("write", &path)?;
    }
    let register = |artifact: &str, root: &str| {
        let names = ["--packer-revision", "1", "--layout", "a-layout", "--kernel-abi", "an-abi", "--sha256", sha256];
        call("b70-registry", &[&["register", "--artifact", artifact, "--registry-root", root], &names[..]].concat())
    };
    let (records, kept) = (lab.disk("records"), lab.disk("kept-records"));
    let (program, args) = register(&text(&artifact), &text(&records));
    let key = lab.must(program, &args)?["key"].as_str().unwrap_or_default().to_owned();
    let verify = |root: &Path| call("b70-registry", &["verify", "--pack-key", &key, "--registry-root", &text(root)]);
    let mut one = Operation::new("registry register", (program, args), records.clone(), Promise::Publishes);
    one.verify = Some(verify(&records));
    let gc = call("b70-registry", &["gc", "--execute", "--registry-root", &text(&kept)]);
    let mut two = Operation::new("registry gc", gc, kept.clone(), Promise::Spares);
    // Beside the record that stays, one whose artifact went away.
    two.before = vec![register(&text(&artifact), &text(&kept))];
    two.prepare = Some(register_what_goes_away);
    two.verify = Some(verify(&kept));
    Ok(vec![one, two])
}

fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).at("create", folder)
}

/// A set's folder as a prepare leaves it that was ended before its manifest, and a file no manifest names.
fn leave_an_ended_prepare(lab: &Lab) -> Result<(), Failure> {
    let tensors = lab.disk("collected").join("a".repeat(64)).join("tensors");
    make(&tensors)?;
    for name in ["b", "c", "d"] {
        let path = tensors.join(format!("{}.bin", name.repeat(64)));
        fs::write(&path, vec![1; 10_000]).at("write", &path)?;
    }
    Ok(())
}

fn register_what_goes_away(lab: &Lab) -> Result<(), Failure> {
    let path = lab.disk("passing.bin");
    fs::write(&path, b"passing").at("write", &path)?;
    let (root, artifact) = (text(&lab.disk("kept-records")), text(&path));
    let names = ["--packer-revision", "2", "--layout", "a-layout", "--kernel-abi", "an-abi", "--sha256", &lab.sha256];
    let args = [&["register", "--artifact", &artifact, "--registry-root", &root], &names[..]].concat();
    lab.must("b70-registry", args)?;
    remove(&path)
}
