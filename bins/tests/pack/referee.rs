//! The PyPI package `gguf` as referee: what we unpack from a real model's set dequantises, element by element, to what it
//! makes of the model itself.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Ran, run, string, text};
use serde_json::Value;

fn needed(variable: &str, what: &str) -> PathBuf {
    let needs = || panic!("run cargo xtask test, or set {variable} to {what}");
    std::env::var_os(variable).map_or_else(needs, PathBuf::from)
}

#[test]
fn unpacked_tensors_dequantise_to_the_models_own_values() {
    let python = needed("B70_TEST_PYTHON", "a python with gguf==0.19.0 numpy");
    let model = needed("B70_TEST_GEMMA", "the file gemma-3-270m-q4_0.gguf");
    assert!(model.is_file(), "B70_TEST_GEMMA={} is no file", model.display());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("cache");
    let with_root = |command: &str, more: &[&str]| {
        run([&[command, "--json", "--cache-root", text(&root)][..], more].concat()).exits(0).json()
    };
    let prepared = with_root("prepare", &["--model", text(&model)]);
    let inspected = run(["inspect", "--json", "--model", text(&model)]).exits(0).json();
    let tensors: &[Value] = inspected["tensors"].as_array().expect("a list");
    assert!(tensors.len() > 50, "{} tensors", tensors.len());
    assert_eq!(prepared["packed"], tensors.len());
    let deep = with_root("verify", &["--deep", "--against", text(&model)]);
    assert_eq!(deep["status"], "ready");

    let mut list = String::new();
    for (slot, tensor) in tensors.iter().enumerate() {
        let (name, out) = (string(&tensor["name"]), folder.path().join(format!("{slot}.bin")));
        with_root("unpack", &["--tensor", &name, "--out", text(&out)]);
        list += &format!("{name}\t{}\n", text(&out));
    }
    let list_file = folder.path().join("list.tsv");
    fs::write(&list_file, list).expect("a file");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pack/python/dequantise.py");
    let output = Command::new(&python).arg(script).args([&model, &list_file]).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run B70_TEST_PYTHON={}: {error}", python.display()));
    let ran = Ran::from(output);
    assert_eq!(ran.code, Some(0), "does it have gguf==0.19.0 numpy? {ran:#?}");
    let verdict: Value = serde_json::from_str(&ran.stdout).expect("the referee prints JSON");
    assert_eq!(verdict["tensors"], tensors.len(), "{verdict}");
    assert_eq!(verdict["different"], 0, "{verdict}");
    println!("{verdict}");
}
