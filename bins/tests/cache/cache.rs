//! The real executable on real files: what it does, what it refuses, what it leaves behind.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use b70_gguf::{GgmlType, GgufWriter};
use b70_store::Sha256;
use b70_testkit::{conforms, fixture, memory};
use serde_json::Value;

struct Bench {
    dir: tempfile::TempDir,
    ram: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a scratch folder"), ram: memory() }
    }

    /// A small real GGUF whose bytes depend on `seed`.
    fn model(&self, name: &str, seed: u8) -> PathBuf {
        let path = self.dir.path().join(name);
        let data: Vec<u8> = (0..300_000_u32).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", "test");
        writer.tensor("weight", GgmlType::F32, &[1000, 75], data);
        writer.write_file(&path).expect("a GGUF");
        path
    }

    fn root(&self) -> PathBuf {
        self.ram.path().join("models")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-cache"));
        command.args(arguments).arg("--cache-root").arg(self.root()).arg("--json").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, document) = finish(self.command(arguments).output().expect("the executable runs"));
        let schema = match arguments[0] {
            _ if document.get("error").is_some() => "error",
            "status" | "verify" => "cache-status",
            "prepare" => "cache-prepare",
            "warm" => "cache-warm",
            "path" => "cache-path",
            "drop" => "cache-drop",
            other => panic!("no schema is known for {other}"),
        };
        conforms(schema, &document);
        (code, document)
    }

    /// Everything below the cache's folder but lock files.
    fn left(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![self.root()];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_name() == ".locks" {
                    continue;
                }
                if entry.path().is_dir() {
                    pending.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found
    }
}

fn finish(output: Output) -> (i32, Value) {
    let code = output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"));
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"));
    (code, document)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 scratch path")
}

fn digest(path: &Path) -> Sha256 {
    Sha256::of(&std::fs::read(path).expect("readable"))
}

#[test]
fn the_whole_life_of_an_entry() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 1);
    let sha256 = digest(&model).to_string();
    let select = ["--model", text(&model), "--sha256", &sha256];
    let with = |command: &'static str| -> Vec<&str> { std::iter::once(command).chain(select).collect() };

    let (code, error) = bench.run(&with("path"));
    assert_eq!((code, error["error"]["kind"].as_str()), (1, Some("not-found")), "{error}");

    let (code, prepared) = bench.run(&with("prepare"));
    assert_eq!(code, 0, "{prepared}");
    let entry = &prepared["entries"][0];
    assert_eq!(entry["action"], "copied");
    assert_eq!(entry["vouched"], true);
    assert_eq!(prepared["evidence_class"], "development-initialization-only");
    assert_eq!(prepared["promotion_eligible"], false);
    assert!(entry["staging"]["verdict"].is_string(), "what the copy buys is told: {entry}");

    let copy = bench.root().join(&sha256).join("m.gguf");
    assert_eq!(entry["path"], text(&copy));
    assert_eq!(std::fs::read(&copy).expect("the copy"), std::fs::read(&model).expect("the source"));
    assert_eq!(copy.metadata().expect("there").permissions().mode() & 0o7777, 0o444);
    let document: Value =
        serde_json::from_slice(&std::fs::read(copy.with_file_name("cache-entry.json")).expect("the entry"))
            .expect("JSON");
    let mut fields: Vec<&str> = document.as_object().expect("an object").keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "admission",
            "cached",
            "copy_mib_per_second",
            "copy_seconds",
            "created_unix",
            "driver",
            "evidence_class",
            "format",
            "kernel_abi",
            "layout",
            "packing_tool",
            "promotion_eligible",
            "role",
            "runtime",
            "schema_version",
            "source",
            "target_architecture",
        ]
    );
    assert_eq!(document["runtime"]["commit"], "unknown", "nobody looked for one");
    assert_eq!(
        document["packing_tool"],
        serde_json::json!({"path": "b70-cache", "revision": env!("CARGO_PKG_VERSION")})
    );

    let (code, again) = bench.run(&with("prepare"));
    assert_eq!(
        (code, &again["entries"][0]["action"], &again["entries"][0]["trust"]),
        (0, &"reused".into(), &"blake3".into())
    );

    let (code, status) = bench.run(&with("status"));
    let entry = &status["entries"][0];
    assert_eq!((code, &entry["valid"], &entry["trust"]), (0, &true.into(), &"blake3".into()), "{status}");
    assert!(entry["metadata"]["format"] == "byte-identical-gguf-ram-cache" && entry["reason"].is_string());

    let plain = Command::new(env!("CARGO_BIN_EXE_b70-cache"))
        .args(with("path"))
        .arg("--cache-root")
        .arg(bench.root())
        .output()
        .expect("the executable runs");
    assert_eq!(String::from_utf8_lossy(&plain.stdout), format!("{}\n", copy.display()), "the path alone");

    let (code, warmed) = bench.run(&with("warm"));
    let entry = &warmed["entries"][0];
    assert_eq!((code, &entry["resident_bytes"]), (0, &entry["size_bytes"]), "{warmed}");

    let (code, verified) = bench.run(&with("verify"));
    assert_eq!((code, &verified["entries"][0]["trust"]), (0, &"sha256".into()), "{verified}");

    let (code, plan) = bench.run(&with("drop"));
    assert_eq!((code, &plan["executed"], &plan["plan"][0]["allowed"]), (0, &false.into(), &true.into()), "{plan}");
    assert!(copy.exists(), "a dry run removes nothing");
    let (code, plan) = bench.run(&[&with("drop")[..], &["--execute"]].concat());
    assert_eq!((code, &plan["executed"]), (0, &true.into()), "{plan}");
    assert_eq!(bench.left(), Vec::<PathBuf>::new());
}

