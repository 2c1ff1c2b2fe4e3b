//! Tables for a terminal.

use std::fmt::Write as _;

use super::class_word;
use super::figures::FIGURES;
use crate::compare::ONE_RUN_NOTE;
use crate::load::LoadedResult;
use crate::row::error_code;

/// Text from a file as a terminal may show it: control characters, which could move the cursor or fake a line, are escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// A table whose columns are as wide as their widest cell; the first is aligned left, the others right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let heads = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let cell = if column == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") };
            line.push_str(&cell);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number with digits that mean something, `-` for none.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The report: what was measured, each endpoint's figures, failed rows, failing gates, and what may not be concluded.
pub fn text_report(results: &[LoadedResult]) -> String {
    let mut text = String::new();
    if let Some(first) = results.first() {
        let measured = first.judged.measured();
        let settings = &measured.settings;
        let order = settings.extra.get("order").and_then(serde_json::Value::as_str).unwrap_or("order unknown");
        let _ = writeln!(
            text,
            "suite {} ({}), api {}, {} tokens, window {}, {} endpoints at once ({})\n",
            shown(&measured.suite.suite_id),
            &measured.suite.sha256.to_string()[..12],
            settings.api,
            settings.max_tokens,
            settings.metric_window,
            settings.endpoints_at_once,
            shown(order),
        );
    }
    let mut head = vec!["endpoint", "card", "arm", "period", "rows"];
    head.extend(FIGURES.iter().map(|figure| figure.short));
    let rows: Vec<Vec<String>> = results.iter().map(figures).collect();
    text.push_str(
        "tokens per second: median, p10, mean and balanced over 99 intervals; legacy = 100 events over the same time\n",
    );
    text.push_str(&table(&head, &rows));
    text.push('\n');
    for result in results {
        text.push_str(&gates(result));
    }
    text.push_str(&outputs(results));
    let _ = writeln!(text, "{ONE_RUN_NOTE}");
    text
}

fn figures(result: &LoadedResult) -> Vec<String> {
    let measured = result.judged.measured();
    let card = measured.identity.card.as_ref().map(|card| card.pci).or(measured.endpoint.card);
    let complete = measured.rows.iter().filter(|row| row.error.is_none()).count();
    let mut cells = vec![
        shown(&measured.endpoint.name),
        card.map_or_else(|| "-".to_owned(), |card| card.to_string()),
        measured.arm.map_or("-", |arm| arm.as_str()).to_owned(),
        measured.period.map_or_else(|| "-".to_owned(), |period| period.to_string()),
        if complete == measured.rows.len() {
            complete.to_string()
        } else {
            format!("{complete}/{}", measured.rows.len())
        },
    ];
    cells.extend(FIGURES.iter().map(|figure| figure.text(result)));
    cells
}

fn gates(result: &LoadedResult) -> String {
    let measured = result.judged.measured();
    let mut text = format!("{}: {}", shown(&measured.endpoint.name), class_word(result.judged.evidence_class()));
    if result.promotion().is_some() {
        text.push_str(", promotion-eligible");
    }
    if !result.is_finished() {
        text.push_str(", UNFINISHED");
    }
    text.push('\n');
    for (name, gate) in result.judged.gates() {
        let outcome = if gate.passed { "passed".to_owned() } else { gate.codes.join(", ") };
        let _ = writeln!(text, "  {name}: {outcome}");
    }
    for row in measured.rows.iter().filter(|row| row.error.is_some()) {
        let code = error_code(row).unwrap_or("unknown");
        let _ = writeln!(
            text,
            "  row {} {} failed ({}): {}",
            row.prompt_index,
            shown(&row.prompt_id),
            shown(code),
            shown(row.error.as_deref().unwrap_or_default())
        );
    }
    for one in result.disagreements.iter().take(5) {
        let _ = writeln!(
            text,
            "  {} is {} in the file, its rows give {}",
            shown(&one.pointer),
            one.claimed,
            one.recomputed
        );
    }
    if result.disagreements.len() > 5 {
        let _ = writeln!(text, "  and {} more figures that disagree", result.disagreements.len() - 5);
    }
    text.push('\n');
    text
}

fn outputs(results: &[LoadedResult]) -> String {
    let mut texts: std::collections::BTreeMap<&str, std::collections::BTreeSet<_>> = std::collections::BTreeMap::new();
    let mut counted: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for row in results.iter().flat_map(|result| &result.judged.measured().rows).filter(|row| row.error.is_none()) {
        texts.entry(&row.prompt_id).or_default().extend(row.sha256);
        *counted.entry(&row.prompt_id).or_default() += 1;
    }
    let shared: Vec<&str> = counted.iter().filter(|(_, count)| **count > 1).map(|(id, _)| *id).collect();
    if shared.is_empty() {
        return String::new();
    }
    let variants: Vec<String> = shared.iter().filter(|id| texts[**id].len() > 1).map(|id| shown(id)).collect();
    let mut text =
        format!("output texts: {} of {} prompts equal on all endpoints", shared.len() - variants.len(), shared.len());
    if !variants.is_empty() {
        let _ = write!(text, "; variants: {}", variants.join(", "));
    }
    text.push_str("\n\n");
    text
}
