//! `focused` on a real `test-backend-ops`, on its CPU backend.
//!
//! Needs a built llama.cpp: `cargo xtask test --all` runs them. The build is copied, so
//! that the test can change a byte of a library without touching the real one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use b70_testkit::llama_binary;
use serde_json::Value;

/// Folder of the built binaries.
fn binaries() -> PathBuf {
    llama_binary("test-backend-ops").with_file_name("")
}

/// A build finds its libraries by an absolute run path; the copy must find the copies: writes `$ORIGIN` in its place.
fn own_folder_first(file: &Path, bin: &Path) {
    let mut bytes = fs::read(file).expect("the copy");
    let old = bin.as_os_str().as_encoded_bytes();
    let new = b"$ORIGIN\0";
    assert!(old.len() >= new.len(), "the folder's name is too short to be replaced");
    let at = bytes
        .windows(old.len() + 2)
        .position(|w| w[0] == 0 && &w[1..=old.len()] == old && b":\0".contains(&w[old.len() + 1]));
    if let Some(at) = at {
        bytes[at + 1..at + 1 + new.len()].copy_from_slice(new);
        fs::write(file, bytes).expect("it is ours");
    }
}

/// A copy of the build's binaries beside a source tree of one file: what the fingerprint needs,
/// and nothing real to damage.
struct Build {
    scratch: tempfile::TempDir,
}

impl Build {
    fn new(bin: &Path) -> Self {
        let build = Self { scratch: tempfile::tempdir().expect("a scratch folder") };
        let to = build.folder().join("bin");
        fs::create_dir_all(&to).expect("a scratch folder");
        fs::write(build.source_file(), "int main(void) { return 0; }\n").expect("a scratch file");
        for entry in fs::read_dir(bin).expect("the binaries") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if name == "test-backend-ops" || name.contains(".so") {
                // Links become copies: what is loaded under a name is then a file of that name.
                fs::copy(&path, to.join(&name)).expect("the copy");
                own_folder_first(&to.join(&name), bin);
            }
        }
        let home = build.folder().parent().expect("it has one").canonicalize().expect("it is there");
        let cache = format!(
            "CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\nCMAKE_CXX_COMPILER_VERSION:STRING=12\n\
             CMAKE_HOME_DIRECTORY:INTERNAL={}\n",
            home.display()
        );
        fs::write(build.folder().join("CMakeCache.txt"), cache).expect("a scratch file");
        build.ok(&["prepare", "--k", "32", "--n", "1", "--widths", "1"]);
        build
    }

    fn folder(&self) -> PathBuf {
        self.scratch.path().join("source/build")
    }

    fn source_file(&self) -> PathBuf {
        self.scratch.path().join("source/main.c")
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_b70-golden"))
            .args(["--json", "--quiet"])
            .args(arguments)
            .env("B70_ARTIFACT_ROOT", self.scratch.path().join("artifacts"))
            .envs(variables.iter().copied())
            .output()
            .expect("the executable was built")
    }

    fn ok(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Two operations that take a second; an exit code and the document.
    fn focused(&self, more: &[&str], variables: &[(&str, &str)]) -> (i32, Value) {
        let folder = self.folder();
        let folder = folder.to_string_lossy();
        let arguments = ["focused", "--build", &folder, "--no-gpu", "--backend", "CPU"];
        let output = self.run(&[&arguments[..], more].concat(), variables);
        let text = String::from_utf8_lossy(&output.stdout);
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        (output.status.code().expect("an exit code"), value)
    }
}

const TWO: [&str; 3] = ["--op", "SILU", "SWIGLU"];

fn reasons(value: &Value) -> String {
    value["not_reused_because"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn two_real_operations_pass_and_are_reused_for_exactly_their_key() {
    let bin = binaries();
    let build = Build::new(&bin);
    let reuse = [&TWO[..], &["--reuse-pass"]].concat();
    let (code, first) = build.focused(&TWO, &[]);
    assert_eq!((code, first["status"].as_str()), (0, Some("passed")), "{first}");
    for test in first["tests"].as_array().expect("a list") {
        assert!(test["executed"].as_u64() > Some(0) && test["executed"] == test["passed"], "{test}");
    }
    let (code, again) = build.focused(&reuse, &[]);
    assert_eq!((code, again["status"].as_str()), (0, Some("reused-pass")), "{again}");
    assert_eq!(again["run_key"], first["run_key"]);

    let library = build.folder().join("bin/libggml-base.so.0");
    let original = fs::read(&library).expect("the library");
    fs::write(&library, [&original[..], b"\0"].concat()).expect("it is ours");
    let (code, changed) = build.focused(&reuse, &[]);
    assert_eq!((code, changed["status"].as_str()), (0, Some("passed")));
    assert!(reasons(&changed).contains("/build/libraries/bin~1libggml-base.so.0 was"), "{}", reasons(&changed));
    fs::write(&library, original).expect("it is ours");

    let (code, changed) = build.focused(&reuse, &[("GGML_SCHED_DEBUG", "0")]);
    assert_eq!((code, changed["status"].as_str()), (0, Some("passed")));
    assert!(reasons(&changed).contains("/run/environment/GGML_SCHED_DEBUG"), "{}", reasons(&changed));

    fs::write(build.source_file(), "int main(void) { return 1; }\n").expect("it is ours");
    let (code, changed) = build.focused(&reuse, &[]);
    assert_eq!((code, changed["status"].as_str()), (0, Some("passed")));
    assert!(reasons(&changed).contains("/build/runtime/tree_sha256 was"), "{}", reasons(&changed));
    assert!(reasons(&changed).contains("newer than the binaries"), "{}", reasons(&changed));
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn the_default_tests_fail_on_a_stock_build_because_nothing_was_executed() {
    let bin = binaries();
    let build = Build::new(&bin);
    let (code, report) = build.focused(&[], &[]);
    assert_eq!((code, report["status"].as_str()), (1, Some("failed")), "{report}");
    let tests = report["tests"].as_array().expect("a list");
    assert_eq!(tests.len(), 3);
    for test in tests {
        assert_eq!(test["executed"], 0);
        assert!(test["reason"].as_str().expect("a reason").starts_with("no test was executed"), "{test}");
    }
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn an_unknown_backend_fails_because_every_device_was_skipped() {
    let bin = binaries();
    let build = Build::new(&bin);
    let folder = build.folder();
    let folder = folder.to_string_lossy();
    let output = build.run(&["focused", "--build", &folder, "--no-gpu", "--backend", "SYCL7", "--op", "SILU"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["tests"][0]["reason"].as_str().expect("a reason").contains("every device was skipped"), "{report}");
}