#[test]
fn a_wrong_hash_and_too_little_space_leave_nothing() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 2);
    let wrong = "0".repeat(64);
    let (code, error) = bench.run(&["prepare", "--model", text(&model), "--sha256", &wrong]);
    assert_eq!((code, error["error"]["kind"].as_str()), (1, Some("sha256")), "{error}");
    assert_eq!(error["error"]["found"], digest(&model).to_string());
    assert_eq!(bench.left(), Vec::<PathBuf>::new());

    let (code, error) = bench.run(&["prepare", "--model", text(&model), "--min-free", &(u64::MAX / 2).to_string()]);
    assert_eq!((code, error["error"]["kind"].as_str()), (1, Some("headroom")), "{error}");
    assert_eq!(bench.left(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_no_whole_gguf_is_refused() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 3);
    let whole = std::fs::read(&model).expect("readable");
    std::fs::write(&model, &whole[..whole.len() - 4096]).expect("cut");
    let (code, error) = bench.run(&["prepare", "--model", text(&model)]);
    assert_eq!((code, error["error"]["kind"].as_str()), (2, Some("gguf")), "{error}");
    std::fs::write(&model, b"").expect("emptied");
    let (code, error) = bench.run(&["prepare", "--model", text(&model)]);
    assert_ne!(code, 0, "{error}");
    assert!(!bench.root().exists(), "nothing was made");
}

/// Opens the way around mode 0444 that root and owners have.
fn tamper(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("readable");
    change(&mut bytes);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    std::fs::write(path, bytes).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o444)).expect("chmod");
}

