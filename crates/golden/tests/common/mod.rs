//! Shared by the tests.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::process::Command;

use b70_golden::{SetParameters, Tensor, generate};

/// A pool of that many threads.
pub fn pool(threads: usize) -> rayon::ThreadPool {
    b70_admission::pool(threads).expect("threads can be started")
}

/// The tensors of a set, by name.
pub fn tensors(parameters: &SetParameters) -> Vec<Tensor> {
    generate(parameters, &pool(0)).expect("the parameters are right")
}

/// A Python with the packages of `fixtures/python/requirements-tests.txt`; without one the test fails and says how to get it.
pub fn python(script: &str) -> Command {
    let python = std::env::var_os("B70_TEST_PYTHON").unwrap_or_else(|| {
        panic!("run cargo xtask test, or set B70_TEST_PYTHON to a python with fixtures/python/requirements-tests.txt")
    });
    let mut command = Command::new(python);
    command.arg("-I").arg("-B").arg(script_path(script));
    command
}

pub fn script_path(script: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script)
}

/// Runs a command that must succeed; returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the scripts write UTF-8")
}
