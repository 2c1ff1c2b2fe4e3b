//! From upstream's version 1 documents to the current version, without loss.
//!
//! Version 2 differs from version 1 in three ways: `schema_version` is 2; extra arguments of workers may be a list of
//! words; keys the kit does not know live below `extensions`, `lab-v1`, each under its JSON pointer. [`revert`] goes the
//! other way. Documents that tools wrote are bound by hashes and are never rewritten: their readers take every version.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::document::{Kind, detect, read_bytes};
use crate::exit;
use crate::golden::GOLDEN_CORPUS_VERSION;
use crate::model_pack::MODEL_PACK_VERSION;
use crate::report::{ErrorReport, Explain};
use crate::span::Spans;
use crate::validate::{FileReport, check_bytes, check_text};
use crate::workers::WORKERS_VERSION;

/// Where `extensions` keeps the keys of version 1 that the kit does not know.
pub const LAB_EXTENSION: &str = "lab-v1";

/// One thing a migration changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Where, in the document as it was.
    #[schemars(example = &"/schema_version")]
    pub pointer: String,
    /// What, in one sentence.
    #[schemars(example = &"1 becomes 2")]
    pub what: String,
}

/// A migrated document.
#[derive(Debug, Clone, PartialEq)]
pub struct Migration {
    /// Its kind.
    pub kind: Kind,
    /// The version it had.
    pub from: u64,
    /// The version it has.
    pub to: u64,
    /// What changed; nothing when the document was current.
    pub changes: Vec<Change>,
    /// The document.
    pub document: Value,
}

impl Migration {
    /// The document as text, indented by two spaces.
    pub fn text(&self) -> String {
        crate::schema::text(&self.document)
    }

    /// Writes the document to a file, whole or not at all; a current one is written as it would be printed.
    pub fn write(&self, path: &Path) -> Result<(), MigrateError> {
        crate::editor::publish(path, &self.text()).map_err(|source| MigrateError::Io { path: path.to_owned(), source })
    }

    /// What `migrate` prints.
    pub fn output(&self, path: &Path) -> MigrateOutput {
        MigrateOutput {
            schema_version: 1,
            path: path.display().to_string(),
            kind: self.kind,
            from_version: self.from,
            to_version: self.to,
            changes: self.changes.clone(),
            document: self.document.clone(),
        }
    }
}

/// What `migrate` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Migration of a document")]
pub struct MigrateOutput {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// The file.
    #[schemars(example = &"workers.json")]
    pub path: String,
    /// Its kind.
    pub kind: Kind,
    /// The version it had.
    #[schemars(example = 1)]
    pub from_version: u64,
    /// The version it has now.
    #[schemars(example = 2)]
    pub to_version: u64,
    /// What changed; empty when the document was current.
    pub changes: Vec<Change>,
    /// The migrated document.
    #[schemars(example = json!({"schema_version": 2}))]
    pub document: Value,
}

/// A document that cannot be migrated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// It is not JSON, or has errors that a migration cannot mend.
    #[error("{}: the document has errors that must be mended first{}", report.path, listed(report))]
    Invalid {
        /// The errors.
        report: Box<FileReport>,
    },
    /// The document cannot be read, or the migrated one not written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its kind has one version only.
    #[error(
        "{path}: a document of kind {kind} is never rewritten: keys and receipts are bound to its bytes, and every version of it is read"
    )]
    Fixed {
        /// The file.
        path: String,
        /// Its kind.
        kind: Kind,
    },
    /// Writing it again would change a number.
    #[error("{path}: the number {literal} at {pointer} has more digits than can be kept")]
    Number {
        /// The file.
        path: String,
        /// Where.
        pointer: String,
        /// The number as written.
        literal: String,
    },
}

fn listed(report: &FileReport) -> String {
    let mut text = String::new();
    for problem in &report.errors {
        text.push_str(&format!("\n  {problem}"));
    }
    text
}

impl Explain for MigrateError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Invalid { report } => ErrorReport::new("invalid-document", self.to_string())
                .path(&report.path)
                .hint("validate the document: that shows every error with its place"),
            Self::Io { path, .. } => ErrorReport::new("io", self.to_string()).path(path),
            Self::Fixed { path, .. } => {
                ErrorReport::new("not-migrated", self.to_string()).path(path).hint("use the document as it is")
            }
            Self::Number { path, literal, .. } => ErrorReport::new("number", self.to_string())
                .path(path)
                .found(literal)
                .expected("an integer of 64 bits, or up to 17 significant digits")
                .hint("write the number as text"),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Invalid { report } => report.exit_code(),
            Self::Io { .. } => exit::USAGE,
            Self::Fixed { .. } | Self::Number { .. } => exit::CHECK_FAILED,
        }
    }
}