#[test]
fn damage_is_seen_named_and_repaired() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 4);
    let sha256 = digest(&model).to_string();
    let select = ["--model", text(&model), "--sha256", &sha256];
    let with = |command: &'static str| -> Vec<&str> { std::iter::once(command).chain(select).collect() };
    assert_eq!(bench.run(&with("prepare")).0, 0);
    let copy = bench.root().join(&sha256).join("m.gguf");

    let old = copy.metadata().expect("there").modified().expect("a time");
    tamper(&copy, |bytes| bytes[1000] ^= 1);
    let file = std::fs::File::options().append(true).open(&copy);
    // Root may open it; an ordinary owner would chmod first, which shows as well.
    if let Ok(file) = file {
        file.set_modified(old).expect("the time is put back");
    }
    let (code, status) = bench.run(&with("status"));
    assert_eq!((code, &status["entries"][0]["valid"]), (1, &false.into()), "{status}");
    assert_eq!(bench.run(&with("path")).0, 1);
    assert_eq!(bench.run(&with("warm")).0, 1, "what is not admitted is not warmed");
    let (code, verified) = bench.run(&with("verify"));
    assert_eq!((code, &verified["entries"][0]["valid"]), (1, &false.into()), "{verified}");
    let reason = verified["entries"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("m.gguf") && reason.contains("SHA-256"), "{reason}");

    let (code, prepared) = bench.run(&with("prepare"));
    let entry = &prepared["entries"][0];
    assert_eq!((code, &entry["action"]), (0, &"repaired".into()), "{prepared}");
    assert!(entry["damage"].is_string());
    assert_eq!(digest(&copy).to_string(), sha256);

    // The document, the receipt, and the whole file.
    std::fs::write(copy.with_file_name("cache-entry.json"), b"{").expect("written");
    assert_eq!(bench.run(&with("prepare")).1["entries"][0]["action"], "repaired");
    std::fs::remove_file(copy.with_file_name("admission-receipt.json")).expect("removed");
    let (code, prepared) = bench.run(&with("prepare"));
    assert_eq!((code, &prepared["entries"][0]["action"]), (0, &"reused".into()), "read again, found good: {prepared}");
    assert_eq!(bench.run(&with("status")).0, 0, "and its receipt is back");
    std::fs::remove_file(&copy).expect("removed");
    assert_eq!(bench.run(&with("status")).0, 1);
    assert_eq!(bench.run(&with("prepare")).1["entries"][0]["action"], "repaired");
    let (code, redone) = bench.run(&[&with("prepare")[..], &["--force"]].concat());
    assert_eq!((code, &redone["entries"][0]["action"]), (0, &"redone".into()), "{redone}");
}

#[test]
fn without_a_hash_nothing_vouches_and_it_says_so() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 5);
    let (code, prepared) = bench.run(&["prepare", "--model", text(&model)]);
    let entry = &prepared["entries"][0];
    assert_eq!((code, &entry["vouched"], &entry["action"]), (0, &false.into(), &"copied".into()), "{prepared}");
    let (_, again) = bench.run(&["prepare", "--model", text(&model)]);
    assert_eq!((&again["entries"][0]["action"], &again["entries"][0]["vouched"]), (&"reused".into(), &false.into()));
    let (code, status) = bench.run(&["status", "--model", text(&model)]);
    assert_eq!((code, &status["entries"][0]["vouched"]), (0, &false.into()), "{status}");
    let sha256 = digest(&model).to_string();
    let (_, vouched) = bench.run(&["prepare", "--model", text(&model), "--sha256", &sha256]);
    assert_eq!((&vouched["entries"][0]["action"], &vouched["entries"][0]["vouched"]), (&"reused".into(), &true.into()));
    let (_, status) = bench.run(&["status"]);
    assert_eq!(status["entries"][0]["vouched"], true, "{status}");

    // Another model under the same name is another model.
    std::fs::remove_file(&model).expect("removed");
    bench.model("m.gguf", 6);
    let (_, other) = bench.run(&["prepare", "--model", text(&model)]);
    assert_eq!(other["entries"][0]["action"], "copied");
    assert_ne!(other["entries"][0]["key"], prepared["entries"][0]["key"]);
}

