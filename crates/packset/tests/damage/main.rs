//! Damage of every kind: verify names exactly what is wrong, prepare repairs it, nothing leaves the set's folder.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

mod cases;
#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use b70_manifest::Explain as _;
use b70_packset::{Depth, PackError, SetDir};
use b70_store::Progress;
use cases::cases;
use common::files::{edit, flip, overwrite, payload, walk};
use common::mini::Mini;
use common::models::{MINI_NAMES, STANDARD, tensor_bytes, write_model};
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
    let mini = Mini::new();
    let (set, clean) = (mini.set(), mini.files());
    for case in cases() {
        (case.tamper)(&set);
        let deep: BTreeSet<&str> = case.shallow.iter().chain(case.deep).copied().collect();
        let deep: Vec<&str> = deep.into_iter().collect();
        assert_eq!(mini.codes(Depth::Shallow, None), case.shallow, "{}: shallow", case.what);
        assert_eq!(mini.codes(Depth::Deep, None), deep, "{}: deep", case.what);
        let prepared = mini.prepare();
        let repaired: Vec<&str> = case.tensor.then_some(FIRST).into_iter().collect();
        assert_eq!(prepared.repaired, repaired, "{}", case.what);
        let documents: Vec<&str> = case.document.into_iter().collect();
        assert_eq!(prepared.repaired_documents, documents, "{}", case.what);
        assert_eq!(mini.codes(Depth::Deep, Some(&mini.lab.path)), [""; 0], "{}: repaired", case.what);
        assert_eq!(mini.files(), clean, "{}: nothing is left behind", case.what);
        let sums =
            std::process::Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&set).status();
        assert!(sums.expect("sha256sum of coreutils").success(), "{}", case.what);
        let again = mini.prepare();
        assert_eq!(again.reused, 4, "{}: a repair lasts", case.what);
        assert!(again.repaired.is_empty() && again.repaired_documents.is_empty(), "{}: {again:?}", case.what);
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
    let mini = Mini::new();
    let set = mini.set();
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
    assert_eq!(mini.codes(Depth::Deep, None), expected);
    assert_eq!(mini.prepare().repaired, MINI_NAMES);
    assert_eq!(mini.codes(Depth::Deep, None), [""; 0]);
}

#[test]
fn an_unreadable_manifest_is_an_error_and_is_repaired() {
    let mini = Mini::new();
    let path = mini.set().join("manifest.json");
    let good = fs::read(&path).expect("the manifest");
    for bytes in [&b""[..], &good[..good.len() / 2], b"\xff\xff", b"not JSON"] {
        overwrite(&path, bytes);
        assert_eq!(mini.is_refused().report().kind, "document");
        assert!(matches!(mini.newest(), Err(PackError::NoSet { .. })));
        assert_eq!(mini.prepare().repaired_documents, ["manifest.json"]);
        assert_eq!(mini.codes(Depth::Deep, None), [""; 0]);
    }
    relink(&path);
    mini.is_refused();
    assert_eq!(mini.prepare().repaired_documents, ["manifest.json"]);
    assert!(fs::symlink_metadata(&path).expect("the manifest").is_file());
    fs::remove_file(&path).expect("the manifest");
    fs::create_dir(&path).expect("a folder");
    mini.is_refused();
    // A folder with content is not the kit's to remove; an empty one is.
    fs::write(path.join("mine"), "x").expect("a file");
    assert_eq!(mini.try_prepare().expect_err("in the way").exit_code(), 2);
    assert_eq!(fs::read(path.join("mine")).expect("kept"), b"x");
    fs::remove_file(path.join("mine")).expect("a file");
    assert_eq!(mini.prepare().repaired_documents, ["manifest.json"]);
    assert_eq!(mini.codes(Depth::Deep, None), [""; 0]);
}

#[test]
fn a_manifest_in_another_sets_folder_is_not_that_set() {
    let mini = Mini::new();
    let other = mini.root.join("a".repeat(64));
    let copied = std::process::Command::new("cp").arg("-r").arg(mini.set()).arg(&other).status();
    assert!(copied.expect("cp of coreutils").success());
    let found = mini.verification("a".repeat(64).parse().expect("a key"), Depth::Shallow, None).expect("readable");
    assert_eq!(found.failures, ["set-key"]);
    assert_eq!(mini.codes(Depth::Shallow, None), [""; 0]);
    // It is not a candidate for the newest either.
    assert_eq!(mini.newest().expect("a set"), mini.key);
}

