//! The real executable on real folders, real repositories and real ELF files.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use b70_store::Sha256;
use b70_testkit::{conforms, fixture, llama_binary};
use serde_json::Value;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a scratch folder") }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("registry")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(&path, bytes).expect("written");
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-registry"));
        command.args(arguments).arg("--json").env("B70_ARTIFACT_ROOT", self.path("artifacts")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, Value) {
        let root = self.root();
        let mut command = self.command(arguments);
        if arguments[0] != "fingerprint" {
            command.arg("--registry-root").arg(root);
        }
        let output = command.output().expect("the executable runs");
        let code = output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"));
        let document: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"));
        let schema = match arguments[0] {
            _ if document.get("error").is_some() => "error".to_owned(),
            command => format!("registry-{command}"),
        };
        conforms(&schema, &document);
        (code, document)
    }

    fn register(&self, artifact: &Path) -> (i32, Value) {
        self.register_with(artifact, &[])
    }

    fn register_with(&self, artifact: &Path, more: &[&str]) -> (i32, Value) {
        let (artifact, sha256) = (text(artifact), "ab".repeat(32));
        let mut arguments =
            vec!["register", "--artifact", artifact, "--packer-revision", "1", "--layout", "test-layout"];
        arguments.extend(["--kernel-abi", "test-abi", "--sha256", &sha256]);
        arguments.extend(more);
        self.run(&arguments)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 scratch path")
}

#[test]
fn a_changed_a_missing_and_a_new_file_are_each_named() {
    let bench = Bench::new();
    for (name, bytes) in [("set/a/z", "one"), ("set/a-b", "two"), ("set/c", "three")] {
        bench.write(name, bytes.as_bytes());
    }
    let set = bench.path("set");
    let (code, registered) = bench.register(&set);
    assert_eq!((code, &registered["status"]), (0, &"admitted".into()), "{registered}");
    let key = registered["key"].as_str().expect("a key").to_owned();

    // The digest and the key by the rule, made by hand.
    let mut bytes = Vec::new();
    for (name, content) in [("a/z", "one"), ("a-b", "two"), ("c", "three")] {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(Sha256::of(content.as_bytes()).as_bytes());
    }
    let artifact = Sha256::of(&bytes).to_string();
    let text_of_key = format!("{}\0{}\0{}\0{artifact}", "ab".repeat(32), "1", "test-layout");
    assert_eq!(key, Sha256::of(text_of_key.as_bytes()).to_string());
    let manifest = PathBuf::from(registered["manifest"].as_str().expect("a path"));
    assert_eq!(manifest, bench.root().join("packs").join(&key).join("manifest.json"));
    let record: Value = serde_json::from_slice(&std::fs::read(&manifest).expect("there")).expect("JSON");
    assert_eq!(record["artifact"]["sha256"], artifact);
    assert_eq!(record["artifact"]["size_bytes"], 11);
    assert_eq!(record["binding_status"], "external-artifact-registered-loader-binding-required");
    assert_eq!(record["evidence_class"], "development-iteration-only");
    assert_eq!((&record["promotion_eligible"], &record["build_fingerprint_sha256"]), (&false.into(), &Value::Null));

    let (code, verified) = bench.run(&["verify", "--pack-key", &key]);
    assert_eq!(
        (code, &verified["status"], &verified["checked_files"]),
        (0, &"admitted".into(), &3.into()),
        "{verified}"
    );
    assert_eq!(bench.register(&set).1["outcome"], "kept");

    bench.write("set/a/z", b"ONE");
    std::fs::remove_file(bench.path("set/a-b")).expect("removed");
    bench.write("set/new", b"four");
    std::os::unix::fs::symlink("/etc/passwd", bench.path("set/link")).expect("linked");
    let (code, verified) = bench.run(&["verify", "--pack-key", &key]);
    assert_eq!((code, &verified["status"]), (1, &"failed".into()), "{verified}");
    assert_eq!(verified["changed"], serde_json::json!(["a/z"]));
    assert_eq!(verified["missing"], serde_json::json!(["a-b"]));
    assert_eq!(verified["added"], serde_json::json!(["new", "link"]));

    // The record is a claim, too.
    let forged = std::fs::read_to_string(&manifest).expect("there").replace("test-layout", "other-layout");
    std::fs::write(&manifest, forged).expect("written");
    let (code, verified) = bench.run(&["verify", "--pack-key", &key]);
    assert!(code == 1 && verified["record_faults"].as_array().is_some_and(|f| !f.is_empty()), "{verified}");
    assert!(bench.run(&["list"]).1["records"][0]["fault"].is_string());
    let bound = std::fs::read_to_string(&manifest)
        .expect("there")
        .replace("external-artifact-registered-loader-binding-required", "bound");
    std::fs::write(&manifest, bound).expect("written");
    let (_, verified) = bench.run(&["verify", "--pack-key", &key]);
    assert!(verified["record_faults"].to_string().contains("binding"), "{verified}");
}

