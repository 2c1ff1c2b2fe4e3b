//! The steps, in order. Each returns what it proved, or the reason it did not.

mod packs;

use std::path::Path;
use std::time::Instant;

use b70_cli::{CliError, Ui};

use crate::report::{Report, StepRow};

/// What a step ends with: a sentence of what it proved, or of what was wrong.
pub(crate) type Proof = Result<String, String>;

/// Collects rows and tells them as they come.
pub(crate) struct Tour<'a> {
    ui: &'a Ui,
    rows: Vec<StepRow>,
}

impl Tour<'_> {
    /// Runs one step; returns whether it proved what it should.
    pub(crate) fn step(&mut self, step: &'static str, command: String, run: impl FnOnce() -> Proof) -> bool {
        let started = Instant::now();
        let proof = run();
        let seconds = started.elapsed().as_secs_f64();
        let (passed, proved) = match proof {
            Ok(proved) => (true, proved),
            Err(problem) => (false, problem),
        };
        let row = StepRow { step, command, passed, proved, seconds };
        if self.ui.json() {
            self.ui.note(&row.line(self.ui));
        }
        self.rows.push(row);
        passed
    }
}

/// Runs every step until one fails.
pub(crate) fn run(folder: &Path, ui: &Ui) -> Result<Report, CliError> {
    let started = Instant::now();
    let mut tour = Tour { ui, rows: Vec::new() };
    let passed = packs::run(folder, &mut tour)?;
    Ok(Report { schema_version: 1, passed, steps: tour.rows, seconds: started.elapsed().as_secs_f64() })
}