#[test]
fn payload_paths_that_leave_the_set_are_refused() {
    let mini = Mini::new();
    let set = mini.set();
    let secret = mini.at("secret");
    fs::copy(payload(&set, 0), &secret).expect("a copy");
    symlink(mini.lab.folder.path(), set.join("tensors/out")).expect("a link");
    let before = walk(mini.lab.folder.path());
    let good = fs::read(set.join("manifest.json")).expect("the manifest");
    for path in [
        secret.to_str().expect("text"),
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
        assert_eq!(mini.codes(Depth::Deep, None), expected, "{path:?}");
        let (opened, out) = (SetDir::open(&mini.root, mini.key).expect("a set"), mini.at("unpacked"));
        let unpacked = b70_packset::unpack(&opened, FIRST, &mini.lab.layout, &out, &Progress::NONE);
        assert!(unpacked.is_err(), "{path:?}: {unpacked:?}");
        assert!(!out.exists(), "{path:?}");
        overwrite(&set.join("manifest.json"), &good);
        assert_eq!(walk(mini.lab.folder.path()), before, "{path:?}");
    }
    // A false path in the sidecar does not lead a repair astray either.
    edit(&sidecar(&set), |s| s["payload"]["path"] = json!("../../secret"));
    assert_eq!(mini.prepare().repaired, [FIRST]);
    assert_eq!(walk(mini.lab.folder.path()).len(), before.len());
    assert_eq!(fs::read(&secret).expect("untouched"), fs::read(payload(&set, 0)).expect("a payload"));
}

#[test]
fn folders_that_are_links_are_refused() {
    let mini = Mini::new();
    let set = mini.set();
    let away = mini.at("away");
    // The payloads' folder.
    fs::rename(set.join("tensors"), &away).expect("a folder");
    symlink(&away, set.join("tensors")).expect("a link");
    let before = walk(&away);
    assert_eq!(mini.codes(Depth::Deep, None).len(), 12);
    assert_eq!(mini.try_prepare().expect_err("in the way").exit_code(), 2);
    assert_eq!(walk(&away), before);
    fs::remove_file(set.join("tensors")).expect("a link");
    fs::rename(&away, set.join("tensors")).expect("a folder");
    // The set's folder.
    fs::rename(&set, &away).expect("a folder");
    symlink(&away, &set).expect("a link");
    let before = walk(&away);
    mini.is_refused();
    assert_eq!(mini.try_prepare().expect_err("in the way").exit_code(), 2);
    b70_packset::gc(&mini.root, true).expect("a root");
    assert_eq!(walk(&away), before);
}

#[test]
fn against_compares_with_the_model_block_by_block() {
    let mini = Mini::new();
    let mut tensors = STANDARD.to_vec();
    tensors.retain(|tensor| tensor.0 != b"blk.1.ffn_down.weight");
    let other = mini.at("other.gguf");
    write_model(&other, &tensors);
    assert_eq!(mini.codes(Depth::Shallow, Some(&other)), ["model-sha256", "payload-against:blk.1.ffn_down.weight"]);
    let bytes = fs::read(&mini.lab.path).expect("the model");
    let block = tensor_bytes(STANDARD[2]);
    let at = bytes.windows(block.len()).position(|window| window == block).expect("the tensor's bytes");
    flip(&mini.lab.path, at + 50);
    assert_eq!(
        mini.codes(Depth::Shallow, Some(&mini.lab.path)),
        ["model-sha256", "payload-against:blk.0.ffn_up.weight"]
    );
    let found = mini.verification(mini.key, Depth::Shallow, Some(&mini.lab.path)).expect("readable");
    let named = found.details.iter().any(|failure| failure.detail.contains("first in row 1"));
    assert!(named, "rows have 36 bytes: {:?}", found.details);
}

#[test]
fn the_lab_plan_holds_a_set_to_its_slots() {
    let mini = Mini::new();
    manifest(&mini.set(), |m| {
        m["format"] = json!("qwen27-xe2-m6-pack-set-v2");
        let identity = m["identity"].as_object_mut().expect("an object");
        identity.remove("format_prefix");
        identity.remove("layout_name");
    });
    let codes = mini.codes(Depth::Shallow, None);
    for code in ["tensor-count", "tensor-slot-table", "set-key", "runtime-index-contract"] {
        assert!(codes.iter().any(|found| found == code), "{code} in {codes:?}");
    }
}
