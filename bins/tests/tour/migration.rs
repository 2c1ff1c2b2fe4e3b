//! `docs/migration.md`, run line by line in a folder as upstream's scripts leave it.
//!
//! The bytes of sets, fixtures and copies are made by the kit, as upstream's packer makes the same; every document beside
//! them is then written as upstream's Python writes it: keys sorted, two spaces, a newline, times as floats.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use b70_gguf::{GgmlType, GgufWriter};
use b70_manifest::{Sha256Hex, canonical_sha256};
use b70_testkit::{fixture, repository};
use serde_json::{Value, json};

/// `time.time()` of some day.
const TIME: f64 = 1_796_078_798.060_747_9;

/// The executables of the workspace stand beside this package's.
fn executable(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_b70-tour")).with_file_name(name);
    assert!(path.is_file(), "{} is missing: cargo build --workspace --bins", path.display());
    path
}

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(executable(words[0]));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("B70_") {
            command.env_remove(name);
        }
    }
    let state = folder.join("state");
    command.args(&words[1..]).current_dir(folder).stdin(Stdio::null()).env("NO_COLOR", "1");
    command.env("XDG_STATE_HOME", &state).env("XDG_CACHE_HOME", &state).env("B70_LEASE_ROOT", folder.join("leases"));
    command.output().expect("it starts")
}

fn json_of(folder: &Path, words: &[&str]) -> Value {
    let out = run(folder, words);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {out:?}"))
}

/// Writes a document as `json.dumps(indent=2, sort_keys=True)` and a newline.
fn write(path: &Path, mut document: Value) {
    document.sort_all_objects();
    let text = serde_json::to_string_pretty(&document).expect("a document can be written") + "\n";
    fs::create_dir_all(path.parent().expect("a folder above")).expect("the folder is made");
    fs::write(path, text).expect("the document is written");
}

fn read(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sha256(path: &Path) -> Sha256Hex {
    Sha256Hex::of(&fs::read(path).expect("a readable file"))
}

fn remove(document: &mut Value, keys: &[&str]) {
    let object = document.as_object_mut().expect("an object");
    for key in keys {
        object.remove(*key);
    }
}

/// Every file below a folder, with its bytes, inode and times.
fn snapshot(folder: &Path, prefix: &str) -> BTreeMap<String, (Vec<u8>, u64, i64, i64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().expect("a type").is_dir() {
            found.extend(snapshot(&entry.path(), &format!("{name}/")));
        } else {
            let stat = entry.metadata().expect("a status");
            found.insert(name, (fs::read(entry.path()).expect("bytes"), stat.ino(), stat.mtime(), stat.mtime_nsec()));
        }
    }
    found
}

struct Tree {
    folder: tempfile::TempDir,
    ram: tempfile::TempDir,
    set: PathBuf,
    pack_key: Sha256Hex,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ram = tempfile::Builder::new().prefix("b70-migration-").tempdir_in("/dev/shm").expect("a tmpfs");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("models")).expect("made");
        model(&at("models/target.gguf"), 1);
        model(&at("models/draft.gguf"), 2);
        let (target, draft) = (sha256(&at("models/target.gguf")), sha256(&at("models/draft.gguf")));
        documents(folder.path(), ram.path(), target, draft);
        let set = pack_set(folder.path(), target);
        cache_entry(ram.path(), &at("models/target.gguf"), target);
        let pack_key = registry(folder.path(), target);
        golden(folder.path(), target);
        server_record(folder.path());
        Self { folder, ram, set, pack_key }
    }
}

/// A model with two Q4_0 tensors.
fn model(path: &Path, seed: u64) {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama");
    for (name, shape) in [("blk.0.ffn_up.weight", [64_u64, 32]), ("blk.0.ffn_down.weight", [32, 64])] {
        let mut state = seed ^ shape[0];
        let bytes: Vec<u8> = (0..shape[0] * shape[1] / 32 * 18)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Below 0x78 in every byte, so that no fp16 scale is infinite or no number.
                (state >> 57) as u8 % 0x78
            })
            .collect();
        writer.tensor(name, GgmlType::Q4_0, &shape, bytes);
    }
    writer.write_file(path).expect("the model is written");
}

