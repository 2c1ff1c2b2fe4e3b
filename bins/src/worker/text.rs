//! The results as text for people.

use std::{fmt::Write as _, path::Path};

use b70_cli::{Style, Ui};
use b70_manifest::{state::WorkerStatus, workers::Workers};
use b70_worker::{ActionKind, ActionOutcome, Severity, Validation, WorkerPlan};

pub(crate) fn validation(ui: &Ui, found: &Validation) -> String {
    let mut out = String::new();
    for finding in &found.findings {
        let word = match finding.severity {
            Severity::Error => ui.paint(Style::Bad, "error"),
            Severity::Warning => ui.paint(Style::Warn, "warning"),
            Severity::Skipped => ui.paint(Style::Dim, "skipped"),
        };
        let _ = writeln!(out, "{word} [{}] {}: {}", finding.code, finding.subject, finding.message);
    }
    let end = if found.valid { ui.paint(Style::Good, "valid") } else { ui.paint(Style::Bad, "not valid") };
    let _ = writeln!(out, "{}: {end}", found.config.display());
    out
}

pub(crate) fn plan(ui: &Ui, plan: &WorkerPlan) -> String {
    let mut out = String::new();
    for action in &plan.plan {
        let verb = match action.action {
            ActionKind::Start => "start",
            ActionKind::Stop => "stop",
            ActionKind::Sweep => "sweep",
            ActionKind::None => "nothing to do",
        };
        let allowed = if action.allowed {
            ui.paint(Style::Good, verb)
        } else {
            ui.paint(Style::Bad, &format!("{verb}: blocked"))
        };
        let _ = writeln!(out, "{}  {allowed}", ui.paint(Style::Strong, &action.worker));
        for reason in &action.reasons {
            let _ = writeln!(out, "  {reason}");
        }
        if !plan.executed {
            for note in &action.notes {
                let _ = writeln!(out, "  {}", ui.paint(Style::Dim, note));
            }
            if !action.command.is_empty() {
                let _ = writeln!(out, "  {}", ui.paint(Style::Dim, &action.command.join(" ")));
            }
        }
    }
    for result in &plan.results {
        let style = match result.outcome {
            ActionOutcome::Ready | ActionOutcome::Started | ActionOutcome::Stopped => Style::Good,
            ActionOutcome::Nothing => Style::Dim,
            ActionOutcome::Failed | ActionOutcome::Deadline | ActionOutcome::Interrupted => Style::Bad,
        };
        let word = serde_json::to_value(result.outcome).ok().and_then(|v| v.as_str().map(str::to_owned));
        let pid = result.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let _ =
            writeln!(out, "{}{pid} {}: {}", result.worker, ui.paint(style, &word.unwrap_or_default()), result.detail);
    }
    if !plan.executed && plan.allowed() && plan.plan.iter().any(|a| a.action != ActionKind::None) {
        let _ = writeln!(out, "dry run; --execute does it");
    }
    out
}

pub(crate) fn status(ui: &Ui, status: &WorkerStatus) -> String {
    let mut out = String::new();
    for row in &status.workers {
        let pid = row.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let style = if row.pid_state == "running" { Style::Good } else { Style::Dim };
        let port = if row.port_open { "open" } else { "closed" };
        let _ = writeln!(
            out,
            "{}  gpu {}  port {} {port}  pid {pid} {}  {} ({})",
            ui.paint(Style::Strong, &row.name),
            row.gpu,
            row.port,
            ui.paint(style, &row.pid_state),
            row.profile,
            row.role
        );
        let text = |pointer: &str| row.extra.get(pointer);
        if let Some(live) = text("liveness") {
            let state = live["state"].as_str().unwrap_or("?");
            let style = if matches!(state, "healthy" | "busy" | "asleep") { Style::Good } else { Style::Bad };
            let _ = writeln!(out, "  {}: {}", ui.paint(style, state), live["reason"].as_str().unwrap_or(""));
            for step in live["recovery"].as_array().into_iter().flatten() {
                let command = step["command"].as_str().map_or_else(String::new, |c| format!(": {c}"));
                let _ = writeln!(out, "    next: {}{command}", step["what"].as_str().unwrap_or(""));
            }
        }
        if let Some(event) = text("kernel").and_then(|k| k["events"].as_array()?.last()) {
            let count = text("kernel").and_then(|k| k["events"].as_array()).map_or(0, Vec::len);
            let message = event["message"].as_str().unwrap_or("");
            let _ =
                writeln!(out, "  {} {message} ({count} such lines)", ui.paint(Style::Bad, "kernel, last of its card:"));
        }
        if text("kernel").is_some_and(|k| k["devcoredump"] == true) {
            let _ = writeln!(out, "  {}", ui.paint(Style::Warn, "a device core dump is waiting"));
        }
        if let Some(model) = text("model") {
            let _ = writeln!(
                out,
                "  model {} ({})",
                model["path"].as_str().unwrap_or("?"),
                model["reason"].as_str().unwrap_or("?")
            );
        }
        if let Some(state) = text("graph").and_then(|g| g["state"].as_str()).filter(|s| *s != "no-evidence") {
            let _ = writeln!(out, "  graphs: {state}");
        }
        for reason in text("foreign").and_then(|f| f.as_array()).into_iter().flatten().filter_map(|r| r.as_str()) {
            let _ = writeln!(out, "  {}", ui.paint(Style::Warn, reason));
        }
    }
    if let Some(skipped) = status.extra.get("skipped").and_then(|s| s.as_array()) {
        let list: Vec<&str> = skipped.iter().filter_map(|s| s.as_str()).collect();
        let _ = writeln!(out, "{} {}", ui.paint(Style::Dim, "skipped with --no-gpu:"), list.join(", "));
    }
    out
}

pub(crate) fn arms(document: &Workers, out: &Path) -> String {
    let mut text = format!("wrote {}\n", out.display());
    for worker in &document.workers {
        let arm = worker.arm.map_or("-", |arm| arm.as_str());
        let _ = writeln!(text, "  {}  gpu {}  {arm}: {}", worker.name, worker.gpu, worker.profile);
    }
    text
}
