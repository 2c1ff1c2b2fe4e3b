//! The command line of `b70-tour`: the whole lane on a small generated model, no GPU needed.
//!
//! The tour is a scripted example: each step calls the same library functions as the binaries, checks what they promise,
//! and says what it proved. A step that proves something false ends the tour with exit code 1.
#![forbid(unsafe_code)]

mod model;
mod report;
mod steps;

use std::path::PathBuf;

use b70_cli::{CliError, Global, HasGlobal, Output, Ui, exit};
use clap::Parser;

pub use report::{Report, StepRow};

/// The whole lane on a small generated model: inspect, prepare, reuse, verify, reverse. No GPU needed.
#[derive(Debug, Parser)]
#[command(name = "b70-tour", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    /// Keep the files here instead of in a temporary folder; the folder must not exist or be empty.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

impl HasGlobal for Cli {
    fn global(&self) -> &Global {
        &self.global
    }
}

/// Runs the tour.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let workspace = Workspace::create(cli.keep)?;
    let report = steps::run(workspace.path(), ui)?;
    let code = if report.passed { exit::OK } else { exit::CHECK_FAILED };
    let text = report.text(ui, workspace.kept());
    Output::new(&report, text, code)
}

/// The tour's folder: temporary, or the user's.
enum Workspace {
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl Workspace {
    fn create(keep: Option<PathBuf>) -> Result<Self, CliError> {
        let Some(path) = keep else {
            let temporary = tempfile::Builder::new().prefix("b70-tour-").tempdir();
            return temporary
                .map(Self::Temporary)
                .map_err(|error| CliError::io(&std::env::temp_dir(), &error).hint("set TMPDIR to a writable folder"));
        };
        std::fs::create_dir_all(&path).map_err(|error| CliError::io(&path, &error))?;
        let mut entries = std::fs::read_dir(&path).map_err(|error| CliError::io(&path, &error))?;
        if entries.next().is_some() {
            return Err(CliError::usage("not-empty", format!("{} is not empty", path.display()))
                .path(&path)
                .hint("name a folder that does not exist yet"));
        }
        Ok(Self::Kept(path))
    }

    fn path(&self) -> &std::path::Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(path) => path,
        }
    }

    fn kept(&self) -> Option<&std::path::Path> {
        match self {
            Self::Temporary(_) => None,
            Self::Kept(path) => Some(path),
        }
    }
}
