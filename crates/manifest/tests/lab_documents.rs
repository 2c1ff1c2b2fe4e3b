//! The lab's version 1 documents are read and written back without a change of content.

use std::path::Path;

use b70_manifest::artifact::{DeepValidationV1, RegistryRecord};
use b70_manifest::document::{self, Document};
use b70_manifest::golden::GoldenCorpusManifest;
use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::{RamStage, TensorPack};
use b70_manifest::workers::Workers;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn round_trip<T: DeserializeOwned + Serialize>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents/lab").join(name);
    let text = std::fs::read_to_string(&path).expect("the sample is part of the repository");
    let value: Value = serde_json::from_str(&text).expect("a sample is JSON");
    let typed: T = serde_json::from_value(value.clone()).expect("the lab's document is accepted unchanged");
    let back = serde_json::to_value(&typed).expect("a document can be written");
    assert_eq!(back, value, "{name}: nothing may be lost or added");
    typed
}

#[test]
fn workers_are_accepted_unchanged() {
    let workers: Workers = round_trip("workers.json");
    assert_eq!(workers.workers.len(), 4);
    assert_eq!(workers.common.extra_llama_args.words().unwrap(), ["--cache-ram", "0"]);
}

#[test]
fn the_model_pack_manifest_is_accepted_unchanged() {
    let manifest: ModelPackManifest = round_trip("model-pack-manifest.json");
    assert_eq!(manifest.admission_requirements.len(), 5);
}

#[test]
fn the_golden_corpus_manifest_is_accepted_unchanged() {
    let manifest: GoldenCorpusManifest = round_trip("golden-corpus-manifest.json");
    assert_eq!(manifest.required_cases.len(), 9);
}

/// Reads an artifact's document by schema, rules and type; every number comes back as its text.
fn artifact<T: Document + Serialize>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents/lab").join(name);
    let typed: T = document::read(&path).expect("the document is accepted unchanged");
    let text = std::fs::read_to_string(&path).expect("the sample is part of the repository");
    let mut value: Value = serde_json::from_str(&text).expect("a sample is JSON");
    let mut back = serde_json::to_value(&typed).expect("a document can be written");
    back.sort_all_objects();
    value.sort_all_objects();
    let (back, value) = (back.as_object().expect("an object"), value.as_object().expect("an object"));
    for (key, expected) in value {
        assert_eq!(back.get(key).map(ToString::to_string), Some(expected.to_string()), "{name}: {key}");
    }
    for (key, added) in back {
        assert!(value.contains_key(key) || added == &Value::Bool(false), "{name}: {key} was added");
    }
    typed
}

#[test]
fn artifact_documents_with_fractional_times_are_accepted_unchanged() {
    let tensor: TensorPack = artifact("tensor-pack.json");
    assert_eq!(tensor.created_unix.to_string(), "1796078798.0607479");
    artifact::<DeepValidationV1>("deep-validation.json");
    artifact::<RamStage>("ram-stage.json");
    artifact::<RegistryRecord>("registry.json");
}

#[test]
fn a_time_that_is_none_is_one_error() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents/lab/registry.json");
    let text = std::fs::read_to_string(path).expect("the sample is part of the repository");
    for bad in ["NaN", "Infinity", "1e400", "-1.5", "1e13", "\"1796078798\"", "null"] {
        let text = text.replace("1796078798.0607479", bad);
        let error = document::read_text::<RegistryRecord>("manifest.json", &text).expect_err(bad);
        let document::DocumentError::Invalid { report } = error else { panic!("{bad}: {error}") };
        assert_eq!(report.errors.len(), 1, "{bad}: {:?}", report.errors);
    }
}
