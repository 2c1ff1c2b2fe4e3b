//! What the commands need: the selected models, the cache's folder.

use std::path::{Path, PathBuf};

use b70_admission::{AdmissionError, ModelCache, SelectedModel};
use b70_cli::{CliError, default_root, uid, usable_root};
use b70_manifest::document::read;
use b70_manifest::model_pack::ModelPackManifest;
use b70_store::{Error, RootKind, Sha256, open_ram_root};

use crate::cache::{Role, RootArgs, SelectArgs};

/// The selection: the models (none: every entry) and the manifest they come from.
pub(crate) struct Selection {
    pub(crate) targets: Vec<SelectedModel>,
    pub(crate) spec: Option<ModelPackManifest>,
}

/// The models that the flags name.
pub(crate) fn select(args: &SelectArgs, default: Role) -> Result<Selection, CliError> {
    let role = args.role.unwrap_or(default);
    if let Some(path) = &args.spec {
        let spec: ModelPackManifest = read(path)?;
        let targets = SelectedModel::of_spec(&spec, role != Role::Draft, role != Role::Target);
        if targets.is_empty() {
            return Err(CliError::check("spec", format!("{} names no draft_source", path.display())).path(path));
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
        .map(|model| SelectedModel { role, key: args.sha256, path: Some(model.clone()), size: None })
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
    cache.select(&selection.targets).map_err(|error| match error {
        AdmissionError::NotFound { what, root } => missing(&what, &root),
        error => error.into(),
    })
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
