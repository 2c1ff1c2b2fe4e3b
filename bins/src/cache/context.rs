//! What the commands need: the selected models, the cache's folder, the threads.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use b70_admission::{AdmissionError, ModelCache};
use b70_cli::{CliError, Ui};
use b70_manifest::document::read;
use b70_manifest::model_pack::{ModelFile, ModelPackManifest};
use b70_store::{Error, Progress, RootKind, Sha256, default_root, open_ram_root, refuse_in_git};

use crate::cache::{Role, RootArgs, SelectArgs};

pub(crate) struct Context<'a> {
    pub(crate) ui: &'a Ui,
    pub(crate) pool: rayon::ThreadPool,
    interrupt: Arc<AtomicBool>,
}

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

impl<'a> Context<'a> {
    pub(crate) fn new(ui: &'a Ui) -> Result<Self, CliError> {
        let interrupt =
            b70_cli::interrupt_flag().map_err(|e| CliError::usage("signals", format!("cannot watch signals: {e}")))?;
        Ok(Self { ui, pool: b70_store::pool(0)?, interrupt })
    }

    /// Progress that a signal ends.
    pub(crate) fn progress<'p>(&'p self, on_bytes: &'p (dyn Fn(u64) + Sync)) -> Progress<'p> {
        Progress::new(on_bytes).with_cancel(&self.interrupt)
    }

    pub(crate) fn quietly(&self) -> Progress<'_> {
        Progress::NONE.with_cancel(&self.interrupt)
    }
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
        (None, None) => ram_root()?.join("models"),
    };
    let path = std::path::absolute(&path).map_err(|e| CliError::io(&path, &e))?;
    refuse_in_git(&path, args.allow_in_repo)?;
    Ok(path)
}

fn uid() -> Result<u32, CliError> {
    let me = Path::new("/proc/self");
    me.metadata().map(|metadata| metadata.uid()).map_err(|error| CliError::io(me, &error))
}

fn ram_root() -> Result<PathBuf, CliError> {
    Ok(default_root(RootKind::Ram, &|name| std::env::var_os(name), uid()?)?)
}

/// Opens the cache for writing, creating it; the default root only when it is ours alone.
pub(crate) fn create(args: &RootArgs, path: &Path) -> Result<ModelCache, CliError> {
    if args.cache_root.is_none() && path.parent() == Some(ram_root()?.as_path()) {
        open_ram_root(&ram_root()?, uid()?)?;
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
    CliError::from(AdmissionError::NotThere { what: what.to_owned(), root: root.to_path_buf() })
        .hint("b70-cache prepare makes it")
}

/// Commands that act on a model need to be told which.
pub(crate) fn required(selection: &Selection) -> Result<(), CliError> {
    if selection.targets.is_empty() {
        return Err(CliError::usage("usage", "which model? give --spec FILE or --model FILE"));
    }
    Ok(())
}
