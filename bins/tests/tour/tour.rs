//! The executable as a new user starts it.

use std::process::{Command, Output};

fn tour(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_b70-tour")).args(arguments).output().expect("the tour starts")
}

#[test]
fn every_step_proves_what_it_should_and_the_page_says_the_same() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let keep = scratch.path().join("kept");
    let out = tour(&["--json", "--no-servers", "--keep", keep.to_str().expect("UTF-8")]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON document");
    assert_eq!(out.status.code(), Some(0), "{report:#}");
    let steps = report["steps"].as_array().expect("steps");
    assert!(steps.len() >= 14, "{} steps", steps.len());
    let page = std::fs::read_to_string(keep.join("tour.html")).expect("the page is among the kept files");
    for step in steps {
        assert_eq!(step["passed"], true, "{step}");
        assert!(page.contains(&format!("<td>{}</td>", step["step"].as_str().expect("a name"))), "{step}");
    }
    assert!(keep.join("tour.gguf").is_file() && keep.join("cache").is_dir(), "the files are kept");
}

#[test]
fn a_folder_with_files_is_left_alone() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let file = scratch.path().join("mine.txt");
    std::fs::write(&file, "mine").expect("written");
    let out = tour(&["--json", "--keep", scratch.path().to_str().expect("UTF-8")]);
    assert_eq!(out.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON document");
    assert_eq!(error["error"]["kind"], "not-empty", "{error}");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("listed").count(), 1);
    assert_eq!(std::fs::read_to_string(file).expect("read"), "mine");
}