#[test]
fn a_single_file_is_identified_by_its_own_digest() {
    let bench = Bench::new();
    let file = bench.write("pack.bin", b"payload");
    let (code, registered) = bench.register(&file);
    assert_eq!(code, 0, "{registered}");
    assert_eq!(registered["record"]["artifact"]["sha256"], Sha256::of(b"payload").to_string());
    let key = registered["key"].as_str().expect("a key");
    let (code, shown) = bench.run(&["show", key]);
    assert_eq!((code, &shown["key"]), (0, &key.into()), "{shown}");
    std::fs::remove_file(&file).expect("removed");
    let (code, verified) = bench.run(&["verify", "--pack-key", key]);
    assert_eq!((code, &verified["missing"]), (1, &serde_json::json!(["pack.bin"])), "{verified}");
    let (code, plan) = bench.run(&["gc"]);
    assert_eq!((code, plan["plan"].as_array().map(Vec::len), &plan["executed"]), (0, Some(1), &false.into()));
    assert!(bench.run(&["show", key]).0 == 0, "a dry run removes nothing");
    assert_eq!(bench.run(&["gc", "--execute"]).1["executed"], true);
    let (code, error) = bench.run(&["show", key]);
    assert_eq!((code, error["error"]["kind"].as_str()), (1, Some("not-found")), "{error}");
}

#[test]
fn links_sockets_and_bad_names_are_errors_that_name_them() {
    let bench = Bench::new();
    bench.write("set/good", b"x");
    std::os::unix::fs::symlink("good", bench.path("set/link")).expect("linked");
    let _socket = UnixListener::bind(bench.path("set/socket")).expect("bound");
    bench.write("set/bad\nname", b"x");
    let (code, error) = bench.register(&bench.path("set"));
    assert_eq!((code, error["error"]["kind"].as_str()), (2, Some("unfit-artifact")), "{error}");
    let message = error["error"]["message"].as_str().expect("a message");
    for part in ["link", "symbolic link", "socket", "control character"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!bench.root().exists(), "nothing was recorded");
    std::fs::create_dir(bench.path("empty")).expect("created");
    assert_eq!(bench.register(&bench.path("empty")).0, 2);
    assert_eq!(bench.register(&bench.path("nowhere")).0, 2);
}

#[test]
fn names_that_are_not_utf8_are_kept_exactly() {
    use std::os::unix::ffi::OsStrExt as _;
    let bench = Bench::new();
    bench.write("set/ok", b"x");
    let odd = bench.path("set").join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::write(&odd, b"y").expect("written");
    let (code, registered) = bench.register(&bench.path("set"));
    assert_eq!(code, 0, "{registered}");
    let key = registered["key"].as_str().expect("a key");
    assert_eq!(bench.run(&["verify", "--pack-key", key]).0, 0);
    std::fs::write(&odd, b"z").expect("written");
    assert_eq!(bench.run(&["verify", "--pack-key", key]).0, 1);
}

fn git(tree: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(tree)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("these tests need git");
    assert!(status.success(), "git {arguments:?}");
}

