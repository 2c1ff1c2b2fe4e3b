//! The comparisons.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Bench;
use super::sample::{Call, Sample, case, run};
use crate::failure::{AtPath, Failure};
use crate::synth::{self, Synthetic};

/// Samples of several calls that are run in turn.
struct Group {
    calls: Vec<(String, Call, Vec<Sample>)>,
}

impl Group {
    fn new() -> Self {
        Self { calls: Vec::new() }
    }

    fn add(&mut self, name: &str, call: Call) {
        self.calls.push((name.to_owned(), call, Vec::new()));
    }

    /// Runs every call once a round; `before` makes the ground for each, by its name.
    fn run(&mut self, rounds: usize, mut before: impl FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
        for round in 0..rounds {
            for (name, call, samples) in &mut self.calls {
                Bench::say(&format!("{name}, round {} of {rounds}", round + 1));
                before(name)?;
                samples.push(run(call)?);
            }
        }
        Ok(())
    }

    fn json(&self) -> Vec<Value> {
        self.calls.iter().map(|(name, call, samples)| case(name, call, samples)).collect()
    }

    fn output(&self, name: &str) -> &str {
        let found = self.calls.iter().find(|(known, ..)| known == name);
        found.and_then(|(_, _, samples)| samples.last()).map_or("", |sample| &sample.output)
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn empty(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        fs::remove_dir_all(path).at("remove", path)?;
    }
    Ok(())
}

fn describe(model: &Synthetic, geometry: &str) -> Value {
    json!({
        "geometry": geometry,
        "size_bytes": model.size_bytes,
        "packed_tensors": model.packed_tensors,
        "packed_bytes": model.packed_bytes,
        "sha256": model.sha256,
    })
}

fn prepare(bench: &Bench, model: &Synthetic, root: &Path) -> Call {
    let (path, sha256, root) = (text(&model.path), model.sha256.to_string(), text(root));
    let arguments =
        ["prepare", "--json", "--allow-in-repo", "--model", &path, "--sha256", &sha256, "--cache-root", &root];
    Call::new(&bench.pack, &arguments)
}

/// The folder of the set that a prepare reported.
fn set_folder(output: &str) -> Result<PathBuf, Failure> {
    let document: Value = serde_json::from_str(output).unwrap_or_default();
    let manifest = document["manifest"].as_str().map(PathBuf::from);
    manifest
        .and_then(|manifest| manifest.parent().map(Path::to_path_buf))
        .ok_or_else(|| Failure::check("b70-pack prepare --json names no manifest", "run it by hand"))
}

/// Whether the peer's keys and digests are ours.
fn same_result(ours: &Path, peer: &str) -> Result<(), Failure> {
    let path = ours.join("manifest.json");
    let own: Value = serde_json::from_str(&fs::read_to_string(&path).at("read", &path)?).unwrap_or_default();
    let peer: Value = serde_json::from_str(peer).unwrap_or_default();
    let rows = |set: &Value, payload: &str, source: &str| -> Vec<[Value; 3]> {
        let tensors = set["tensors"].as_array().cloned().unwrap_or_default();
        tensors
            .iter()
            .map(|tensor| {
                let at = |pointer: &str| tensor.pointer(pointer).cloned().unwrap_or_default();
                [at("/key"), at(payload), at(source)]
            })
            .collect()
    };
    let (a, b) =
        (rows(&own, "/payload/sha256", "/source_tensor/sha256"), rows(&peer, "/payload_sha256", "/source_sha256"));
    if own["key"] == peer["key"] && a == b && !a.is_empty() {
        return Ok(());
    }
    Err(Failure::check("the numpy packer and b70-pack disagree", "compare their manifests"))
}

/// Everything on a file system in memory.
pub(super) fn in_memory(bench: &mut Bench, geometry: &str, folder: &Path) -> Result<Value, Failure> {
    Bench::say(&format!("the model {geometry} in memory"));
    let model = synth::make(geometry, &folder.join("model"))?;
    let (cold, trusted, peer) = (folder.join("cold"), folder.join("trusted"), folder.join("numpy"));
    // Once for the model's receipt, which is only given when its folder has been quiet for long enough.
    let (with_receipt, receipts) = (folder.join("first"), PathBuf::from(".receipts"));
    run(&prepare(bench, &model, &with_receipt))?;
    let receipts = with_receipt.join(receipts);

    let mut group = Group::new();
    group.add("prepare", prepare(bench, &model, &cold));
    group.add("prepare with a source receipt", prepare(bench, &model, &trusted));
    if let Some(python) = &bench.python {
        let script = crate::process::workspace_root().join("xtask/bench/numpy_packer.py");
        group.add("numpy packer", Call::new(python, &[&text(&script), &text(&model.path), &text(&peer)]));
    }
    group.run(bench.rounds, |name| {
        match name {
            "prepare" => empty(&cold)?,
            "numpy packer" => empty(&peer)?,
            _ => {
                empty(&trusted)?;
                fs::create_dir_all(&trusted).at("create", &trusted)?;
                copy_folder(&receipts, &trusted.join(".receipts"))?;
            }
        }
        super::touch_memory(model.packed_bytes * 2 + (1 << 30));
        Ok(())
    })?;
    let set = set_folder(group.output("prepare"))?;
    if bench.python.is_some() {
        same_result(&set, group.output("numpy packer"))?;
    }
    let by_receipt: Value = serde_json::from_str(group.output("prepare with a source receipt")).unwrap_or_default();
    let preparing = group.json();
    for path in [&trusted, &peer, &with_receipt] {
        empty(path)?;
    }
    let reading = reading(bench, folder, &cold, &set)?;
    let lookups = lookups(bench, folder, &cold)?;
    for path in [&cold, &folder.join("ram"), &folder.join("model")] {
        empty(path)?;
    }
    Ok(json!({
        "model": describe(&model, geometry),
        "prepare": preparing,
        "source_trust_with_receipt": by_receipt["source_trust"],
        "reading": reading,
        "lookups": lookups,
    }))
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).at("create", to)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        fs::copy(entry.path(), &target).at("copy", &target)?;
    }
    Ok(())
}

