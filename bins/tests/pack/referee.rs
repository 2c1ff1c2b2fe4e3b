//! The PyPI package `gguf` as referee: what we unpack from a real model's set dequantises, element by element, to what it
//! makes of the model itself.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

use std::fs;

use crate::common::{run, string, text};
use b70_testkit::{python, repository};
use serde_json::Value;

#[test]
fn unpacked_tensors_dequantise_to_the_models_own_values() {
    let model = b70_testkit::part("B70_TEST_GEMMA", "the file gemma-3-270m-q4_0.gguf");
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
    let script = repository("bins/tests/pack/python/dequantise.py");
    let printed = b70_testkit::run(python().arg(script).args([&model, &list_file]));
    let verdict: Value = serde_json::from_str(&printed).expect("the referee prints JSON");
    assert_eq!(verdict["tensors"], tensors.len(), "{verdict}");
    assert_eq!(verdict["different"], 0, "{verdict}");
    println!("{verdict}");
}
