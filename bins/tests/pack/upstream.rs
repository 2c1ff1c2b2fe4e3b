//! Sets that upstream's scripts wrote: read, used and kept; and what prepare rests on when it reads no payload.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::upstream::{dumps, rewrite, write};
use crate::common::{Lab, Ran, edit, flip, overwrite, payload, string, text, walk};
use serde_json::{Value, json};

const RECEIPT: &str = "deep-validation-v2.json";

/// A lab whose set is in upstream's form, without the receipt of the model that the kit left.
fn upstream() -> Lab {
    let lab = Lab::new();
    lab.prepare();
    rewrite(&lab.set());
    fs::remove_dir_all(lab.root.join(".receipts")).expect("the receipt of the model");
    lab
}

fn counts(prepared: &Value) -> [u64; 3] {
    ["packed", "reused", "imported"].map(|name| prepared[name].as_u64().expect("a count"))
}

/// `trust` and `checked_bytes` of a prepare that reuses everything.
#[track_caller]
fn rests_on(lab: &Lab, more: &[&str]) -> (String, u64) {
    let prepared = lab.pack("prepare", &[&lab.mini()[..], more].concat()).exits(0).json();
    assert_eq!(counts(&prepared), [0, 4, 0], "{prepared:#}");
    (string(&prepared["trust"]), prepared["checked_bytes"].as_u64().expect("a size"))
}

#[test]
fn a_set_of_upstreams_is_listed_verified_reused_and_staged_as_it_is() {
    let lab = upstream();
    let set = lab.set();
    let before = walk(&set);
    assert!(
        !before.contains_key("SHA256SUMS") && String::from_utf8_lossy(&before["manifest.json"]).contains(".060747")
    );
    let row = lab.pack("list", &[]).exits(0).json()["sets"][0].clone();
    assert_eq!(
        (&row["status"], &row["plan"], &row["created_unix"]),
        (&json!("ready"), &Value::Null, &json!(1_796_078_798.060_747_9))
    );
    assert!(lab.verify(&[]).is_empty());
    assert_eq!(walk(&set), before);
    let all = 4 * 64 * 32 * 18 / 32;
    for more in [&[][..], &["--rehash"], &["--force"]] {
        assert_eq!(rests_on(&lab, more), ("sha256".to_owned(), all), "{more:?}");
        assert_eq!(walk(&set), before, "{more:?}");
    }
    // A deep verification leaves a receipt beside upstream's own record, and prepare rests on it from then on.
    let verified = lab.pack("verify", &["--deep", "--against", text(&lab.model)]).exits(0).json();
    assert_eq!(
        (&verified["trust"], string(&verified["receipt"])),
        (&json!("sha256"), text(&set.join(RECEIPT)).to_owned())
    );
    let mut with_receipt = before.clone();
    with_receipt.insert(RECEIPT.to_owned(), fs::read(set.join(RECEIPT)).expect("the receipt"));
    assert_eq!(walk(&set), with_receipt);
    assert_eq!(rests_on(&lab, &[]), ("quiet-file".to_owned(), 0));
    assert_eq!(rests_on(&lab, &["--rehash"]), ("sha256".to_owned(), all));
    let people =
        crate::common::run(lab.arguments("prepare", &lab.mini()).into_iter().filter(|word| word != "--json")).exits(0);
    assert!(
        people.stdout.trim_end().lines().last().is_some_and(|line| line.contains("trust: quiet-file")),
        "{people:#?}"
    );
    // What upstream's stage commands leave is named by nothing and still no litter.
    fs::write(set.join("last-ram-stage.json"), "{}\n").expect("our folder");
    assert_eq!(lab.pack("gc", &["--execute"]).exits(0).json()["actions"], json!([]));
    fs::remove_file(set.join("last-ram-stage.json")).expect("our file");
    let ram = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
    let stage = |command: &str, more: &[&str]| lab.pack(command, &[&["--ram-root", text(ram.path())], more].concat());
    assert_eq!(stage("stage-ram", &["--min-free", "1MiB"]).exits(0).json()["outcome"], "staged");
    assert_eq!(stage("stage-ram", &["--min-free", "1MiB"]).exits(0).json()["outcome"], "reused");
    stage("stage-validate", &[]).exits(0);
    stage("stage-validate", &["--deep"]).exits(0);
    assert_eq!(walk(&set), with_receipt);
    assert_eq!(
        fs::read(ram.path().join(lab.set_key()).join("manifest.json")).expect("a stage"),
        before["manifest.json"]
    );
}

