use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use super::jsonc::plain;
use crate::document::Kind;
use crate::exit;
use crate::report::{ErrorReport, Explain};
use crate::schema;
use crate::span::Spans;

/// Where `vscode --write` puts the schemas, below the workspace.
pub const SCHEMA_FOLDER: &str = ".vscode/b70kit";

const SETTING: &str = "json.schemas";

/// Which schema belongs to which file names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchemaAssociation {
    /// Patterns of file names.
    #[serde(rename = "fileMatch")]
    #[schemars(title = "File match", example = json!(["workers.json"]))]
    pub file_match: Vec<String>,
    /// Path of the schema, relative to the workspace.
    #[schemars(example = &"./.vscode/b70kit/workers.schema.json")]
    pub url: String,
}

/// What `vscode` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Editor association")]
pub struct EditorOutput {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// The settings file.
    #[schemars(example = &".vscode/settings.json")]
    pub settings: String,
    /// Folder of the schemas.
    #[schemars(example = &".vscode/b70kit")]
    pub schemas: String,
    /// Whether something was written; without `--write`, nothing is.
    #[schemars(example = false)]
    pub written: bool,
    /// Associations the settings lack, or lacked before they were written.
    pub added: Vec<SchemaAssociation>,
    /// Associations of the settings that were kept as they are.
    #[schemars(example = json!(["./.vscode/b70kit/workers.schema.json"]))]
    pub kept: Vec<String>,
}

/// Settings that were left as they are.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EditorError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The settings are not JSON, even with comments and trailing commas.
    #[error("{}: the settings cannot be read as JSON with comments, so they were left as they are: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl Explain for EditorError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Io { path, .. } => ErrorReport::new("io", self.to_string()).path(path),
            Self::Unreadable { path, .. } => ErrorReport::new("settings", self.to_string())
                .path(path)
                .hint("mend the file, or run b70-manifest vscode without --write and copy what it prints"),
        }
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

/// The association of each kind that has file names, with schemas in `folder` (relative to the workspace).
pub fn associations(folder: &str) -> Vec<SchemaAssociation> {
    Kind::ALL
        .iter()
        .map(|kind| SchemaAssociation {
            file_match: kind.file_patterns().iter().map(|pattern| (*pattern).to_owned()).collect(),
            url: format!("./{folder}/{}", kind.schema_file()),
        })
        .collect()
}

/// Adds associations to the text of a settings file. Everything that is there stays, comments included; an association
/// whose `url` is there already is kept as it is. Returns the new text, what was added, and the urls that were kept.
///
/// ```
/// use b70_manifest::editor::{associations, merge_settings};
/// let settings = "{\n  // mine\n  \"editor.tabSize\": 3,\n}\n";
/// let (text, added, _) = merge_settings(settings, &associations("schemas")).unwrap();
/// assert!(text.starts_with("{\n  // mine\n  \"editor.tabSize\": 3,"));
/// assert!(!added.is_empty());
/// assert_eq!(merge_settings(&text, &associations("schemas")).unwrap().0, text);
/// ```
pub fn merge_settings(
    text: &str,
    wanted: &[SchemaAssociation],
) -> Result<(String, Vec<SchemaAssociation>, Vec<String>), String> {
    let text = if text.trim().is_empty() { "{\n}\n" } else { text };
    let strict = plain(text);
    let before: Value = serde_json::from_str(&strict).map_err(|error| error.to_string())?;
    let root = before.as_object().ok_or("the settings are not an object")?;
    let spans = Spans::new(&strict);
    if let Some(twice) = spans.duplicates.iter().find(|twice| twice.pointer == format!("/{SETTING}")) {
        let at = spans.position(twice.second);
        return Err(format!("{SETTING} is given twice, again at {}:{}", at.line, at.column));
    }
    let present = match root.get(SETTING) {
        None => None,
        Some(Value::Array(entries)) => Some(entries),
        Some(_) => return Err(format!("{SETTING} is not a list")),
    };
    let urls: Vec<&str> = present.into_iter().flatten().filter_map(|entry| entry.get("url")?.as_str()).collect();
    let (kept, added): (Vec<_>, Vec<_>) = wanted.iter().cloned().partition(|one| urls.contains(&one.url.as_str()));
    let kept = kept.into_iter().map(|one| one.url).collect();
    if added.is_empty() {
        return Ok((text.to_owned(), added, kept));
    }
    let (list_pointer, is_new) = match present {
        Some(_) => (format!("/{SETTING}"), false),
        None => (String::new(), true),
    };
    let container = spans.get(&list_pointer).ok_or("the place of the settings is not known")?.value.clone();
    // After the last member of the container, whose comma may be there already.
    let prefix = format!("{list_pointer}/");
    let last = spans.members(&prefix).map(|span| span.value.end).max();
    let entries: Vec<String> = added
        .iter()
        .map(|one| serde_json::to_string(one).map(|line| format!("    {line}")).map_err(|error| error.to_string()))
        .collect::<Result<_, _>>()?;
    let entries = entries.join(",\n");
    let addition = if is_new { format!("  \"{SETTING}\": [\n{entries}\n  ]") } else { entries };
    let close = container.end - 1;
    let has_comma = last.is_some_and(|last| has_comma(&text[last..close]));
    // A comment may stand between the last member and the bracket; the addition goes behind it, on a line of its own.
    let head = match last {
        Some(last) if !has_comma => format!("{},{}", &text[..last], &text[last..close]),
        _ => text[..close].to_owned(),
    };
    let indent = if is_new { "" } else { "  " };
    let merged = format!("{}\n{addition}\n{indent}{}", head.trim_end_matches([' ', '\t', '\n', '\r']), &text[close..]);

    // The proof that nothing was lost: the merged text must say exactly what was there plus what was added.
    let mut expected = before.clone();
    let additions = added.iter().map(|one| json!(one));
    match expected.get_mut(SETTING).and_then(Value::as_array_mut) {
        Some(list) => list.extend(additions),
        None => expected[SETTING] = additions.collect(),
    }
    match serde_json::from_str::<Value>(&plain(&merged)) {
        Ok(after) if after == expected => Ok((merged, added, kept)),
        _ => Err("the list could not be added without touching something else".into()),
    }
}

