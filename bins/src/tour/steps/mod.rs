//! The steps, in order. Each returns what it proved, or the reason it did not.

mod artifacts;
mod documents;
mod golden;
mod packs;
mod servers;
mod stage;

use std::fmt::Display;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use b70_cli::{CliError, Ui};

use crate::tour::report::{Report, StepRow};

/// What a step ends with: a sentence of what it proved, or of what was wrong.
pub(crate) type Proof = Result<String, String>;

/// Where the tour keeps its things.
pub(crate) struct Places {
    /// The tour's folder on disk.
    pub(crate) folder: PathBuf,
    /// The model.
    pub(crate) model: PathBuf,
    /// Pack sets.
    pub(crate) cache: PathBuf,
    /// The folder in RAM.
    pub(crate) ram: PathBuf,
    /// Golden fixtures and the registry.
    pub(crate) artifacts: PathBuf,
}

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
        self.row(StepRow { step, command, passed, skipped: false, proved, seconds });
        passed
    }

    /// Leaves a step out and says why; the tour goes on.
    pub(crate) fn skip(&mut self, step: &'static str, command: String, reason: &str) -> bool {
        let proved = format!("not shown: {reason}");
        self.row(StepRow { step, command, passed: true, skipped: true, proved, seconds: 0.0 });
        true
    }

    fn row(&mut self, row: StepRow) {
        self.ui.note(&row.progress(self.ui));
        self.rows.push(row);
    }
}

/// Runs every step until one fails.
pub(crate) fn run(folder: &Path, ram: &Path, llama_server: Option<&Path>, ui: &Ui) -> Result<Report, CliError> {
    let started = Instant::now();
    let places = Places {
        folder: folder.to_owned(),
        model: folder.join("tour.gguf"),
        cache: folder.join("cache"),
        ram: ram.to_owned(),
        artifacts: folder.join("artifacts"),
    };
    let mut tour = Tour { ui, rows: Vec::new() };
    let passed = match packs::run(&places, &mut tour)? {
        None => false,
        Some(set) => {
            stage::run(&places, &set, &mut tour)?
                && artifacts::run(&places, &mut tour)
                && golden::run(&places, &mut tour)
                && documents::run(&places, &mut tour)
                && servers::run(&places, llama_server, &mut tour)?
        }
    };
    Ok(Report { schema_version: 1, passed, steps: tour.rows, seconds: started.elapsed().as_secs_f64() })
}

/// An error as a sentence.
pub(crate) fn told(error: impl Display) -> String {
    error.to_string()
}

/// A proof by a condition.
pub(crate) fn expect(held: bool, sentence: String) -> Proof {
    if held { Ok(sentence) } else { Err(format!("not as it should be: {sentence}")) }
}

/// Changes one bit in the middle of a file and puts its time of change back, as a careless tool or a bad disk might.
pub(crate) fn flip_bit(path: &Path) -> Result<(), String> {
    let flip = || -> std::io::Result<()> {
        let before = std::fs::metadata(path)?;
        // The owner can always do this; that is why bytes are checked and not only permissions.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))?;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let mut byte = [0];
        let middle = before.len() / 2;
        file.read_exact_at(&mut byte, middle)?;
        byte[0] ^= 1;
        file.write_all_at(&byte, middle)?;
        file.set_modified(before.modified()?)?;
        std::fs::set_permissions(path, before.permissions())
    };
    flip().map_err(|error| format!("{}: {error}", path.display()))
}