#[test]
fn a_split_model_is_one_entry() {
    let bench = Bench::new();
    let data = |seed: u8| (0..40_000_u32).map(|i| (i as u8) ^ seed).collect::<Vec<u8>>();
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "test");
    for i in 0..3_u8 {
        writer.tensor(format!("t{i}"), GgmlType::F32, &[10_000], data(i));
    }
    let shards = writer.write_split(bench.dir.path(), "m", 1).expect("a split model");
    assert_eq!(shards.len(), 3);
    let (code, prepared) = bench.run(&["prepare", "--model", text(&shards[1])]);
    assert_eq!(code, 0, "{prepared}");
    let key = prepared["entries"][0]["key"].as_str().expect("a key").to_owned();
    for shard in &shards {
        let copy = bench.root().join(&key).join(shard.file_name().expect("a name"));
        assert_eq!(digest(&copy), digest(shard));
    }
    let (code, status) = bench.run(&["status", "--model", text(&shards[0]), "--sha256", &key]);
    assert_eq!((code, status["entries"][0]["files"].as_array().map(Vec::len)), (0, Some(3)), "{status}");
    let third = bench.root().join(&key).join(shards[2].file_name().expect("a name"));
    tamper(&third, |bytes| *bytes.last_mut().expect("bytes") ^= 1);
    assert_eq!(bench.run(&["status"]).0, 1, "damage in the last shard counts");
    std::fs::remove_file(&shards[1]).expect("removed");
    let (code, error) = bench.run(&["prepare", "--model", text(&shards[0])]);
    assert_eq!((code, error["error"]["kind"].as_str()), (2, Some("split-model")), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|m| m.contains("00002-of-00003")), "{error}");
}

#[test]
fn a_mapped_copy_is_not_dropped_and_its_user_is_named() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 7);
    let (_, prepared) = bench.run(&["prepare", "--model", text(&model)]);
    let copy = PathBuf::from(prepared["entries"][0]["path"].as_str().expect("a path"));
    // A process that maps the file and closes it, as llama.cpp does.
    let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDONLY)\nm=mmap.mmap(f,0,prot=mmap.PROT_READ)\n\
                  os.close(f)\nprint('ready',flush=True)\nsys.stdin.read()\n";
    let mut user = Command::new("python3")
        .args(["-c", script, text(&copy)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs python3");
    let mut line = String::new();
    let stdout = user.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("readable");
    assert_eq!(line, "ready\n");
    for arguments in [&["drop"][..], &["drop", "--execute"]] {
        let (code, plan) = bench.run(arguments);
        assert_eq!((code, &plan["executed"]), (1, &false.into()), "{plan}");
        assert_eq!(plan["plan"][0]["users"][0]["pid"], user.id(), "{plan}");
        assert!(copy.exists());
    }
    drop(user.stdin.take());
    assert!(user.wait().expect("it ends").success());
    assert_eq!(bench.run(&["drop", "--execute"]).0, 0);
    assert!(!copy.exists());
}

#[test]
fn four_prepares_at_once_make_one_copy() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 8);
    let sha256 = digest(&model).to_string();
    let children: Vec<_> = (0..4)
        .map(|_| {
            bench
                .command(&["prepare", "--model", text(&model), "--sha256", &sha256])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the executable runs")
        })
        .collect();
    let mut actions: Vec<String> = children
        .into_iter()
        .map(|child| {
            let (code, document) = finish(child.wait_with_output().expect("it ends"));
            assert_eq!(code, 0, "{document}");
            document["entries"][0]["action"].as_str().expect("an action").to_owned()
        })
        .collect();
    actions.sort();
    assert_eq!(actions, ["copied", "reused", "reused", "reused"]);
    assert_eq!(bench.run(&["status"]).0, 0);
}

