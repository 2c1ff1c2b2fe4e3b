//! Damage of every kind: verify names exactly what is wrong, prepare repairs it, nothing leaves the set's folder.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

mod cases;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::models::{MINI_NAMES, STANDARD};
use crate::common::{Lab, edit, flip, overwrite, payload, text, walk};
use cases::cases;
use serde_json::{Value, json};

const FIRST: &str = MINI_NAMES[0];

fn manifest(set: &Path, change: impl FnOnce(&mut Value)) {
    edit(&set.join("manifest.json"), change);
}

fn sidecar(set: &Path) -> std::path::PathBuf {
    payload(set, 0).with_extension("json")
}

/// Puts a link to a good copy outside the set in a file's place.
fn relink(path: &Path) {
    let outside = path.ancestors().nth(4).expect("the lab's folder").join("outside");
    let _ = fs::remove_file(&outside);
    fs::rename(path, &outside).expect("a file");
    symlink(outside, path).expect("a link");
}

#[test]
fn each_damage_has_its_codes_and_is_repaired() {
    let lab = Lab::new();
    lab.prepare();
    let (set, key) = (lab.set(), lab.set_key());
    let key = ["--set-key", &*key];
    let clean: Vec<String> = lab.files();
    for case in cases() {
        (case.tamper)(&set);
        let deep: BTreeSet<&str> = case.shallow.iter().chain(case.deep).copied().collect();
        assert_eq!(lab.verify(&key), case.shallow, "{}: shallow", case.what);
        assert_eq!(
            lab.verify(&[&key[..], &["--deep"]].concat()),
            deep.into_iter().collect::<Vec<_>>(),
            "{}: deep",
            case.what
        );
        let prepared = lab.prepare();
        let repaired: Vec<&str> = case.tensor.then_some(FIRST).into_iter().collect();
        assert_eq!(prepared["repaired"], json!(repaired), "{}: {prepared:#}", case.what);
        let documents: Vec<&str> = case.document.into_iter().collect();
        assert_eq!(prepared["repaired_documents"], json!(documents), "{}: {prepared:#}", case.what);
        assert_eq!(lab.verify(&["--deep", "--against", text(&lab.model)]), [""; 0], "{}: repaired", case.what);
        assert_eq!(lab.files(), clean, "{}: nothing is left behind", case.what);
        let sums =
            std::process::Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&set).status();
        assert!(sums.expect("sha256sum of coreutils").success(), "{}", case.what);
        let again = lab.prepare();
        assert_eq!(again["reused"], 4, "{}: a repair lasts", case.what);
        assert_eq!((&again["repaired"], &again["repaired_documents"]), (&json!([]), &json!([])), "{}", case.what);
    }
}

#[test]
fn every_code_of_the_contract_has_its_damage() {
    let cases = cases();
    let found: BTreeSet<&str> = cases
        .iter()
        .flat_map(|case| case.shallow.iter().chain(case.deep))
        .map(|code| code.split_once(':').map_or(*code, |(kind, _)| kind))
        .collect();
    // `model-sha256` and `payload-against` need a second model; their test is below.
    let contract = "layout-contract pack-layout-version payload-sha256 payload-size runtime-index-contract \
                    runtime-index-identity runtime-index-size set-format set-key target-architecture \
                    target-model-sha256 tensor-contract tensor-count tensor-key tensor-key-table tensor-slot-table";
    assert_eq!(found.into_iter().collect::<Vec<_>>(), contract.split_whitespace().collect::<Vec<_>>());
    println!("{} kinds of damage", cases.len());
}