/// The three documents that people write, from the samples, with this tree's paths.
fn documents(folder: &Path, ram: &Path, target: Sha256Hex, draft: Sha256Hex) {
    let sample = |name: &str| read(&fixture("documents/lab").join(name));
    let (target, draft) = (json!(target), json!(draft));
    let mut pack = sample("model-pack-manifest.json");
    pack["source"]["path"] = json!(folder.join("models/target.gguf"));
    pack["source"]["sha256"] = target.clone();
    pack["draft_source"]["path"] = json!(folder.join("models/draft.gguf"));
    pack["draft_source"]["sha256"] = draft.clone();
    pack["pack"]["registry_root"] = json!(folder.join("iteration/packs"));
    pack["ram_cache"]["root"] = json!(ram);
    write(&folder.join("model-pack-manifest.json"), pack);

    let mut corpus = sample("golden-corpus-manifest.json");
    corpus["storage_root"] = json!(folder.join("iteration/golden"));
    corpus["source_identity"]["target_model_sha256"] = target.clone();
    corpus["source_identity"]["draft_model_sha256"] = draft.clone();
    corpus["implemented_artifacts"][0]["dimensions"] = json!({"k": 64, "n": 32, "m": [1, 4, 8, 16]});
    corpus["implemented_artifacts"][0]["manifest"] =
        json!(folder.join("iteration/golden/mmvq-q4_0-q8_1-v1/manifest.json"));
    write(&folder.join("golden-corpus-manifest.json"), corpus);

    let mut workers = sample("workers.json");
    workers["runtime_root"] = json!(folder.join("results"));
    workers["launcher"] = json!(folder.join("launcher.sh"));
    workers["binary"] = json!(folder.join("llama-server"));
    workers["target_model"] = json!(folder.join("models/target.gguf"));
    workers["target_model_sha256"] = target;
    workers["draft_model"] = json!(folder.join("models/draft.gguf"));
    workers["draft_model_sha256"] = draft;
    workers["common"]["ram_model_cache_root"] = json!(ram);
    for worker in workers["workers"].as_array_mut().expect("workers") {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        worker["port"] = json!(listener.local_addr().expect("an address").port());
    }
    write(&folder.join("workers.json"), workers);

    let plan = json!({
        "schema_version": 1, "name": "mini", "format_prefix": "mini-xe2",
        "layout": {"name": "q4_0-xe2-dpas-v2", "version": 2, "architecture": "bmg-g31"},
        "rules": [
            {"pattern": "blk.{layer}.ffn_up.weight", "layers": {"first": 0, "last": 0}, "shape": [64, 32], "slot_base": 0, "slot_stride": 2},
            {"pattern": "blk.{layer}.ffn_down.weight", "layers": {"first": 0, "last": 0}, "shape": [32, 64], "slot_base": 1, "slot_stride": 2},
        ],
    });
    write(&folder.join("plan.json"), plan);
    let script = |name: &str, text: &str| {
        fs::write(folder.join(name), text).expect("written");
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).expect("executable");
    };
    // What a launcher of upstream's does with the settings it is given.
    script(
        "launcher.sh",
        "#!/bin/bash\nset -eu\n\
         export ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR GGML_SYCL_ENABLE_GRAPH=\"${GGML_SYCL_ENABLE_GRAPH:-0}\"\n\
         echo \"sycl_graph_evidence=[SYCL-GRAPH] requested|compatibility_rejected\" >>\"$LOG\"\n\
         case \"$SPEC_TYPE\" in draft-mtp) spec=(--spec-type draft-mtp --spec-draft-n-max \"$MTP_N_MAX\" --spec-draft-n-min \"$MTP_N_MIN\" --spec-draft-p-min \"$MTP_P_MIN\");;\n\
         draft-simple) spec=(--model-draft \"$DRAFT_MODEL\" --spec-draft-n-max \"$SPEC_N_MAX\" --spec-draft-n-min \"$SPEC_N_MIN\" --spec-draft-p-min \"$SPEC_P_MIN\");; *) spec=();; esac\n\
         [ \"$ENABLE_MTP\" = 1 ] || true; cd \"$OUT_DIR\"; : \"$GPU_INDEX\"\n\
         exec \"$LLAMA_SERVER\" --host \"$HOST\" --port \"$PORT\" -m \"$MODEL\" -a \"$MODEL_ALIAS\" -c \"$CTX_SIZE\" -b \"$BATCH_SIZE\" -ub \"$UBATCH_SIZE\" \
         -np \"$N_PARALLEL\" -fa \"$FLASH_ATTN\" -ctk \"$CACHE_TYPE_K\" -ctv \"$CACHE_TYPE_V\" --ctx-checkpoints 0 \"${spec[@]}\" $EXTRA_LLAMA_ARGS >>\"$LOG\" 2>&1\n",
    );
    script("llama-server", "#!/bin/sh\necho 'no help here' >&2\nexit 1\n");
}

