//! Help for editors: which schema belongs to which file names, in the form VS Code reads.
//!
//! The schemas lie in a folder of the workspace and are named by relative paths, so nothing is fetched.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstRootNode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::document::Kind;
use crate::exit;
use crate::report::{ErrorReport, Explain};
use crate::schema;
use crate::span::STRICT;

/// Where `vscode --write` puts the schemas, below the workspace.
pub const SCHEMA_FOLDER: &str = ".vscode/b70kit";

const SETTING: &str = "json.schemas";
/// JSON with comments and trailing commas, as VS Code writes its settings.
const JSONC: ParseOptions = ParseOptions { allow_comments: true, allow_trailing_commas: true, ..STRICT };

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
                .hint("mend the file, or leave --write out and copy the entry that is printed"),
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
    let root = CstRootNode::parse(text, &JSONC).map_err(|error| error.to_string())?;
    let settings = root.object_value().ok_or("the settings are not an object")?;
    let mut expected = settings.to_serde_value().ok_or("a value of the settings cannot be read")?;
    let properties = settings.properties();
    let mut named = properties.iter().filter(|property| property.decoded_name().as_deref() == Some(SETTING));
    let list = match (named.next(), named.next()) {
        (_, Some(_)) => return Err(format!("{SETTING} is given twice")),
        (Some(one), None) => Some(one.array_value().ok_or_else(|| format!("{SETTING} is not a list"))?),
        (None, None) => None,
    };
    let entries: Vec<Value> = list.as_ref().and_then(CstArray::to_serde_value).iter().flat_map(items).collect();
    let (kept, added): (Vec<_>, Vec<_>) =
        wanted.iter().cloned().partition(|one| entries.iter().any(|entry| entry["url"] == one.url));
    let kept = kept.into_iter().map(|one| one.url).collect();
    if added.is_empty() {
        return Ok((text.to_owned(), added, kept));
    }
    let list = list.unwrap_or_else(|| settings.array_value_or_set(SETTING));
    list.ensure_multiline();
    for one in &added {
        list.append(input(one));
    }
    let merged = root.to_string();
    // The proof that nothing was lost: the merged text must say exactly what was there plus what was added.
    expected[SETTING] = entries.into_iter().chain(added.iter().map(|one| json!(one))).collect();
    let after = CstRootNode::parse(&merged, &JSONC).ok().and_then(|root| root.object_value()?.to_serde_value());
    if after.as_ref() != Some(&expected) {
        return Err("the list could not be added without touching something else".into());
    }
    Ok((merged, added, kept))
}

fn items(list: &Value) -> Vec<Value> {
    list.as_array().cloned().unwrap_or_default()
}

fn input(one: &SchemaAssociation) -> CstInputValue {
    let patterns = one.file_match.iter().cloned().map(CstInputValue::String).collect();
    let url = CstInputValue::String(one.url.clone());
    CstInputValue::Object(vec![("fileMatch".into(), CstInputValue::Array(patterns)), ("url".into(), url)])
}

/// Writes every schema of documents into `folder`.
pub fn write_schemas(folder: &Path, entries: &[schema::SchemaEntry]) -> Result<(), EditorError> {
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
    fn settings_keep_every_comment_and_are_refused_when_they_are_no_settings() {
        let wanted = &associations("schemas")[..2];
        for (settings, kept) in [
            ("", &[][..]),
            ("{\r\n\t\"a\": 1 // one\r\n\t/* end */\r\n}\r\n", &["\t\"a\": 1, // one\r\n", "/* end */\r\n}\r\n"]),
            (
                "{\"json.schemas\": [{\"url\": \"./x\"}, // c\n ],\"b\": 2}",
                &["{\"url\": \"./x\"}, // c\n", "\"b\": 2}"],
            ),
            (
                "{\"json\\u002eschemas\": [ /* none yet */ ]} // last",
                &["/* none yet */", "} // last", "json\\u002eschemas"],
            ),
            ("{\"big\": 12345678901234567890123, \"f\": 1.0e400}", &["12345678901234567890123", "1.0e400"]),
        ] {
            let (merged, added, _) = merge_settings(settings, wanted).expect(settings);
            assert_eq!(added, wanted, "{settings}");
            assert!(kept.iter().all(|part| merged.contains(part)), "{settings:?} became {merged:?}");
            assert!(!settings.contains('\r') || !merged.replace("\r\n", "").contains('\n'), "line ends: {merged:?}");
            let (again, added, urls) = merge_settings(&merged, wanted).expect(&merged);
            assert!(again == merged && added.is_empty() && urls.len() == 2, "{merged}");
        }
        for (settings, why) in [
            ("[]", "not an object"),
            ("{\"json.schemas\": 3}", "not a list"),
            ("{\"json.schemas\": [], \"json.schemas\": []}", "given twice"),
            ("{} /* never ends", "comment"),
            ("{'a': 1}", "line 1 column 2"),
            ("{\"a\": 1 \"b\": 2}", "comma"),
            ("{\"a\": 01}", "comma"),
        ] {
            let error = merge_settings(settings, wanted).expect_err(settings);
            assert!(error.contains(why), "{settings}: {error}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(merge_settings(&deep, wanted).expect_err("too deep").contains("depth"));
    }

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
