//! The one error of this program: what happened, and what to do about it.

use std::fmt;

/// Why a command could not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    next: String,
    check_failed: bool,
}

impl Failure {
    /// The environment or the input is at fault: exit code 2.
    pub(crate) fn new(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what: what.into(), next: next.into(), check_failed: false }
    }

    /// Everything needed was there, and the thing checked is not as it should be: exit code 1.
    pub(crate) fn check(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { check_failed: true, ..Self::new(what, next) }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        if self.check_failed { 1 } else { 2 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  what to do: {}", self.what, self.next)
    }
}

/// Names the file in an I/O error.
pub(crate) trait AtPath<T> {
    /// Turns the error into a [`Failure`] that says what was being done to which path.
    fn at(self, doing: &str, path: &std::path::Path) -> Result<T, Failure>;
}

impl<T> AtPath<T> for std::io::Result<T> {
    fn at(self, doing: &str, path: &std::path::Path) -> Result<T, Failure> {
        self.map_err(|error| {
            Failure::new(
                format!("cannot {doing} {}: {error}", path.display()),
                "check the path, its owner and free space",
            )
        })
    }
}
