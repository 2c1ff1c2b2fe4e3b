//! `stage-ram` and `stage-validate` through the real executable, on the real `/dev/shm`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Lab, Ran, edit, flip, overwrite, payload, string, text, walk};
use serde_json::Value;
use tempfile::TempDir;

/// A prepared set and a RAM root on tmpfs.
struct Staged {
    lab: Lab,
    ram: TempDir,
    key: String,
}

impl Staged {
    fn new() -> Self {
        let lab = Lab::new();
        lab.prepare();
        let ram = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
        let key = lab.set_key();
        Self { lab, ram, key }
    }

    fn run(&self, command: &str, more: &[&str]) -> Ran {
        let mut all = vec!["--set-key", &self.key, "--ram-root", text(self.ram.path())];
        all.extend(more);
        self.lab.pack(command, &all)
    }

    fn stage(&self) -> Value {
        self.run("stage-ram", &["--min-free", "1048576"]).exits(0).json()
    }

    fn folder(&self) -> PathBuf {
        self.ram.path().join(&self.key)
    }
}

#[track_caller]
fn says(report: &Value, outcome: &str, trust: &str) {
    assert_eq!((report["outcome"].as_str(), report["trust"].as_str()), (Some(outcome), Some(trust)), "{report:#}");
}

fn codes(report: &Value) -> Vec<String> {
    report["failures"].as_array().expect("a list of codes").iter().map(string).collect()
}

/// Rewrites a file in place: the same inode, other bytes.
fn write_in_place(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a readable file");
    change(&mut bytes);
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("our file");
    fs::write(path, bytes).expect("our file");
}

#[test]
fn the_second_staging_finds_the_first_and_reads_it_again_without_sha256() {
    let staged = Staged::new();
    let first = staged.stage();
    says(&first, "staged", "blake3");
    assert_eq!(first["status"], "ready");
    let second = staged.stage();
    says(&second, "reused", "blake3");
    assert_eq!(second["checked_bytes"], second["payload_size_bytes"]);
    assert!(second["reasons"].to_string().contains("is not immutable"), "{second:#}");
    let validated = staged.run("stage-validate", &[]).exits(0).json();
    says(&validated, "validated", "blake3");
    let deep = staged.run("stage-validate", &["--deep"]).exits(0).json();
    says(&deep, "validated", "sha256");
    assert_eq!(deep["checked_bytes"], deep["payload_size_bytes"]);
    // The stage is a set of its own: the consumer's files are the source's, byte for byte.
    let (source, copy) = (walk(&staged.lab.set()), walk(&staged.folder()));
    for (name, bytes) in &source {
        if name != "deep-validation.json" {
            assert_eq!(copy.get(name), Some(bytes), "{name}");
        }
    }
    let added: Vec<_> = copy.keys().filter(|name| !source.contains_key(*name)).collect();
    assert_eq!(added, ["ram-stage.json"]);
    assert_eq!(fs::metadata(staged.folder()).expect("a stage").permissions().mode() & 0o777, 0o700);
}

#[test]
fn print_env_is_one_line_for_a_shell() {
    let staged = Staged::new();
    let root = staged.lab.root.display().to_string();
    let ram = text(staged.ram.path());
    let arguments = ["stage-ram", "--cache-root", &root, "--ram-root", ram, "--min-free", "1048576", "--print-env"];
    // Upstream's loader takes sets of one plan, and this is another: its variable is never printed.
    for more in [&[][..], &["--variable", "GGML_SYCL_XE2_Q4_M6_PACK_CACHE"]] {
        let ran = crate::common::run(arguments.iter().chain(more)).exits(1);
        assert_eq!(ran.stdout, "");
        assert!(ran.stderr.contains("found: mini") && ran.stderr.contains("--variable"), "{ran:#?}");
    }
    assert!(!staged.folder().exists(), "refused before anything was copied");
    let arguments = arguments.into_iter().chain(["--variable", "MY_LOADER_PACK"]).collect::<Vec<_>>();
    let ran = crate::common::run(&arguments).exits(0);
    assert_eq!(ran.stdout, format!("MY_LOADER_PACK={}\n", staged.folder().display()));
    // What a shell would evaluate is that line or nothing.
    flip(&payload(&staged.lab.set(), 0), 3);
    flip(&payload(&staged.folder(), 0), 3);
    let ran = crate::common::run(&arguments).exits(1);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("source-deep-trust"), "{ran:#?}");
    for name in ["", "1A", "A B", "A;true", "A=B", "Ä"] {
        let ran = crate::common::run(arguments[..arguments.len() - 1].iter().copied().chain([name])).exits(2);
        assert_eq!(ran.stdout, "", "{name}");
    }
}