/// What reads every byte: verification, staging, and the tools that do the same without asking what it was.
fn reading(bench: &mut Bench, folder: &Path, root: &Path, set: &Path) -> Result<Vec<Value>, Failure> {
    if !bench.has_time_for("verification and staging") {
        return Ok(Vec::new());
    }
    let (ram, copy) = (folder.join("ram"), folder.join("copy"));
    let (root_text, ram_text) = (text(root), text(&ram));
    let roots = ["--json", "--allow-in-repo", "--cache-root", &root_text];
    let stage_arguments = [&["stage-ram", "--min-free", "0", "--ram-root", &ram_text][..], &roots[..]].concat();
    let stage = Call::new(&bench.pack, &stage_arguments);
    // The source's own receipt, so that staging reads it once.
    run(&stage)?;
    let validate = Call::new(&bench.pack, &[&["stage-validate", "--ram-root", &ram_text][..], &roots[..]].concat());
    let staged = ram.join(set.file_name().unwrap_or_default());
    let shell = |script: &str, arguments: &[&str]| Call::new("sh", &[&["-c", script, "sh"], arguments].concat());

    // Half a second each: more rounds, since the machine's other guests come and go in seconds.
    let mut readers = Group::new();
    readers.add("verify --deep", Call::new(&bench.pack, &[&["verify", "--deep"][..], &roots[..]].concat()));
    readers.add("stage-validate by BLAKE3", validate.clone());
    readers.add("stage-validate by both digests", validate);
    if let Some(b3sum) = &bench.b3sum {
        readers.add("b3sum", shell("exec \"$2\" \"$1\"/tensors/*.bin", &[&text(&staged), &text(b3sum)]));
    }
    readers.run(bench.rounds * 3, |name| {
        match name {
            // Other inodes' times, the same bytes: the receipt's BLAKE3 decides.
            "stage-validate by BLAKE3" => touch_files(&staged.join("tensors"))?,
            // Without its receipt the stage is proved by both digests, and gets one.
            "stage-validate by both digests" => {
                let receipt = staged.join("deep-validation.json");
                fs::remove_file(&receipt).at("remove", &receipt)?;
            }
            _ => {}
        }
        Ok(())
    })?;
    let mut group = Group::new();
    group.add(
        "sha256sum",
        shell("cat \"$1\"/tensors/*.bin >/dev/null; exec sha256sum \"$1\"/tensors/*.bin", &[&text(set)]),
    );
    group.add("stage-ram", stage);
    let sum = bench.b3sum.as_ref().map_or_else(|| "sha256sum".to_owned(), |path| text(path));
    let name = if bench.b3sum.is_some() { "cp and b3sum" } else { "cp and sha256sum" };
    group
        .add(name, shell("cp -r \"$1\" \"$2\" && exec \"$3\" \"$2\"/tensors/*.bin", &[&text(set), &text(&copy), &sum]));
    let bytes = folder_bytes(&set.join("tensors"));
    group.run(bench.rounds, |name| {
        match name {
            "stage-ram" => {
                empty(&staged)?;
                super::touch_memory(bytes * 2);
            }
            "cp and b3sum" | "cp and sha256sum" => {
                empty(&copy)?;
                super::touch_memory(bytes * 2);
            }
            _ => {}
        }
        Ok(())
    })?;
    empty(&copy)?;
    Ok([readers.json(), group.json()].concat())
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Sets the times of every payload to now.
fn touch_files(folder: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).at("list", folder)?.flatten() {
        let path = entry.path();
        let file = fs::File::open(&path).at("open", &path)?;
        file.set_modified(std::time::SystemTime::now()).at("touch", &path)?;
    }
    Ok(())
}

