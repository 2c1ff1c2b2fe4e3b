use std::path::Path;

use b70_cli::{CliError, Output, Style, Ui, bytes_text, shown};
use b70_packset::SetState;

pub(crate) fn list(ui: &Ui, cache_root: &Path) -> Result<Output, CliError> {
    let list = b70_packset::list(cache_root)?;
    let mut text = format!("{} set(s) under {}\n", list.sets.len(), list.cache_root.display());
    for row in &list.sets {
        let state = match row.status {
            SetState::Ready => ui.paint(Style::Good, "ready"),
            SetState::Incomplete => ui.paint(Style::Warn, "incomplete"),
            SetState::Unreadable => ui.paint(Style::Bad, "unreadable"),
        };
        text.push_str(&format!("  {}  {state}", row.set_key));
        if let (Some(count), Some(bytes), Some(model)) = (row.tensor_count, row.payload_size_bytes, &row.model) {
            let plan = shown(row.plan.as_deref().unwrap_or("plan not recorded"));
            text.push_str(&format!("  {count} tensors, {}, {plan}, of {}", bytes_text(bytes), shown(model)));
        }
        if let Some(problem) = &row.problem {
            text.push_str(&format!("  {}", shown(problem)));
        }
        text.push('\n');
    }
    Output::ok(&list, text)
}

pub(crate) fn gc(ui: &Ui, cache_root: &Path, execute: bool) -> Result<Output, CliError> {
    let report = b70_packset::gc(cache_root, execute)?;
    let verb = if execute { "removed" } else { "would remove" };
    let mut text = format!("{verb} {} of {} paths\n", bytes_text(report.bytes), report.actions.len());
    for action in &report.actions {
        text.push_str(&format!("  {verb} {} ({} bytes): {}\n", action.path, action.size_bytes, action.reason));
    }
    for kept in &report.kept {
        text.push_str(&format!("  {} {}: {}\n", ui.paint(Style::Warn, "kept"), kept.path, kept.reason));
    }
    if !execute && !report.actions.is_empty() {
        text.push_str("nothing was changed; --execute carries the plan out\n");
    }
    Output::ok(&report, text)
}
