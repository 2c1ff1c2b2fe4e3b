//! The PyPI package `gguf` as referee: it reads what we write, we read what it writes, and both see the same.

mod common;

use std::path::Path;

use b70_gguf::{Directory, GgufFile, SplitModel, Value, ValueType};
use serde_json::{Value as Json, json};

/// Runs the referee script and returns what it printed.
fn referee(action: &str, file: &Path) -> String {
    let script = b70_testkit::repository("crates/gguf/tests/python/referee.py");
    b70_testkit::run(b70_testkit::python().arg(script).arg(action).arg(file))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn python_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::U8 => "UINT8",
        ValueType::I8 => "INT8",
        ValueType::U16 => "UINT16",
        ValueType::I16 => "INT16",
        ValueType::U32 => "UINT32",
        ValueType::I32 => "INT32",
        ValueType::F32 => "FLOAT32",
        ValueType::Bool => "BOOL",
        ValueType::String => "STRING",
        ValueType::Array => "ARRAY",
        ValueType::U64 => "UINT64",
        ValueType::I64 => "INT64",
        ValueType::F64 => "FLOAT64",
    }
}

/// A scalar in the referee's notation.
fn scalar(value: &Value<'_>) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::F32(v) => hex(&f64::from(*v).to_be_bytes()),
        Value::F64(v) => hex(&v.to_be_bytes()),
        Value::String(v) => hex(v),
        Value::Array(_) => panic!("arrays are not scalars"),
    }
}

fn metadata(directory: &Directory<'_>) -> Json {
    let entries = directory.metadata().iter().map(|entry| {
        let value = entry.value();
        let (element, value_json) = match value {
            Value::Array(array) => {
                let element = (!array.is_empty()).then(|| python_name(array.element_type()));
                (element, array.iter().map(|v| Json::from(scalar(&v))).collect())
            }
            other => (None, Json::from(scalar(other))),
        };
        let entry_json = json!({ "type": python_name(value.value_type()), "element": element, "value": value_json });
        (entry.key().expect("the files have UTF-8 keys").to_owned(), entry_json)
    });
    Json::Object(entries.collect())
}

/// Everything the referee reports, as this crate sees it.
fn our_view(file: &GgufFile) -> Json {
    let tensors: Vec<Json> = file
        .tensors()
        .iter()
        .map(|tensor| {
            let data = file.read_tensor(tensor).expect("the reader has checked the bounds");
            json!({
                "name": tensor.name().expect("the files have UTF-8 names"),
                "shape": tensor.shape,
                "type_id": tensor.ggml_type.id(),
                "type_name": tensor.ggml_type.name(),
                "offset": tensor.offset,
                "size": tensor.size_bytes,
                "data": hex(&data),
            })
        })
        .collect();
    json!({
        "alignment": file.header().alignment,
        "data_offset": file.header().data_offset,
        "metadata": metadata(&file.directory()),
        "tensors": tensors,
    })
}

#[track_caller]
fn assert_same_view(path: &Path) -> usize {
    let theirs: Json = serde_json::from_str(&referee("read", path)).expect("the referee prints JSON");
    let ours = our_view(&GgufFile::open(path).expect("valid"));
    for part in ["alignment", "data_offset", "metadata", "tensors"] {
        assert_eq!(ours[part], theirs[part], "{part} of {}", path.display());
    }
    ours["tensors"].as_array().map_or(0, Vec::len)
}

#[test]
fn it_reads_what_we_write() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ours.gguf");
    std::fs::write(&path, common::sample()).expect("written");
    assert_eq!(assert_same_view(&path), 4);
}

#[test]
fn we_read_what_it_writes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("theirs.gguf");
    referee("write", &path);
    assert_eq!(assert_same_view(&path), 6);
    let file = GgufFile::open(&path).expect("valid");
    assert_eq!(file.header().alignment, 64);
    let directory = file.directory();
    assert_eq!(directory.get("k.u64"), Some(&Value::U64(u64::MAX)));
    assert_eq!(directory.get("k.string").and_then(Value::as_str), Some("größer\n"));
    assert_eq!(file.tensor("q4_0").expect("written").shape, [64, 3]);
}

#[test]
fn we_join_what_it_splits() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    referee("write-split", &folder.path().join("theirs.gguf"));
    let model = SplitModel::open(folder.path().join("theirs-00002-of-00003.gguf")).expect("valid");
    assert_eq!((model.files().len(), model.tensors().len()), (3, 6));
    assert_eq!(model.directory().get("general.name").and_then(Value::as_str), Some("split"));
    for file in model.files() {
        assert_same_view(file.path());
    }
}