#[test]
fn every_tampering_voids_trust_and_damage_is_repaired_by_staging_again() {
    type Tamper = fn(&Path);
    let cases: [(&str, Tamper, &[&str]); 10] = [
        (
            "payload byte in place",
            |f| write_in_place(&payload(f, 0), |b| b[7] ^= 1),
            &["ram-deep-trust", "ram-payload-sha256"],
        ),
        ("payload replaced", |f| flip(&payload(f, 1), 3), &["ram-deep-trust", "ram-payload-sha256"]),
        (
            "payload shortened",
            |f| write_in_place(&payload(f, 0), |b| b.truncate(b.len() - 1)),
            &["ram-deep-trust", "ram-payload-size"],
        ),
        (
            "payload gone",
            |f| fs::remove_file(payload(f, 0)).expect("our file"),
            &["ram-deep-trust", "ram-payload-size"],
        ),
        (
            "payload a link",
            |f| {
                let path = payload(f, 0);
                fs::rename(&path, f.join("elsewhere")).expect("our file");
                symlink(f.join("elsewhere"), path).expect("our folder");
            },
            &["ram-deep-trust", "ram-payload-size"],
        ),
        (
            "manifest edited",
            |f| edit(&f.join("manifest.json"), |m| m["payload_size_bytes"] = 1.into()),
            &["ram-manifest"],
        ),
        ("manifest no JSON", |f| overwrite(&f.join("manifest.json"), b"{"), &["ram-manifest"]),
        (
            "index edited",
            |f| flip(&f.join("runtime-index.tsv"), 20),
            &["ram-runtime-index", "ram-runtime-index-sha256"],
        ),
        (
            "sidecar edited",
            |f| edit(&payload(f, 0).with_extension("json"), |s| s["identity"]["tensor_shape"][0] = 32.into()),
            &["ram-sidecar"],
        ),
        ("index gone", |f| fs::remove_file(f.join("runtime-index.tsv")).expect("our file"), &["ram-runtime-index"]),
    ];
    let staged = Staged::new();
    staged.stage();
    for (what, tamper, expected) in cases {
        tamper(&staged.folder());
        let report = staged.run("stage-validate", &[]).exits(1).json();
        assert_eq!(report["status"], "failed", "{what}");
        assert!(report["trust"].is_null(), "{what}: {report:#}");
        let found = codes(&report);
        for code in expected {
            assert!(found.iter().any(|found| found.starts_with(code)), "{what}: {found:?} lacks {code}");
        }
        let repaired = staged.stage();
        says(&repaired, "repaired", "blake3");
        says(&staged.stage(), "reused", "blake3");
    }
    // Nothing of the damaged stages is left beside the good one.
    let names: Vec<_> = fs::read_dir(staged.ram.path())
        .expect("our folder")
        .map(|entry| entry.expect("our folder").file_name().to_string_lossy().into_owned())
        .filter(|name| name != ".locks")
        .collect();
    assert_eq!(names, std::slice::from_ref(&staged.key));
}

#[test]
fn a_void_receipt_is_answered_by_reading_not_by_failing() {
    type Tamper = fn(&Path);
    let cases: [(&str, Tamper, &str); 5] = [
        ("receipt gone", |f| fs::remove_file(f.join("deep-validation.json")).expect("our file"), "sha256"),
        ("receipt damaged", |f| flip(&f.join("deep-validation.json"), 40), "sha256"),
        (
            "receipt of upstream's first form",
            |f| {
                overwrite(
                    &f.join("deep-validation.json"),
                    br#"{"schema_version":1,"format":"mini-deep-validation-v1","status":"ready"}"#,
                );
            },
            "sha256",
        ),
        (
            "payload linked",
            |f| fs::hard_link(payload(f, 0), f.join("tensors/second.json")).expect("our folder"),
            "blake3",
        ),
        (
            "payload touched and put back",
            |f| {
                let path = payload(f, 0);
                let before = fs::metadata(&path).expect("our file").modified().expect("a time");
                write_in_place(&path, |_| {});
                fs::File::options()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.set_modified(before))
                    .expect("our file");
            },
            "blake3",
        ),
    ];
    let staged = Staged::new();
    staged.stage();
    for (what, tamper, trust) in cases {
        tamper(&staged.folder());
        let report = staged.run("stage-validate", &[]).exits(0).json();
        assert_eq!(report["trust"], trust, "{what}: {report:#}");
        assert_ne!(report["reasons"], Value::Array(Vec::new()), "{what}");
        // The receipt was renewed: the next look needs no SHA-256, and has nothing else to say.
        let next = staged.run("stage-validate", &[]).exits(0).json();
        assert_eq!(next["trust"], "blake3", "{what}: {next:#}");
        let reasons = next["reasons"].as_array().expect("a list");
        let at_rest =
            |reason: &Value| string(reason).contains("is not immutable") || string(reason).starts_with("and ");
        assert!(reasons.iter().all(at_rest), "{what}: {next:#}");
    }
}