#[test]
fn killed_at_every_step_nothing_half_made_is_admitted() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 9);
    let sha256 = digest(&model).to_string();
    let arguments = ["prepare", "--model", text(&model), "--sha256", &sha256, "--no-measure"];
    let count = bench.dir.path().join("steps");
    let status = bench
        .command(&arguments)
        .env("B70_FAULT_COUNT_FILE", &count)
        .stdout(Stdio::null())
        .status()
        .expect("the executable runs");
    assert!(status.success());
    let steps: u64 = std::fs::read_to_string(&count).expect("counted").parse().expect("a number");
    assert!(steps > 10, "{steps} steps");
    let mut admitted = 0;
    for step in 1..=steps {
        std::fs::remove_dir_all(bench.root()).expect("removed");
        let killed = bench
            .command(&arguments)
            .env("B70_FAULT_STEP", step.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("the executable runs");
        assert_eq!(killed.signal(), Some(9), "step {step}");
        let (_, status) = bench.run(&["status"]);
        for entry in status["entries"].as_array().into_iter().flatten() {
            let path = entry["path"].as_str();
            assert!(path.is_none_or(|path| digest(Path::new(path)).to_string() == sha256), "step {step}: {entry}");
            admitted += u64::from(path.is_some());
        }
        let (code, prepared) = bench.run(&arguments);
        assert_eq!(code, 0, "step {step}: {prepared}");
        assert_eq!(bench.run(&["status"]).0, 0, "step {step}");
        let left = bench.left();
        assert_eq!(left.len(), 4, "step {step}: folder, model, document and receipt alone: {left:?}");
    }
    println!("{steps} steps, {admitted} of them after the name was given, 0 partial entries admitted");
}

#[test]
fn the_labs_entry_is_read_and_admitted_after_one_verify() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 10);
    let sha256 = digest(&model).to_string();
    let folder = bench.root().join(&sha256);
    std::fs::create_dir_all(&folder).expect("created");
    let copy = folder.join("m.gguf");
    std::fs::copy(&model, &copy).expect("copied");
    let meta = copy.metadata().expect("there");
    let (size, mtime, ctime) = {
        use std::os::unix::fs::MetadataExt as _;
        let ns = |s: i64, n: i64| s * 1_000_000_000 + n;
        (meta.len(), ns(meta.mtime(), meta.mtime_nsec()), ns(meta.ctime(), meta.ctime_nsec()))
    };
    let entry = serde_json::json!({
        "schema_version": 1, "format": "byte-identical-gguf-ram-cache",
        "evidence_class": "development-initialization-only", "promotion_eligible": false, "role": "target",
        "source": {"path": text(&model), "sha256": sha256, "size_bytes": size},
        "cached": {"path": text(&copy), "sha256": sha256, "size_bytes": size},
        "created_unix": 1_783_870_000_u64, "copy_seconds": 13.683, "copy_mib_per_second": 1117.4,
        "packing_tool": {"path": "tools/packer", "revision": 1},
        "runtime": {"commit": "a".repeat(40), "dirty": false, "dirty_patch_sha256": "absent"},
        "driver": {"kernel": "6.18.0", "packages": {"intel-opencl-icd": "26.09"}},
        "target_architecture": "bmg-g31", "kernel_abi": "gguf-byte-stream-v1",
        "layout": "original-gguf-no-offline-reorder",
        "admission": {"sha256": sha256, "size_bytes": size, "mtime_ns": mtime, "ctime_ns": ctime,
                      "verified_unix": 1_783_870_000_u64},
        "a_field_of_theirs": 7
    });
    std::fs::write(folder.join("cache-entry.json"), entry.to_string()).expect("written");
    let (code, status) = bench.run(&["status"]);
    assert_eq!((code, &status["entries"][0]["role"]), (1, &"target".into()), "no receipt, no trust: {status}");
    let (code, verified) = bench.run(&["verify"]);
    assert_eq!(code, 0, "{verified}");
    assert_eq!(verified["entries"][0]["metadata"]["a_field_of_theirs"], 7, "what others wrote is kept");
    assert_eq!(bench.run(&["status"]).0, 0);
}

