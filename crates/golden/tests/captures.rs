//! Captures: admitted only when complete, and what status makes of them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use b70_golden::{CaseState, GoldenError, REQUIRED_CASES, import, status};
use b70_store::Sha256;
use serde_json::{Value, json};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/lab/golden-corpus-manifest.json");

fn cases() -> Vec<String> {
    REQUIRED_CASES.map(str::to_owned).to_vec()
}

/// A `.npy` of f32 [rows, 8].
fn npy(path: &Path, rows: u8) -> Vec<u8> {
    let data: Vec<u8> = (0..rows).flat_map(|r| [r; 32]).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 8), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(&data);
    fs::write(path, file).expect("a scratch file");
    data
}

fn meta(case: &str, role: &str, width: u64, data: &[u8]) -> Value {
    let digest = Sha256::of(data);
    json!({
        "schema_version": 1,
        "format": "b70-golden-capture-v1",
        "evidence_class": "diagnostic-only",
        "promotion_eligible": false,
        "case": case,
        "role": role,
        "width": width,
        "tensor": {
            "name": "ffn_out-3", "shape": [width, 8], "dtype": "f32", "stride_bytes": [64, 4], "sha256": digest
        },
        "layer": 3,
        "token_positions": [17],
        "input_sha256": digest,
        "output_sha256": digest,
        "source_model_sha256": Sha256::of(b"model"),
        "runtime": {
            "commit": "0123456789abcdef", "dirty_patch_sha256": null, "build_fingerprint_sha256": Sha256::of(b"build")
        },
        "kernel": { "name": "mul_mat_vec_q4_0_q8_1", "revision": "b11434", "device": "CPU" }
    })
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch folder"))
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn import(&self, case: &str, meta: &Value) -> Result<b70_golden::ImportReport, GoldenError> {
        let path = self.0.path().join("meta.json");
        fs::write(&path, meta.to_string()).expect("a scratch file");
        import(&self.root(), case, &cases(), &self.0.path().join("tensor.npy"), &path)
    }
}

#[test]
fn a_case_is_present_when_every_part_of_every_width_is() {
    let scratch = Scratch::new();
    for width in [1_u8, 4, 8, 16] {
        let data = npy(&scratch.0.path().join("tensor.npy"), width);
        for role in ["input", "output"] {
            let found = status(&scratch.root(), Some(Path::new(CORPUS))).expect("a status");
            assert_eq!((found.present, found.outstanding), (0, 9));
            let made = scratch
                .import("down_projection", &meta("down_projection", role, width.into(), &data))
                .expect("complete");
            assert_eq!((made.status.as_str(), made.promotion_eligible), ("admitted", false));
        }
    }
    let found = status(&scratch.root(), Some(Path::new(CORPUS))).expect("a status");
    assert_eq!((found.present, found.outstanding), (1, 8));
    assert_eq!(found.synthetic_set, "absent");
    let case = found.cases.iter().find(|c| c.case == "down_projection").expect("required");
    assert_eq!((case.state, case.captures.len()), (CaseState::Present, 8));
    // A byte of one of them changes: it no longer counts, and the reason is said.
    let tensor = case.captures[0].join("tensor.bin");
    let mut bytes = fs::read(&tensor).expect("the capture");
    bytes[0] ^= 1;
    fs::remove_file(&tensor).expect("it is ours");
    fs::write(&tensor, bytes).expect("it is ours");
    let found = status(&scratch.root(), Some(Path::new(CORPUS))).expect("a status");
    let case = found.cases.iter().find(|c| c.case == "down_projection").expect("required");
    assert_eq!((case.state, case.missing.len(), case.refused.len()), (CaseState::Outstanding, 1, 1));
    assert!(case.refused[0].contains("SHA-256"), "{:?}", case.refused);
}

#[test]
fn the_same_capture_again_is_kept() {
    let scratch = Scratch::new();
    let data = npy(&scratch.0.path().join("tensor.npy"), 1);
    let meta = meta("lm_head", "input", 1, &data);
    assert_eq!(scratch.import("lm_head", &meta).expect("complete").status, "admitted");
    assert_eq!(scratch.import("lm_head", &meta).expect("complete").status, "kept");
}

