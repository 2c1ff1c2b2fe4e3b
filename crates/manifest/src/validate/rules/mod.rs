//! Rules across the fields of one document that a schema cannot say.
//!
//! They read the raw value, so that they report beside the schema's errors: whatever part has another form than they
//! expect is left to the schema.

mod lane;
mod packs;
mod results;

use std::collections::BTreeMap;

use serde_json::Value;

use super::problem::Report;
use crate::document::Kind;

pub(super) fn check(kind: Kind, value: &Value, report: &mut Report<'_>) {
    match kind {
        Kind::Workers => lane::workers(value, report),
        Kind::ModelPackManifest => lane::model_pack(value, report),
        Kind::GoldenCorpusManifest => lane::golden_corpus(value, report),
        Kind::CalibrationSuite => lane::suite(value, report),
        Kind::PackPlan => packs::plan(value, report),
        Kind::PackSet => packs::set(value, report),
        Kind::TensorPack => packs::tensor(value, "", report),
        Kind::RegistryRecord => packs::registry(value, report),
        Kind::GoldenSet => results::golden_set(value, report),
        Kind::FocusedResult => results::focused(value, report),
        Kind::LabFocusedResult => results::lab_focused(value, report),
        Kind::CalibrationResult => results::calibration(value, report),
        Kind::CalibrationRun => results::run(value, report),
        Kind::Comparison => results::comparison(value, report),
        Kind::DeepValidation
        | Kind::Receipt
        | Kind::RamStage
        | Kind::CacheEntry
        | Kind::Fingerprint
        | Kind::LabCalibrationResult
        | Kind::WorkerIdentity
        | Kind::LabWorkerIdentity
        | Kind::WorkerStatus => {}
    }
}

/// The items of a list at `pointer`, with their own pointers.
fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = (String, &'a Value)> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    let pointer = pointer.to_owned();
    list.into_iter().flatten().enumerate().map(move |(index, item)| (format!("{pointer}/{index}"), item))
}

/// Reports every value that an earlier place has too.
fn unique<'a>(
    report: &mut Report<'_>,
    code: &str,
    what: &str,
    values: impl IntoIterator<Item = (String, String, &'a Value)>,
) {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for (pointer, key, value) in values {
        if let Some(first) = seen.get(&key) {
            let message = format!("{what} {} is already used at {first}", super::problem::short(value));
            report.at(code, &pointer, super::problem::short(value), format!("a {what} of its own"), message);
        } else {
            seen.insert(key, pointer);
        }
    }
}