#[test]
fn usage_errors_are_json_and_exit_2() {
    let bench = Bench::new();
    for arguments in [&["prepare"][..], &["warm"], &["path"], &["prepare", "--sha256", "00"], &["nonsense"]] {
        let (code, error) = bench.run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error["error"]["message"].is_string(), "{error}");
    }
    let (code, error) = bench.run(&["prepare", "--model", "/nowhere/m.gguf"]);
    assert_eq!((code, error["error"]["kind"].as_str()), (2, Some("missing")), "{error}");
}

#[test]
#[ignore = "needs root and mounts: cargo xtask test --all"]
fn a_small_tmpfs_is_refused_before_a_byte_is_written() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 11);
    let mount = bench.dir.path().join("small");
    std::fs::create_dir(&mount).expect("created");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=400k", "tmpfs", text(&mount)])
        .status()
        .expect("this test needs mount(8)");
    assert!(mounted.success(), "this test needs root: run it as root");
    let run = |free: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_b70-cache"))
            .args(["prepare", "--json", "--model", text(&model), "--min-free", free, "--cache-root", text(&mount)])
            .output()
            .expect("the executable runs");
        finish(output)
    };
    let refused = run("200000");
    let left = std::fs::read_dir(&mount).expect("readable").flatten().filter(|e| e.file_name() != ".locks").count();
    let fits = run("0");
    let unmounted = Command::new("umount").arg(&mount).status().expect("umount(8)");
    assert_eq!((refused.0, refused.1["error"]["kind"].as_str()), (1, Some("headroom")), "{}", refused.1);
    assert_eq!(left, 0, "nothing was written");
    assert_eq!(fits.0, 0, "{}", fits.1);
    assert!(unmounted.success());
}

/// A shard of a split model whose tensors are of a type that this kit does not know.
fn shard(number: u64, count: u64, type_id: u32, dimensions: u32) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes(), &3_u64.to_le_bytes()].concat();
    for (key, kind, value) in [("split.no", 2_u32, number), ("split.count", 2, count)] {
        bytes.extend([text(key), kind.to_le_bytes().to_vec(), (value as u16).to_le_bytes().to_vec()].concat());
    }
    bytes.extend(
        [text("split.tensors.count"), 5_u32.to_le_bytes().to_vec(), (count as i32).to_le_bytes().to_vec()].concat(),
    );
    bytes.extend([text(&format!("blk.{number}.w")), dimensions.to_le_bytes().to_vec()].concat());
    bytes.extend((0..dimensions).flat_map(|axis| if axis < 2 { 32_u64 } else { 1 }.to_le_bytes()));
    bytes.extend([&type_id.to_le_bytes()[..], &0_u64.to_le_bytes()].concat());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend((0..576).map(|i| (i + number) as u8));
    bytes
}

