//! What must hold for every text that is given as a document: of its own kind and of any other. The replay test and the
//! fuzz target share it.

use std::path::Path;

use b70_manifest::document::{Document, Kind, read_text};
use b70_manifest::editor::{associations, merge_settings};
use b70_manifest::gate::Judged;
use b70_manifest::validate::{FileReport, check_bytes, check_text};
use b70_manifest::workers::ExtraArgs;
use b70_manifest::{GpuRef, PciAddress, Sha256Hex, artifact, calibration, canonical_json, golden, migrate, model_pack};
use b70_manifest::{pack, state, workers};
use serde::Serialize;
use serde_json::{Map, Value};

const PATH: &str = "document";

/// The bytes as a document whose kind is found, as one of a kind that their length chooses, and as an editor's settings.
pub(crate) fn check(bytes: &[u8]) {
    let chosen = Kind::ALL[bytes.len() % Kind::ALL.len()];
    for asked in [None, Some(chosen)] {
        let (report, text) = check_bytes(Path::new(PATH), bytes, asked);
        assert_eq!(text.is_some(), std::str::from_utf8(bytes).is_ok());
        report_is_sound(&report, text);
        if let (true, Some(kind), Some(text)) = (report.valid, report.kind, text) {
            typed(kind, text);
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        canonical(&value);
    }
    migration(text);
    words(text);
    settings(text);
    scalars(text);
}

fn report_is_sound(report: &FileReport, text: Option<&str>) {
    assert_eq!(report.valid, report.errors.is_empty());
    assert_eq!(report.exit_code() == 0, report.valid);
    assert!(report.kind.is_some() || !report.valid, "what has no kind is not valid");
    for problem in &report.errors {
        assert!(!problem.code.is_empty() && !problem.message.is_empty());
        let (Some(line), Some(column)) = (problem.line, problem.column) else { panic!("without a place: {problem:?}") };
        if let Some(text) = text {
            let there = text.split('\n').nth(usize::try_from(line).expect("small") - 1);
            let there = there.unwrap_or_else(|| panic!("line {line} is outside: {problem:?}"));
            assert!(column >= 1 && column as usize <= there.chars().count() + 1, "outside its line: {problem:?}");
        }
    }
}

fn typed(kind: Kind, text: &str) {
    match kind {
        Kind::Workers => survives::<workers::Workers>(text),
        Kind::ModelPackManifest => survives::<model_pack::ModelPackManifest>(text),
        Kind::GoldenCorpusManifest => survives::<golden::GoldenCorpusManifest>(text),
        Kind::PackPlan => survives::<pack::PackPlan>(text),
        Kind::CalibrationSuite => survives::<calibration::CalibrationSuite>(text),
        Kind::PackSet => survives::<pack::PackSet>(text),
        Kind::TensorPack => survives::<pack::TensorPack>(text),
        Kind::DeepValidation => survives::<artifact::DeepValidationV1>(text),
        Kind::Receipt => survives::<artifact::Receipt>(text),
        Kind::RamStage => survives::<pack::RamStage>(text),
        Kind::CacheEntry => survives::<artifact::CacheEntry>(text),
        Kind::RegistryRecord => survives::<artifact::RegistryRecord>(text),
        Kind::Fingerprint => survives::<artifact::Fingerprint>(text),
        Kind::GoldenSet => survives::<golden::GoldenSet>(text),
        Kind::FocusedResult => survives::<golden::FocusedResult>(text),
        Kind::LabWorkerIdentity => survives::<state::LabWorkerIdentity>(text),
        Kind::LabFocusedResult => survives::<golden::LabFocusedResult>(text),
        Kind::CalibrationResult => judged_again(text),
        Kind::CalibrationRun => survives::<calibration::CalibrationRun>(text),
        Kind::LabCalibrationResult => survives::<calibration::LabCalibrationResult>(text),
        Kind::Comparison => survives::<calibration::Comparison>(text),
        Kind::WorkerIdentity => survives::<state::WorkerIdentity>(text),
        Kind::WorkerStatus => survives::<state::StatusDocument>(text),
    }
}

/// A valid document is readable as its type.
fn reads<T: Document>(text: &str) -> T {
    read_text(PATH, text).unwrap_or_else(|error| panic!("valid and yet not readable: {error}\n{text}"))
}

/// What is written again is valid, and reads as the same.
fn survives<T: Document + Serialize>(text: &str) {
    let first = serde_json::to_value(reads::<T>(text)).expect("documents have string keys");
    let again = serde_json::to_string(&first).expect("values print");
    let report = check_text(Path::new(PATH), &again, Some(T::KIND));
    assert!(report.valid, "no longer valid when written again: {:?}\n{again}", report.errors);
    assert_eq!(serde_json::to_value(reads::<T>(&again)).expect("as before"), first);
}

fn migration(text: &str) {
    let Ok(migrated) = migrate::migrate(Path::new(PATH), text) else { return };
    let original: Value = serde_json::from_str(text).expect("it was read");
    let report = check_text(Path::new(PATH), &migrated.text(), Some(migrated.kind));
    assert!(report.valid, "not valid after migration: {:?}\n{}", report.errors, migrated.text());
    if migrated.from == migrated.to {
        assert_eq!(migrated.document, original, "what is current comes back as it is");
        return;
    }
    let expected = as_the_lab_writes_it(original, migrated.kind);
    assert_eq!(migrate::revert(&migrated.document), expected, "migration loses nothing");
}

/// A version 1 document with its version and with lines of arguments: both are optional in what we read. None where a list
/// has a word that no line can say.
fn as_the_lab_writes_it(mut document: Value, kind: Kind) -> Option<Value> {
    document["schema_version"] = 1.into();
    if kind != Kind::Workers {
        return Some(document);
    }
    let mut places = vec!["/common".to_owned()];
    let profiles = document.get("profiles").and_then(Value::as_object);
    places.extend(
        profiles
            .into_iter()
            .flatten()
            .map(|(name, _)| format!("/profiles/{}", name.replace('~', "~0").replace('/', "~1"))),
    );
    for place in places {
        let Some(args) = document.pointer_mut(&place).and_then(|holder| holder.get_mut("extra_llama_args")) else {
            continue;
        };
        let Value::Array(list) = &*args else { continue };
        let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        let odd = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '\\');
        if words.iter().any(|word| word.is_empty() || word.contains(odd)) {
            return None;
        }
        *args = words.join(" ").into();
    }
    Some(document)
}

