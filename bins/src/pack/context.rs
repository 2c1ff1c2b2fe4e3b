//! What several commands need: roots, the layout with a chosen kernel, the spec.

use std::path::{Path, PathBuf};

use b70_cli::{CliError, default_root, usable_root};
use b70_manifest::Sha256Hex;
use b70_manifest::model_pack::ModelPackManifest;
use b70_packset::{Model, SetDir, TensorPlan};
use b70_store::RootKind;
use b70_xe2pack::{Kernel, Xe2DpasV2};

use crate::pack::{PlanArgs, RamArgs, RootArgs};

/// The cache root to use; refused inside a Git work tree unless allowed.
pub(crate) fn cache_root(roots: &RootArgs) -> Result<PathBuf, CliError> {
    let root = roots.cache_root.clone().map_or_else(|| default_root(RootKind::Cache), Ok)?;
    usable_root(&root, roots.allow_in_repo)
}

/// The layout, with the named kernel or the fastest.
pub(crate) fn layout(kernel: Option<&str>) -> Result<Xe2DpasV2, CliError> {
    Ok(kernel_named(kernel)?.map_or_else(Xe2DpasV2::new, Xe2DpasV2::with_kernel))
}

/// The kernel of that name.
pub(crate) fn kernel_named(name: Option<&str>) -> Result<Option<Kernel>, CliError> {
    name.map(|name| {
        Kernel::by_name(name).map_err(|error| {
            CliError::usage("kernel", error.to_string())
                .found(name)
                .expected(Kernel::available().iter().map(Kernel::name).collect::<Vec<_>>().join(", "))
        })
    })
    .transpose()
}

/// The set of that key, or the newest (of the spec's model, where one is given).
pub(crate) fn set(
    cache_root: &Path,
    key: Option<Sha256Hex>,
    spec: Option<&ModelPackManifest>,
) -> Result<SetDir, CliError> {
    Ok(match key {
        Some(key) => SetDir::open(cache_root, key)?,
        None => SetDir::newest_of(cache_root, spec.map(|spec| spec.source.sha256))?,
    })
}

/// The model: the one that is named, else the spec's source.
pub(crate) fn model(path: Option<&Path>, spec: Option<&ModelPackManifest>) -> Result<Model, CliError> {
    match (path, spec) {
        (Some(path), _) => Ok(Model::open(path)?),
        (None, Some(spec)) => {
            let named = |error| CliError::from(error).hint("the spec names this file; --model says where it is here");
            Model::open(Path::new(&spec.source.path)).map_err(named)
        }
        (None, None) => Err(CliError::usage("usage", "which model? name the file, or give --spec FILE")),
    }
}

/// The plan: the one that is named, else the one the spec names, else everything.
pub(crate) fn plan(
    args: &PlanArgs,
    spec: Option<&ModelPackManifest>,
    layout: Xe2DpasV2,
) -> Result<TensorPlan, CliError> {
    let name = args.plan.as_deref().or_else(|| spec.and_then(|spec| b70_packset::spec_plan(spec, &layout)));
    Ok(TensorPlan::named_or_file(name.unwrap_or(b70_xe2pack::ALL_PLAN), &layout)?)
}

/// Reads a model-pack manifest.
pub(crate) fn spec(path: Option<&Path>) -> Result<Option<ModelPackManifest>, CliError> {
    path.map(|path| Ok(b70_packset::read_spec(path)?)).transpose()
}

/// The RAM root to use; refused inside a Git work tree unless allowed.
pub(crate) fn ram_root(ram: &RamArgs, roots: &RootArgs) -> Result<PathBuf, CliError> {
    let root = ram.ram_root.clone().map_or_else(|| default_root(RootKind::Ram), Ok)?;
    usable_root(&root, roots.allow_in_repo)
}

/// A word that a POSIX shell and a systemd `EnvironmentFile=` read back unchanged.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The name of a variable as a shell takes it.
pub(crate) fn variable(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(plain);
    if good { Ok(text.to_owned()) } else { Err("expected letters, digits and _, no digit first".to_owned()) }
}