#[test]
fn staging_writes_the_receipt_that_prepare_rests_on() {
    for lab in [upstream(), {
        let lab = Lab::new();
        lab.prepare();
        lab
    }] {
        let ram = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
        assert_ne!(rests_on(&lab, &[]).0, "quiet-file");
        lab.pack("stage-ram", &["--ram-root", text(ram.path()), "--min-free", "1MiB"]).exits(0);
        assert_eq!(rests_on(&lab, &[]), ("quiet-file".to_owned(), 0));
    }
}

#[test]
fn a_receipt_stands_only_for_quiet_files_on_a_disk() {
    type Change = fn(&Path);
    let cases: [(&str, Change); 5] = [
        ("another user may write to a payload", |set| mode(&payload(set, 1), 0o664)),
        ("another user may write to the payloads' folder", |set| mode(&set.join("tensors"), 0o777)),
        ("a payload was touched", |set| {
            let file = fs::File::options().append(true).open(payload(set, 2)).expect("our file");
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("our file");
        }),
        ("a payload was replaced by a copy", |set| {
            let bytes = fs::read(payload(set, 0)).expect("our file");
            overwrite(&payload(set, 0), &bytes);
        }),
        ("the receipt is gone", |set| fs::remove_file(set.join("deep-validation.json")).expect("our file")),
    ];
    for (what, change) in cases {
        let lab = Lab::new();
        lab.prepare();
        assert!(lab.verify(&["--deep"]).is_empty());
        assert_eq!(rests_on(&lab, &[]), ("quiet-file".to_owned(), 0), "{what}: before");
        change(&lab.set());
        let prepared = lab.prepare();
        assert!(prepared["payload_reasons"].as_array().is_some_and(|list| !list.is_empty()), "{what}: {prepared:#}");
        // What the receipt still stands for is not read.
        let all = matches!(what, "the receipt is gone" | "another user may write to the payloads' folder");
        let read = prepared["checked_bytes"].as_u64().expect("a size");
        // The verdict names the weakest of what it rests on.
        let trust = if all { "blake3" } else { "quiet-file" };
        assert_eq!((counts(&prepared), &prepared["trust"]), ([0, 4, 0], &json!(trust)), "{what}");
        assert_eq!(read, if all { 4 * 1152 } else { 1152 }, "{what}");
    }
    // A damaged payload is found although its neighbours rest on the receipt.
    let lab = Lab::new();
    lab.prepare();
    assert!(lab.verify(&["--deep"]).is_empty());
    flip(&payload(&lab.set(), 3), 7);
    assert_eq!(counts(&lab.prepare()), [1, 3, 0]);
    assert!(lab.verify(&["--deep"]).is_empty());
}

#[test]
fn no_receipt_lets_files_in_memory_rest_unread() {
    let mut lab = Lab::new();
    let memory = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
    lab.root = memory.path().join("cache");
    lab.prepare();
    assert!(lab.verify(&["--deep"]).is_empty());
    let prepared = lab.prepare();
    assert_eq!((&prepared["trust"], &prepared["checked_bytes"]), (&json!("blake3"), &json!(4 * 1152)));
    assert!(prepared["payload_reasons"].to_string().contains("lies in memory"), "{prepared:#}");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our file");
}

/// Replaces text in a document, as it stands.
fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).expect("a document");
    assert!(text.contains(from), "{from}");
    overwrite(path, text.replacen(from, to, 1).as_bytes());
}