#[test]
fn all_failures_are_reported_at_once() {
    let lab = Lab::new();
    lab.prepare();
    let set = lab.set();
    for slot in 0..4 {
        flip(&payload(&set, slot), slot);
    }
    fs::remove_file(payload(&set, 2)).expect("a payload");
    overwrite(&payload(&set, 3).with_extension("json"), b"");
    flip(&set.join("runtime-index.tsv"), 0);
    manifest(&set, |m| {
        m["status"] = json!("x");
        m["tensor_count"] = json!(9);
        m["layout"]["version"] = json!(9);
        m["identity"]["pack_layout_version"] = json!(9);
        m["identity"]["target_architecture"] = json!("x");
        m["source_model"]["size_bytes"] = json!(1);
    });
    let expected = [
        "layout-contract",
        "pack-layout-version",
        "payload-sha256:blk.0.ffn_down.weight",
        "payload-sha256:blk.0.ffn_up.weight",
        "payload-sha256:blk.1.ffn_down.weight",
        "payload-sha256:blk.1.ffn_up.weight",
        "payload-size:blk.1.ffn_up.weight",
        "runtime-index-identity",
        "set-format",
        "set-key",
        "target-architecture",
        "tensor-contract:blk.1.ffn_down.weight",
        "tensor-count",
    ];
    assert_eq!(lab.verify(&["--deep"]), expected);
    let people = crate::common::run(["verify", "--deep", "--cache-root", text(&lab.root)]).exits(1);
    for code in expected {
        assert!(people.stdout.contains(code), "{code}");
    }
    let prepared = lab.prepare();
    assert_eq!(prepared["repaired"], json!(MINI_NAMES));
    assert_eq!(lab.verify(&["--deep"]), [""; 0]);
}

#[test]
fn an_unreadable_manifest_is_an_error_and_is_repaired() {
    let lab = Lab::new();
    lab.prepare();
    let path = lab.set().join("manifest.json");
    let good = fs::read(&path).expect("the manifest");
    let key = lab.set_key();
    let set_key = ["--set-key", &*key];
    for bytes in [&b""[..], &good[..good.len() / 2], b"\xff\xff", b"not JSON"] {
        overwrite(&path, bytes);
        lab.pack("verify", &set_key).fails(2, "document");
        lab.pack("verify", &[]).fails(2, "no-set");
        assert_eq!(lab.prepare()["repaired_documents"], json!(["manifest.json"]));
        assert_eq!(lab.verify(&["--deep"]), [""; 0]);
    }
    relink(&path);
    lab.pack("verify", &set_key).exits(2);
    assert_eq!(lab.prepare()["repaired_documents"], json!(["manifest.json"]));
    assert!(fs::symlink_metadata(&path).expect("the manifest").is_file());
    fs::remove_file(&path).expect("the manifest");
    fs::create_dir(&path).expect("a folder");
    lab.pack("verify", &set_key).exits(2);
    // A folder with content is not the kit's to remove; an empty one is.
    fs::write(path.join("mine"), "x").expect("a file");
    lab.pack("prepare", &lab.mini()).exits(2);
    assert_eq!(fs::read(path.join("mine")).expect("kept"), b"x");
    fs::remove_file(path.join("mine")).expect("a file");
    assert_eq!(lab.prepare()["repaired_documents"], json!(["manifest.json"]));
    assert_eq!(lab.verify(&["--deep"]), [""; 0]);
}

#[test]
fn a_manifest_in_another_sets_folder_is_not_that_set() {
    let lab = Lab::new();
    lab.prepare();
    let other = lab.root.join("a".repeat(64));
    let copied = std::process::Command::new("cp").arg("-r").arg(lab.set()).arg(&other).status();
    assert!(copied.expect("cp of coreutils").success());
    assert_eq!(lab.verify(&["--set-key", &"a".repeat(64)]), ["set-key"]);
    assert_eq!(lab.verify(&["--set-key", &lab.set_key()]), [""; 0]);
    // It is no candidate for the newest either.
    assert_eq!(lab.pack("verify", &[]).exits(0).json()["set_key"], lab.set_key());
}