/// A ready set, its documents as upstream's packer writes them.
fn pack_set(folder: &Path, target: Sha256Hex) -> PathBuf {
    let words =
        ["b70-pack", "prepare", "--model", "models/target.gguf", "--plan", "plan.json", "--cache-root", "packs"];
    let made = json_of(folder, &[&words[..], &["--json"]].concat());
    let set = folder.join("packs").join(made["set_key"].as_str().unwrap_or_else(|| panic!("{made:#}")));
    let upstream = |mut entry: Value| {
        remove(&mut entry["payload"], &["blake3"]);
        remove(&mut entry, &["created_utc"]);
        entry["created_unix"] = json!(TIME);
        entry["pack_seconds"] = json!(0.003_753_688_999_999_999_7);
        entry
    };
    let mut manifest = read(&set.join("manifest.json"));
    for entry in manifest["tensors"].as_array_mut().expect("tensors") {
        *entry = upstream(entry.take());
        let key = entry["key"].as_str().expect("a key");
        write(&set.join("tensors").join(format!("{key}.json")), entry.clone());
    }
    remove(&mut manifest, &["plan", "created_utc"]);
    remove(&mut manifest["source_model"], &["vouched_by"]);
    manifest["created_unix"] = json!(TIME);
    manifest["tool"] = json!({"path": "/srv/lab/qwen27-xe2-m6-pack-cache.py", "revision": 2});
    manifest["loader_contract"]["required_validation"] =
        json!(["set-key", "tensor-key", "payload-size", "payload-sha256"]);
    write(&set.join("manifest.json"), manifest.clone());
    let table: Vec<Value> = manifest["tensors"]
        .as_array()
        .expect("tensors")
        .iter()
        .map(|entry| {
            let payload = &entry["payload"];
            json!({"key": entry["key"], "path": payload["path"], "size_bytes": payload["size_bytes"], "sha256": payload["sha256"]})
        })
        .collect();
    let _ = fs::remove_file(set.join("SHA256SUMS"));
    // What the kit keeps beside sets, and upstream does not.
    for name in [".locks", ".receipts"] {
        let _ = fs::remove_dir_all(folder.join("packs").join(name));
    }
    let text = fs::read(set.join("manifest.json")).expect("written before");
    write(
        &set.join("deep-validation.json"),
        json!({
            "schema_version": 1, "format": "mini-xe2-deep-validation-v1", "status": "trusted", "set_key": made["set_key"],
            "manifest_sha256": Sha256Hex::of(&text), "manifest_size_bytes": text.len(),
            "payload_table_sha256": canonical_sha256(&table).expect("no floats"), "payload_stat_table_sha256": target,
            "validated_bytes": manifest["payload_size_bytes"], "deep_validation_seconds": 1.5, "created_unix": TIME,
            "trust_boundary": "local immutable artifact; invalidate when manifest identity changes",
        }),
    );
    set
}