#[test]
fn what_upstream_wrote_is_never_repaired_unasked() {
    type Tamper = fn(&Path);
    const TIME: &str = "\"created_unix\": 1796078798.0607479";
    let cases: [(&str, Tamper); 15] = [
        ("another digest in the manifest", |set| {
            change(set, |m| m["tensors"][1]["payload"]["sha256"] = json!("ab".repeat(32)));
        }),
        ("another digest in manifest and sidecar", |set| {
            change(set, |m| m["tensors"][1]["payload"]["sha256"] = json!("ab".repeat(32)));
            let path = payload(set, 1).with_extension("json");
            edit(&path, |tensor| tensor["payload"]["sha256"] = json!("ab".repeat(32)));
        }),
        ("another model", |set| change(set, |m| m["source_model"]["sha256"] = json!("ab".repeat(32)))),
        ("a cut tensor list", |set| change(set, |m| drop(m["tensors"].as_array_mut().expect("a list").pop()))),
        ("a path that leads out", |set| {
            change(set, |m| m["tensors"][0]["payload"]["path"] = json!("../../model.gguf"));
        }),
        ("an absolute path", |set| change(set, |m| m["tensors"][0]["payload"]["path"] = json!("/etc/passwd"))),
        ("NaN as a time", |set| replace(&set.join("manifest.json"), TIME, "\"created_unix\": NaN")),
        ("1e400 as a time", |set| replace(&set.join("manifest.json"), TIME, "\"created_unix\": 1e400")),
        ("NaN as a time in a sidecar", |set| {
            replace(&payload(set, 0).with_extension("json"), TIME, "\"created_unix\": NaN");
        }),
        ("a cut manifest", |set| {
            let bytes = fs::read(set.join("manifest.json")).expect("a manifest");
            overwrite(&set.join("manifest.json"), &bytes[..bytes.len() / 2]);
        }),
        ("an empty manifest", |set| overwrite(&set.join("manifest.json"), b"")),
        ("a damaged payload", |set| flip(&payload(set, 2), 100)),
        ("a payload that is gone", |set| fs::remove_file(payload(set, 2)).expect("our file")),
        ("a sidecar that is gone", |set| fs::remove_file(payload(set, 2).with_extension("json")).expect("our file")),
        ("a damaged index", |set| flip(&set.join("runtime-index.tsv"), 3)),
    ];
    for (what, tamper) in cases {
        let lab = upstream();
        let set = lab.set();
        tamper(&set);
        let before = walk(&set);
        assert_ne!(lab.pack("verify", &["--deep", "--set-key", &lab.set_key()]).code, Some(0), "{what}");
        assert_eq!(walk(&set), before, "{what}: verify");
        for more in [&[][..], &["--rehash"]] {
            let error = lab.pack("prepare", &[&lab.mini()[..], more].concat()).fails(1, "other-tool");
            assert!(string(&error["hint"]).contains("--force"), "{what}: {error:#}");
            assert!(!string(&error["found"]).is_empty() && !string(&error["expected"]).is_empty(), "{what}: {error:#}");
            assert_eq!(walk(&set), before, "{what}: prepare");
        }
        let forced = lab.pack("prepare", &[&lab.mini()[..], &["--force"]].concat()).exits(0).json();
        assert_eq!(forced["tensor_count"], 4, "{what}");
        assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty(), "{what}: forced");
        assert_eq!(
            fs::read(set.join("deep-validation.json")).expect("upstream's"),
            before["deep-validation.json"],
            "{what}"
        );
    }
}

fn change(set: &Path, by: impl FnOnce(&mut Value)) {
    let path = set.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path).expect("a manifest")).expect("JSON");
    by(&mut manifest);
    write(&path, &manifest);
}

#[test]
fn what_upstream_left_unfinished_is_continued_around_what_it_wrote() {
    let lab = upstream();
    let set = lab.set();
    fs::remove_file(set.join("manifest.json")).expect("the manifest");
    fs::remove_file(payload_of(&lab, 3)).expect("a payload");
    fs::remove_file(payload_of(&lab, 3).with_extension("json")).expect("its sidecar");
    let before = walk(&set);
    assert_eq!(counts(&lab.prepare()), [1, 3, 0]);
    let after = walk(&set);
    for (name, bytes) in &before {
        assert_eq!(after.get(name), Some(bytes), "{name}");
    }
    assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty());
    // A damaged tensor of an unfinished set is not replaced either.
    let lab = upstream();
    fs::remove_file(lab.set().join("manifest.json")).expect("the manifest");
    flip(&payload_of(&lab, 0), 5);
    let before = walk(&lab.set());
    lab.pack("prepare", &lab.mini()).fails(1, "other-tool");
    let after = walk(&lab.set());
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)));
}

/// The payload of a slot, from the keys alone: the set may have no manifest.
fn payload_of(lab: &Lab, slot: usize) -> std::path::PathBuf {
    let keys =
        crate::common::run(["keys", "--json", "--plan", text(&lab.plan), "--sha256", &lab.sha256]).exits(0).json();
    lab.set().join(format!("tensors/{}.bin", string(&keys["tensors"][slot]["key"])))
}

/// A model-pack manifest of this lab's model, in upstream's form.
fn spec(lab: &Lab, change: impl FnOnce(&mut Value)) -> String {
    let mut spec: Value = serde_json::from_slice(
        &fs::read(b70_testkit::fixture("documents/lab/model-pack-manifest.json")).expect("a fixture"),
    )
    .expect("JSON");
    spec["source"]["path"] = json!(text(&lab.model));
    spec["source"]["sha256"] = json!(lab.sha256);
    change(&mut spec);
    let path = lab.at("spec.json");
    fs::write(&path, dumps(&spec)).expect("a temporary folder");
    text(&path).to_owned()
}

