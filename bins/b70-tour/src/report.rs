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
    /// Whether it proved what it should.
    pub passed: bool,
    /// What it proved, or what was wrong.
    pub proved: String,
    /// Seconds it took.
    pub seconds: f64,
}

impl StepRow {
    /// The row while the tour goes on: no more than that it ran.
    pub(crate) fn progress(&self, ui: &Ui) -> String {
        let word =
            if self.passed { ui.paint_error(Style::Good, "proved") } else { ui.paint_error(Style::Bad, "FAILED") };
        format!("{word}  {:<9} {:>9}", self.step, seconds_text(self.seconds))
    }

    /// The row as one line.
    pub fn line(&self, ui: &Ui) -> String {
        let word = if self.passed { ui.paint(Style::Good, "proved") } else { ui.paint(Style::Bad, "FAILED") };
        format!("{word}  {:<9} {:>9}  {}", self.step, seconds_text(self.seconds), self.proved)
    }
}

impl Report {
    /// The table.
    pub fn text(&self, ui: &Ui, kept: Option<&Path>, page: Option<&Path>) -> String {
        let mut text = String::new();
        for row in &self.steps {
            text.push_str(&row.line(ui));
            text.push('\n');
            text.push_str(&ui.paint(Style::Dim, &format!("        {}", row.command)));
            text.push('\n');
        }
        let passed = self.steps.iter().filter(|row| row.passed).count();
        text.push_str(&format!("{passed} of {} steps in {}\n", self.steps.len(), seconds_text(self.seconds)));
        if let Some(path) = kept {
            text.push_str(&format!("the files are in {}\n", path.display()));
        }
        if let Some(path) = page {
            text.push_str(&format!("the same as a page: {}\n", path.display()));
        }
        text
    }
}
