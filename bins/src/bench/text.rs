//! Results as text.

use b70_bench::{CalibrationPlan, CalibrationReport, RunStatus, SuiteReport, VerifyReport};
use b70_cli::{Style, Ui};
use b70_manifest::calibration::{CalibrationRow, Comparison, ComparisonVerdict};
use serde_json::Value;

/// Text from a file or a server as a terminal may show it: control characters are escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

pub(crate) fn plan(ui: &Ui, plan: &CalibrationPlan) -> String {
    let settings = &plan.settings;
    let mut text = format!(
        "would ask {} prompts of {} ({} tokens each, api {}, {} repetitions) into {}\n",
        plan.suite.selected.as_ref().map_or(plan.suite.prompts.len(), Vec::len),
        shown(&plan.suite.suite_id),
        settings.max_tokens,
        settings.api,
        settings.repeats,
        plan.out.display()
    );
    for endpoint in &plan.endpoints {
        let word = if endpoint.allowed { ui.paint(Style::Good, "measure") } else { ui.paint(Style::Bad, "blocked") };
        let card = endpoint.card.map_or_else(|| "no card named".to_owned(), |card| card.to_string());
        let arm = endpoint.arm.map_or_else(String::new, |arm| format!(", {arm}"));
        let period = endpoint.period.map_or_else(String::new, |period| format!(", period {period}"));
        text.push_str(&format!(
            "{word}  {} at {}, {card}{arm}{period}, {} requests\n",
            endpoint.name,
            shown(&endpoint.url),
            endpoint.requests
        ));
        for reason in &endpoint.reasons {
            text.push_str(&format!("  blocked: {}\n", shown(reason)));
        }
        for note in &endpoint.notes {
            text.push_str(&format!("  note: {}\n", shown(note)));
        }
    }
    for reason in &plan.reasons {
        text.push_str(&format!("{} {}\n", ui.paint(Style::Bad, "blocked:"), shown(reason)));
    }
    text.push_str(if plan.allowed {
        "nothing was sent; without --dry-run it is\n"
    } else {
        "nothing was sent, and without --dry-run it would be refused\n"
    });
    text
}

pub(crate) fn row(endpoint: &str, taken: usize, rows: usize, row: &CalibrationRow, failure: Option<&str>) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let end = failure.map_or_else(String::new, |code| format!(", FAILED ({})", shown(code)));
    format!(
        "{endpoint}: {taken}/{rows} {}: {} tok/s, ttft {} s, {} tokens{end}",
        shown(&row.prompt_id),
        number(row.tok_s_1_100_intervals_after_ttft),
        number(row.ttft_s),
        row.completion_tokens.map_or_else(|| "?".to_owned(), |count| count.to_string()),
    )
}

pub(crate) fn calibrated(ui: &Ui, report: &CalibrationReport, tables: &str) -> String {
    let word = match report.status {
        RunStatus::Passed => ui.paint(Style::Good, "all rows collected, screening passed"),
        RunStatus::Failed => ui.paint(Style::Bad, "FAILED"),
        RunStatus::Interrupted => ui.paint(Style::Warn, "INTERRUPTED, rows taken until then are kept"),
        RunStatus::DeadlinePassed => ui.paint(Style::Warn, "DEADLINE PASSED, rows taken until then are kept"),
    };
    let mut text = format!("{word}: {}\n\n{tables}", report.out.display());
    for (endpoint, notes) in report.notes.iter().filter(|(_, notes)| !notes.is_empty()) {
        text.push_str(&format!("\n{}:\n", shown(endpoint)));
        for note in notes {
            text.push_str(&format!("  note: {}\n", shown(note)));
        }
    }
    text
}

fn disagreements(report: &VerifyReport) -> String {
    let lines = report.disagreements.iter().take(10).map(|one| {
        format!("  {}: the file says {}, its rows give {}\n", shown(&one.pointer), one.claimed, one.recomputed)
    });
    lines.collect()
}

