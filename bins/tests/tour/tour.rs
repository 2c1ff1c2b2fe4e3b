//! The executable as a new user starts it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use b70_manifest::document::Kind;
use b70_manifest::validate::check_files;

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

    // What lay in RAM went with it: a stage and a copy of the model again, here.
    let (cache, ram, models) = (keep.join("cache"), keep.join("ram"), keep.join("models"));
    let run = |program: &str, arguments: &[&str], from: &Path, to: (&str, &Path)| {
        let mut command = Command::new(program);
        command.args(arguments).arg(from).args(["--min-free", "1MiB", to.0]).arg(to.1);
        let out = command.output().expect("the program starts");
        assert_eq!(out.status.code(), Some(0), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run(env!("CARGO_BIN_EXE_b70-pack"), &["stage-ram", "--cache-root"], &cache, ("--ram-root", &ram));
    let model = keep.join("tour.gguf");
    run(env!("CARGO_BIN_EXE_b70-cache"), &["prepare", "--model"], &model, ("--cache-root", &models));
    let kinds = documents_are_valid(&keep);
    for kind in [Kind::PackSet, Kind::TensorPack, Kind::Receipt, Kind::RamStage, Kind::CacheEntry, Kind::RegistryRecord]
    {
        assert!(kinds.contains(&kind), "no {kind} among the documents of the tour: {kinds:?}");
    }
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn documents_of_real_servers_have_a_kind_too() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let keep = scratch.path().join("kept");
    let server = b70_testkit::llama_server();
    let out =
        tour(&["--json", "--llama-server", server.to_str().expect("UTF-8"), "--keep", keep.to_str().expect("UTF-8")]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let kinds = documents_are_valid(&keep);
    for kind in [Kind::Workers, Kind::WorkerIdentity, Kind::CalibrationResult, Kind::CalibrationRun] {
        assert!(kinds.contains(&kind), "no {kind} among the documents of the tour: {kinds:?}");
    }
}

/// Every document beneath the folder is of a known kind and valid; returns their kinds.
fn documents_are_valid(folder: &Path) -> BTreeSet<Kind> {
    // The artifact that the tour registers was packed by others, and what lies in it is theirs.
    let foreign = Path::new("made-elsewhere/index.json");
    // The step `document` shows a mistake in it.
    let mistaken = Path::new("workers.json");
    let (mut documents, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(current) = folders.pop() {
        for entry in std::fs::read_dir(&current).expect("listed") {
            let path = entry.expect("listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "json") {
                documents.push(path);
            }
        }
    }
    documents.retain(|path: &PathBuf| !path.ends_with(foreign));
    let report = check_files(&documents, None);
    let faults: Vec<_> = report
        .files
        .iter()
        .filter(|file| file.kind.is_none() || !file.valid && Path::new(&file.path) != folder.join(mistaken))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    report.files.iter().filter_map(|file| file.kind).collect()
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