/// A copy in a tmpfs, without a receipt.
fn cache_entry(ram: &Path, source: &Path, key: Sha256Hex) {
    let entry = ram.join(key.to_string());
    fs::create_dir(&entry).expect("made");
    let copy = entry.join("target.gguf");
    let size = fs::copy(source, &copy).expect("copied");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o444)).expect("made read-only");
    let stat = fs::metadata(&copy).expect("a status");
    let file = |path: &Path| json!({"path": path, "sha256": key, "size_bytes": size});
    write(
        &entry.join("cache-entry.json"),
        json!({
            "schema_version": 1, "format": "byte-identical-gguf-ram-cache", "evidence_class": "development-initialization-only",
            "promotion_eligible": false, "role": "target", "source": file(source), "cached": file(&copy),
            "created_unix": TIME, "copy_seconds": 0.003_753_688_999_999_999_7, "copy_mib_per_second": 1117.4,
            "packing_tool": {"path": "tools/packer", "revision": 1},
            "runtime": {"commit": "absent", "dirty": "absent", "dirty_patch_sha256": "absent"},
            "driver": {"kernel": "6.18.0", "packages": {}}, "target_architecture": "bmg-g31",
            "kernel_abi": "gguf-byte-stream-v1", "layout": "original-gguf-no-offline-reorder",
            "admission": {
                "sha256": key, "size_bytes": size, "mtime_ns": stat.mtime() * 1_000_000_000 + stat.mtime_nsec(),
                "ctime_ns": stat.ctime() * 1_000_000_000 + stat.ctime_nsec(), "verified_unix": TIME,
            },
        }),
    );
}

/// A registered artifact of two files.
fn registry(folder: &Path, model: Sha256Hex) -> Sha256Hex {
    let artifact = folder.join("elsewhere");
    let mut whole = Vec::new();
    let files: Vec<Value> = [("index.json", &b"{}"[..]), ("weights.bin", b"bytes of another packer")]
        .into_iter()
        .map(|(name, bytes)| {
            fs::create_dir_all(&artifact).expect("made");
            fs::write(artifact.join(name), bytes).expect("written");
            let digest = Sha256Hex::of(bytes);
            whole.extend_from_slice(name.as_bytes());
            whole.push(0);
            whole.extend_from_slice(digest.as_bytes());
            json!({"path": name, "sha256": digest, "size_bytes": bytes.len()})
        })
        .collect();
    let digest = Sha256Hex::of(&whole);
    let key = Sha256Hex::of(format!("{model}\0r1\0l\0{digest}").as_bytes());
    write(
        &folder.join(format!("iteration/packs/{key}/manifest.json")),
        json!({
            "schema_version": 1, "format": "qwen27-b70-offline-pack-registry-v1", "status": "admitted",
            "evidence_class": "development-iteration-only", "promotion_eligible": false, "key": key,
            "source_model_sha256": model, "packer_revision": "r1", "layout": "l", "kernel_abi": "k",
            "artifact": {"path": artifact, "sha256": digest, "size_bytes": 25, "files": files},
            "build_fingerprint_sha256": model, "created_unix": TIME,
            "binding_status": "external-artifact-registered-loader-binding-required",
        }),
    );
    key
}

/// Fixtures, their manifest as upstream's generator writes it.
fn golden(folder: &Path, model: Sha256Hex) {
    let words = ["b70-golden", "prepare", "--k", "64", "--n", "32", "--artifact-root", "iteration"];
    let out = run(folder, &words);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    // The kit keeps sets directly below its root, upstream in a folder of their own.
    let made = ["iteration/golden/mmvq-q4_0-q8_1-v1", "iteration/mmvq-q4_0-q8_1-v1"].map(|name| folder.join(name));
    if made[1].exists() {
        fs::create_dir_all(made[0].parent().expect("above")).expect("made");
        fs::rename(&made[1], &made[0]).expect("moved");
    }
    let set = &made[0];
    let _ = fs::remove_file(set.join("b70_golden.h"));
    let tensor = |name: &str, dtype: &str, shape: [u64; 2]| {
        let path = set.join(name);
        let size = fs::metadata(&path).expect("made before").len();
        json!({"path": name, "dtype": dtype, "shape": shape, "size_bytes": size, "sha256": sha256(&path)})
    };
    let mut tensors = vec![tensor("weights.q4_0.bin", "q4_0", [32, 64])];
    let mut cases = Vec::new();
    for width in [1, 4, 8, 16] {
        let names = [format!("input-m{width}.q8_1.bin"), format!("expected-m{width}.f32.bin")];
        tensors.push(tensor(&names[0], "q8_1", [width, 64]));
        tensors.push(tensor(&names[1], "f32", [width, 32]));
        cases.push(json!({"width": width, "tensors": names}));
    }
    write(
        &set.join("manifest.json"),
        json!({
            "schema_version": 1, "format": "qwen27-mmvp-q4_0-q8_1-golden-v1", "status": "ready",
            "evidence_class": "synthetic-kernel-contract-diagnostic-only", "promotion_eligible": false, "created_unix": TIME,
            "seed": 270_036, "k": 64, "n": 32, "required_widths": [1, 4, 8, 16], "cases": cases, "tensors": tensors,
            "generator": {"path": "/srv/lab/qwen27-iteration-artifacts.py", "revision": 1},
            "note": "Representative deterministic packed tensors; not captured model activations.",
            "source_model_sha256": model, "build_fingerprint_sha256": model,
        }),
    );
}

