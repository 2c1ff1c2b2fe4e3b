//! What the tour proved, as a document and as a table.

use std::path::Path;

use b70_cli::{Style, Ui, seconds_text};
use serde::Serialize;

/// The tour's result.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of this document's form.
    pub schema_version: u64,
    /// Whether every step proved what it should.
    pub passed: bool,
    /// One row a step.
    pub steps: Vec<StepRow>,
    /// Seconds in all.
    pub seconds: f64,
}

/// One step.
#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    /// The step's name.
    pub step: &'static str,
    /// The command that does the same.
    pub command: String,
    /// Whether it proved what it should; true as well for a step that was left out.
    pub passed: bool,
    /// Whether it was left out.
    pub skipped: bool,
    /// What it proved, what was wrong, or why it was left out.
    pub proved: String,
    /// Seconds it took.
    pub seconds: f64,
}

impl StepRow {
    /// The row while the tour goes on: no more than that it ran.
    pub(crate) fn progress(&self, ui: &Ui) -> String {
        let (style, word) = self.verdict();
        format!("{}  {:<9} {:>9}", ui.paint_error(style, word), self.step, seconds_text(self.seconds))
    }

    /// The row as one line.
    pub fn line(&self, ui: &Ui) -> String {
        let (style, word) = self.verdict();
        format!("{}  {:<9} {:>9}  {}", ui.paint(style, word), self.step, seconds_text(self.seconds), self.proved)
    }

    /// One word for what came of it, and how it looks.
    pub(crate) fn verdict(&self) -> (Style, &'static str) {
        match (self.skipped, self.passed) {
            (true, _) => (Style::Warn, "skipped"),
            (false, true) => (Style::Good, "proved"),
            (false, false) => (Style::Bad, "FAILED"),
        }
    }
}

impl Report {
    /// How many steps did what.
    pub(crate) fn summary(&self) -> String {
        let skipped = self.steps.iter().filter(|row| row.skipped).count();
        let proved = self.steps.iter().filter(|row| row.passed && !row.skipped).count();
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        format!("{proved} of {} steps proved{skipped}, in {}", self.steps.len(), seconds_text(self.seconds))
    }

    /// The table.
    pub fn text(&self, ui: &Ui, kept: Option<&Path>, page: Option<&Path>) -> String {
        let mut text = String::new();
        for row in &self.steps {
            text.push_str(&row.line(ui));
            text.push('\n');
            text.push_str(&ui.paint(Style::Dim, &format!("        {}", row.command)));
            text.push('\n');
        }
        text.push_str(&format!("{}\n", self.summary()));
        if let Some(path) = kept {
            text.push_str(&format!("the files are in {}\n", path.display()));
        }
        if let Some(path) = page {
            text.push_str(&format!("the same as a page: {}\n", path.display()));
        }
        text
    }
}