/// A source tree and a build folder whose "binary" is this very test.
fn tree(bench: &Bench) -> (PathBuf, PathBuf) {
    let source = bench.path("source");
    bench.write("source/main.cpp", b"int main() {}\n");
    bench.write("source/CMakeLists.txt", b"project(x)\n");
    let build = bench.path("build");
    let cache = format!(
        "CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\nCMAKE_HOME_DIRECTORY:INTERNAL={}\n\
         CMAKE_CACHE_MAJOR_VERSION:INTERNAL=3\nCMAKE_CACHE_MINOR_VERSION:INTERNAL=31\nCMAKE_CACHE_PATCH_VERSION:INTERNAL=6\n",
        source.display()
    );
    bench.write("build/CMakeCache.txt", cache.as_bytes());
    bench.write(
        "build/CMakeFiles/3.31.6/CMakeCXXCompiler.cmake",
        b"set(CMAKE_CXX_COMPILER_ID \"GNU\")\nset(CMAKE_CXX_COMPILER_VERSION \"12.2.0\")\n",
    );
    std::fs::create_dir_all(build.join("bin")).expect("created");
    std::fs::copy("/proc/self/exe", build.join("bin/llama-server")).expect("copied");
    (source, build)
}

fn fingerprint(bench: &Bench, source: &Path, build: &Path) -> Value {
    let (code, report) = bench.run(&["fingerprint", "--runtime", text(source), "--build", text(build)]);
    assert_eq!(code, 0, "{report}");
    report
}

#[test]
fn the_dirty_patch_has_one_definition_and_the_environment_no_say() {
    let bench = Bench::new();
    let (source, build) = tree(&bench);
    git(&source, &["init", "-q"]);
    git(&source, &["add", "-A"]);
    git(&source, &["commit", "-qm", "one"]);
    let clean = fingerprint(&bench, &source, &build);
    assert_eq!(
        (&clean["runtime"]["dirty"], &clean["runtime"]["dirty_patch_sha256"]),
        (&false.into(), &"absent".into()),
        "{clean}"
    );
    assert_eq!(clean["runtime"]["commit"].as_str().map(str::len), Some(40));
    assert_eq!(clean["compiler"]["version"], "GNU 12.2.0");
    assert_eq!(clean["binaries"]["test-backend-ops"], "absent");
    assert_eq!(clean["fingerprint"], Value::Null, "the document itself is the answer");

    bench.write("source/main.cpp", b"int main() { return 1; }\n");
    bench.write("source/b/untracked", b"new");
    bench.write("source/a.txt", b"newer");
    let dirty = fingerprint(&bench, &source, &build);
    assert_eq!(dirty["runtime"]["dirty"], true, "{dirty}");
    let patch = Command::new("git")
        .args(["diff", "--binary", "--full-index", "--no-renames", "HEAD"])
        .current_dir(&source)
        .output()
        .expect("git")
        .stdout;
    let mut bytes = patch;
    for (name, content) in [("a.txt", "newer"), ("b/untracked", "new")] {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(Sha256::of(content.as_bytes()).as_bytes());
    }
    assert_eq!(dirty["runtime"]["dirty_patch_sha256"], Sha256::of(&bytes).to_string());
    assert_ne!(dirty["sha256"], clean["sha256"]);
    // The source was edited after the binary was copied: a pass would be for code that never ran.
    assert_eq!(dirty["fit_for_pass_reuse"], false);
    assert!(dirty["newer_than_binaries"].to_string().contains("main.cpp"), "{dirty}");

    let output = bench
        .command(&["fingerprint", "--runtime", text(&source), "--build", text(&build)])
        .env("GIT_DIR", "/nowhere")
        .env("GIT_EXTERNAL_DIFF", "/bin/false")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "diff.noprefix")
        .env("GIT_CONFIG_VALUE_0", "true")
        .output()
        .expect("the executable runs");
    let again: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(again["sha256"], dirty["sha256"], "{again}");
    // What a repository could make Git run or print is switched off.
    git(&source, &["config", "core.fsmonitor", "touch fsmonitor-ran; false"]);
    git(&source, &["config", "diff.mnemonicPrefix", "true"]);
    git(&source, &["config", "diff.external", "/bin/false"]);
    assert_eq!(fingerprint(&bench, &source, &build)["sha256"], dirty["sha256"]);
    assert!(!source.join("fsmonitor-ran").exists());
}

