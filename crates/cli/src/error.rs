use std::fmt::Display;
use std::path::Path;

use b70_manifest::{ErrorReport, Explain, exit};

/// An error as a binary ends with it: the report, and the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// What is printed.
    pub report: ErrorReport,
    /// The exit code, one of [`b70_manifest::exit`].
    pub exit: u8,
}

impl CliError {
    /// A usage or environment problem, exit code 2.
    pub fn usage(kind: &str, message: impl Into<String>) -> Self {
        Self { report: ErrorReport::new(kind, message), exit: exit::USAGE }
    }

    /// A failed check, exit code 1.
    pub fn check(kind: &str, message: impl Into<String>) -> Self {
        Self { report: ErrorReport::new(kind, message), exit: exit::CHECK_FAILED }
    }

    /// The error of an operation on a file or folder, exit code 2.
    pub fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::usage("io", format!("{}: {error}", path.display())).path(path)
    }

    /// Names the file or folder.
    #[must_use]
    pub fn path(mut self, path: &Path) -> Self {
        self.report = self.report.path(path);
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.report = self.report.hint(hint);
        self
    }

    /// Says what was found.
    #[must_use]
    pub fn found(mut self, found: impl Display) -> Self {
        self.report = self.report.found(found);
        self
    }

    /// Says what was expected.
    #[must_use]
    pub fn expected(mut self, expected: impl Display) -> Self {
        self.report = self.report.expected(expected);
        self
    }
}

impl<E: Explain> From<E> for CliError {
    fn from(error: E) -> Self {
        Self { report: error.report(), exit: error.exit_code() }
    }
}
