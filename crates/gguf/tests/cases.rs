//! The committed hand-made files, each with its expected verdict.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use b70_gguf::{GgufFile, OpenError};
use common::{defect_name, invariants};

fn folder() -> PathBuf {
    b70_testkit::fixture("gguf-cases")
}

fn verdicts() -> serde_json::Map<String, serde_json::Value> {
    let text =
        std::fs::read_to_string(folder().join("verdicts.json")).expect("fixtures/gguf-cases is part of the repository");
    let mut table: serde_json::Value = serde_json::from_str(&text).expect("verdicts.json is JSON");
    match table["cases"].take() {
        serde_json::Value::Object(cases) => cases,
        other => panic!("cases must be an object, not {other}"),
    }
}

#[test]
fn every_file_has_a_verdict_and_every_verdict_a_file() {
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .expect("fixtures/gguf-cases is part of the repository")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .filter(|name| std::path::Path::new(name).extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    let named: BTreeSet<String> = verdicts().keys().cloned().collect();
    assert_eq!(files, named);
    assert!(files.len() >= 56);
}

#[test]
fn every_verdict_holds_from_bytes_and_from_the_path() {
    for (name, case) in verdicts() {
        let expected = case["ours"].as_str().expect("every case has our verdict");
        let path = folder().join(&name);
        let bytes = std::fs::read(&path).expect("readable");

        let from_bytes = match invariants::check(&bytes, bytes.len() as u64) {
            Ok(_) => "accept".to_owned(),
            Err(error) => defect_name(error.defect()),
        };
        assert_eq!(from_bytes, expected, "{name}");

        match GgufFile::open(&path) {
            Ok(_) => assert_eq!(expected, "accept", "{name}"),
            Err(OpenError::Empty { .. }) => assert_eq!(bytes.len(), 0, "{name}"),
            Err(error) => {
                let defect = error.format_error().unwrap_or_else(|| panic!("{name}: {error}")).defect();
                assert_eq!(defect_name(defect), expected, "{name}");
                assert!(error.to_string().contains(&name), "the message names the file: {error}");
            }
        }
    }
}

#[test]
fn a_verdict_that_differs_from_llama_cpp_has_a_reason() {
    for (name, case) in verdicts() {
        let ours = if case["ours"] == "accept" { "accept" } else { "reject" };
        let differs = case["llama_cpp"] != ours;
        assert_eq!(differs, case.get("reason").is_some(), "{name}");
    }
}
