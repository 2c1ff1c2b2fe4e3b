use std::path::Path;

use serde_json::Value;

use super::Kind;
use crate::schema;

/// Finds the kind of a document: from its `format`, its `$schema`, the fields it has, and last its file name.
///
/// ```
/// use b70_manifest::document::{Kind, detect};
/// let value = serde_json::json!({"format": "qwen27-xe2-m6-pack-set-v2"});
/// assert_eq!(detect(&value, None), Some(Kind::PackSet));
/// assert_eq!(detect(&serde_json::json!({"colour": "blue"}), None), None);
/// ```
pub fn detect(value: &Value, path: Option<&Path>) -> Option<Kind> {
    by_format(value)
        .or_else(|| value.get("$schema").and_then(Value::as_str).and_then(Kind::from_schema_reference))
        .or_else(|| by_fields(value))
        .or_else(|| path.and_then(by_file_name))
}

fn by_format(value: &Value) -> Option<Kind> {
    let format = value.get("format")?.as_str()?;
    let exact = match format {
        "byte-identical-gguf-ram-cache" => Some(Kind::CacheEntry),
        "qwen27-b70-offline-pack-registry-v1" => Some(Kind::RegistryRecord),
        "qwen27-mmvp-q4_0-q8_1-golden-v1" => Some(Kind::GoldenSet),
        "b70-build-fingerprint-v1" => Some(Kind::Fingerprint),
        "b70-focused-result-v1" => Some(Kind::FocusedResult),
        "b70-calibration-result-v1" => Some(Kind::CalibrationResult),
        "b70-calibration-run-v1" => Some(Kind::CalibrationRun),
        "b70-comparison-v1" => Some(Kind::Comparison),
        "b70-worker-identity-v1" => Some(Kind::WorkerIdentity),
        "b70-ram-cache-receipt" | "b70-source-model-receipt-v2" => Some(Kind::Receipt),
        _ => None,
    };
    exact.or_else(|| {
        [
            ("-pack-set-v2", Kind::PackSet),
            ("-tensor-pack-v2", Kind::TensorPack),
            ("-deep-validation-v1", Kind::DeepValidation),
            ("-deep-validation-v2", Kind::Receipt),
            ("-ram-stage-v1", Kind::RamStage),
        ]
        .into_iter()
        .find_map(|(end, kind)| format.ends_with(end).then_some(kind))
    })
}

/// The kind whose own required fields the document has most of, and at least half of; none when two kinds tie.
fn by_fields(value: &Value) -> Option<Kind> {
    let object = match value {
        Value::Object(object) => object,
        Value::Array(items) => {
            let first = items.first()?;
            let is_row = first.get("pid_state").is_some() && first.get("port").is_some();
            let is_prompt = first.is_string() || first.get("prompt").is_some();
            return if is_row { Some(Kind::WorkerStatus) } else { is_prompt.then_some(Kind::CalibrationSuite) };
        }
        _ => return None,
    };
    let mut best: Option<(Kind, usize, usize)> = None;
    let mut tied = false;
    for kind in Kind::ALL {
        let required = schema::own_required_fields(*kind);
        let present = required.iter().filter(|field| object.contains_key(field.as_str())).count();
        if required.is_empty() || present * 2 < required.len() {
            continue;
        }
        // Most fields present; among equals the fewest missing.
        let missing = required.len() - present;
        match best {
            Some((_, most, fewest)) if (present, fewest) < (most, missing) => {}
            Some((_, most, fewest)) if (present, missing) == (most, fewest) => tied = true,
            _ => {
                best = Some((*kind, present, missing));
                tied = false;
            }
        }
    }
    if tied { None } else { best.map(|(kind, ..)| kind) }
}

fn by_file_name(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    Kind::ALL.iter().copied().find(|kind| {
        kind.file_patterns().iter().any(|pattern| match pattern.strip_prefix('*') {
            Some(end) => name.ends_with(end),
            None => name == *pattern,
        })
    })
}