/// What a result claims is believed only after the gates ran again, and what they then write is valid.
fn judged_again(text: &str) {
    let (judged, _) = Judged::again(reads::<calibration::CalibrationResult>(text));
    let passed = judged.gates().values().all(|gate| gate.passed);
    assert!(judged.promotion().is_none() || passed, "eligible although a gate failed");
    let written = serde_json::to_string(&judged).expect("values print");
    let report = check_text(Path::new(PATH), &written, Some(Kind::CalibrationResult));
    assert!(report.valid, "judged again and no longer valid: {:?}\n{written}", report.errors);
    let (again, _) = Judged::again(reads::<calibration::CalibrationResult>(&written));
    assert_eq!(again.evidence_class(), judged.evidence_class());
}

fn backwards(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let members = map.iter().rev().map(|(key, value)| (key.clone(), backwards(value)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(backwards).collect()),
        other => other.clone(),
    }
}

fn canonical(value: &Value) {
    let Ok(text) = canonical_json(value) else { return };
    assert!(text.is_ascii(), "canonical text is ASCII");
    let again: Value = serde_json::from_str(&text).expect("canonical text is JSON");
    assert_eq!(&again, value, "canonical text says the same");
    assert_eq!(canonical_json(&again).as_ref().ok(), Some(&text));
    assert_eq!(canonical_json(&backwards(value)).ok(), Some(text), "the order of keys means nothing");
}

fn words(text: &str) {
    let Ok(words) = ExtraArgs::Text(text.to_owned()).words() else { return };
    let line = ExtraArgs::Words(words.clone()).line();
    assert_eq!(ExtraArgs::Text(line).words(), Ok(words), "a quoted line is the same words");
}

fn settings(text: &str) {
    let wanted = associations("schemas");
    let Ok((merged, ..)) = merge_settings(text, &wanted) else { return };
    let (again, added, _) = merge_settings(&merged, &wanted).expect("what was written can be read");
    assert_eq!(again, merged, "the second time changes nothing");
    assert!(added.is_empty());
}

fn scalars(text: &str) {
    if let Ok(card) = text.parse::<GpuRef>() {
        assert_eq!(card.to_string().parse::<GpuRef>(), Ok(card));
    }
    if let Ok(address) = text.parse::<PciAddress>() {
        assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
    }
    if let Ok(digest) = text.parse::<Sha256Hex>() {
        assert_eq!(digest.to_string(), text);
    }
}