/// What reads no payload.
fn lookups(bench: &mut Bench, folder: &Path, root: &Path) -> Result<Vec<Value>, Failure> {
    let ram = folder.join("ram");
    if !ram.exists() {
        return Ok(Vec::new());
    }
    let (root_text, ram_text) = (text(root), text(&ram));
    let roots = ["--json", "--allow-in-repo", "--cache-root", &root_text, "--ram-root", &ram_text];
    let mut group = Group::new();
    let stage = [&["stage-ram", "--min-free", "0"][..], &roots[..]].concat();
    run(&Call::new(&bench.pack, &stage))?;
    group.add("stage-ram, found in place", Call::new(&bench.pack, &stage));
    group.add("stage-validate, in memory", Call::new(&bench.pack, &[&["stage-validate"][..], &roots[..]].concat()));
    match crate::setup::real_model() {
        Some(model) => {
            let call = Call::new(&bench.pack, &["inspect", "--json", "--model", &text(&model)]);
            run(&call)?;
            group.add("inspect of a real model", call);
        }
        None => bench.left_out.push("inspect of a real model: cargo xtask setup fetches it".to_owned()),
    }
    group.run(if bench.quick { 1 } else { 15 }, |_| Ok(()))?;
    Ok(group.json())
}

/// The full size, on a disk: with the model in the page cache.
pub(super) fn on_disk(bench: &mut Bench, folder: &Path) -> Result<Value, Failure> {
    if !bench.has_time_for("full size on the disk") {
        return Ok(Value::Null);
    }
    Bench::say("the model qwen27 on the disk");
    let model = synth::make("qwen27", &folder.join("model"))?;
    let data = vec![0xa5_u8; 1 << 30];
    let write = super::probe::write_rate(folder, &data, 2 << 30, 2)?;
    drop(data);
    let root = folder.join("cache");
    let mut ours = Group::new();
    ours.add("prepare", prepare(bench, &model, &root));
    ours.run(2, |_| {
        warm(&model.path)?;
        empty(&root)
    })?;
    let mut cases = ours.json();
    let mut rest = Group::new();
    let root_text = text(&root);
    let arguments = ["verify", "--deep", "--json", "--allow-in-repo", "--cache-root", &root_text];
    rest.add("verify --deep", Call::new(&bench.pack, &arguments));
    rest.run(1, |_| Ok(()))?;
    cases.extend(rest.json());
    let set = set_folder(ours.output("prepare"))?;
    if let Some(python) = bench.python.clone()
        && bench.has_time_for("numpy packer on the disk")
    {
        let peer = folder.join("numpy");
        let script = crate::process::workspace_root().join("xtask/bench/numpy_packer.py");
        // Room for the peer's set: ours has been measured, and its manifest is all that is compared.
        for entry in fs::read_dir(set.join("tensors")).at("list", &set)?.flatten() {
            let _ = fs::remove_file(entry.path());
        }
        let mut numpy = Group::new();
        numpy.add("numpy packer", Call::new(python, &[&text(&script), &text(&model.path), &text(&peer)]));
        numpy.run(1, |_| warm(&model.path))?;
        same_result(&set, numpy.output("numpy packer"))?;
        cases.extend(numpy.json());
    }
    Ok(json!({ "model": describe(&model, "qwen27"), "write": write, "cases": cases }))
}

/// Reads a file, so that it is in the page cache.
fn warm(path: &Path) -> Result<(), Failure> {
    let mut file = fs::File::open(path).at("open", path)?;
    std::io::copy(&mut file, &mut std::io::sink()).at("read", path).map(drop)
}
