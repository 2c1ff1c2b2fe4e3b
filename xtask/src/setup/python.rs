//! Virtual environments with pinned packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{recipe, say};
use crate::cache::Cache;
use crate::failure::{AtPath, Failure};
use crate::process;

/// The interpreter that the tests' referees run in.
pub(super) fn for_tests(cache: &Cache) -> Result<PathBuf, Failure> {
    environment(cache, "python-tests", "fixtures/python/requirements-tests.txt")
}

/// The interpreter whose environment holds cmake and ninja.
pub(super) fn for_builds(cache: &Cache) -> Result<PathBuf, Failure> {
    environment(cache, "python-builds", "fixtures/python/requirements-builds.txt")
}

/// Makes (or finds) the virtual environment `name` with the packages that the requirements file pins.
fn environment(cache: &Cache, name: &str, requirements: &str) -> Result<PathBuf, Failure> {
    let _lock = cache.lock(name)?;
    let (file, pinned) = recipe(requirements)?;
    let folder = cache.path(name);
    let python = folder.join("bin/python");
    // An environment breaks when the interpreter beneath it is replaced: its version is part of the recipe.
    let version = |python: &Path| process::answer(Command::new(python).arg("--version"));
    if let Some(version) = version(&python)
        && Cache::is_done(&folder, &format!("{pinned}# {version}\n"))
    {
        return Ok(python);
    }

    say(&format!("Python packages of {requirements} into {}", folder.display()));
    let folder = cache.fresh(name)?;
    process::run(
        Command::new(base_interpreter()).args(["-m", "venv"]).arg(&folder),
        "install Python 3.10 or newer with its venv module (Debian, Ubuntu: apt-get install python3 python3-venv), or name \
         another interpreter in PYTHON",
    )?;
    process::run(
        pip(&python).args(["install", "--quiet", "--requirement"]).arg(&file),
        "check that pip reaches its package index, then run the command again; nothing half-made is used",
    )?;
    let version = version(&python)
        .ok_or_else(|| Failure::new(format!("{} does not run", python.display()), "check the Python installation"))?;
    Cache::mark_done(&folder, &format!("{pinned}# {version}\n"))?;
    Ok(python)
}

/// `python -m pip` of an environment.
pub(super) fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
    command
}

fn base_interpreter() -> std::ffi::OsString {
    std::env::var_os("PYTHON").filter(|value| !value.is_empty()).unwrap_or_else(|| "python3".into())
}

/// Downloads what a requirements file pins by version and SHA-256 into an empty folder of the cache.
pub(super) fn download(cache: &Cache, python: &Path, requirements: &str, into: &str) -> Result<PathBuf, Failure> {
    let (file, _) = recipe(requirements)?;
    let folder = cache.fresh(into)?;
    let outcome = process::run(
        pip(python)
            .args(["download", "--quiet", "--no-deps", "--require-hashes", "--dest"])
            .arg(&folder)
            .arg("-r")
            .arg(&file),
        "check that pip reaches its package index, then run the command again",
    );
    if outcome.is_err() {
        std::fs::remove_dir_all(&folder).at("remove", &folder)?;
    }
    outcome.map(|()| folder)
}
