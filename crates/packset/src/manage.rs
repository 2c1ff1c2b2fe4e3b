//! Listing the sets of a cache root, and removing what no set needs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::{Sha256Hex, UnixTime};
use b70_store::{EntryKind, LockGuard, Progress, RelPath, Root, lock, sweep_orphans};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::set::{BESIDE_FILES, LOCKS_DIR, MANIFEST_FILE, SetDir, TENSORS_DIR, payload_name, rel, sidecar_name};

/// The sets under a cache root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SetList {
    /// Version of this document's form.
    pub schema_version: u64,
    /// The cache root.
    pub cache_root: PathBuf,
    /// One row a set, by key.
    pub sets: Vec<SetRow>,
}

/// One set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SetRow {
    /// The set key, which is the folder's name.
    pub set_key: Sha256Hex,
    /// `ready`, `incomplete` (no manifest: a prepare under way, or one that was ended), or `unreadable`.
    pub status: SetState,
    /// The plan's name, where recorded.
    pub plan: Option<String>,
    /// Path of the model the set was made from.
    pub model: Option<String>,
    /// SHA-256 of the model.
    pub model_sha256: Option<Sha256Hex>,
    /// Number of tensors.
    pub tensor_count: Option<u64>,
    /// Sum of the payloads' sizes in bytes.
    pub payload_size_bytes: Option<u64>,
    /// When the manifest was written, unix seconds.
    pub created_unix: Option<UnixTime>,
    /// Why a manifest is unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// State of a set's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SetState {
    /// It has a manifest.
    Ready,
    /// It has none.
    Incomplete,
    /// It has one that cannot be read, or another set's.
    Unreadable,
}

/// Lists the sets under a cache root; none when the root does not exist.
pub fn list(cache_root: &Path) -> Result<SetList, PackError> {
    let mut sets = Vec::new();
    if cache_root.exists() {
        let root = Root::open(cache_root)?;
        for (key, name) in set_folders(&root)? {
            sets.push(row(key, &SetDir::from_root(root.dir(&name)?)));
        }
    }
    Ok(SetList { schema_version: 1, cache_root: cache_root.to_path_buf(), sets })
}

impl SetDir {
    /// The newest set (by its manifest's `created_unix`, then by key) under a cache root.
    pub fn newest(cache_root: &Path) -> Result<Self, PackError> {
        Self::newest_of(cache_root, None)
    }

    /// The newest of the sets made from `model`, or of all where there is none of that model.
    pub fn newest_of(cache_root: &Path, model: Option<Sha256Hex>) -> Result<Self, PackError> {
        let mut all = list(cache_root)?.sets;
        let of_model = |row: &SetRow| row.created_unix.is_some() && row.model_sha256 == model;
        if model.is_some() && all.iter().any(of_model) {
            all.retain(of_model);
        }
        let what = match all.len() {
            0 => "at all".to_owned(),
            count => format!("that can be read (of {count}; list says what is wrong with each)"),
        };
        let mut sets: Vec<_> =
            all.into_iter().filter_map(|row| row.created_unix.map(|created| (created, row.set_key))).collect();
        sets.sort_unstable();
        let (_, key) = sets.pop().ok_or_else(|| PackError::NoSet { what, root: cache_root.to_path_buf() })?;
        Self::open(cache_root, key)
    }
}

fn set_folders(root: &Root) -> Result<Vec<(Sha256Hex, RelPath)>, PackError> {
    let mut folders: Vec<_> = root
        .list()?
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Directory)
        .filter_map(|entry| Some((entry.name.as_str()?.parse().ok()?, entry.name)))
        .collect();
    folders.sort_unstable_by_key(|(key, _): &(Sha256Hex, _)| *key);
    Ok(folders)
}

fn row(key: Sha256Hex, set: &SetDir) -> SetRow {
    let mut row = SetRow {
        set_key: key,
        status: SetState::Ready,
        plan: None,
        model: None,
        model_sha256: None,
        tensor_count: None,
        payload_size_bytes: None,
        created_unix: None,
        problem: None,
    };
    match set.read_manifest() {
        Ok((document, _)) if document.key != key => {
            row.status = SetState::Unreadable;
            row.problem = Some(format!("its manifest is that of the set {}", document.key));
        }
        Ok((document, _)) => {
            row.plan = document.plan;
            row.model = Some(document.source_model.path);
            row.model_sha256 = Some(document.source_model.sha256);
            row.tensor_count = Some(document.tensor_count);
            row.payload_size_bytes = Some(document.payload_size_bytes);
            row.created_unix = Some(document.created_unix);
        }
        Err(PackError::Store(b70_store::Error::Missing { .. })) => row.status = SetState::Incomplete,
        Err(error) => {
            row.status = SetState::Unreadable;
            row.problem = Some(error.to_string());
        }
    }
    row
}

/// What a [`gc`] removes, or would remove.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GcReport {
    /// Version of this document's form.
    pub schema_version: u64,
    /// The cache root.
    pub cache_root: PathBuf,
    /// Whether the plan was carried out.
    pub executed: bool,
    /// What is removed, with the reason.
    pub actions: Vec<GcAction>,
    /// What is kept although it looks removable, with the reason.
    pub kept: Vec<GcAction>,
    /// Bytes of the removed files (a payload linked from another set frees nothing).
    pub bytes: u64,
}