#[test]
fn a_damaged_stage_document_needs_the_source_to_be_proved() {
    let staged = Staged::new();
    staged.stage();
    edit(&staged.folder().join("ram-stage.json"), |stage| stage["source_manifest_sha256"] = "00".repeat(32).into());
    let elsewhere = staged.lab.at("no-cache");
    let arguments = [
        "stage-validate",
        "--json",
        "--cache-root",
        text(&elsewhere),
        "--ram-root",
        text(staged.ram.path()),
        "--set-key",
        &staged.key,
    ];
    let alone = crate::common::run(arguments).exits(1).json();
    assert_eq!(codes(&alone), ["ram-stage-receipt"]);
    let with_source = staged.run("stage-validate", &[]).exits(0).json();
    assert!(with_source["reasons"].to_string().contains("ram-stage.json was written again"), "{with_source:#}");
    crate::common::run(arguments).exits(0);
}

#[test]
fn a_damaged_source_is_never_staged() {
    let staged = Staged::new();
    let set = staged.lab.set();
    flip(&payload(&set, 0), 11);
    let error = staged.run("stage-ram", &["--min-free", "1048576"]).fails(1, "not-admitted");
    assert!(error["found"].to_string().contains("source-deep-trust"), "{error:#}");
    assert!(walk(staged.ram.path()).keys().all(|name| name.starts_with(".locks")), "nothing is staged");
}

#[test]
fn too_little_memory_is_refused_before_a_byte_is_written() {
    let staged = Staged::new();
    let error = staged.run("stage-ram", &["--min-free", "1000000000000000"]).fails(1, "headroom");
    assert!(error["message"].to_string().contains("bytes"), "{error:#}");
    assert!(walk(staged.ram.path()).keys().all(|name| name.starts_with(".locks")), "nothing is staged");
}

#[test]
fn a_ram_root_that_others_can_write_to_is_refused() {
    let staged = Staged::new();
    fs::set_permissions(staged.ram.path(), fs::Permissions::from_mode(0o777)).expect("our folder");
    staged.run("stage-ram", &["--min-free", "1048576"]).fails(2, "root-unsafe");
    staged.run("stage-validate", &[]).fails(2, "root-unsafe");
}

#[test]
fn killed_at_every_step_nothing_partial_is_ever_a_stage() {
    let staged = Staged::new();
    let mut steps = 0;
    for step in 1.. {
        let value = step.to_string();
        let mut arguments = vec!["--set-key", &staged.key, "--ram-root", text(staged.ram.path())];
        arguments.extend(["--min-free", "1048576"]);
        let ran = staged.lab.pack_with("stage-ram", &arguments, &[("B70_FAULT_STEP", &value)]);
        if staged.folder().exists() {
            let deep = staged.run("stage-validate", &["--deep"]);
            assert_eq!(deep.code, Some(0), "killed at step {step}: {deep:#?}");
        }
        if ran.code == Some(0) {
            break;
        }
        assert_eq!(ran.signal, Some(9), "{ran:#?}");
        steps = step;
        // Every second kill is followed by a run that must succeed; the others pile up.
        if step % 2 == 0 {
            staged.stage();
            fs::remove_dir_all(staged.folder()).expect("our folder");
        }
    }
    assert!(steps > 20, "only {steps} steps were seen");
    staged.stage();
    let left: Vec<_> = walk(staged.ram.path()).into_keys().filter(|name| name.contains(".b70-tmp-")).collect();
    assert_eq!(left, Vec::<String>::new(), "orphans are swept");
}

#[test]
fn four_stagings_at_once_agree() {
    let staged = Staged::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| staged.stage())).collect();
        let outcomes: Vec<_> = runs.into_iter().map(|run| string(&run.join().expect("it ran")["outcome"])).collect();
        assert_eq!(outcomes.iter().filter(|outcome| *outcome == "staged").count(), 1, "{outcomes:?}");
    });
    says(&staged.stage(), "reused", "blake3");
}

/// The executable as another user, who may enter what root made for all.
fn as_nobody(program: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(program);
    command.args(arguments).arg("--json").uid(65534).gid(65534).current_dir("/").stdin(Stdio::null());
    let output = command.output().expect("the executable runs");
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}")),
    )
}

