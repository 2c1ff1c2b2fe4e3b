use serde_json::Value;

use super::super::problem::{Report, short};
use super::{items, packs, unique};
use crate::calibration::CalibrationResult;
use crate::gate::{GateOutcome, Judged};

pub(super) fn golden_set(value: &Value, report: &mut Report<'_>) {
    let tensors = value.get("tensors").and_then(Value::as_object);
    let mut widths = Vec::new();
    for (pointer, case) in items(value, "/cases") {
        widths.extend(case.get("m").and_then(Value::as_u64));
        for field in ["weights", "input", "expected"] {
            let name = case.get(field).and_then(Value::as_str);
            if let (Some(name), Some(tensors)) = (name, tensors)
                && !tensors.contains_key(name)
            {
                let message = format!("the case names {name:?}, which is not among the tensors");
                report.at(
                    "known-tensor",
                    &format!("{pointer}/{field}"),
                    format!("{name:?}"),
                    "a tensor of this set",
                    message,
                );
            }
        }
    }
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
