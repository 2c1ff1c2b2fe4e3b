//! A cache entry is a claim: whatever paths it carries, nothing outside its folder is admitted, read or removed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use b70_gguf::{GgmlType, GgufWriter};
use serde_json::{Value, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 scratch path")
}

#[test]
fn paths_of_an_entry_do_not_leave_its_folder() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let ram = b70_testkit::memory();
    let (model, outside) = (dir.path().join("m.gguf"), ram.path().join("outside.gguf"));
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "test");
    writer.tensor("weight", GgmlType::F32, &[64, 4], vec![7; 1024]);
    writer.write_file(&model).expect("a GGUF");
    // The same bytes outside: only the way there may be what is wrong.
    fs::copy(&model, &outside).expect("copied");
    let sha256 = b70_manifest::Sha256Hex::of(&fs::read(&model).expect("readable")).to_string();
    let root = ram.path().join("models");
    let run = |command: &[&str]| -> (i32, Value) {
        let select = ["--model", text(&model), "--sha256", &sha256, "--cache-root", text(&root), "--json"];
        let mut program = Command::new(env!("CARGO_BIN_EXE_b70-cache"));
        let output = program.args(command).args(select).stdin(Stdio::null()).output().expect("the executable runs");
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"));
        (output.status.code().expect("no signal"), document)
    };
    assert_eq!(run(&["prepare", "--no-measure"]).0, 0);
    let entry_path = root.join(&sha256).join("cache-entry.json");
    let good: Value = serde_json::from_slice(&fs::read(&entry_path).expect("an entry")).expect("JSON");
    let write = |entry: &Value| {
        fs::remove_file(&entry_path).expect("our file");
        fs::write(&entry_path, entry.to_string()).expect("our file");
    };
    for evil in ["../../outside.gguf", "../outside.gguf", text(&outside), "..", "a/../../../outside.gguf"] {
        for as_list in [false, true] {
            let mut entry = good.clone();
            if as_list {
                let size = entry["cached"]["size_bytes"].clone();
                entry["cached"]["files"] = json!([{"name": evil, "sha256": sha256, "size_bytes": size}]);
            } else {
                entry["cached"]["path"] = json!(evil);
            }
            write(&entry);
            let (code, said) = run(&["path"]);
            assert_eq!(code, 1, "{evil} {as_list}: {said}");
            let (_, said) = run(&["drop", "--execute"]);
            assert!(outside.is_file() && model.is_file(), "{evil} {as_list}: {said}");
            run(&["prepare", "--no-measure"]);
            let (code, said) = run(&["path"]);
            assert_eq!(code, 0, "{evil} {as_list}: {said}");
        }
    }
}