#[test]
fn any_shard_and_any_path_to_it_finds_the_entry() {
    let bench = Bench::new();
    let (blobs, snap) = (bench.dir.path().join("blobs"), bench.dir.path().join("snap"));
    for folder in [&blobs, &snap] {
        std::fs::create_dir(folder).expect("created");
    }
    for number in 0..3 {
        let blob = blobs.join(format!("b{number}"));
        std::fs::write(&blob, shard(number, 3, 2, 2)).expect("written");
        std::os::unix::fs::symlink(&blob, snap.join(format!("m-{:05}-of-00003.gguf", number + 1))).expect("linked");
    }
    std::os::unix::fs::symlink(&snap, bench.dir.path().join("current")).expect("linked");
    let name = |folder: &str, number: u32| bench.dir.path().join(folder).join(format!("m-{number:05}-of-00003.gguf"));
    let (code, prepared) = bench.run(&["prepare", "--no-measure", "--model", text(&name("snap", 2))]);
    assert_eq!(code, 0, "{prepared}");
    for (folder, number) in [("snap", 1), ("snap", 2), ("snap", 3), ("current", 1), ("current", 3), ("snap/../snap", 2)]
    {
        let model = name(folder, number);
        for command in ["status", "path", "verify", "warm", "drop"] {
            let (code, found) = bench.run(&[command, "--model", text(&model)]);
            assert_eq!(code, 0, "{command} {}: {found}", model.display());
        }
        let (code, again) = bench.run(&["prepare", "--no-measure", "--model", text(&model)]);
        assert_eq!((code, &again["entries"][0]["action"]), (0, &"reused".into()), "{again}");
    }
    // Other names are another model, since names are part of its digest.
    for number in 0..3 {
        let name = format!("snap/other-{:05}-of-00003.gguf", number + 1);
        std::os::unix::fs::symlink(blobs.join(format!("b{number}")), bench.dir.path().join(name)).expect("linked");
    }
    let other = bench.dir.path().join("snap/other-00001-of-00003.gguf");
    let (code, copied) = bench.run(&["prepare", "--no-measure", "--model", text(&other)]);
    assert_eq!((code, &copied["entries"][0]["action"]), (0, &"copied".into()), "{copied}");
    // Another file of the same name elsewhere is another model, and so is one that got the number of a removed file.
    std::fs::write(bench.dir.path().join("m-00001-of-00003.gguf"), shard(0, 3, 2, 2)).expect("written");
    assert_eq!(bench.run(&["path", "--model", text(&bench.dir.path().join("m-00001-of-00003.gguf"))]).0, 1);
    std::fs::write(blobs.join("b1"), shard(7, 3, 2, 2)).expect("changed");
    let (code, found) = bench.run(&["drop", "--execute", "--model", text(&name("current", 3))]);
    assert_eq!(code, 0, "{found}");
}

#[test]
fn a_second_file_of_the_same_bytes_finds_the_entry_and_a_replaced_one_does_not() {
    let bench = Bench::new();
    let (one, two) = (bench.model("one.gguf", 1), bench.dir.path().join("two.gguf"));
    std::fs::copy(&one, &two).expect("copied");
    let prepare = |model: &Path| bench.run(&["prepare", "--no-measure", "--model", text(model)]);
    assert_eq!(prepare(&one).0, 0);
    assert_eq!(bench.run(&["path", "--model", text(&two)]).0, 1, "nobody has looked at it");
    let (code, again) = prepare(&two);
    assert_eq!((code, &again["entries"][0]["action"]), (0, &"reused".into()), "{again}");
    assert_eq!(bench.run(&["path", "--model", text(&two)]).0, 0);
    // Another model in the first one's place: its own entry alone is found from now on.
    std::fs::rename(bench.model("new.gguf", 2), &one).expect("replaced");
    assert_eq!(prepare(&one).0, 0);
    let (code, found) = bench.run(&["path", "--model", text(&one)]);
    assert_eq!((code, found["entries"].as_array().map(Vec::len)), (0, Some(1)), "{found}");
    assert_eq!(found["entries"][0]["key"], digest(&one).to_string());
}

#[test]
fn tensors_that_the_kit_cannot_size_are_copied_with_a_remark() {
    for (type_id, dimensions) in [(105, 2), (139, 2), (156, 2), (43, 2), (2, 5), (4, 2)] {
        let bench = Bench::new();
        let model = bench.dir.path().join("m.gguf");
        let mut bytes = shard(0, 1, type_id, dimensions);
        std::fs::write(&model, &bytes).expect("written");
        let (code, prepared) = bench.run(&["prepare", "--no-measure", "--model", text(&model)]);
        assert_eq!(code, 0, "{type_id} {dimensions}: {prepared}");
        let said = bench.command(&["prepare", "--no-measure", "--model", text(&model)]).output().expect("it runs");
        assert!(String::from_utf8_lossy(&said.stderr).contains("copied as it is"), "{said:?}");
        assert!(prepared["remarks"][0].as_str().is_some_and(|remark| remark.contains("copied as it is")), "{prepared}");
        // What is not a GGUF file, or ends in its directory or before its data, is none of that.
        let whole = bytes.len();
        for cut in [60, whole - 577, whole - 640] {
            bytes.truncate(cut);
            std::fs::write(&model, &bytes).expect("written");
            let (code, refused) = bench.run(&["prepare", "--no-measure", "--model", text(&model)]);
            assert_eq!(code, 2, "{type_id} {dimensions}, cut at {cut} of {whole}: {refused}");
            bytes = shard(0, 1, type_id, dimensions);
        }
    }
}

