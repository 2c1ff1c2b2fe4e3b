//! The real executable, run in folders of its own.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "every test file uses its own part of this module")]

#[path = "../../../../crates/packset/tests/common/files.rs"]
mod files;
#[path = "../../../../crates/packset/tests/common/models.rs"]
pub mod models;
pub mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use b70_manifest::Sha256Hex;
pub use files::*;
use models::{STANDARD, mini_plan, write_json, write_model};
use serde_json::Value;
use tempfile::TempDir;

/// The executable, without anything of this environment that changes what it does.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-pack"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("B70_") {
            command.env_remove(name);
        }
    }
    command.env_remove("XDG_CACHE_HOME").env("NO_COLOR", "1");
    command
}

/// What a run of the executable gave.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
        }
    }
}

impl Ran {
    /// The one JSON document on standard output.
    pub fn json(&self) -> Value {
        let document: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("standard output is one JSON document: {error}\n{self:#?}"));
        assert!(document["schema_version"].is_u64(), "a document states its schema_version: {document:#}");
        document
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts an error envelope of that exit code and kind.
    #[track_caller]
    pub fn fails(self, code: i32, kind: &str) -> Value {
        let ran = self.exits(code);
        let error = ran.json()["error"].clone();
        assert_eq!(error["kind"], kind, "{ran:#?}");
        let message = error["message"].as_str().expect("an error has a message");
        // The parser's own messages have several lines.
        let control = |c: char| c.is_control() && !(c == '\n' && kind == "usage");
        assert!(!message.is_empty() && !message.chars().any(control), "{message:?}");
        error
    }
}

/// Runs the executable.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    run_with(arguments, &[])
}

/// Runs the executable with more environment.
pub fn run_with<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, environment: &[(&str, &str)]) -> Ran {
    let mut command = command();
    command.args(arguments).envs(environment.iter().copied());
    command.output().expect("the executable was built with the tests").into()
}

/// A folder with the standard model, the plan `mini` and a cache root.
pub struct Lab {
    /// Keeps the folder.
    pub folder: TempDir,
    /// The model.
    pub model: PathBuf,
    /// SHA-256 of the model.
    pub sha256: String,
    /// The plan file.
    pub plan: PathBuf,
    /// The cache root, which does not exist yet.
    pub root: PathBuf,
    /// The set key, once it was asked for.
    key: OnceLock<String>,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(&STANDARD)
    }

    pub fn with(tensors: &[models::Tensor<'_>]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let (model, plan, root) = (at("model.gguf"), at("mini.json"), at("cache"));
        write_model(&model, tensors);
        write_json(&plan, &mini_plan("mini"));
        let sha256 = sha256_of(&model);
        Self { folder, model, sha256, plan, root, key: OnceLock::new() }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `b70-pack COMMAND --json --cache-root ROOT …`.
    pub fn pack(&self, command: &str, more: &[&str]) -> Ran {
        self.pack_with(command, more, &[])
    }

    pub fn pack_with(&self, command: &str, more: &[&str], environment: &[(&str, &str)]) -> Ran {
        run_with(self.arguments(command, more), environment)
    }

    pub fn arguments(&self, command: &str, more: &[&str]) -> Vec<String> {
        let root = self.root.display().to_string();
        let mut arguments: Vec<String> = [command, "--json", "--cache-root", &root].map(str::to_owned).into();
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        arguments
    }

    /// The arguments of a prepare of the plan `mini`, its model vouched for.
    pub fn mini(&self) -> [&str; 6] {
        ["--model", text(&self.model), "--plan", text(&self.plan), "--sha256", &self.sha256]
    }

    /// Prepares the plan `mini`.
    #[track_caller]
    pub fn prepare(&self) -> Value {
        self.pack("prepare", &self.mini()).exits(0).json()
    }

    /// The key of the plan `mini`'s set.
    pub fn set_key(&self) -> String {
        let key = || {
            let ran = run(["keys", "--json", "--plan", text(&self.plan), "--sha256", &self.sha256]).exits(0);
            string(&ran.json()["set_key"])
        };
        self.key.get_or_init(key).clone()
    }

    /// The folder of the plan `mini`'s set.
    pub fn set(&self) -> PathBuf {
        self.root.join(self.set_key())
    }

    /// The failure codes of a verification, sorted; empty when the set is ready. The exit code must agree.
    #[track_caller]
    pub fn verify(&self, more: &[&str]) -> Vec<String> {
        let ran = self.pack("verify", more);
        let document = ran.json();
        let codes: BTreeSet<String> =
            document["failures"].as_array().unwrap_or_else(|| panic!("{ran:#?}")).iter().map(string).collect();
        assert_eq!(document["status"] == "ready", codes.is_empty(), "{ran:#?}");
        assert_eq!(ran.code, Some(i32::from(!codes.is_empty())), "{ran:#?}");
        codes.into_iter().collect()
    }

    /// Every file below the cache root, links not followed, lock files left out.
    pub fn files(&self) -> Vec<String> {
        walk(&self.root).into_keys().filter(|name| !bookkeeping(name)).collect()
    }
}

/// What a cache root holds beside its sets: lock files, receipts of source models, and of sets that were verified.
fn bookkeeping(name: &str) -> bool {
    name.starts_with(".locks/") || name.starts_with(".receipts/") || ends(name, "/deep-validation.json")
}

/// The sets below a cache root, with their bytes.
pub fn sets(root: &Path) -> BTreeMap<String, Vec<u8>> {
    walk(root).into_iter().filter(|(name, _)| !bookkeeping(name)).collect()
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of the tests are UTF-8")
}

/// SHA-256 of a file.
pub fn sha256_of(path: &Path) -> String {
    Sha256Hex::of(&fs::read(path).expect("a readable file")).to_string()
}

/// Whether a name has this ending, byte by byte.
pub fn ends(name: &str, ending: &str) -> bool {
    name.as_bytes().ends_with(ending.as_bytes())
}
