//! Sets that upstream's script and kit 0.1 wrote: verified, kept to the byte, never replaced unasked.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use b70_golden::{
    FixtureOptions, FixtureTensor, GoldenError, HEADER, HEADER_NAME, MANIFEST, PrepareReport, PrepareStatus, SET_NAME,
    SetCheck, SetParameters, prepare, verify,
};
use b70_manifest::golden::GoldenSet;
use b70_manifest::{Explain as _, Sha256Hex, exit};
use b70_testkit::run;
use common::{python, tensors};
use serde_json::{Value, json};

fn small() -> SetParameters {
    SetParameters { k: 64, n: 32, widths: vec![1, 2], ..SetParameters::default() }
}

fn base() -> Value {
    json!({
        "evidence_class": "synthetic-kernel-contract-diagnostic-only", "promotion_eligible": false,
        "format": "qwen27-mmvp-q4_0-q8_1-golden-v1", "schema_version": 1, "k": 64, "n": 32, "seed": 270_036,
        "required_widths": [1, 2], "source_model_sha256": "a".repeat(64), "build_fingerprint_sha256": "b".repeat(64),
    })
}

/// As upstream's script writes it, keys sorted, the time a float.
fn upstream(made: &[FixtureTensor]) -> Value {
    let mut manifest = base();
    let case =
        |m: u64| json!({"tensors": [format!("input-m{m}.q8_1.bin"), format!("expected-m{m}.f32.bin")], "width": m});
    let tensor = |t: &FixtureTensor| json!({"dtype": t.dtype, "path": t.name, "sha256": Sha256Hex::of(&t.bytes), "shape": t.shape, "size_bytes": t.bytes.len()});
    manifest["cases"] = [1, 2].map(case).into_iter().collect();
    manifest["tensors"] = made.iter().map(tensor).collect();
    manifest["created_unix"] = json!(1_796_078_798.060_747_9);
    manifest["generator"] = json!({"path": "/srv/upstream/golden.py", "revision": 1});
    manifest["note"] = json!("Representative deterministic packed tensors; not captured model activations.");
    manifest["status"] = json!("ready");
    let sorted: BTreeMap<String, Value> = serde_json::from_value(manifest).expect("an object");
    serde_json::to_value(sorted).expect("an object")
}

/// As `b70-golden` of kit 0.1 wrote it.
fn kit_01(made: &[FixtureTensor]) -> Value {
    let mut manifest = base();
    let case = |m: u64| json!({"m": m, "weights": "weights.q4_0.bin", "input": format!("input-m{m}.q8_1.bin"), "expected": format!("expected-m{m}.f32.bin")});
    let tensor = |t: &FixtureTensor| {
        let entry =
            json!({"sha256": Sha256Hex::of(&t.bytes), "size_bytes": t.bytes.len(), "shape": t.shape, "dtype": t.dtype});
        (t.name.clone(), entry)
    };
    manifest["rule"] = json!("contract");
    manifest["cases"] = [1, 2].map(case).into_iter().collect();
    manifest["tensors"] = Value::Object(made.iter().map(tensor).collect());
    manifest["header"] = json!({"file": HEADER_NAME, "sha256": Sha256Hex::of(HEADER.as_bytes())});
    manifest
}

struct Set {
    root: tempfile::TempDir,
}

impl Set {
    fn new(manifest: Manifest) -> Self {
        let set = Self { root: tempfile::tempdir().expect("a scratch folder") };
        let made = tensors(&small());
        fs::create_dir(set.root.path().join(SET_NAME)).expect("it is ours");
        for tensor in &made {
            fs::write(set.path(&tensor.name), &tensor.bytes).expect("it is ours");
        }
        let manifest = manifest(&made);
        if manifest.get("header").is_some() {
            fs::write(set.path(HEADER_NAME), HEADER).expect("it is ours");
        }
        set.write(&format!("{manifest:#}\n"));
        set
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(SET_NAME).join(name)
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path(MANIFEST)).expect("a manifest")
    }

    fn write(&self, manifest: &str) {
        fs::write(self.path(MANIFEST), manifest).expect("it is ours");
    }

    fn verify(&self) -> Result<SetCheck, GoldenError> {
        verify(self.root.path(), true)
    }

    fn prepare(&self, parameters: &SetParameters, force: bool) -> Result<PrepareReport, GoldenError> {
        prepare(self.root.path(), parameters, &FixtureOptions { force, ..FixtureOptions::default() })
    }

    /// Every file with its bytes and its inode: the folder was not even written again as it was.
    fn state(&self) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
        let inode = |path: &PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("a file"));
        let entries = fs::read_dir(self.root.path().join(SET_NAME)).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.map(|path| (path.clone(), (inode(&path), fs::read(&path).expect("a file")))).collect()
    }
}

type Manifest = fn(&[FixtureTensor]) -> Value;

const WRITERS: [(Manifest, &str); 2] =
    [(upstream, "/srv/upstream/golden.py revision 1"), (kit_01, "b70-golden of kit 0.1")];

