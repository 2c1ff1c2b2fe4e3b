//! The real executable: output, exit codes, files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn lab(name: &str) -> PathBuf {
    b70_testkit::fixture("documents/lab").join(name)
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_b70-manifest")).current_dir(folder).args(arguments).output().expect("it starts")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text file")
}

#[test]
fn the_three_lab_documents_are_valid() {
    let files = ["workers.json", "model-pack-manifest.json", "golden-corpus-manifest.json"].map(lab);
    let names: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let output = run(Path::new("."), &[&["--json", "validate"], names.as_slice()].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["files"].as_array().unwrap().len(), 3);
}

#[test]
fn four_mistakes_are_reported_at_once_with_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = text(&lab("workers.json"))
        .replace("\"n_parallel\": 1", "\"n_paralel\": 1")
        .replace("\"port\": 19721", "\"port\": 19720")
        .replace("\"flash_attn\": \"on\"", "\"flash_attn\": \"onn\"")
        .replace("--cache-ram 0", "");
    std::fs::write(folder.path().join("workers.json"), &wrong).unwrap();
    let output = run(folder.path(), &["validate", "workers.json", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = printed["files"][0]["errors"].as_array().unwrap();
    println!("{}", serde_json::to_string_pretty(errors).unwrap());
    let found: Vec<(&str, &str)> =
        errors.iter().map(|e| (e["code"].as_str().unwrap(), e["pointer"].as_str().unwrap())).collect();
    assert_eq!(
        found,
        [
            ("unknown-key", "/common/n_paralel"),
            ("enum", "/common/flash_attn"),
            ("prompt-cache-off", "/common/extra_llama_args"),
            ("unique-port", "/workers/1/port"),
        ]
    );
    let line = |needle: &str| wrong.lines().position(|line| line.contains(needle)).unwrap() as u64 + 1;
    assert_eq!(errors[0]["line"].as_u64(), Some(line("n_paralel")));
    assert_eq!(errors[1]["line"].as_u64(), Some(line("flash_attn")));
    assert!(errors[0]["message"].as_str().unwrap().contains("did you mean \"n_parallel\"?"));
    assert!(errors[1]["message"].as_str().unwrap().contains("did you mean \"on\"?"));
}

#[test]
fn models_are_compared_across_files() {
    let folder = tempfile::tempdir().unwrap();
    let other = text(&lab("model-pack-manifest.json")).replace("20c9c45d", "30c9c45d");
    std::fs::write(folder.path().join("model-pack-manifest.json"), other).unwrap();
    let workers = lab("workers.json");
    let output = run(folder.path(), &["validate", workers.to_str().unwrap(), "model-pack-manifest.json", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["files"][0]["valid"], json!(true));
    assert_eq!(printed["files"][1]["errors"][0]["pointer"], json!("/source/sha256"));
}

#[test]
fn what_is_not_json_ends_with_2_and_its_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), "{\n  \"a\": 1,,\n}").unwrap();
    std::fs::write(folder.path().join("b.json"), b"{\"a\": \"\xff\"}").unwrap();
    std::fs::write(folder.path().join("c.json"), "{\"colour\": 1}").unwrap();
    for (file, code, line) in
        [("a.json", 2, Some(2)), ("b.json", 2, Some(1)), ("missing.json", 2, None), ("c.json", 1, Some(1))]
    {
        let output = run(folder.path(), &["validate", file, "--json"]);
        assert_eq!(output.status.code(), Some(code), "{file}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed["files"][0]["errors"][0]["line"].as_u64(), line, "{file}: {printed}");
    }
    let worst = run(folder.path(), &["validate", "c.json", "a.json"]);
    assert_eq!(worst.status.code(), Some(2));
    assert_eq!(run(folder.path(), &["validate", "c.json", "--kind", "nonsense"]).status.code(), Some(2));
}

#[test]
fn settings_of_an_editor_keep_what_is_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join(".vscode/settings.json");
    std::fs::create_dir(folder.path().join(".vscode")).unwrap();
    let mine =
        "{\n  // mine\n  \"editor.tabSize\": 3, /* and this */\n  \"json.schemas\": [{\"url\": \"./x.json\"}]\n}\n";
    std::fs::write(&settings, mine).unwrap();
    assert_eq!(run(folder.path(), &["vscode"]).status.code(), Some(0));
    assert_eq!(text(&settings), mine, "without --write nothing changes");
    assert_eq!(run(folder.path(), &["vscode", "--write"]).status.code(), Some(0));
    let merged = text(&settings);
    assert!(merged.contains("// mine") && merged.contains("/* and this */") && merged.contains("./x.json"));
    assert!(merged.contains("./.vscode/b70kit/workers.schema.json"));
    assert!(folder.path().join(".vscode/b70kit/workers.schema.json").is_file());
    assert_eq!(run(folder.path(), &["vscode", "--write"]).status.code(), Some(0));
    assert_eq!(text(&settings), merged, "a second time adds nothing");
    for broken in ["{\"a\": }", "[]", "{\"json.schemas\": 3}", "{ /* never ends"] {
        std::fs::write(&settings, broken).unwrap();
        assert_eq!(run(folder.path(), &["vscode", "--write"]).status.code(), Some(2), "{broken}");
        assert_eq!(text(&settings), broken);
    }
}

#[test]
fn schemas_are_printed_and_written_and_documents_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["schema", "workers"]);
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["$schema"], json!("http://json-schema.org/draft-07/schema#"));
    assert_eq!(run(folder.path(), &["schema", "--all", "--out", "s"]).status.code(), Some(0));
    assert!(folder.path().join("s/output/manifest-validate.schema.json").is_file());
    let list: Value = serde_json::from_slice(&run(folder.path(), &["list", "--json"]).stdout).unwrap();
    assert!(list["kinds"].as_array().unwrap().len() >= 18);

    let workers = lab("workers.json");
    let output = run(folder.path(), &["migrate", workers.to_str().unwrap(), "--out", "new.json", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(run(folder.path(), &["validate", "new.json"]).status.code(), Some(0));
    assert_eq!(run(folder.path(), &["migrate", "nowhere.json"]).status.code(), Some(2));
}
