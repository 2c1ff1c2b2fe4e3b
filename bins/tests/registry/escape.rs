//! A registry record is a claim: file names in it that leave the artifact are refused by name, and nothing there is read.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 scratch path")
}

#[test]
fn file_names_of_a_record_do_not_leave_the_artifact() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (artifact, root) = (dir.path().join("artifact"), dir.path().join("registry"));
    fs::create_dir(&artifact).expect("created");
    fs::write(artifact.join("a.bin"), "content").expect("written");
    fs::write(dir.path().join("outside.bin"), "content").expect("written");
    let run = |arguments: &[&str]| -> (i32, Value) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_b70-registry"));
        program.args(arguments).args(["--registry-root", text(&root), "--json"]).stdin(Stdio::null());
        let output = program.output().expect("the executable runs");
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"));
        (output.status.code().expect("no signal"), document)
    };
    let sha256 = "ab".repeat(32);
    let names = ["--packer-revision", "1", "--layout", "l", "--kernel-abi", "k", "--sha256", &sha256];
    let (code, registered) = run(&[&["register", "--artifact", text(&artifact)], &names[..]].concat());
    assert_eq!(code, 0, "{registered}");
    let key = registered["key"].as_str().expect("a key").to_owned();
    let record_path = Path::new(registered["manifest"].as_str().expect("a path")).to_path_buf();
    let good = fs::read_to_string(&record_path).expect("a record");
    let absolute = dir.path().join("outside.bin");
    for evil in ["../outside.bin", text(&absolute), "x/../../outside.bin", "..", ""] {
        let mut record: Value = serde_json::from_str(&good).expect("JSON");
        record["artifact"]["files"][0]["path"] = json!(evil);
        fs::write(&record_path, record.to_string()).expect("our file");
        let (code, verified) = run(&["verify", "--pack-key", &key]);
        assert!(code == 1 || code == 2, "{evil}: {verified}");
        assert_ne!(verified["status"], "admitted", "{evil}: {verified}");
        let (code, collected) = run(&["gc", "--execute"]);
        assert!(absolute.is_file() && artifact.join("a.bin").is_file(), "{evil}: {code} {collected}");
        if record_path.parent().is_some_and(|folder| !folder.exists()) {
            fs::create_dir_all(record_path.parent().expect("a folder")).expect("created");
        }
        fs::write(&record_path, &good).expect("our file");
        assert_eq!(run(&["verify", "--pack-key", &key]).0, 0, "{evil}");
    }
}