#[test]
fn a_tree_without_git_is_identified_by_its_files() {
    let bench = Bench::new();
    let (source, build) = tree(&bench);
    let one = fingerprint(&bench, &source, &build);
    assert_eq!(one["runtime"]["commit"], "absent");
    let tree_digest = one["runtime"]["tree_sha256"].as_str().expect("a digest").to_owned();
    assert_eq!(fingerprint(&bench, &source, &build)["sha256"], one["sha256"], "the same twice");
    bench.write("source/README", b"not compiled");
    let two = fingerprint(&bench, &source, &build);
    assert_ne!(two["runtime"]["tree_sha256"], tree_digest.as_str());
    assert_eq!(two["newer_than_binaries"], serde_json::json!([]), "what is not compiled makes nothing stale");
}

#[test]
fn an_unknown_part_makes_it_unfit_and_says_which() {
    let bench = Bench::new();
    let (source, build) = tree(&bench);
    std::fs::remove_dir_all(build.join("CMakeFiles")).expect("removed");
    let report = fingerprint(&bench, &source, &build);
    assert_eq!((&report["compiler"]["version"], &report["fit_for_pass_reuse"]), (&"unknown".into(), &false.into()));
    assert!(report["unknown"].to_string().contains("/compiler/version"), "{report}");
    assert!(report["reasons"].to_string().contains("/compiler/version is unknown"), "{report}");
    let (code, _) = bench.run(&["fingerprint", "--runtime", text(&source), "--build", text(&build), "--require-fit"]);
    assert_eq!(code, 1);
    std::fs::write(build.join("bin/llama-server"), b"#!/bin/sh\n").expect("written");
    let report = fingerprint(&bench, &source, &build);
    assert!(report["unknown"].to_string().contains("llama-server"), "a script loads who knows what: {report}");
}

/// Compiles a program or a shared library that needs what lies beside it.
fn compile(folder: &Path, name: &str, needs: &[&str]) {
    std::fs::create_dir_all(folder).expect("created");
    let source = folder.join("unit.c");
    std::fs::write(&source, if name.contains(".so") { "int f(void){return 1;}" } else { "int main(void){return 0;}" })
        .expect("written");
    let mut command = Command::new("cc");
    command.current_dir(folder).args(["-o", name, "unit.c", "-Wl,--no-as-needed"]);
    if name.contains(".so") {
        command.args(["-shared", "-fPIC"]);
    }
    command.args(needs.iter().map(|library| format!("-l:{library}"))).args(["-L.", "-Wl,-rpath,$ORIGIN"]);
    assert!(command.status().expect("these tests need cc").success(), "cc {name}");
    std::fs::remove_file(source).expect("removed");
}

/// The flat folder of a release: a server that needs one library, and what it opens by name.
fn release(bench: &Bench) -> (PathBuf, PathBuf) {
    let (source, folder) = (bench.path("source"), bench.path("rel"));
    bench.write("source/main.cpp", b"int main() {}\n");
    for library in ["libggml-base.so", "libggml-sycl.so", "libmtmd.so", "libllama.so.0", "libother.so"] {
        compile(&folder, library, &[]);
    }
    compile(&folder, "llama-server", &["libggml-base.so"]);
    (source, folder)
}

fn add_a_byte(path: &Path) {
    let mut bytes = std::fs::read(path).expect("read");
    bytes.push(0);
    std::fs::write(path, bytes).expect("written");
}

fn keys(report: &Value, of: &str) -> Vec<String> {
    report[of].as_object().expect("an object").keys().cloned().collect()
}