/// The record of a server whose process is gone.
fn server_record(folder: &Path) {
    let worker = folder.join("results/workers/gpu0-baseline");
    let mut record = read(&fixture("documents/lab/workers.json"));
    let profile = record["profiles"]["mtp3-control"].take();
    let mut child = Command::new("/bin/true").spawn().expect("it starts");
    child.wait().expect("it ends");
    write(
        &worker.join("resolved-identity.json"),
        json!({
            "evidence_class": "development-screen-only", "promotion_eligible": false, "started_unix": TIME,
            "resolved": {"command": [folder.join("launcher.sh")], "environment": {"PORT": "19720"}, "profile": profile},
            "worker": {"name": "gpu0-baseline", "gpu": 0, "port": 19720, "role": "immutable-baseline", "profile": "mtp3-control"},
        }),
    );
    fs::write(worker.join("server.pid"), format!("{}\n", child.id())).expect("written");
    fs::write(worker.join("server.log"), "sycl_graph_evidence=[SYCL-GRAPH] requested|compatibility_rejected\n")
        .expect("written");
}

/// The commands of the page's `sh` blocks, each with the exit code it names.
fn commands(page: &str) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            inside = fence == "sh";
        } else if inside {
            let (command, comment) = line.split_once('#').unwrap_or((line, ""));
            let code = comment.trim().strip_prefix("exit ").map_or(0, |code| code.parse().expect("a number"));
            found.push((command.trim().to_owned(), code));
        }
    }
    found
}

#[test]
fn the_page_is_true_line_by_line() {
    let page = fs::read_to_string(repository("docs/migration.md")).expect("the page");
    let tree = Tree::new();
    let before = snapshot(tree.folder.path(), "");
    let ram_before = snapshot(tree.ram.path(), "");
    let commands = commands(&page);
    assert!(commands.len() >= 18, "{} commands", commands.len());
    for (command, code) in &commands {
        let command = command.replace("PACK_KEY", &tree.pack_key.to_string());
        let command = command.replace("RAM", &tree.ram.path().to_string_lossy());
        let words: Vec<&str> = command.split_whitespace().collect();
        let set_before = words.contains(&"prepare").then(|| snapshot(&tree.set, ""));
        let out = run(tree.folder.path(), &words);
        assert_eq!(out.status.code(), Some(*code), "{command}\n{}\n{}", text(&out.stdout), text(&out.stderr));
        if let Some(before) = set_before {
            assert!(snapshot(&tree.set, "") == before, "{command} left the set as it was");
        }
    }
    // Nothing that upstream wrote was changed by any of them; receipts and the kit's own state are new files.
    let after = snapshot(tree.folder.path(), "");
    for (name, was) in &before {
        assert!(after.get(name) == Some(was), "{name} was changed");
    }
    for name in after.keys().filter(|name| !before.contains_key(*name)) {
        let known = ["state/", "leases/"].iter().any(|folder| name.starts_with(folder))
            || name.contains("deep-validation")
            || [".lock", "/.receipts/"].iter().any(|part| name.contains(part))
            || name.contains("/.b70-");
        assert!(known, "{name} is new");
    }
    let ram_after = snapshot(tree.ram.path(), "");
    for (name, was) in ram_before.iter().filter(|(name, _)| !name.ends_with("cache-entry.json")) {
        assert!(ram_after.get(name) == Some(was), "{name} was changed");
    }
}

