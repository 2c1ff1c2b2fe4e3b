//! What the tests need beyond a Rust toolchain, step by step.
//!
//! Each step looks first whether its work is already done, so a second run costs milliseconds. A variable that the caller
//! has already set (a llama.cpp of one's own, say) replaces its step and is only checked.

mod llama;
mod model;
mod node;
mod python;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cache::Cache;
use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also what `cargo xtask test --all` needs: a llama.cpp build (8 to 15 minutes once on two cores) and an npm package.
    #[arg(long)]
    all: bool,
}

/// Variables for the tests, in the order they were found.
pub(crate) type Environment = Vec<(&'static str, OsString)>;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    for (name, value) in prepare(args.all)? {
        println!("export {name}={}", quoted(&value.to_string_lossy()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs every step needed and returns the variables for the tests.
pub(crate) fn prepare(all: bool) -> Result<Environment, Failure> {
    let cache = Cache::open()?;
    let mut environment = Environment::new();

    let python = given("B70_TEST_PYTHON")?.map_or_else(|| python::for_tests(&cache), Ok)?;
    let model = given("B70_TEST_GEMMA")?.map_or_else(|| model::gemma_q4_0(&cache), Ok)?;
    environment.push(("B70_TEST_PYTHON", python.into()));
    environment.push(("B70_TEST_GEMMA", model.clone().into()));
    if !all {
        return Ok(environment);
    }

    let binaries = given("B70_TEST_LLAMA_BIN")?.map_or_else(|| llama::binaries(&cache), Ok)?;
    let server = given("B70_TEST_LLAMA_SERVER")?.unwrap_or_else(|| binaries.join("llama-server"));
    let node = given("B70_TEST_NODE_DIR")?.map_or_else(|| node::json_language_service(&cache), Ok)?;
    environment.push(("B70_TEST_LLAMA_BIN", binaries.into()));
    environment.push(("B70_TEST_LLAMA_SERVER", server.into()));
    environment.push(("B70_TEST_MODEL", given("B70_TEST_MODEL")?.unwrap_or(model).into()));
    environment.push(("B70_TEST_NODE_DIR", node.into()));
    Ok(environment)
}

/// An interpreter with numpy and gguf, for the benchmarks' peer.
pub(crate) fn python_for_benchmarks() -> Result<PathBuf, Failure> {
    given("B70_TEST_PYTHON")?.map_or_else(|| python::for_tests(&Cache::open()?), Ok)
}

/// The real model of the tests, if an earlier set-up fetched it.
pub(crate) fn real_model() -> Option<PathBuf> {
    let set = std::env::var_os("B70_TEST_GEMMA").map(PathBuf::from);
    set.or_else(|| Some(Cache::open().ok()?.path("models/gemma-3-270m-q4_0.gguf"))).filter(|path| path.is_file())
}

/// A path the caller has set: it must exist.
fn given(name: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(value);
    if !path.exists() {
        return Err(Failure::new(
            format!("{name} names {}, which does not exist", path.display()),
            format!("correct {name}, or unset it to have its default set up"),
        ));
    }
    say(&format!("{name} is set: using {}", path.display()));
    std::path::absolute(&path).map(Some).map_err(|error| Failure::new(format!("{name}: {error}"), "give a full path"))
}

/// One line per step; standard output belongs to the export lines.
fn say(text: &str) {
    eprintln!("set-up: {text}");
}

/// A file of this repository that a step depends on.
fn recipe(relative: &str) -> Result<(PathBuf, String), Failure> {
    let path = crate::process::workspace_root().join(relative);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            Err(Failure::new(format!("cannot read {}: {error}", path.display()), "run from a complete checkout"))
        }
    }
}

/// A word as a POSIX shell reads it back.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `rename`, named in errors.
fn publish(from: &Path, to: &Path) -> Result<(), Failure> {
    use crate::failure::AtPath;
    std::fs::rename(from, to).at("publish", to)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn export_lines_survive_a_shell() {
        let word = "it's a $HOME `of` \"words\"";
        let echoed = std::process::Command::new("sh")
            .args(["-c", &format!("x={}; printf %s \"$x\"", quoted(word))])
            .output()
            .expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&echoed.stdout), word);
    }
}
