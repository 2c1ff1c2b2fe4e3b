//! How an error is told to a user or a script.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error as every binary prints it: under the key `error` with `--json`, as sentences otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// A stable word for scripts, in kebab case.
    #[schemars(example = &"invalid-document")]
    pub kind: String,
    /// What happened, in one sentence.
    #[schemars(example = &"workers.json: not a valid document, 4 errors")]
    pub message: String,
    /// The file or folder it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"workers.json")]
    pub path: Option<String>,
    /// What was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"0")]
    pub found: Option<String>,
    /// What was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"at least 1")]
    pub expected: Option<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"validate the document: that shows every error with its place")]
    pub hint: Option<String>,
}

impl ErrorReport {
    /// A report with a kind and a message.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into(), ..Self::default() }
    }

    /// Names the file or folder.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<std::path::Path>) -> Self {
        self.path = Some(path.as_ref().display().to_string());
        self
    }

    /// Says what was found.
    #[must_use]
    pub fn found(mut self, found: impl std::fmt::Display) -> Self {
        self.found = Some(found.to_string());
        self
    }

    /// Says what was expected.
    #[must_use]
    pub fn expected(mut self, expected: impl std::fmt::Display) -> Self {
        self.expected = Some(expected.to_string());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// An error that can explain itself to a user and knows its exit code (see [`crate::exit`]).
pub trait Explain: std::error::Error {
    /// The parts of the message.
    fn report(&self) -> ErrorReport;

    /// The exit code of a binary that ends with this error.
    fn exit_code(&self) -> u8;
}

/// The document every command prints for an error with `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Error")]
pub struct ErrorEnvelope {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// The error.
    pub error: ErrorReport,
}
