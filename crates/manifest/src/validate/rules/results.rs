use serde_json::Value;

use super::super::problem::{Report, short};
use super::{items, packs, unique};
use crate::calibration::CalibrationResult;
use crate::gate::{GateOutcome, Judged};

/// Upstream's form, and the form of kit 0.1: tensors by name, cases with `m`, `weights`, `input` and `expected`.
pub(super) fn golden_set(value: &Value, report: &mut Report<'_>) {
    let listed: Vec<(String, String, &Value)> = items(value, "/tensors")
        .filter_map(|(pointer, tensor)| {
            let path = tensor.get("path")?;
            Some((format!("{pointer}/path"), path.as_str()?.to_owned(), path))
        })
        .collect();
    let by_name = value.get("tensors").and_then(Value::as_object);
    let is_known = |name: &str| {
        listed.iter().any(|(_, path, _)| path == name) || by_name.is_some_and(|all| all.contains_key(name))
    };
    let mut widths = Vec::new();
    for (pointer, case) in items(value, "/cases") {
        widths.extend(["width", "m"].into_iter().find_map(|field| case.get(field)?.as_u64()));
        let fields = ["weights", "input", "expected"].map(|field| (format!("{pointer}/{field}"), case.get(field)));
        let names = items(case, "/tensors").map(|(inner, name)| (format!("{pointer}{inner}"), Some(name)));
        for (pointer, name) in fields.into_iter().chain(names) {
            if let Some(name) = name.and_then(Value::as_str).filter(|name| !is_known(name)) {
                let message = format!("the case names {name:?}, which is not among the tensors");
                report.at("known-tensor", &pointer, format!("{name:?}"), "a tensor of this set", message);
            }
        }
    }
    unique(report, "unique-path", "path", listed);
    for (pointer, width) in items(value, "/required_widths") {
        if width.as_u64().is_some_and(|width| !widths.contains(&width)) {
            let message = format!("the width {width} is required and has no case");
            report.at("width-without-case", &pointer, short(width), "a width with a case", message);
        }
    }
}

pub(super) fn focused(value: &Value, report: &mut Report<'_>) {
    packs::key_of(value, "", "run_key", report);
    let passed = matches!(value.get("status").and_then(Value::as_str), Some("passed" | "reused-pass"));
    for (pointer, test) in items(value, "/tests") {
        let count = |field: &str| test.get(field).and_then(Value::as_u64);
        if let (true, Some(executed), Some(failed)) = (passed, count("executed"), count("failed"))
            && (executed == 0 || failed > 0)
        {
            let message =
                format!("the run is called passed, and this test has {executed} executed, {failed} failed cases");
            report.at(
                "status",
                &pointer,
                format!("{executed} executed, {failed} failed"),
                "executed and none failed",
                message,
            );
        }
    }
}

/// Upstream calls a run passed and records how each program ended; both must say the same.
pub(super) fn lab_focused(value: &Value, report: &mut Report<'_>) {
    let passed = value.get("passed").and_then(Value::as_bool);
    let code = |log: &Value| log.get("returncode").and_then(Value::as_i64).filter(|code| *code != 0);
    let failed = items(value, "/logs").find_map(|(pointer, log)| Some((pointer, code(log)?)));
    if let (Some(true), Some((pointer, code))) = (passed, failed) {
        let message = format!("the run is called passed, and this test ended with {code}");
        report.at("status", &format!("{pointer}/returncode"), code.to_string(), "0", message);
    }
}

/// Whatever the file claims, the gates are run on its rows again.
pub(super) fn calibration(value: &Value, report: &mut Report<'_>) {
    let Ok(loaded) = serde_json::from_value::<CalibrationResult>(value.clone()) else { return };
    let (judged, claim) = Judged::again(loaded);
    let why = |gate: &str| judged.gates().get(gate).map(|outcome| outcome.codes.join(", ")).unwrap_or_default();
    if claim.promotion_eligible && judged.promotion().is_none() {
        let message = format!(
            "the file claims to be promotion-eligible, and the final gate fails on its rows: {}",
            why("realistic_final")
        );
        report.at("gate", "/promotion_eligible", "true", "false", message);
    } else if !claim.promotion_eligible && judged.promotion().is_some() {
        let message = "the final gate passes on these rows, and the file says otherwise";
        report.at("gate", "/promotion_eligible", "false", "true", message);
    }
    if claim.evidence_class != judged.evidence_class() {
        let word = |class| serde_json::to_value(class).map(|value| value.to_string()).unwrap_or_default();
        let (found, expected) = (word(claim.evidence_class), word(judged.evidence_class()));
        let message = format!("the gates give {expected}; screening: {}", none_if_empty(why("screening")));
        report.at("gate", "/evidence_class", found, expected, message);
    }
    for (name, outcome) in judged.gates() {
        let at = format!("/gates/{name}");
        match claim.gates.get(name) {
            Some(claimed) if same(claimed, outcome) => {}
            Some(claimed) => {
                let message = format!("the gate {name} gives something else on these rows");
                report.at("gate", &at, told(claimed), told(outcome), message);
            }
            None => {
                let message = format!("the file states no outcome of the gate {name}");
                report.at("gate", &at, "no outcome", told(outcome), message);
            }
        }
    }
}

fn same(one: &GateOutcome, two: &GateOutcome) -> bool {
    let sorted = |outcome: &GateOutcome| {
        let mut codes = outcome.codes.clone();
        codes.sort();
        codes
    };
    one.passed == two.passed && sorted(one) == sorted(two)
}

fn told(outcome: &GateOutcome) -> String {
    if outcome.passed { "passed".into() } else { format!("failed: {}", none_if_empty(outcome.codes.join(", "))) }
}

fn none_if_empty(text: String) -> String {
    if text.is_empty() { "no codes".into() } else { text }
}

pub(super) fn run(value: &Value, report: &mut Report<'_>) {
    let names = items(value, "/endpoints").filter_map(|(pointer, endpoint)| {
        let name = endpoint.get("name")?;
        Some((format!("{pointer}/name"), name.to_string(), name))
    });
    unique(report, "unique-name", "name", names.collect::<Vec<_>>());
}

pub(super) fn comparison(value: &Value, report: &mut Report<'_>) {
    let Some(verdict) = value.get("verdict").and_then(Value::as_str) else { return };
    let gates = value.get("gates").and_then(Value::as_object);
    let failed: Vec<&str> = gates
        .into_iter()
        .flatten()
        .filter(|(_, outcome)| outcome.get("passed").and_then(Value::as_bool) == Some(false))
        .map(|(name, _)| name.as_str())
        .collect();
    if !failed.is_empty() && verdict != "unqualified" {
        let message = format!("a gate failed ({}), so nothing can be said about the effect", failed.join(", "));
        report.at("verdict", "/verdict", format!("{verdict:?}"), "\"unqualified\"", message);
    }
    let bound = |pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
    if verdict == "win" {
        let margin = bound("/min_effect").unwrap_or(0.0);
        match bound("/effect/t/lower") {
            Some(lower) if lower > 1.0 + margin => {}
            lower => {
                let found = lower.map_or_else(|| "no interval".to_owned(), |lower| format!("a lower bound of {lower}"));
                let message = format!("a win needs a lower bound above {}", 1.0 + margin);
                report.at("verdict", "/verdict", found, format!("a lower bound above {}", 1.0 + margin), message);
            }
        }
    }
}