#[test]
fn every_field_of_the_metadata_is_mandatory() {
    let scratch = Scratch::new();
    let data = npy(&scratch.0.path().join("tensor.npy"), 1);
    let whole = meta("lm_head", "input", 1, &data);
    let mut tried = 0;
    let mut without = |pointer: &str, key: &str| {
        let mut meta = whole.clone();
        let at = meta.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object");
        at.remove(key).expect("the field is there");
        let error = scratch.import("lm_head", &meta).expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
        tried += 1;
    };
    for (pointer, value) in
        [("", &whole), ("/tensor", &whole["tensor"]), ("/runtime", &whole["runtime"]), ("/kernel", &whole["kernel"])]
    {
        for key in value.as_object().expect("an object").keys() {
            without(pointer, key);
        }
    }
    assert_eq!(tried, 26);
    assert!(!scratch.root().exists(), "nothing is left behind");
}

#[test]
fn what_disagrees_is_refused_with_every_fault() {
    let scratch = Scratch::new();
    let data = npy(&scratch.0.path().join("tensor.npy"), 2);
    let good = meta("lm_head", "output", 2, &data);
    for (pointer, value, why) in [
        ("/tensor/shape", json!([3, 8]), "needs 96 bytes, the file has 64"),
        ("/tensor/shape", json!([4, 4]), "the file's tensor is f32 [2, 8]"),
        ("/tensor/dtype", json!("i32"), "the metadata says i32"),
        ("/tensor/dtype", json!("f5"), "unknown variant"),
        ("/tensor/dtype", json!("q8_1"), "not a whole number of q8_1 blocks"),
        ("/tensor/stride_bytes", json!([4]), "has 1 entries"),
        ("/tensor/stride_bytes", json!([32, 3]), "not multiples"),
        ("/tensor/shape", json!([]), "expected positive lengths"),
        ("/tensor/shape", json!([18_446_744_073_709_551_615_u64, 8]), "not a whole number"),
        ("/tensor/sha256", json!("0".repeat(64)), "the file's bytes have"),
        ("/output_sha256", json!("0".repeat(64)), "output_sha256"),
        ("/role", json!("before"), "consists of input, output"),
        ("/case", json!("down_projection"), "the import of case"),
        ("/width", json!(0), "width is 0"),
        ("/token_positions", json!([]), "token_positions is empty"),
        ("/kernel/name", json!(""), "kernel.name"),
        ("/promotion_eligible", json!(true), "promotion-eligible"),
        ("/evidence_class", json!("promotion-grade-fresh-response"), "diagnostic-only"),
        ("/format", json!("other"), "format is"),
    ] {
        let mut meta = good.clone();
        *meta.pointer_mut(pointer).expect("the field") = value;
        let error = scratch.import("lm_head", &meta).expect_err(pointer).to_string();
        assert!(error.contains(why), "{pointer}: {error}");
    }
    let error = scratch.import("no_such_case", &good).expect_err("no such case").to_string();
    assert!(error.contains("no case is called"), "{error}");
    assert!(!scratch.root().exists(), "nothing is left behind");
    scratch.import("lm_head", &good).expect("the unchanged one is complete");
}

#[test]
fn a_corpus_that_allows_a_forbidden_use_is_invalid() {
    let text = fs::read_to_string(CORPUS).expect("a committed document");
    let scratch = Scratch::new();
    let path = scratch.0.path().join("corpus.json");
    for forbidden in ["strict-realistic-promotion", "localmaxxing-submission", "headline-throughput"] {
        let mut corpus: Value = serde_json::from_str(&text).expect("JSON");
        let list = corpus["reset_policy"]["forbidden_for"].as_array_mut().expect("a list");
        list.retain(|entry| entry != forbidden);
        fs::write(&path, corpus.to_string()).expect("a scratch file");
        let error = status(&scratch.root(), Some(&path)).expect_err(forbidden).to_string();
        assert!(error.contains(forbidden), "{error}");
        corpus["reset_policy"]["forbidden_for"].as_array_mut().expect("a list").push(json!(forbidden));
        corpus["reset_policy"]["allowed_for"].as_array_mut().expect("a list").push(json!(forbidden));
        fs::write(&path, corpus.to_string()).expect("a scratch file");
        let error = status(&scratch.root(), Some(&path)).expect_err(forbidden).to_string();
        assert!(error.contains(forbidden), "{error}");
    }
}

#[test]
fn a_claim_of_the_manifest_is_no_capture() {
    let text = fs::read_to_string(CORPUS).expect("a committed document");
    let scratch = Scratch::new();
    let mut corpus: Value = serde_json::from_str(&text).expect("JSON");
    corpus["artifacts"] = json!([{ "case": "lm_head", "state": "present" }]);
    let path = scratch.0.path().join("corpus.json");
    fs::write(&path, corpus.to_string()).expect("a scratch file");
    let found = status(&scratch.root(), Some(&path)).expect("a status");
    assert_eq!((found.present, found.unproven_claims.len()), (0, 1));
}
