use std::path::Path;

use serde_json::Value;

use super::problem::{FileReport, Problem, Report, ValidateOutput};
use super::{across, rules, schema_errors};
use crate::document::{Kind, detect, is_readable, read_bytes};
use crate::span::{Position, Spans};

/// Checks one document. `path` is how the report calls it, and a hint at its kind.
///
/// ```
/// let report = b70_manifest::validate::check_text("my.workers.json".as_ref(), "{\"lane\": 1}", None);
/// assert!(report.errors.iter().any(|problem| problem.pointer == "/lane" && problem.code == "type"));
/// ```
pub fn check_text(path: &Path, text: &str, kind: Option<Kind>) -> FileReport {
    check(path, text, kind).0
}

/// The same for bytes; also returns the text when the bytes are UTF-8.
pub fn check_bytes<'a>(path: &Path, bytes: &'a [u8], kind: Option<Kind>) -> (FileReport, Option<&'a str>) {
    let (report, text, _) = check_document(path, bytes, kind);
    (report, text)
}

fn check_document<'a>(
    path: &Path,
    bytes: &'a [u8],
    kind: Option<Kind>,
) -> (FileReport, Option<&'a str>, Option<Value>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let (report, value) = check(path, text, kind);
            (report, Some(text), value)
        }
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let found = format!("byte 0x{:02x}", bytes[error.valid_up_to()]);
            let problem = Problem::new(
                "not-json",
                "",
                Spans::new(valid).position(valid.len()),
                found,
                "UTF-8 text",
                "the file is not UTF-8 text, so it is not JSON",
            );
            (FileReport::new(path.display().to_string(), kind, vec![problem]), None, None)
        }
    }
}

fn check(path: &Path, text: &str, asked: Option<Kind>) -> (FileReport, Option<Value>) {
    let name = path.display().to_string();
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return (FileReport::new(name, asked, vec![not_json(text, &error)]), None),
    };
    let spans = Spans::new(text);
    let mut errors: Vec<Problem> = spans
        .duplicates
        .iter()
        .map(|twice| {
            let first = spans.position(twice.first);
            let key = twice.pointer.rsplit('/').next().unwrap_or_default();
            Problem::new(
                "duplicate-key",
                &twice.pointer,
                spans.position(twice.second),
                format!("{key:?} a second time"),
                "each field once",
                format!("the field {key:?} is already given at {}:{}", first.line, first.column),
            )
        })
        .collect();
    let Some(kind) = asked.or_else(|| detect(&value, Some(path))) else {
        errors.push(Problem::new(
            "unknown-kind",
            "",
            spans.value_position(""),
            "no format, $schema or fields of a known kind",
            "a document of b70kit",
            "the kind of this document cannot be told from its content; name it with --kind",
        ));
        return (FileReport::new(name, None, errors), Some(value));
    };
    let has_duplicates = !errors.is_empty();
    let from_schema = schema_errors::collect(kind, &value, &spans);
    let schema_is_content = from_schema.is_empty();
    errors.extend(from_schema);
    let mut report = Report { spans: &spans, errors };
    rules::check(kind, &value, &mut report);
    let mut errors = report.errors;
    // What a schema cannot say and a type can, such as an integer beyond 64 bits or one written 1.0.
    if schema_is_content
        && !has_duplicates
        && let Err(error) = is_readable(kind, text)
    {
        let pointer = spans.pointer_at(error.line(), error.column());
        let found = value.pointer(&pointer).map(super::problem::short).unwrap_or_default();
        let message = without_place(&error);
        let position = spans.value_position(&pointer);
        errors.push(Problem::new("form", &pointer, position, found, message.clone(), message));
    }
    (FileReport::new(name, Some(kind), errors), Some(value))
}

/// What `serde_json` says, without the line and column at its end.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

fn not_json(text: &str, error: &serde_json::Error) -> Problem {
    let what = without_place(error);
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    // serde_json counts bytes.
    let before = line.as_bytes().get(..error.column().saturating_sub(1).min(line.len())).unwrap_or_default();
    let column = String::from_utf8_lossy(before).chars().count() as u64 + 1;
    let position = Position { line: error.line().max(1) as u64, column };
    let found = match line.chars().nth(usize::try_from(column).unwrap_or(1) - 1) {
        Some(character) => format!("{character:?}"),
        None if error.is_eof() => "the end of the file".into(),
        None => "the end of the line".into(),
    };
    let hint = if text.starts_with('\u{feff}') { "; the file begins with a byte-order mark" } else { "" };
    Problem::new("not-json", "", position, found, "JSON", format!("not JSON: {what}{hint}"))
}

/// Checks files, each for itself and then against each other. `kind`, when given, holds for every file.
pub fn check_files<P: AsRef<Path>>(paths: &[P], kind: Option<Kind>) -> ValidateOutput {
    let mut files = Vec::new();
    let mut contents = Vec::new();
    for path in paths {
        let path = path.as_ref();
        match read_bytes(path) {
            Ok(bytes) => {
                let (report, _, value) = check_document(path, &bytes, kind);
                files.push(report);
                contents.push((bytes, value));
            }
            Err(error) => {
                files.push(FileReport::new(
                    path.display().to_string(),
                    kind,
                    vec![Problem {
                        code: "unreadable".into(),
                        pointer: String::new(),
                        line: None,
                        column: None,
                        found: error.to_string(),
                        expected: "a readable file".into(),
                        message: format!("the file cannot be read: {error}"),
                    }],
                ));
                contents.push((Vec::new(), None));
            }
        }
    }
    across::check(&mut files, &contents);
    ValidateOutput { schema_version: 1, files }
}