pub(crate) fn gates(ui: &Ui, report: &VerifyReport, asked: &str, passed: bool) -> String {
    let word = if passed { ui.paint(Style::Good, "passed") } else { ui.paint(Style::Bad, "FAILED") };
    let mut text = format!("{asked}: {word}, {} rows of {}\n", report.rows, shown(&report.endpoint));
    for (name, gate) in &report.gates {
        let outcome = if gate.passed { "passed".to_owned() } else { gate.codes.join(", ") };
        text.push_str(&format!("  {name}: {outcome}\n"));
        for detail in gate.details.iter().take(4) {
            text.push_str(&format!("    {}\n", shown(detail)));
        }
        if gate.details.len() > 4 {
            text.push_str(&format!("    and {} more\n", gate.details.len() - 4));
        }
    }
    if !report.disagreements.is_empty() {
        text.push_str(&format!(
            "  {} figures are not what the rows give:\n{}",
            report.disagreements.len(),
            disagreements(report)
        ));
    }
    let eligible = if report.promotion_eligible { "promotion-eligible" } else { "not promotion-eligible" };
    text.push_str(&format!("  {eligible}; the file's own claim does not count\n"));
    text
}

pub(crate) fn verified(ui: &Ui, report: &VerifyReport) -> String {
    let word = if report.verified { ui.paint(Style::Good, "verified") } else { ui.paint(Style::Bad, "DISAGREES") };
    let mut text = format!(
        "{word}: {}, {} rows, {} figures made again from the raw offsets, {} differ\n",
        report.file.display(),
        report.rows,
        report.figures_checked,
        report.disagreements.len()
    );
    text.push_str(&disagreements(report));
    if !report.claim_holds {
        text.push_str("  what the file claims of itself is not what the gates give\n");
    }
    if !report.finished {
        text.push_str("  the run was cut short\n");
    }
    text
}

pub(crate) fn compared(ui: &Ui, comparison: &Comparison) -> String {
    let style = match comparison.verdict {
        ComparisonVerdict::Win => Style::Good,
        ComparisonVerdict::Loss => Style::Bad,
        ComparisonVerdict::Inconclusive | ComparisonVerdict::Unqualified => Style::Warn,
    };
    let mut text = format!("{}\n", ui.paint(style, comparison.verdict.as_str()));
    let percent = |ratio: f64| format!("{:+.2} %", (ratio - 1.0) * 100.0);
    if let Some(effect) = &comparison.effect {
        text.push_str(&format!(
            "  candidate over control: {} (t interval {} to {}, {} degrees of freedom, decides)\n",
            percent(effect.ratio),
            percent(effect.t.lower),
            percent(effect.t.upper),
            effect.t.degrees_of_freedom
        ));
        if let Some(bootstrap) = &effect.bootstrap {
            text.push_str(&format!(
                "  bootstrap beside it: {} to {} ({} draws, seed {}; {})\n",
                percent(bootstrap.lower),
                percent(bootstrap.upper),
                bootstrap.draws,
                bootstrap.seed,
                shown(&bootstrap.unit)
            ));
        }
    }
    for card in &comparison.per_card {
        text.push_str(&format!("  card {}: {}\n", card.card, percent(card.ratio)));
    }
    let beside = |name: &str| comparison.extra.get(name).and_then(Value::as_f64);
    if let (Some(gap), Some(tokens)) = (beside("burst_gap_ratio"), beside("tokens_per_burst_ratio")) {
        text.push_str(&format!("  burst gap {}, tokens per burst {}\n", percent(gap), percent(tokens)));
    }
    if let Some(equal) = comparison.equal_outputs {
        text.push_str(&format!("  {:.0} % of the paired answers have the same text\n", equal * 100.0));
    }
    for reason in &comparison.reasons {
        text.push_str(&format!("  because {}\n", shown(reason)));
    }
    if let Some(note) = comparison.extra.get("note").and_then(Value::as_str) {
        text.push_str(&format!("{note}\n"));
    }
    text
}

pub(crate) fn suite(ui: &Ui, report: &SuiteReport, show: bool) -> String {
    let suite = &report.suite;
    let mut text = format!(
        "{}: {}, {} prompts in {} classes, content {}\n",
        ui.paint(Style::Good, "valid"),
        shown(&suite.suite_id),
        suite.prompts.len(),
        report.classes.len(),
        report.content_sha256
    );
    if show {
        for prompt in &suite.prompts {
            text.push_str(&format!(
                "  {}  {}  {}\n",
                shown(&prompt.prompt_class),
                shown(&prompt.id),
                &prompt.sha256().to_string()[..12]
            ));
        }
    }
    if !report.fit_for_promotion {
        text.push_str("  too few prompts or classes for the final gate (12 prompts, 5 classes)\n");
    }
    text
}
