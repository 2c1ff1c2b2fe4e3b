//! Publish and verify on a real file system.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use b70_golden::{
    FixtureOptions, GoldenError, MANIFEST, PrepareStatus, SET_NAME, SetCheck, SetParameters, prepare, verify,
};
use b70_manifest::golden::GoldenRule;
use serde_json::{Value, json};

fn small() -> SetParameters {
    SetParameters { k: 64, n: 32, widths: vec![1, 2], packed: true, ..SetParameters::default() }
}

struct Set {
    root: tempfile::TempDir,
}

impl Set {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a scratch folder");
        let report = prepare(root.path(), &small(), &FixtureOptions::default()).expect("a set");
        assert_eq!(report.status, PrepareStatus::Created);
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(SET_NAME).join(name)
    }

    fn verify(&self) -> Result<SetCheck, GoldenError> {
        verify(self.root.path(), false)
    }

    fn failures(&self) -> Vec<String> {
        self.verify().expect("a readable set").failures
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.path(name);
        let mut bytes = fs::read(&path).expect("the file is there");
        change(&mut bytes);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
        fs::write(&path, bytes).expect("it is writable");
    }

    fn change_manifest(&self, change: impl FnOnce(&mut Value)) {
        self.change(MANIFEST, |bytes| {
            let mut value: Value = serde_json::from_slice(bytes).expect("a document");
            change(&mut value);
            *bytes = serde_json::to_vec_pretty(&value).expect("a document");
        });
    }
}

fn tensor<'a>(manifest: &'a mut Value, path: &str) -> &'a mut Value {
    let tensors = manifest["tensors"].as_array_mut().expect("a list");
    tensors.iter_mut().find(|tensor| tensor["path"] == path).expect("a tensor of the set")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_set_is_published_whole_and_kept() {
    let set = Set::new();
    assert_eq!(
        names(&set.root.path().join(SET_NAME)),
        [
            "b70_golden.h",
            "expected-m1.f32.bin",
            "expected-m2.f32.bin",
            "input-m1.q8_1.bin",
            "input-m2.q8_1.bin",
            "manifest.json",
            "weights.q4_0.bin",
            "weights.xe2-dpas-v2.bin"
        ]
    );
    assert_eq!(names(set.root.path()), [SET_NAME]);
    let check = verify(set.root.path(), true).expect("a readable set");
    assert!(check.is_valid() && check.recomputed && check.tensors.len() == 6, "{check:?}");
    let again = prepare(set.root.path(), &small(), &FixtureOptions::default()).expect("a set");
    assert_eq!(again.status, PrepareStatus::Kept);
    assert_eq!(again.manifest_sha256, check.manifest_sha256);
}

#[test]
fn the_same_parameters_give_the_same_manifest() {
    assert_eq!(
        Set::new().verify().expect("a set").manifest_sha256,
        Set::new().verify().expect("a set").manifest_sha256
    );
}

#[test]
fn a_flipped_bit_in_any_tensor_names_it() {
    let set = Set::new();
    let tensors: Vec<String> = names(&set.root.path().join(SET_NAME))
        .into_iter()
        .filter(|n| Path::new(n).extension().is_some_and(|e| e == "bin"))
        .collect();
    assert_eq!(tensors.len(), 6);
    for tensor in tensors {
        let at = fs::metadata(set.path(&tensor)).expect("the file").len() as usize / 2;
        set.change(&tensor, |bytes| bytes[at] ^= 0x10);
        let failures = set.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with(&format!("{tensor} has SHA-256 ")), "{failures:?}");
        set.change(&tensor, |bytes| bytes[at] ^= 0x10);
    }
    assert!(set.failures().is_empty());
}

