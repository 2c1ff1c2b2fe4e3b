//! The lab's version 1 documents are read and written back without a change of content.

use std::path::Path;

use b70_manifest::golden::GoldenCorpusManifest;
use b70_manifest::model_pack::ModelPackManifest;
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