#[test]
fn a_prebuilt_release_is_known_by_every_library_that_it_opens() {
    let bench = Bench::new();
    let (source, folder) = release(&bench);
    let report = fingerprint(&bench, &source, &folder);
    let all = ["libggml-base.so", "libggml-sycl.so", "libllama.so.0", "libmtmd.so"];
    assert_eq!(keys(&report, "libraries"), all, "{report}");
    assert_eq!(report["binaries"]["llama-server"].as_str().map(str::len), Some(64), "{report}");
    assert_eq!(report["sha256"].as_str().map(str::len), Some(64), "{report}");
    // Named by its path, and from a folder above: the same file.
    let from = |build: &Path, binary: &str| {
        let arguments = ["fingerprint", "--runtime", text(&source), "--build", text(build), "--binary", binary];
        bench.run(&arguments).1
    };
    assert_eq!(from(&folder, "./llama-server")["sha256"], from(&folder, "llama-server")["sha256"]);
    let above = from(bench.dir.path(), "rel/llama-server");
    assert_eq!(keys(&above, "libraries"), all.map(|name| format!("rel/{name}")), "{above}");
    assert_eq!(above["binaries"]["rel/llama-server"], report["binaries"]["llama-server"]);
    let mut last = report["sha256"].clone();
    for library in all {
        add_a_byte(&folder.join(library));
        let now = fingerprint(&bench, &source, &folder)["sha256"].clone();
        assert!(now != last && now.as_str().is_some_and(|d| d.len() == 64), "{library}: {now}");
        last = now;
    }
    // The same with a cache that says that backends are compiled in: they are opened all the same.
    bench.write("rel/CMakeCache.txt", b"GGML_BACKEND_DL:BOOL=OFF\n");
    let configured = fingerprint(&bench, &source, &folder);
    assert_eq!(keys(&configured, "libraries"), all, "{configured}");
    // What is not part of llama.cpp and no header names is not part of the build.
    add_a_byte(&folder.join("libother.so"));
    assert_eq!(fingerprint(&bench, &source, &folder)["sha256"], configured["sha256"]);
}

#[test]
fn a_library_counts_once_by_its_real_file_and_wherever_it_is_opened() {
    let bench = Bench::new();
    let (source, folder) = release(&bench);
    let plain = fingerprint(&bench, &source, &folder);
    // Two names of one file; the one that a header asks for stays.
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, folder.join(name)).expect("linked");
    std::fs::rename(folder.join("libggml-base.so"), folder.join("libggml-base.so.0.9")).expect("renamed");
    link("libggml-base.so.0.9", "libggml-base.so.0");
    link("libggml-base.so.0", "libggml-base.so");
    link("libggml-sycl.so", "libggml-zz.so");
    let linked = fingerprint(&bench, &source, &folder);
    assert_eq!(keys(&linked, "libraries"), keys(&plain, "libraries"), "{linked}");
    assert_eq!(linked["sha256"], plain["sha256"]);
    // An old version that nothing asks for, beside a plain name that says which is meant.
    std::fs::copy(folder.join("libother.so"), folder.join("libggml-base.so.0.8")).expect("copied");
    assert_eq!(fingerprint(&bench, &source, &folder)["sha256"], plain["sha256"]);

    // Without a CMakeCache.txt nothing says where backends are looked for: below the server they count.
    let (from, to) = (folder.join("libggml-sycl.so"), folder.join("backends/libggml-xe.so"));
    std::fs::create_dir(folder.join("backends")).expect("created");
    std::fs::copy(&from, &to).expect("copied");
    let deep = fingerprint(&bench, &source, &folder);
    assert!(keys(&deep, "libraries").contains(&"backends/libggml-xe.so".to_owned()), "{deep}");
    add_a_byte(&to);
    assert_ne!(fingerprint(&bench, &source, &folder)["sha256"], deep["sha256"]);
    // With one, it does.
    bench.write("rel/CMakeCache.txt", b"GGML_BACKEND_DL:BOOL=ON\n");
    let beside = fingerprint(&bench, &source, &folder);
    assert_eq!(keys(&beside, "libraries"), keys(&plain, "libraries"), "{beside}");
    bench.write("rel/CMakeCache.txt", b"GGML_BACKEND_DL:BOOL=ON\nGGML_BACKEND_DIR:PATH=backends\n");
    let named = fingerprint(&bench, &source, &folder);
    assert_eq!(keys(&named, "libraries"), keys(&deep, "libraries"), "{named}");

    // Backends beside libggml-base, in a folder of their own.
    let split = bench.path("split");
    compile(&split.join("lib"), "libggml-base.so", &[]);
    std::fs::copy(&from, split.join("lib/libggml-sycl.so")).expect("copied");
    std::fs::create_dir(split.join("bin")).expect("created");
    let cc = ["-o", "bin/llama-server", "m.c", "-Wl,--no-as-needed", "-Llib", "-l:libggml-base.so"];
    bench.write("split/m.c", b"int main(void){return 0;}");
    let rpath = "-Wl,-rpath,$ORIGIN/../lib";
    assert!(Command::new("cc").current_dir(&split).args(cc).arg(rpath).status().expect("cc").success());
    bench.write("split/CMakeCache.txt", b"GGML_BACKEND_DL:BOOL=ON\n");
    let report = fingerprint(&bench, &source, &split);
    assert_eq!(keys(&report, "libraries"), ["lib/libggml-base.so", "lib/libggml-sycl.so"], "{report}");
}