/// One step of a [`gc`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GcAction {
    /// Path below the cache root.
    pub path: String,
    /// Why.
    pub reason: String,
    /// Bytes it takes.
    pub size_bytes: u64,
}

/// Plans, and with `execute` carries out, the removal of what no ready set needs: the folders of incomplete sets, files in
/// a ready set that its manifest does not name, and temporary files of ended processes. A set that a prepare holds is kept.
pub fn gc(cache_root: &Path, execute: bool) -> Result<GcReport, PackError> {
    let mut report = GcReport {
        schema_version: 1,
        cache_root: cache_root.to_path_buf(),
        executed: execute,
        actions: Vec::new(),
        kept: Vec::new(),
        bytes: 0,
    };
    if !cache_root.exists() {
        return Ok(report);
    }
    let root = Root::open(cache_root)?;
    for (key, name) in set_folders(&root)? {
        let _guard = match hold(&root, key, execute) {
            Ok(guard) => guard,
            Err(PackError::Store(error)) if error.is_timeout() => {
                report.kept.push(action(&name, error.to_string(), 0));
                continue;
            }
            Err(error) => return Err(error),
        };
        gc_set(&root, key, &name, execute, &mut report)?;
    }
    report.bytes = report.actions.iter().map(|action| action.size_bytes).sum();
    Ok(report)
}

/// The set's lock, or none where there are no locks. A dry run creates nothing: where no lock file is, no prepare runs.
fn hold(root: &Root, key: Sha256Hex, execute: bool) -> Result<Option<LockGuard>, PackError> {
    let folder = rel(LOCKS_DIR);
    let name = rel(&format!("{key}.lock"));
    let locks = if execute { root.create_dir_durable(&folder, 0o755) } else { root.dir(&folder) };
    let locks = match locks {
        Ok(locks) => locks,
        Err(b70_store::Error::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !execute && locks.try_stat(&name)?.is_none() {
        return Ok(None);
    }
    match lock(&locks, &name, "b70-pack gc", Duration::ZERO, &Progress::NONE) {
        // Whoever may only read can still ask what would be removed.
        Err(b70_store::Error::Io { source, .. })
            if !execute
                && matches!(
                    source.kind(),
                    std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied
                ) =>
        {
            Ok(None)
        }
        held => Ok(held?),
    }
}

fn gc_set(root: &Root, key: Sha256Hex, name: &RelPath, execute: bool, report: &mut GcReport) -> Result<(), PackError> {
    let set = SetDir::from_root(root.dir(name)?);
    let state = row(key, &set);
    let files = set.root().walk(MAX_FILES)?;
    let size = |file: &RelPath| set.root().stat(file).map_or(0, |identity| identity.size);
    match state.status {
        SetState::Unreadable => {
            // Damage is for a person to look at: prepare repairs it, nothing removes it silently.
            let problem = state.problem.unwrap_or_default();
            report.kept.push(action(name, format!("its manifest is unreadable ({problem}); prepare repairs it"), 0));
        }
        SetState::Incomplete => {
            let bytes = files.iter().map(|entry| size(&entry.name)).sum();
            report.actions.push(action(name, "no manifest: a prepare that was ended".to_owned(), bytes));
            if execute {
                root.remove_tree(name)?;
            }
        }
        SetState::Ready => {
            let (document, _) = set.read_manifest()?;
            let mut needed: HashSet<String> = BESIDE_FILES.iter().map(|name| (*name).to_owned()).collect();
            needed.insert(MANIFEST_FILE.to_owned());
            for tensor in &document.tensors {
                needed.insert(payload_name(tensor.key));
                needed.insert(sidecar_name(tensor.key));
            }
            for entry in files.iter().filter(|entry| entry.kind == EntryKind::File) {
                let text = entry.name.to_string();
                if needed.contains(&text) {
                    continue;
                }
                let shown = name.join(&entry.name)?;
                report.actions.push(action(&shown, "not named by the set's manifest".to_owned(), size(&entry.name)));
                if execute {
                    remove_below(set.root(), &entry.name)?;
                }
            }
            if execute {
                sweep_orphans(set.root())?;
                sweep_orphans(&set.root().dir(&rel(TENSORS_DIR))?)?;
            }
        }
    }
    Ok(())
}

/// Removes a file at any depth below `root`.
fn remove_below(root: &Root, name: &RelPath) -> Result<(), PackError> {
    match name.parent() {
        None => root.remove_file(name)?,
        Some(parent) => root.dir(&parent)?.remove_file(&RelPath::new(name.file_name())?)?,
    };
    Ok(())
}

/// More files than any set has; a folder with more is not one of ours.
const MAX_FILES: usize = 4 << 20;

fn action(path: &RelPath, reason: String, size_bytes: u64) -> GcAction {
    GcAction { path: path.to_string(), reason, size_bytes }
}