#[test]
fn the_tests_that_the_page_names_exist() {
    fn names(folder: &Path, found: &mut std::collections::BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "target" {
                names(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let tests = text.split("#[test]\n").skip(1);
                let name = |test: &str| Some(test.split_once("fn ")?.1.split_once('(')?.0.to_owned());
                found.extend(tests.filter_map(name));
            }
        }
    }
    let mut known = std::collections::BTreeSet::new();
    for folder in ["crates", "bins"] {
        names(&repository(folder), &mut known);
    }
    let page = fs::read_to_string(repository("docs/migration.md")).expect("the page");
    let named: Vec<&str> = page
        .split("<!-- test: ")
        .skip(1)
        .filter_map(|rest| rest.split_once(" -->"))
        .flat_map(|(names, _)| names.split(", "))
        .collect();
    assert!(named.len() >= 14, "{named:?}");
    for name in named {
        assert!(known.contains(name), "no test is called {name}");
    }
    // Each bullet of the last two sections is shown by a test.
    let last = page.split_once("## Servers that the scripts started").expect("the section").1;
    for bullet in last.split("\n- ").skip(1) {
        assert!(bullet.contains("<!-- test: "), "no test is named: {bullet}");
    }
}

#[test]
fn what_is_there_is_used() {
    let tree = Tree::new();
    let json = |words: &[&str]| json_of(tree.folder.path(), &[words, &["--json"]].concat());
    let listed = json(&["b70-pack", "list", "--cache-root", "packs"]);
    assert_eq!(listed["sets"][0]["status"], "ready", "{listed:#}");
    assert_eq!(listed["sets"][0]["created_unix"].to_string(), "1796078798.0607479");
    let spec = ["--spec", "model-pack-manifest.json"];
    let prepare = ["b70-pack", "prepare", "--cache-root", "packs", "--plan", "plan.json"];
    let prepared = json(&[&prepare[..], &spec].concat());
    assert_eq!((&prepared["packed"], &prepared["reused"]), (&json!(0), &json!(2)), "{prepared:#}");
    let status = json(&["b70-worker", "status"]);
    assert_eq!(
        (&status["workers"][0]["pid_state"], &status["workers"][0]["record"]),
        (&json!("absent"), &json!("upstream"))
    );
    let verified = json(&[&["b70-cache", "verify", "--role", "target"], &spec[..]].concat());
    assert_eq!(verified["entries"][0]["valid"], true, "{verified:#}");
    let path = run(tree.folder.path(), &[&["b70-cache", "path", "--role", "target"], &spec[..]].concat());
    assert!(text(&path.stdout).trim().starts_with(&*tree.ram.path().to_string_lossy()), "{path:?}");
    let golden = json(&["b70-golden", "verify", "--corpus", "golden-corpus-manifest.json"]);
    assert_eq!(golden["status"], "valid", "{golden:#}");
}

#[test]
fn a_damaged_set_of_upstreams_is_kept_unless_forced() {
    let tree = Tree::new();
    let manifest = tree.set.join("manifest.json");
    let payload = fs::read_dir(tree.set.join("tensors"))
        .expect("payloads")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|end| end == "bin"))
        .expect("a payload");
    let mut bytes = fs::read(&payload).expect("bytes");
    bytes[7] ^= 1;
    fs::set_permissions(&payload, fs::Permissions::from_mode(0o644)).expect("writable");
    fs::write(&payload, &bytes).expect("damaged");
    let before = snapshot(&tree.set, "");
    let words = [
        "b70-pack",
        "prepare",
        "--json",
        "--cache-root",
        "packs",
        "--plan",
        "plan.json",
        "--model",
        "models/target.gguf",
    ];
    let refused = json_of(tree.folder.path(), &words);
    assert!(refused["error"]["hint"].as_str().is_some_and(|hint| hint.contains("--force")), "{refused:#}");
    assert!(snapshot(&tree.set, "") == before, "a refused set is left alone");
    let forced = json_of(tree.folder.path(), &[&words[..], &["--force"]].concat());
    assert_eq!((&forced["packed"], &forced["reused"]), (&json!(1), &json!(1)), "{forced:#}");
    assert_eq!(read(&manifest)["status"], "ready");
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