#[test]
fn both_paths_are_printed_without_a_role() {
    let bench = Bench::new();
    let (target, draft) = (bench.model("t.gguf", 1), bench.model("d.gguf", 2));
    let sample = fixture("documents/lab/model-pack-manifest.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(sample).expect("a sample")).expect("JSON");
    for (field, model) in [("source", &target), ("draft_source", &draft)] {
        spec[field]["path"] = text(model).into();
        spec[field]["sha256"] = digest(model).to_string().into();
    }
    let path = bench.dir.path().join("spec.json");
    std::fs::write(&path, spec.to_string()).expect("written");
    assert_eq!(bench.run(&["prepare", "--no-measure", "--spec", text(&path)]).0, 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-cache"));
    let out =
        command.args(["path", "--spec", text(&path), "--cache-root", text(&bench.root())]).output().expect("it runs");
    let lines: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
    assert!(lines.len() == 2 && lines[0].ends_with("t.gguf") && lines[1].ends_with("d.gguf"), "{out:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test --all"]
fn an_immutable_copy_rests_unread_and_only_root_drops_it() {
    let bench = Bench::new();
    let model = bench.model("m.gguf", 1);
    let sha256 = digest(&model).to_string();
    let select = ["--model", text(&model), "--sha256", &sha256];
    let with = |command: &'static str, more: &[&'static str]| -> Vec<String> {
        std::iter::once(command).chain(select).chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let run = |arguments: Vec<String>| bench.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    // Made so later as well as at once.
    let (code, prepared) = run(with("prepare", &["--no-measure"]));
    assert_eq!((code, &prepared["entries"][0]["trust"]), (0, &"sha256".into()), "{prepared}");
    let (code, prepared) = run(with("prepare", &["--immutable"]));
    assert_eq!((code, &prepared["entries"][0]["action"]), (0, &"reused".into()), "{prepared}");
    let (code, status) = run(with("status", &[]));
    assert_eq!((code, &status["entries"][0]["trust"]), (0, &"immutable".into()), "{status}");
    let copy = PathBuf::from(status["entries"][0]["path"].as_str().expect("a path"));
    assert!(std::fs::write(&copy, b"x").is_err(), "root cannot write to it");

    // Another user may own the folder, and still not drop it: nothing of the entry goes.
    Command::new("chown").args(["-R", "65534:65534"]).arg(bench.ram.path()).output().expect("chown of coreutils");
    let program = bench.ram.path().join("b70-cache");
    std::fs::copy(env!("CARGO_BIN_EXE_b70-cache"), &program).expect("room for a copy");
    let mut command = Command::new(&program);
    command.args(["drop", "--execute", "--json", "--cache-root"]).arg(bench.root()).uid(65534).gid(65534);
    let (code, refused) = finish(command.current_dir("/").stdin(Stdio::null()).output().expect("it runs"));
    let reasons = refused.to_string();
    assert!(
        code == 1
            && reasons.contains("immutable")
            && copy.parent().expect("a folder").join("cache-entry.json").exists(),
        "{refused}"
    );
    let (code, dropped) = run(with("drop", &["--execute"]));
    assert_eq!((code, &dropped["executed"]), (0, &true.into()), "{dropped}");
    assert!(!copy.exists());
}
