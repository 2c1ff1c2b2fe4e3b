//! Results as text.

use b70_cli::{Style, Ui, bytes_text, seconds_text, shown};
use b70_golden::{
    CaseState, CorpusStatus, FocusedReport, ImportReport, PrepareReport, PrepareStatus, SetCheck, TensorReport,
};
use b70_manifest::golden::FocusedStatus;
use serde_json::Value;

fn tensors(tensors: &[TensorReport]) -> String {
    let mut text = String::new();
    for t in tensors {
        text.push_str(&format!("  {}  {} {}\n", t.sha256, shown(&t.name), bytes_text(t.size_bytes)));
    }
    text
}

pub(crate) fn prepared(ui: &Ui, report: &PrepareReport) -> String {
    let word = match report.status {
        PrepareStatus::Created => "created",
        PrepareStatus::Kept => "kept, every byte is right",
        PrepareStatus::Replaced => "replaced",
    };
    let mut text = format!(
        "{}: {} tensors, {} to make, {} in all\n  {}\n  written by {}\n{}",
        ui.paint(Style::Good, word),
        report.tensors.len(),
        seconds_text(report.generate_seconds),
        seconds_text(report.seconds),
        report.manifest.display(),
        shown(&report.written_by),
        tensors(&report.tensors)
    );
    if let Some(why) = &report.replaced_because {
        text.push_str(&format!("  replaced because {}\n", shown(why)));
    }
    text.push_str(
        "  a synthetic kernel contract, diagnostic only; real captures are another matter: b70-golden status\n",
    );
    text
}

pub(crate) fn verified(ui: &Ui, check: &SetCheck) -> String {
    let word = if check.is_valid() { ui.paint(Style::Good, "valid") } else { ui.paint(Style::Bad, "FAILED") };
    let how = if check.recomputed { ", made again and compared" } else { "" };
    let mut text = format!(
        "{word}: {} tensors right{how}, {}\n  {}\n  written by {}\n",
        check.tensors.len(),
        seconds_text(check.seconds),
        check.manifest.display(),
        shown(&check.written_by)
    );
    for failure in &check.failures {
        text.push_str(&format!("  {}\n", shown(failure)));
    }
    text
}

pub(crate) fn status(ui: &Ui, status: &CorpusStatus) -> String {
    let mut text = format!("synthetic set: {}\n", status.synthetic_set);
    for failure in &status.synthetic_failures {
        text.push_str(&format!("  {}\n", shown(failure)));
    }
    for case in &status.cases {
        let word = match case.state {
            CaseState::Present => ui.paint(Style::Good, "present"),
            CaseState::Outstanding => ui.paint(Style::Warn, "outstanding"),
        };
        text.push_str(&format!("{word}  {}", shown(&case.case)));
        if !case.captures.is_empty() && !case.missing.is_empty() {
            text.push_str(&format!("  ({} there; missing {})", case.captures.len(), case.missing.join(", ")));
        }
        text.push('\n');
        for refused in &case.refused {
            text.push_str(&format!("  {} {}\n", ui.paint(Style::Bad, "refused"), shown(refused)));
        }
    }
    for claim in &status.unproven_claims {
        text.push_str(&format!("{} the manifest claims {}\n", ui.paint(Style::Warn, "unproven"), shown(claim)));
    }
    text.push_str(&format!("{} present, {} outstanding; {}\n", status.present, status.outstanding, status.note));
    text
}

pub(crate) fn imported(ui: &Ui, report: &ImportReport) -> String {
    format!(
        "{}: {} {} of width {}, {}, diagnostic only\n  {}\n  {}\n",
        ui.paint(Style::Good, &report.status),
        shown(&report.case),
        report.role,
        report.width,
        bytes_text(report.size_bytes),
        report.sha256,
        report.capture.display()
    )
}

pub(crate) fn focused(ui: &Ui, report: &FocusedReport) -> String {
    let document = &report.document;
    let word = match document.status {
        FocusedStatus::Passed => ui.paint(Style::Good, "passed"),
        FocusedStatus::ReusedPass => ui.paint(Style::Good, "reused pass"),
        FocusedStatus::Failed => ui.paint(Style::Bad, "FAILED"),
    };
    let mut text = format!("{word} (diagnostic only), key {}\n", document.run_key);
    for why in &document.not_reused_because {
        text.push_str(&format!("  not reused: {}\n", shown(why)));
    }
    for test in &document.tests {
        text.push_str(&format!(
            "  {}: {} of {} executed tests passed; {}\n",
            shown(&test.op),
            test.passed,
            test.executed,
            shown(&test.log)
        ));
        if let Some(reason) = test.extra.get("reason").and_then(Value::as_str) {
            text.push_str(&format!("    {} {}\n", ui.paint(Style::Bad, "failed:"), shown(reason)));
        }
    }
    if let Some(reason) = document.extra.get("reason").and_then(Value::as_str) {
        text.push_str(&format!("  {} {}\n", ui.paint(Style::Bad, "failed:"), shown(reason)));
    }
    if document.status == FocusedStatus::Passed && !report.reusable {
        for why in &report.not_reusable_because {
            text.push_str(&format!("  this pass cannot be reused: {}\n", shown(why)));
        }
    }
    text.push_str(&format!("  {}\n", report.result.display()));
    text
}