/// Whether a comma stands in text between two members, comments aside.
fn has_comma(between: &str) -> bool {
    // The brackets make a trailing comma one that is not trailing, so that it survives.
    plain(&format!("{between} 0")).contains(',')
}

/// Writes every schema of documents into `folder`.
pub fn write_schemas(folder: &Path, entries: &[schema::Entry]) -> Result<(), EditorError> {
    for (name, schema) in entries {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|source| EditorError::Io { path: parent.to_owned(), source })?;
        }
        publish(&path, &schema::text(schema)).map_err(|source| EditorError::Io { path, source })?;
    }
    Ok(())
}

/// Plans, and with `write` makes, the association of the workspace at `workspace`.
pub fn write_vscode(workspace: &Path, write: bool) -> Result<EditorOutput, EditorError> {
    let settings = workspace.join(".vscode/settings.json");
    let text = match fs::read_to_string(&settings) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(EditorError::Io { path: settings, source }),
    };
    let (merged, added, kept) = merge_settings(&text, &associations(SCHEMA_FOLDER))
        .map_err(|why| EditorError::Unreadable { path: settings.clone(), why })?;
    if write {
        write_schemas(&workspace.join(SCHEMA_FOLDER), &schema::documents())?;
        if merged != text {
            publish(&settings, &merged).map_err(|source| EditorError::Io { path: settings.clone(), source })?;
        }
    }
    Ok(EditorOutput {
        schema_version: 1,
        settings: settings.display().to_string(),
        schemas: workspace.join(SCHEMA_FOLDER).display().to_string(),
        written: write,
        added,
        kept,
    })
}

/// Removes temporaries of this file whose makers ended: their number is nobody's, and nobody holds the lock.
fn sweep(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let maker = file_name.to_str().and_then(|found| {
            found
                .strip_prefix('.')?
                .strip_prefix(name)?
                .strip_prefix('.')?
                .strip_suffix(".tmp")?
                .split('-')
                .next()?
                .parse::<u32>()
                .ok()
        });
        let Some(maker) = maker else { continue };
        let is_free = || fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if !Path::new(&format!("/proc/{maker}")).exists() && is_free() {
            // Best effort: what cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes a small text file so that a reader sees the old or the new one: temporary file, fsync, rename, fsync of the
/// folder. A link is followed, and the file keeps its permissions.
pub(crate) fn publish(path: &Path, text: &str) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = target.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    sweep(&folder, &name.to_string_lossy());
    let temporary = folder.join(format!(".{}.{}-{}.tmp", name.to_string_lossy(), std::process::id(), nonce()));
    // Not made by this call, it is not this call's to remove.
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = (|| {
        // Held until the end, so that a sweep elsewhere sees that the file is being made; not every file system has locks.
        let _ = file.try_lock();
        file.write_all(text.as_bytes())?;
        if let Ok(metadata) = fs::metadata(&target) {
            file.set_permissions(metadata.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&temporary, &target)?;
        fs::File::open(&folder)?.sync_all()
    })();
    if written.is_err() {
        // The error that is reported is the first one; after the rename there is nothing left to remove.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A number no other temporary file of this process has, and none that a killed one of the same id left.
fn nonce() -> u128 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    now << 32 | u128::from(CALLS.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_failure_leaves_what_was_there() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let file = scratch.path().join("a.json");
        publish(&file, "one").expect("written");
        publish(&file, "two").expect("replaced");
        assert_eq!(fs::read_to_string(&file).expect("there"), "two");
        // A folder in the file's place cannot be renamed over.
        let folder = scratch.path().join("folder");
        fs::create_dir(&folder).expect("made");
        fs::write(folder.join("mine"), "x").expect("made");
        assert!(publish(&folder, "three").is_err());
        let mut names: Vec<_> =
            fs::read_dir(scratch.path()).expect("there").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.json", "folder"]);
        assert_eq!(fs::read_to_string(folder.join("mine")).expect("there"), "x");
    }
}