#[test]
fn payload_paths_that_leave_the_set_are_refused() {
    let lab = Lab::new();
    lab.prepare();
    let set = lab.set();
    let secret = lab.at("secret");
    fs::copy(payload(&set, 0), &secret).expect("a copy");
    symlink(lab.folder.path(), set.join("tensors/out")).expect("a link");
    let before = walk(lab.folder.path());
    let good = fs::read(set.join("manifest.json")).expect("the manifest");
    for path in [
        text(&secret),
        "../../secret",
        "tensors/../../../secret",
        "tensors/out/secret",
        "/etc/passwd",
        "",
        ".",
        "..",
        "tensors//x.bin",
        "tensors/./x.bin",
        "tensors\\x.bin",
        "tensors/x\n.bin",
        "tensors",
    ] {
        manifest(&set, |m| m["tensors"][0]["payload"]["path"] = json!(path));
        let expected = [
            "payload-sha256:blk.0.ffn_up.weight",
            "payload-size:blk.0.ffn_up.weight",
            "runtime-index-identity",
            "tensor-contract:blk.0.ffn_up.weight",
        ];
        assert_eq!(lab.verify(&["--deep"]), expected, "{path:?}");
        let out = lab.at("unpacked");
        let ran = lab.pack("unpack", &["--tensor", FIRST, "--out", text(&out)]);
        assert!(matches!(ran.code, Some(1 | 2)), "{path:?}: {ran:#?}");
        assert!(!out.exists(), "{path:?}");
        overwrite(&set.join("manifest.json"), &good);
        assert_eq!(walk(lab.folder.path()), before, "{path:?}");
    }
    // A false path in the sidecar does not lead a repair astray either.
    edit(&sidecar(&set), |s| s["payload"]["path"] = json!("../../secret"));
    assert_eq!(lab.prepare()["repaired"], json!([FIRST]));
    assert_eq!(walk(lab.folder.path()).len(), before.len());
    assert_eq!(fs::read(&secret).expect("untouched"), fs::read(payload(&set, 0)).expect("a payload"));
}

#[test]
fn folders_that_are_links_are_refused() {
    let lab = Lab::new();
    lab.prepare();
    let set = lab.set();
    let away = lab.at("away");
    // The payloads' folder.
    fs::rename(set.join("tensors"), &away).expect("a folder");
    symlink(&away, set.join("tensors")).expect("a link");
    let before = walk(&away);
    assert_eq!(lab.verify(&["--deep"]).len(), 12);
    lab.pack("prepare", &lab.mini()).exits(2);
    assert_eq!(walk(&away), before);
    fs::remove_file(set.join("tensors")).expect("a link");
    fs::rename(&away, set.join("tensors")).expect("a folder");
    // The set's folder.
    fs::rename(&set, &away).expect("a folder");
    symlink(&away, &set).expect("a link");
    let before = walk(&away);
    lab.pack("verify", &["--set-key", &lab.set_key()]).exits(2);
    lab.pack("prepare", &lab.mini()).exits(2);
    lab.pack("gc", &["--execute"]).exits(0);
    assert_eq!(walk(&away), before);
}

#[test]
fn against_compares_with_the_model_block_by_block() {
    let lab = Lab::new();
    lab.prepare();
    let mut tensors = STANDARD.to_vec();
    tensors.retain(|tensor| tensor.0 != b"blk.1.ffn_down.weight");
    let other = lab.at("other.gguf");
    crate::common::models::write_model(&other, &tensors);
    assert_eq!(lab.verify(&["--against", text(&other)]), ["model-sha256", "payload-against:blk.1.ffn_down.weight"]);
    let bytes = fs::read(&lab.model).expect("the model");
    let block = crate::common::models::tensor_bytes(STANDARD[2]);
    let at = bytes.windows(block.len()).position(|window| window == block).expect("the tensor's bytes");
    flip(&lab.model, at + 50);
    assert_eq!(lab.verify(&["--against", text(&lab.model)]), ["model-sha256", "payload-against:blk.0.ffn_up.weight"]);
    let row = lab.pack("verify", &["--against", text(&lab.model)]).json();
    assert!(row["details"].to_string().contains("first in row 1"), "rows have 36 bytes: {row:#}");
}

#[test]
fn the_lab_plan_holds_a_set_to_its_slots() {
    let lab = Lab::new();
    lab.prepare();
    manifest(&lab.set(), |m| {
        m["format"] = json!("qwen27-xe2-m6-pack-set-v2");
        let identity = m["identity"].as_object_mut().expect("an object");
        identity.remove("format_prefix");
        identity.remove("layout_name");
    });
    let codes = lab.verify(&[]);
    for code in ["tensor-count", "tensor-slot-table", "set-key", "runtime-index-contract"] {
        assert!(codes.iter().any(|found| found == code), "{code} in {codes:?}");
    }
}