type Spoil<'a> = &'a dyn Fn(&Path);

#[test]
fn where_what_a_build_loads_is_not_known_no_digest_is_given() {
    let faults: [(&str, Spoil<'_>); 6] = [
        ("/libraries/libggml-vulkan.so", &|folder| {
            std::os::unix::fs::symlink("gone", folder.join("libggml-vulkan.so")).expect("linked");
        }),
        ("/libraries/libggml-sycl.so", &|folder| {
            std::fs::write(folder.join("libggml-sycl.so"), b"version https://git-lfs").expect("written");
        }),
        ("/libraries/libggml-cuda.so", &|folder| {
            std::fs::create_dir_all(folder.join("bin")).expect("created");
            std::os::unix::fs::symlink("bin", folder.join("libggml-cuda.so")).expect("linked");
        }),
        ("/libraries/libggml-base.so", &|folder| {
            std::fs::remove_file(folder.join("libggml-base.so")).expect("removed");
        }),
        ("/libraries", &|folder| {
            std::fs::write(folder.join("CMakeCache.txt"), b"GGML_BACKEND_DIR:PATH=/usr\n").expect("written");
        }),
        ("/binaries/llama-server", &|folder| {
            std::fs::remove_file(folder.join("llama-server")).expect("removed");
            std::os::unix::fs::symlink("/usr/bin/env", folder.join("llama-server")).expect("linked");
        }),
    ];
    for (pointer, spoil) in faults {
        let bench = Bench::new();
        let (source, folder) = release(&bench);
        spoil(&folder);
        let report = fingerprint(&bench, &source, &folder);
        assert_eq!((&report["sha256"], &report["fit_for_pass_reuse"]), (&"unknown".into(), &false.into()), "{report}");
        assert!(report["unknown_because"][pointer].is_string(), "{pointer}: {report}");
        assert!(report["reasons"].to_string().contains("/sha256 is unknown"), "{report}");
        // A registration records no build rather than half of one.
        let artifact = bench.write("artifact.bin", b"bytes");
        let build = ["--runtime", text(&source), "--build", text(&folder)];
        let (code, registered) = bench.register_with(&artifact, &build);
        assert_eq!(code, 0, "{registered}");
        let manifest = std::fs::read(registered["manifest"].as_str().expect("a path")).expect("written");
        let record: Value = serde_json::from_slice(&manifest).expect("JSON");
        assert_eq!(record["build_fingerprint_sha256"], Value::Null, "{record}");
    }
}

/// A copy of a folder of binaries, links kept as links.
fn copy_binaries(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let copy = to.join(path.file_name().expect("a name"));
        if let Ok(target) = std::fs::read_link(&path) {
            std::os::unix::fs::symlink(target, copy).expect("linked");
        } else if path.is_file() {
            std::fs::copy(&path, copy).expect("copied");
        }
    }
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn a_real_llama_cpp_build() {
    let binaries = llama_binary("");
    let bench = Bench::new();
    // Real binaries with the libraries they load, in a build folder whose CMake files are made up.
    let (source, build) = tree(&bench);
    std::fs::remove_dir_all(build.join("bin")).expect("removed");
    copy_binaries(&binaries, &build.join("bin"));
    let report = fingerprint(&bench, &source, &build);
    let libraries = report["libraries"].as_object().expect("an object");
    assert!(libraries.keys().any(|name| name.contains("libggml-base")), "{report}");
    // The dynamic loader itself is the referee: all that it would load from the build folder, under that name. What is
    // opened by name at run time comes on top.
    let mut expected = std::collections::BTreeSet::new();
    for binary in ["llama-server", "test-backend-ops"] {
        let path = build.join("bin").join(binary);
        if !path.exists() {
            continue;
        }
        let output = Command::new("ldd").arg(path).output().expect("this test needs ldd");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((_, rest)) = line.split_once(" => ")
                && let Some((path, _)) = rest.rsplit_once(" (")
                && let Ok(below) = Path::new(path).strip_prefix(&build)
            {
                expected.insert(below.to_str().expect("UTF-8").to_owned());
            }
        }
    }
    let found: std::collections::BTreeSet<String> = libraries.keys().cloned().collect();
    assert!(found.is_superset(&expected), "{found:?} {expected:?}");
    let ours = |name: &String| ["libggml", "libllama", "libmtmd"].iter().any(|f| name.starts_with(&format!("bin/{f}")));
    assert!(found.difference(&expected).all(ours), "{found:?} {expected:?}");
    println!("{} libraries, fit {}: {}", found.len(), report["fit_for_pass_reuse"], report["reasons"]);
}

