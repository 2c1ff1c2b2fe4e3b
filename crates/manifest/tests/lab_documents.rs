//! Upstream's documents are read and written back without a change of content.

use b70_manifest::artifact::{DeepValidationV1, RegistryRecord};
use b70_manifest::document::{self, Document, Kind, read_text};
use b70_manifest::golden::{GoldenCorpusManifest, GoldenSet, LabFocusedResult};
use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::{RamStage, TensorPack};
use b70_manifest::state::LabWorkerIdentity;
use b70_manifest::workers::Workers;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn fixture(name: &str) -> String {
    let path = b70_testkit::fixture("documents").join(name);
    std::fs::read_to_string(&path).expect("the sample is part of the repository")
}

fn round_trip<T: DeserializeOwned + Serialize>(name: &str) -> T {
    let text = fixture(name);
    let value: Value = serde_json::from_str(&text).expect("a sample is JSON");
    let typed: T = serde_json::from_value(value.clone()).expect("upstream's document is accepted unchanged");
    let back = serde_json::to_value(&typed).expect("a document can be written");
    assert_eq!(back, value, "{name}: nothing may be lost or added");
    typed
}

#[test]
fn workers_are_accepted_unchanged() {
    let workers: Workers = round_trip("lab/workers.json");
    assert_eq!(workers.workers.len(), 4);
    assert_eq!(workers.common.extra_llama_args.words().unwrap(), ["--cache-ram", "0"]);
}

#[test]
fn the_model_pack_manifest_is_accepted_unchanged() {
    let manifest: ModelPackManifest = round_trip("lab/model-pack-manifest.json");
    assert_eq!(manifest.admission_requirements.len(), 5);
}

#[test]
fn the_golden_corpus_manifest_is_accepted_unchanged() {
    let manifest: GoldenCorpusManifest = round_trip("lab/golden-corpus-manifest.json");
    assert_eq!(manifest.required_cases.len(), 9);
}

/// Reads an artifact's document by schema, rules and type; every number comes back as its text.
fn artifact<T: Document + Serialize>(name: &str) -> T {
    let text = fixture(&format!("lab/{name}"));
    let typed: T = read_text(name, &text).expect("the document is accepted unchanged");
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
    let text = fixture("lab/registry.json");
    for bad in ["NaN", "Infinity", "1e400", "-1.5", "1e13", "\"1796078798\"", "null"] {
        let text = text.replace("1796078798.0607479", bad);
        let error = read_text::<RegistryRecord>("manifest.json", &text).expect_err(bad);
        let document::DocumentError::Invalid { report } = error else { panic!("{bad}: {error}") };
        assert_eq!(report.errors.len(), 1, "{bad}: {:?}", report.errors);
    }
}

#[test]
fn the_golden_manifest_is_accepted_unchanged() {
    let set: GoldenSet = artifact("golden.json");
    assert_eq!((set.tensors.len(), set.cases.len()), (9, 4));
    assert_eq!(set.cases[3].tensors, ["input-m16.q8_1.bin", "expected-m16.f32.bin"]);
    let time = serde_json::to_string(&set.created_unix).unwrap();
    assert_eq!(time, "1796078798.0607479", "kept to the digit");
}

/// Kit 0.1 wrote tensors by name and cases with `m`: they become what is written now.
#[test]
fn a_golden_manifest_of_kit_0_1_is_read() {
    let old: GoldenSet = read_text("kit-0.1/golden-set.json", &fixture("kit-0.1/golden-set.json")).unwrap();
    let now: GoldenSet = read_text("samples/golden-set.json", &fixture("samples/golden-set.json")).unwrap();
    for tensor in &now.tensors {
        let same = old.tensor(&tensor.path).expect("the same files");
        assert_eq!((&same.shape, &same.dtype, same.size_bytes), (&tensor.shape, &tensor.dtype, tensor.size_bytes));
    }
    let files = |set: &GoldenSet| set.cases.iter().map(|case| (case.width, case.tensors.clone())).collect::<Vec<_>>();
    assert_eq!(files(&old), files(&now));
}

#[test]
fn the_focused_result_is_the_labs_and_not_ours() {
    let result: LabFocusedResult = artifact("focused.json");
    assert!(result.passed);
    let text = fixture("lab/focused.json");
    let report = b70_manifest::validate::check_text("result.json".as_ref(), &text, None);
    assert!(report.valid && report.kind == Some(Kind::LabFocusedResult), "{report:?}");
    let report = b70_manifest::validate::check_text("result.json".as_ref(), &text, Some(Kind::FocusedResult));
    assert!(!report.valid, "it is not a result of ours");
}

#[test]
fn the_worker_record_and_the_status_rows_are_the_labs() {
    let identity: LabWorkerIdentity = artifact("resolved-identity.json");
    assert_eq!((identity.worker.name.as_str(), identity.worker.port), ("gpu0-baseline", 19720));
    for (name, kind) in
        [("resolved-identity.json", Kind::LabWorkerIdentity), ("status-before.json", Kind::WorkerStatus)]
    {
        let report = b70_manifest::validate::check_text(name.as_ref(), &fixture(&format!("lab/{name}")), None);
        assert!(report.valid && report.kind == Some(kind), "{report:?}");
    }
}

fn refused<T: Document>(name: &str, from: &str, to: &str) -> String {
    let text = fixture(name);
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text, "{from:?} is not in {name}");
    let Err(error) = read_text::<T>(name, &changed) else { panic!("{name} is accepted with {to}") };
    error.to_string()
}

#[test]
fn bad_lab_documents_are_one_error_that_names_the_place() {
    let set = |from: &str, to: &str| refused::<GoldenSet>("lab/golden.json", from, to);
    let time = "1796078798.0607479";
    for (to, why) in [
        ("NaN", "not JSON"),
        ("1e400", "not JSON: number out of range"),
        ("-1.5", "/created_unix"),
        ("1e300", "/created_unix"),
        ("\"now\"", "/created_unix"),
    ] {
        let error = set(time, to);
        assert!(error.contains(why), "{to}: {error}");
        assert_eq!(error.lines().count(), 2, "one error: {error}");
    }
    assert!(set("\"path\": \"weights.q4_0.bin\"", "\"path\": \"../weights\"").contains("/tensors/0/path"));
    assert!(set("\"input-m1.q8_1.bin\",\n", "").contains("/cases/0/tensors"));
    let old = |from: &str, to: &str| refused::<GoldenSet>("kit-0.1/golden-set.json", from, to);
    assert!(old("\"weights.q4_0.bin\": {", "\"../weights\": {").contains("/tensors/..~1weights"));
    let focused = |from: &str, to: &str| refused::<LabFocusedResult>("lab/focused.json", from, to);
    assert!(focused("\"promotion_eligible\": false", "\"promotion_eligible\": true").contains("/promotion_eligible"));
    assert!(focused("\"returncode\": 0", "\"returncode\": -11").contains("this test ended with -11"));
    assert!(focused("\"seconds\": 3.2", "\"seconds\": 1e400").contains("number out of range"));
}