#[test]
fn a_spec_names_the_model_its_hash_and_the_plan() {
    let lab = Lab::new();
    // Upstream's ABI names the fixed plan, which this small model does not fit; so does the plan's own name.
    for abi in ["qwen27-b70-pack-v1", "qwen27-xe2-m6"] {
        let spec = spec(&lab, |spec| spec["kernel_abi"]["name"] = json!(abi));
        let inspected = crate::common::run(["inspect", "--json", "--spec", &spec]).exits(1).json();
        assert_eq!(
            (&inspected["plan"], &inspected["expected_tensor_count"]),
            (&json!("qwen27-xe2-m6"), &json!(187)),
            "{abi}"
        );
        lab.pack("prepare", &["--spec", &spec]).fails(1, "plan-mismatch");
        let named = crate::common::run(["inspect", "--json", "--spec", &spec, "--plan", "all-q4_0"]).exits(0).json();
        assert_eq!(named["plan"], "all-q4_0", "a flag goes before the spec");
    }
    let spec_of = |abi: &str| spec(&lab, |spec| spec["kernel_abi"]["name"] = json!(abi));
    for abi in ["all-q4_0", "my-abi"] {
        let inspected = crate::common::run(["inspect", "--json", "--spec", &spec_of(abi)]).exits(0).json();
        assert_eq!((&inspected["plan"], &inspected["model"]), (&json!("all-q4_0"), &json!(text(&lab.model))));
    }
    let good = spec_of("my-abi");
    let prepared = lab.pack("prepare", &["--spec", &good, "--plan", text(&lab.plan)]).exits(0).json();
    assert_eq!((&prepared["source_sha256"], &prepared["vouched_by"]), (&json!(lab.sha256), &json!("spec")));
    // The newest set is another model's; verify takes the spec's.
    let other = lab.at("other.gguf");
    crate::common::models::write_model(&other, &crate::common::models::STANDARD[..3]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    lab.pack("prepare", &["--model", text(&other)]).exits(0);
    let verified = lab.pack("verify", &["--spec", &good, "--deep", "--against"]).exits(0).json();
    assert_eq!(verified["set_key"], prepared["set_key"]);
    assert_eq!(verified["checked_bytes"], json!(2 * 4 * 1152), "read once for the digests and once against the model");
    lab.pack("verify", &["--against"]).fails(2, "usage");
    // Where the file is not there, the error says who named it.
    let elsewhere = spec(&lab, |spec| spec["source"]["path"] = json!("/nowhere/model.gguf"));
    let error = lab.pack("prepare", &["--spec", &elsewhere]).fails(2, "io");
    assert!(string(&error["hint"]).contains("--model"), "{error:#}");
    lab.pack("prepare", &[]).fails(2, "usage");
}

#[test]
fn another_packer_in_a_spec_is_a_remark() {
    let lab = Lab::new();
    lab.prepare();
    let outcome = |ran: Ran| {
        let document = ran.json();
        let requirements = document["requirements"].as_array().expect("a list").clone();
        let found =
            requirements.iter().find(|one| one["name"] == "packing_tool_revision_matches").expect("it is required");
        (string(&document["status"]), string(&found["outcome"]), string(&found["detail"]))
    };
    let spec_of = |path: &str, revision: u64| {
        spec(&lab, |spec| spec["packing_tool"] = json!({ "path": path, "revision": revision, "status": "x" }))
    };
    let (status, found, detail) =
        outcome(lab.pack("verify", &["--deep", "--spec", &spec_of("tools/packer", 7)]).exits(0));
    assert_eq!((&*status, &*found), ("ready", "not-checkable"));
    assert!(detail.contains("b70-pack revision 1") && detail.contains("tools/packer revision 7"), "{detail}");
    let (status, found, _) = outcome(lab.pack("verify", &["--spec", &spec_of("/opt/bin/b70-pack", 1)]).exits(0));
    assert_eq!((&*status, &*found), ("ready", "met"));
    let (status, found, _) = outcome(lab.pack("verify", &["--spec", &spec_of("b70-pack", 2)]).exits(1));
    assert_eq!((&*status, &*found), ("failed", "not-met"));
}

#[test]
fn digests_are_taken_as_people_have_them() {
    let lab = Lab::new();
    for sha256 in
        [lab.sha256.to_uppercase(), format!("sha256:{}", lab.sha256), format!("SHA256:{}", lab.sha256.to_uppercase())]
    {
        let prepared = lab.pack("prepare", &["--model", text(&lab.model), "--sha256", &sha256]).exits(0).json();
        assert_eq!(prepared["source_sha256"], json!(lab.sha256));
        let key = string(&prepared["set_key"]).to_uppercase();
        assert!(lab.verify(&["--set-key", &format!("sha256:{key}")]).is_empty());
    }
    lab.pack("prepare", &["--model", text(&lab.model), "--sha256", &lab.sha256[1..]]).fails(2, "usage");
}