/// A model-pack manifest whose registry is `packs` in this folder, in the form upstream writes.
fn spec_with_root(bench: &Bench, root: &Path) -> PathBuf {
    let lab = fixture("documents/lab/model-pack-manifest.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(lab).expect("a fixture")).expect("JSON");
    spec["pack"]["registry_root"] = text(&root.join("packs")).into();
    bench.write("spec.json", &serde_json::to_vec(&spec).expect("values print"))
}

#[test]
fn a_spec_names_the_registry_where_nothing_else_does() {
    let bench = Bench::new();
    let artifact = bench.write("set/a", b"one");
    let root = bench.path("iteration-v1");
    let spec = spec_with_root(&bench, &root);
    let call = |arguments: &[&str], environment: Option<&Path>| {
        let mut command = bench.command(arguments);
        match environment {
            Some(root) => command.env("B70_ARTIFACT_ROOT", root),
            None => command.env_remove("B70_ARTIFACT_ROOT"),
        };
        let output = command.env("XDG_STATE_HOME", bench.path("state")).output().expect("the executable runs");
        let document: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"));
        (output.status.code(), document)
    };
    let names = ["--packer-revision", "1", "--layout", "l", "--kernel-abi", "a"];
    let register = [&["register", "--artifact", text(&artifact), "--spec", text(&spec)], &names[..]].concat();
    let (code, registered) = call(&register, None);
    assert_eq!(code, Some(0), "{registered:#}");
    let key = registered["key"].as_str().expect("a key").to_owned();
    assert_eq!(registered["manifest"], text(&root.join("packs").join(&key).join("manifest.json")));
    // The document, the folder of the records, the folder above it, and the artifact root lead to the same records.
    let packs = root.join("packs");
    let upper = format!("sha256:{}", key.to_uppercase());
    for (arguments, environment) in [
        (&["--spec", text(&spec)][..], None),
        (&["--registry-root", text(&packs)], None),
        (&["--registry-root", text(&root)], None),
        (&[], Some(&*root)),
    ] {
        for command in [&["list"][..], &["verify", "--pack-key", &upper], &["show", &upper], &["gc"]] {
            let (code, document) = call(&[command, arguments].concat(), environment);
            assert_eq!(code, Some(0), "{command:?} {arguments:?}: {document:#}");
            assert!(command != ["list"] || document["records"][0]["key"] == *key, "{document:#}");
        }
    }
    // A flag and the environment go before the document.
    let elsewhere = bench.path("elsewhere");
    for (arguments, environment) in [(&["--registry-root", text(&elsewhere)][..], None), (&[], Some(&*elsewhere))] {
        let (code, document) = call(&[&["list", "--spec", text(&spec)], arguments].concat(), environment);
        assert_eq!((code, &document["records"]), (Some(0), &serde_json::json!([])), "{arguments:?}");
    }
    let (code, document) = call(&[&["register", "--artifact", text(&artifact)], &names[..]].concat(), None);
    assert_eq!((code, &document["error"]["kind"]), (Some(2), &"usage".into()));
}