#[test]
#[ignore = "needs root: cargo xtask test --all"]
fn what_root_makes_immutable_rests_unread_for_everybody() {
    let staged = Staged::new();
    let immutable = ["--min-free", "1048576", "--immutable"];
    let first = staged.run("stage-ram", &immutable).exits(0).json();
    says(&first, "staged", "blake3");
    let second = staged.run("stage-ram", &immutable).exits(0).json();
    says(&second, "reused", "immutable");
    assert_eq!((&second["checked_bytes"], &second["reasons"]), (&0.into(), &Value::Array(Vec::new())), "{second:#}");

    // Another user reads it where it lies, by the receipt of root's.
    let program = staged.ram.path().join("b70-pack");
    fs::copy(env!("CARGO_BIN_EXE_b70-pack"), &program).expect("room for a copy");
    let nowhere = text(Path::new("/nonexistent"));
    let validate = ["stage-validate", "--set-key", &staged.key, "--ram-root", text(staged.ram.path())];
    let validate = [&validate[..], &["--cache-root", nowhere]].concat();
    let (code, report) = as_nobody(&program, &validate);
    assert_eq!(
        (code, &report["trust"], &report["checked_bytes"]),
        (Some(0), &"immutable".into(), &0.into()),
        "{report:#}"
    );
    fs::remove_file(&program).expect("our copy");

    // Root itself cannot write to it; damage takes the flag away first, and is found.
    let victim = payload(&staged.folder(), 0);
    assert!(fs::write(&victim, b"x").is_err());
    let run = |arguments: &[&str]| {
        assert!(Command::new("chattr").args(arguments).arg(&victim).status().expect("chattr").success());
    };
    run(&["-i"]);
    flip(&victim, 5);
    run(&["+i"]);
    let damaged = staged.run("stage-validate", &[]).exits(1).json();
    assert!(damaged["trust"].is_null(), "{damaged:#}");
    let repaired = staged.run("stage-ram", &immutable).exits(0).json();
    says(&repaired, "repaired", "blake3");
    says(&staged.run("stage-validate", &[]).exits(0).json(), "validated", "immutable");
    // What is there is made immutable when that is asked for later.
    let plain = Staged::new();
    says(&plain.stage(), "staged", "blake3");
    says(&plain.run("stage-ram", &immutable).exits(0).json(), "reused", "blake3");
    says(&plain.run("stage-ram", &immutable).exits(0).json(), "reused", "immutable");
    for staged in [staged, plain] {
        clear(&staged.folder());
    }
}

/// Takes the flag from every payload, so that the scratch folder can go.
fn clear(folder: &Path) {
    let status = Command::new("chattr").args(["-R", "-i"]).arg(folder).status();
    assert!(status.expect("chattr of e2fsprogs").success());
}

#[test]
#[ignore = "needs root: cargo xtask test --all"]
fn a_set_that_root_made_immutable_is_repaired_collected_and_refused_to_others() {
    let lab = Lab::new();
    let prepare = |more: &[&str]| {
        let arguments = [&lab.mini()[..], more].concat();
        lab.pack("prepare", &arguments).exits(0).json()
    };
    prepare(&["--immutable"]);
    let again = prepare(&["--immutable"]);
    assert_eq!((&again["trust"], &again["checked_bytes"]), (&"immutable".into(), &0.into()), "{again:#}");
    let set = lab.set();
    let victim = payload(&set, 0);
    assert!(fs::remove_file(&victim).is_err(), "root cannot remove it");
    // Repair clears the flag of what it replaces, and gc of what it removes.
    let status = Command::new("chattr").arg("-i").arg(&victim).status().expect("chattr of e2fsprogs");
    assert!(status.success());
    flip(&victim, 9);
    let status = Command::new("chattr").arg("+i").arg(&victim).status().expect("chattr of e2fsprogs");
    assert!(status.success());
    assert_eq!(prepare(&["--immutable"])["packed"], 1);
    assert_eq!(prepare(&[])["trust"], "immutable");
    fs::remove_file(set.join("manifest.json")).expect("the manifest is an ordinary file");
    let gone = lab.pack("gc", &["--execute"]).exits(0).json();
    assert_eq!(gone["actions"].as_array().map(Vec::len), Some(1), "{gone:#}");
    assert!(!set.exists());
    // Who may not set the flag is told so before anything is made.
    let folder = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("our folder");
    let (program, model) = (folder.path().join("b70-pack"), folder.path().join("model.gguf"));
    fs::copy(env!("CARGO_BIN_EXE_b70-pack"), &program).expect("room for a copy");
    fs::copy(&lab.model, &model).expect("room for a copy");
    fs::set_permissions(&model, fs::Permissions::from_mode(0o444)).expect("our file");
    let root = folder.path().join("cache");
    let arguments = ["prepare", "--model", text(&model), "--cache-root", text(&root), "--immutable"];
    let (code, error) = as_nobody(&program, &arguments);
    assert_eq!((code, &error["error"]["kind"]), (Some(2), &"immutable".into()), "{error:#}");
    assert!(error["error"]["message"].to_string().contains("CAP_LINUX_IMMUTABLE"), "{error:#}");
}