#[test]
fn a_sound_set_verifies_and_is_kept_to_the_byte() {
    for (manifest, writer) in WRITERS {
        let set = Set::new(manifest);
        let before = set.state();
        let check = set.verify().expect("a readable set");
        assert!(check.is_valid() && check.recomputed && check.tensors.len() == 5, "{writer}: {check:?}");
        assert_eq!(check.written_by, writer);
        let kept = set.prepare(&small(), false).expect("the set that was asked for");
        assert_eq!((kept.status, kept.written_by.as_str()), (PrepareStatus::Kept, writer));
        assert_eq!(set.state(), before);
    }
}

#[test]
fn another_writers_set_is_replaced_only_when_forced() {
    for (manifest, writer) in WRITERS {
        let set = Set::new(manifest);
        let before = set.state();
        for other in [SetParameters { seed: 1, ..small() }, SetParameters { packed: true, ..small() }] {
            let error = set.prepare(&other, false).expect_err("another set is there");
            assert!(error.to_string().contains(&format!("was written by {writer}, and its ")), "{error}");
            let hint = error.report().hint.expect("a way on");
            assert!(hint.contains("--force") && error.exit_code() == exit::CHECK_FAILED, "{hint}");
            assert_eq!(set.state(), before);
        }
        let made = set.prepare(&small(), true).expect("told to replace");
        assert_eq!((made.status, made.written_by.as_str()), (PrepareStatus::Replaced, "b70-golden revision 2"));
        assert_eq!(made.replaced_because, Some(format!("it was written by {writer}")));
        assert!(set.verify().expect("a readable set").is_valid());
        assert_eq!(set.prepare(&small(), true).expect("ours").status, PrepareStatus::Kept);
    }
}

type Change<'a> = Box<dyn Fn(&str) -> String + 'a>;

#[test]
fn a_bad_manifest_is_one_error_and_loses_nothing() {
    let digest = Sha256Hex::of(&tensors(&small())[0].bytes).to_string();
    let weights = "\"path\": \"weights.q4_0.bin\"";
    let time = "1796078798.0607479";
    let changes: [(&str, Change<'_>); 9] = [
        ("weights.q4_0.bin has SHA-256", Box::new(|text| text.replace(&digest, &"c".repeat(64)))),
        ("not JSON: EOF", Box::new(|text| text[..text.len() / 2].to_owned())),
        (
            "which is not among the tensors",
            Box::new(|text| text.replace("input-m2.q8_1.bin\",\n      \"sha", "x.bin\",\n      \"sha")),
        ),
        ("expected text of the form", Box::new(|text| text.replace(weights, "\"path\": \"../../weights.q4_0.bin\""))),
        ("expected text of the form", Box::new(|text| text.replace(weights, "\"path\": \"/etc/passwd\""))),
        (
            "is already used at /tensors/0/path",
            Box::new(|text| text.replace("\"path\": \"expected-m2.f32.bin\"", weights)),
        ),
        ("not JSON", Box::new(|text| text.replace(time, "NaN"))),
        ("number out of range", Box::new(|text| text.replace(time, "1e400"))),
        ("status: the manifest says \"building\"", Box::new(|text| text.replace("\"ready\"", "\"building\""))),
    ];
    for (why, change) in changes {
        let set = Set::new(upstream);
        let text = change(&set.text());
        assert_ne!(text, set.text(), "{why}: the test changes nothing");
        set.write(&text);
        let before = set.state();
        let said = match set.verify() {
            Ok(check) => check.failures.join("; "),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(why), "{why}: {said}");
        let error = set.prepare(&small(), false).expect_err("nothing of another writer is repaired");
        assert!(matches!(error, GoldenError::ForeignSet { .. }) && error.to_string().contains(why), "{error}");
        assert_eq!(set.state(), before);
    }
    // No manifest at all: nobody knows whose files those are.
    let set = Set::new(upstream);
    fs::remove_file(set.path(MANIFEST)).expect("it is ours");
    let before = set.state();
    let error = set.prepare(&small(), false).expect_err("nothing of another writer is repaired");
    assert!(error.to_string().contains("manifest.json is missing"), "{error}");
    assert_eq!(set.state(), before);
}

/// Upstream's reader: a list of tensors, cases with a width and two names.
#[test]
fn upstreams_reader_accepts_our_manifest() {
    let root = tempfile::tempdir().expect("a scratch folder");
    let parameters = SetParameters { packed: true, ..small() };
    let made = prepare(root.path(), &parameters, &FixtureOptions::default()).expect("a set");
    let said = run(python("upstream_reader.py").arg(root.path().join(SET_NAME)));
    let expected: String = made.tensors.iter().map(|t| format!("{} {}\n", t.name, t.sha256)).collect();
    assert_eq!(said, expected);
    let manifest: GoldenSet =
        serde_json::from_slice(&fs::read(made.manifest).expect("a manifest")).expect("a document");
    assert_eq!(manifest.created_unix, None, "the same parameters give the same manifest");
}
