//! What the commands need: the selected models, the cache's folder.

use std::path::{Path, PathBuf};

use b70_admission::{AdmissionError, ModelCache};
use b70_cli::{CliError, default_root, uid, usable_root};
use b70_manifest::document::read;
use b70_manifest::model_pack::{ModelFile, ModelPackManifest};
use b70_store::{Error, RootKind, Sha256, open_ram_root};

use crate::cache::{Role, RootArgs, SelectArgs};

/// A model that was selected.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) role: Option<&'static str>,
    pub(crate) key: Option<Sha256>,
    pub(crate) model: Option<PathBuf>,
    pub(crate) size: Option<u64>,
}

/// The selection: the models (none: every entry) and the manifest they come from.
pub(crate) struct Selection {
    pub(crate) targets: Vec<Target>,
    pub(crate) spec: Option<ModelPackManifest>,
}

/// The models that the flags name.
pub(crate) fn select(args: &SelectArgs, default: Role) -> Result<Selection, CliError> {
    let role = args.role.unwrap_or(default);
    if let Some(path) = &args.spec {
        let spec: ModelPackManifest = read(path)?;
        let target = |role, file: &ModelFile| Target {
            role: Some(role),
            key: Some(file.sha256),
            model: Some(PathBuf::from(&file.path)),
            size: file.size_bytes,
        };
        let mut targets = Vec::new();
        if role != Role::Draft {
            targets.push(target("target", &spec.source));
        }
        match &spec.draft_source {
            Some(draft) if role != Role::Target => targets.push(target("draft", draft)),
            None if role == Role::Draft => {
                return Err(CliError::check("spec", format!("{} names no draft_source", path.display())).path(path));
            }
            _ => {}
        }
        return Ok(Selection { targets, spec: Some(spec) });
    }
    let role = match args.role {
        Some(Role::Draft) => Some("draft"),
        Some(Role::Target) => Some("target"),
        Some(Role::All) | None => None,
    };
    let targets = args
        .model
        .iter()
        .map(|model| Target { role, key: args.sha256, model: Some(model.clone()), size: None })
        .collect();
    Ok(Selection { targets, spec: None })
}

/// The folder of the cache: the flag, the manifest, the environment, the default.
pub(crate) fn cache_path(args: &RootArgs, selection: &Selection) -> Result<PathBuf, CliError> {
    let path = match (&args.cache_root, selection.spec.as_ref().and_then(|spec| spec.ram_cache.as_ref())) {
        (Some(path), _) => path.clone(),
        (None, Some(policy)) => PathBuf::from(&policy.root),
        (None, None) => default_root(RootKind::Ram)?.join("models"),
    };
    usable_root(&path, args.allow_in_repo)
}

/// Opens the cache for writing, creating it; the default root only when it is ours alone.
pub(crate) fn create(args: &RootArgs, path: &Path) -> Result<ModelCache, CliError> {
    let ram = default_root(RootKind::Ram)?;
    if args.cache_root.is_none() && path.parent() == Some(ram.as_path()) {
        open_ram_root(&ram, uid())?;
    }
    Ok(ModelCache::create(path)?)
}

/// Opens the cache; `None` when its folder does not exist.
pub(crate) fn open(path: &Path) -> Result<Option<ModelCache>, CliError> {
    match ModelCache::open(path) {
        Ok(cache) => Ok(Some(cache)),
        Err(Error::Missing { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The keys to work on, each with the role it was selected for. Without a selection: all.
pub(crate) fn keys(cache: &ModelCache, selection: &Selection) -> Result<Vec<(Option<&'static str>, Sha256)>, CliError> {
    if selection.targets.is_empty() {
        return Ok(cache.keys()?.into_iter().map(|key| (None, key)).collect());
    }
    let mut found = Vec::new();
    for target in &selection.targets {
        match (target.key, &target.model) {
            (Some(key), _) => found.push((target.role, key)),
            (None, Some(model)) => {
                let keys = cache.keys_of_source(model)?;
                if keys.is_empty() {
                    return Err(missing(&format!("a copy of {}", model.display()), cache.path()));
                }
                found.extend(keys.into_iter().map(|key| (target.role, key)));
            }
            (None, None) => {}
        }
    }
    Ok(found)
}

pub(crate) fn missing(what: &str, root: &Path) -> CliError {
    CliError::from(AdmissionError::NotFound { what: what.to_owned(), root: root.to_path_buf() })
        .hint("b70-cache prepare makes it")
}

/// Commands that act on a model need to be told which.
pub(crate) fn required(selection: &Selection) -> Result<(), CliError> {
    if selection.targets.is_empty() {
        return Err(CliError::usage("usage", "which model? give --spec FILE or --model FILE"));
    }
    Ok(())
}