const fn current_version(kind: Kind) -> Option<u64> {
    match kind {
        Kind::Workers => Some(WORKERS_VERSION),
        Kind::ModelPackManifest => Some(MODEL_PACK_VERSION),
        Kind::GoldenCorpusManifest => Some(GOLDEN_CORPUS_VERSION),
        _ => None,
    }
}

/// [`migrate`] of a file of at most [`MAX_DOCUMENT_BYTES`](crate::document::MAX_DOCUMENT_BYTES).
pub fn migrate_file(path: &Path) -> Result<Migration, MigrateError> {
    let bytes = read_bytes(path).map_err(|source| MigrateError::Io { path: path.to_owned(), source })?;
    match check_bytes(path, &bytes, None) {
        (_, Some(text)) => migrate(path, text),
        (report, None) => Err(MigrateError::Invalid { report: Box::new(report) }),
    }
}

/// Brings a document to the current version. Nothing is lost: [`revert`] gives back what it said.
///
/// A document that is current comes back as it is. One with errors is refused, except for unknown keys of version 1,
/// which move below `extensions`.
pub fn migrate(path: &Path, text: &str) -> Result<Migration, MigrateError> {
    let name = path.display().to_string();
    let invalid = |report: FileReport| MigrateError::Invalid { report: Box::new(report) };
    let Ok(mut document) = serde_json::from_str::<Value>(text) else {
        return Err(invalid(check_text(path, text, None)));
    };
    let Some(kind) = detect(&document, Some(path)) else { return Err(invalid(check_text(path, text, None))) };
    let before = check_text(path, text, Some(kind));
    let from = document.get("schema_version").and_then(Value::as_u64);
    let Some(to) = current_version(kind) else { return Err(MigrateError::Fixed { path: name, kind }) };
    keeps_numbers(&name, text)?;
    if from == Some(to) {
        if !before.valid {
            return Err(invalid(before));
        }
        return Ok(Migration { kind, from: to, to, changes: Vec::new(), document });
    }
    if before.errors.iter().any(|problem| problem.code != "unknown-key") {
        return Err(invalid(before));
    }
    let mut changes = vec![Change { pointer: "/schema_version".into(), what: format!("1 becomes {to}") }];
    document["schema_version"] = to.into();
    if kind == Kind::Workers {
        split_arguments(&mut document, &mut changes);
    }
    let unknown = before.errors.iter().map(|problem| problem.pointer.clone()).collect();
    set_aside(&mut document, unknown, &mut changes);

    let migrated = crate::schema::text(&document);
    let after = check_text(path, &migrated, Some(kind));
    if !after.valid {
        return Err(invalid(after));
    }
    Ok(Migration { kind, from: 1, to, changes, document })
}

/// Refuses a number that would come back different.
fn keeps_numbers(path: &str, text: &str) -> Result<(), MigrateError> {
    let spans = Spans::new(text);
    for (pointer, literal) in spans.numbers() {
        let same = match serde_json::from_str::<Value>(literal) {
            Ok(Value::Number(number)) => same_digits(literal, &number.to_string()),
            _ => false,
        };
        if !same {
            let (path, pointer, literal) = (path.to_owned(), pointer.to_owned(), literal.to_owned());
            return Err(MigrateError::Number { path, pointer, literal });
        }
    }
    Ok(())
}

/// Whether two literals are the same number, digit by digit.
fn same_digits(one: &str, two: &str) -> bool {
    significant(one) == significant(two)
}