#[test]
fn a_missing_a_cut_and_a_linked_tensor_are_named() {
    let set = Set::new();
    set.change("input-m2.q8_1.bin", |bytes| bytes.truncate(7));
    fs::remove_file(set.path("expected-m1.f32.bin")).expect("it is ours");
    fs::rename(set.path("weights.q4_0.bin"), set.root.path().join("elsewhere")).expect("it is ours");
    std::os::unix::fs::symlink(set.root.path().join("elsewhere"), set.path("weights.q4_0.bin")).expect("a link");
    let failures = set.failures();
    assert_eq!(failures.len(), 3, "{failures:?}");
    for (name, why) in
        [("weights.q4_0.bin", "link"), ("expected-m1.f32.bin", "does not exist"), ("input-m2.q8_1.bin", "expected 144")]
    {
        assert!(failures.iter().any(|f| f.starts_with(name) && f.contains(why)), "{name}: {failures:?}");
    }
    // Prepare repairs what is damaged, and says why.
    let report = prepare(set.root.path(), &small(), &FixtureOptions::default()).expect("a repair");
    assert_eq!(report.status, PrepareStatus::Replaced);
    assert!(report.replaced_because.expect("a reason").contains("expected-m1.f32.bin"));
    assert!(set.failures().is_empty());
    assert_eq!(names(set.root.path()), ["elsewhere", SET_NAME]);
}

#[test]
fn a_manifest_that_leaves_something_out_or_adds_something_is_refused() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 4] = [
        ("expected-m2.f32.bin", |m| {
            m["tensors"].as_array_mut().expect("a list").retain(|t| t["path"] != "expected-m2.f32.bin");
        }),
        ("../weights.bin", |m| tensor(m, "weights.q4_0.bin")["path"] = json!("../weights.bin")),
        ("input-m1.q8_1.bin", |m| tensor(m, "input-m1.q8_1.bin")["shape"] = json!([2, 32])),
        ("case", |m| {
            m["cases"].as_array_mut().expect("a list").pop();
        }),
    ];
    for (name, change) in changes {
        let set = Set::new();
        set.change_manifest(change);
        let failures = match set.verify() {
            Ok(check) => check.failures.join("; "),
            Err(error) => error.to_string(),
        };
        assert!(failures.contains(name), "{name}: {failures}");
    }
}

#[test]
fn a_manifest_that_claims_more_than_it_may_is_refused() {
    for (field, value) in [
        ("promotion_eligible", json!(true)),
        ("evidence_class", json!("promotion-grade-fresh-response")),
        ("format", json!("another")),
        ("k", json!(63)),
        ("required_widths", json!([0])),
    ] {
        let set = Set::new();
        set.change_manifest(|m| m[field] = value);
        let error = set.verify().expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

/// Files and manifest rewritten together: only recomputing tells.
#[test]
fn recomputing_finds_a_set_forged_as_a_whole() {
    let set = Set::new();
    set.change("expected-m1.f32.bin", |bytes| bytes[0] ^= 1);
    let digest = b70_store::Sha256::of(&fs::read(set.path("expected-m1.f32.bin")).expect("the file"));
    set.change_manifest(|m| tensor(m, "expected-m1.f32.bin")["sha256"] = json!(digest));
    assert!(set.failures().is_empty());
    let check = verify(set.root.path(), true).expect("a readable set");
    assert!(check.failures.len() == 1 && check.failures[0].starts_with("expected-m1.f32.bin"), "{check:?}");
}

#[test]
fn a_sound_set_of_other_parameters_is_not_replaced_unasked() {
    let set = Set::new();
    for other in [
        SetParameters { seed: 1, ..small() },
        SetParameters { rule: GoldenRule::Ggml, ..small() },
        SetParameters { packed: false, ..small() },
    ] {
        let error = prepare(set.root.path(), &other, &FixtureOptions::default()).expect_err("another set");
        assert!(matches!(error, GoldenError::OtherSet { .. }), "{error}");
    }
    assert!(set.failures().is_empty());
    let options = FixtureOptions { force: true, ..FixtureOptions::default() };
    let other = SetParameters { seed: 1, ..small() };
    let report = prepare(set.root.path(), &other, &options).expect("told to replace");
    assert_eq!(report.replaced_because.as_deref(), Some("seed was 270036, now 1"));
    assert!(set.failures().is_empty());
}

#[test]
fn refused_parameters_leave_nothing_behind() {
    let root = tempfile::tempdir().expect("a scratch folder");
    let wrong = SetParameters { k: 33, ..small() };
    prepare(&root.path().join("new"), &wrong, &FixtureOptions::default()).expect_err("33 is not a multiple of 32");
    assert!(names(root.path()).is_empty());
}
