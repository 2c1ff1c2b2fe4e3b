//! What several test trees share: paths of the checkout, needed parts, scratch folders, repeatable bytes, real processes.
//! Everything here panics where a step fails: a failed step is a failed test.

mod process;
pub mod writers;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use process::{LlamaServer, in_pid_namespace, port_from, run, spawn_as};

/// A path of the repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A path below `fixtures`.
pub fn fixture(path: impl AsRef<Path>) -> PathBuf {
    repository("fixtures").join(path)
}

/// The tree of a recorded host.
pub fn recorded_host(name: &str) -> PathBuf {
    fixture("hosts").join(name)
}

/// The part that a `B70_TEST_…` variable names; without it the test fails and says what to do.
pub fn part(variable: &str, what: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    let path = path.unwrap_or_else(|| panic!("set {variable} to the path of {what}, or run cargo xtask test --all"));
    assert!(path.exists(), "{variable}={} is not there; it must be the path of {what}", path.display());
    path
}

/// The model that real servers load.
pub fn chat_model() -> PathBuf {
    part("B70_TEST_MODEL", "a small GGUF chat model")
}

/// The `llama-server` to test against.
pub fn llama_server() -> PathBuf {
    part("B70_TEST_LLAMA_SERVER", "a llama-server executable")
}

/// A file among the binaries of a built llama.cpp.
pub fn llama_binary(name: &str) -> PathBuf {
    let path = part("B70_TEST_LLAMA_BIN", "a folder with the binaries and libraries of a built llama.cpp").join(name);
    assert!(path.exists(), "{} is not there: build llama.cpp as cargo xtask test --all does", path.display());
    path
}

/// A Python with the packages of the referees.
pub fn python() -> Command {
    Command::new(
        std::env::var_os("B70_TEST_PYTHON").expect(
            "run cargo xtask test, or set B70_TEST_PYTHON to a python with fixtures/python/requirements-tests.txt",
        ),
    )
}

/// A scratch folder in memory.
pub fn memory() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm");
    folder.expect("these tests need a tmpfs at /dev/shm: mount -t tmpfs tmpfs /dev/shm")
}

/// Deterministic bytes that differ everywhere (xorshift64).
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// A small generator (splitmix64), so that a failure can be repeated from its seed.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Gives `check` every input of a fuzzing target's committed corpus and past findings; the corpus holds at least `least`.
pub fn replay(target: &str, least: usize, check: impl Fn(&[u8])) {
    let replay = |kind: &str| {
        let folder = repository("fuzz").join(kind).join(target);
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{} is committed: {error}", folder.display()));
        let paths = entries.map(|entry| entry.expect("readable").path());
        paths.map(|path| check(&std::fs::read(path).expect("readable"))).count()
    };
    let found = replay("corpus");
    assert!(found >= least, "the corpus of {target} holds {found} inputs, fewer than the {least} made by hand");
    replay("regressions");
}

/// Holds a document against the committed schema of a command's output.
#[cfg(feature = "schema")]
pub fn conforms(schema: &str, document: &serde_json::Value) {
    let path = repository("docs/schemas/output").join(format!("{schema}.schema.json"));
    let text = std::fs::read_to_string(path).expect("a committed schema");
    let schema_value = serde_json::from_str(&text).expect("a schema is JSON");
    let validator = jsonschema::validator_for(&schema_value).expect("a schema");
    let errors: Vec<String> = validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{schema}: {errors:#?}\n{document:#}");
}