/// Sign, digits without zeros at either end, and the power of ten of the last digit.
fn significant(literal: &str) -> Option<(bool, String, i64)> {
    let (negative, rest) = literal.strip_prefix('-').map_or((false, literal), |rest| (true, rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let trimmed = digits.trim_end_matches('0');
    let dropped = i64::try_from(digits.len() - trimmed.len()).ok()?;
    let power = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
    let trimmed = trimmed.trim_start_matches('0');
    Some(if trimmed.is_empty() { (negative, String::new(), 0) } else { (negative, trimmed.to_owned(), power) })
}

/// Extra arguments become words where that loses nothing.
fn split_arguments(document: &mut Value, changes: &mut Vec<Change>) {
    let mut places = vec!["/common/extra_llama_args".to_owned()];
    for name in document.get("profiles").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name) {
        places.push(format!("/profiles/{}/extra_llama_args", crate::span::escape(name)));
    }
    for pointer in places {
        let Some(args) = document.pointer_mut(&pointer) else { continue };
        let Some(words) = args.as_str().and_then(plain_words) else { continue };
        changes.push(Change { pointer, what: format!("{args} becomes {}", json!(words)) });
        *args = json!(words);
    }
}

/// The words of a line that needs no quoting rules: plain words, one space between two.
pub(super) fn plain_words(text: &str) -> Option<Vec<&str>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let words: Vec<&str> = text.split(' ').collect();
    let plain = |word: &&str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\".contains(c));
    words.iter().all(plain).then_some(words)
}

/// Moves unknown keys below `extensions`.
fn set_aside(document: &mut Value, mut unknown: Vec<String>, changes: &mut Vec<Change>) {
    if unknown.is_empty() {
        return;
    }
    // An unknown key inside an unknown one moves with it.
    unknown.sort_unstable();
    unknown.dedup();
    let mut kept = Map::new();
    for pointer in unknown {
        let Some((parent, token)) = pointer.rsplit_once('/') else { continue };
        let key = token.replace("~1", "/").replace("~0", "~");
        let Some(object) = document.pointer_mut(parent).and_then(Value::as_object_mut) else { continue };
        if let Some(value) = object.shift_remove(&key) {
            let what = format!("moves to /extensions/{LAB_EXTENSION}, since the kit does not know it");
            changes.push(Change { pointer: pointer.clone(), what });
            kept.insert(pointer, value);
        }
    }
    if let Value::Object(root) = document {
        let extensions = root.entry("extensions").or_insert_with(|| json!({}));
        if extensions.is_null() {
            *extensions = json!({});
        }
        if let Value::Object(extensions) = extensions {
            extensions.insert(LAB_EXTENSION.into(), Value::Object(kept));
        }
    }
}

/// The content a migrated document had as version 1; nothing for a document that is not version 2, or that says what
/// version 1 cannot: an argument with a space or a quote in it.
///
/// Keys come back where they were, though not in their old order, which means nothing in JSON. Lists of arguments come back
/// as lines, which is all that upstream's scripts read, and the version is stated, also where it had been left out.
pub fn revert(document: &Value) -> Option<Value> {
    if document.get("schema_version").and_then(Value::as_u64) != Some(2) {
        return None;
    }
    let kind = detect(document, None)?;
    let mut document = document.clone();
    document["schema_version"] = 1.into();
    let root = document.as_object_mut()?;
    let mut kept = None;
    if let Some(Value::Object(extensions)) = root.get_mut("extensions") {
        kept = extensions.shift_remove(LAB_EXTENSION);
        if kept.is_some() && extensions.is_empty() {
            root.shift_remove("extensions");
        }
    }
    if kind == Kind::Workers {
        if let Some(args) = document.pointer_mut("/common/extra_llama_args") {
            *args = line(args)?;
        }
        for (_, profile) in document.get_mut("profiles").and_then(Value::as_object_mut).into_iter().flatten() {
            if let Some(args) = profile.get_mut("extra_llama_args") {
                *args = line(args)?;
            }
        }
    }
    for (pointer, value) in kept.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let (parent, token) = pointer.rsplit_once('/')?;
        let key = token.replace("~1", "/").replace("~0", "~");
        document.pointer_mut(parent)?.as_object_mut()?.insert(key, value.clone());
    }
    Some(document)
}

/// Words as one line, if splitting it gives the same words.
fn line(args: &Value) -> Option<Value> {
    let Value::Array(list) = args else { return Some(args.clone()) };
    let words: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
    let line = words.join(" ");
    (plain_words(&line)? == words).then(|| line.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_digit_by_digit() {
        for (one, two, same) in [
            ("1.10", "1.1", true),
            ("1e2", "100.0", true),
            ("-0", "0", false),
            ("0.0", "0.0", true),
            ("1E-3", "0.001", true),
            ("0.1000000000000000055", "0.1", false),
            ("18446744073709551616", "18446744073709552000.0", false),
        ] {
            assert_eq!(same_digits(one, two), same, "{one} and {two}");
        }
    }
}
