use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::Kind;
use crate::exit;
use crate::span::{Position, Spans};

/// One error of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A stable word for scripts: `not-json`, `unreadable`, `unknown-kind`, `duplicate-key`, `unknown-key`, the schema
    /// keyword that failed, or the name of a rule.
    #[schemars(example = &"unknown-key")]
    pub code: String,
    /// JSON pointer to the value or key.
    #[schemars(example = &"/common/n_paralel")]
    pub pointer: String,
    /// Line, from 1; null when the file could not be read.
    #[schemars(example = 17)]
    pub line: Option<u64>,
    /// Column in characters, from 1.
    #[schemars(example = 5)]
    pub column: Option<u64>,
    /// What was found.
    #[schemars(example = &"\"n_paralel\"")]
    pub found: String,
    /// What was expected.
    #[schemars(example = &"a known field")]
    pub expected: String,
    /// The error in one sentence.
    #[schemars(example = &"unknown field \"n_paralel\"; did you mean \"n_parallel\"?")]
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column} ")?;
        }
        if !self.pointer.is_empty() {
            write!(f, "{}: ", self.pointer)?;
        }
        f.write_str(&self.message)
    }
}

impl Problem {
    pub(super) fn new(
        code: &str,
        pointer: &str,
        position: Position,
        found: impl Into<String>,
        expected: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code: code.into(),
            pointer: pointer.into(),
            line: Some(position.line),
            column: Some(position.column),
            found: found.into(),
            expected: expected.into(),
            message: message.into(),
        }
    }
}

/// What is wrong with one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileReport {
    /// The file.
    #[schemars(example = &"workers.json")]
    pub path: String,
    /// Its kind; null when it could not be found.
    pub kind: Option<Kind>,
    /// Whether there is no error.
    #[schemars(example = false)]
    pub valid: bool,
    /// Every error, in the order of the text.
    pub errors: Vec<Problem>,
}

impl FileReport {
    pub(super) fn new(path: String, kind: Option<Kind>, mut errors: Vec<Problem>) -> Self {
        errors.sort_by(|one, two| (one.line, one.column, &one.pointer).cmp(&(two.line, two.column, &two.pointer)));
        errors.dedup();
        Self { path, kind, valid: errors.is_empty(), errors }
    }

    /// 0 when valid, 2 when the file is not JSON or cannot be read, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        if self.valid {
            exit::OK
        } else if self.errors.iter().any(|problem| matches!(problem.code.as_str(), "not-json" | "unreadable")) {
            exit::USAGE
        } else {
            exit::CHECK_FAILED
        }
    }

    pub(crate) fn unreadable(&mut self, error: &serde_json::Error) {
        self.errors.push(Problem {
            code: "form".into(),
            pointer: String::new(),
            line: u64::try_from(error.line()).ok().filter(|line| *line > 0),
            column: u64::try_from(error.column()).ok().filter(|column| *column > 0),
            found: String::new(),
            expected: String::new(),
            message: error.to_string(),
        });
        self.valid = false;
    }
}

/// What `validate` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Validation of documents")]
pub struct ValidateOutput {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// One entry a file, in the order given.
    pub files: Vec<FileReport>,
}

impl ValidateOutput {
    /// The worst exit code of the files.
    pub fn exit_code(&self) -> u8 {
        self.files.iter().map(FileReport::exit_code).max().unwrap_or(exit::OK)
    }
}

/// A value for a message, shortened.
pub(super) fn short(value: &Value) -> String {
    const LIMIT: usize = 80;
    match value {
        Value::Object(map) if map.len() > 2 => format!("an object of {} fields", map.len()),
        Value::Array(items) if items.len() > 8 => format!("a list of {} items", items.len()),
        value => {
            let text = value.to_string();
            if text.chars().count() <= LIMIT { text } else { text.chars().take(LIMIT).chain(['…']).collect() }
        }
    }
}

/// Collects the errors of rules, with their places.
pub(super) struct Report<'a> {
    pub(super) spans: &'a Spans<'a>,
    pub(super) errors: Vec<Problem>,
}

impl Report<'_> {
    /// An error at a value.
    pub(super) fn at(
        &mut self,
        code: &str,
        pointer: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        message: impl Into<String>,
    ) {
        let position = self.spans.value_position(pointer);
        self.errors.push(Problem::new(code, pointer, position, found, expected, message));
    }
}
