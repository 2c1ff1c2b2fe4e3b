//! Models in several files, whole and with every disagreement.

use std::fs;
use std::path::{Path, PathBuf};

use b70_gguf::{
    GgmlType, GgufWriter, MetadataValue, OpenError, ShardName, SplitError, SplitModel, TensorData, Value, ValueType,
};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Seven tensors in three shards of three.
fn split(folder: &Path) -> Vec<PathBuf> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama");
    for i in 0..7_u8 {
        writer.tensor(format!("t{i}"), GgmlType::I8, &[10 + u64::from(i)], vec![i; 10 + usize::from(i)]);
    }
    writer.write_split(folder, "model", 3).expect("written")
}

/// One shard, with the given split keys and tensors.
fn shard(path: &Path, keys: &[(&str, MetadataValue)], tensors: &[&str]) {
    let mut writer = GgufWriter::new();
    for (key, value) in keys {
        writer.metadata(key, value.clone());
    }
    for name in tensors {
        writer.tensor(name, GgmlType::I8, &[4], TensorData::Zeros);
    }
    if path.exists() {
        fs::remove_file(path).expect("removable");
    }
    writer.write_file(path).expect("written");
}

fn keys(no: u16, count: u16, total: i32) -> Vec<(&'static str, MetadataValue)> {
    vec![("split.no", no.into()), ("split.count", count.into()), ("split.tensors.count", total.into())]
}

#[test]
fn any_shard_gives_the_whole_model() {
    let folder = folder();
    let paths = split(folder.path());
    assert_eq!(paths[2].file_name().and_then(|name| name.to_str()), Some("model-00003-of-00003.gguf"));
    for path in &paths {
        let model = SplitModel::open(path).expect("valid");
        let files: Vec<_> = model.files().iter().map(b70_gguf::GgufFile::path).collect();
        assert_eq!(files, paths);
        let places: Vec<_> = model.tensors().iter().map(|t| (t.name().expect("text"), t.file_index)).collect();
        assert_eq!(places, [("t0", 0), ("t1", 0), ("t2", 0), ("t3", 1), ("t4", 1), ("t5", 1), ("t6", 2)]);
        assert_eq!(model.directory().get("general.architecture").and_then(Value::as_str), Some("llama"));
        // Each file has offsets of its own.
        let t6 = model.tensor("t6").expect("written");
        assert_eq!(t6.offset, model.files()[2].header().data_offset);
        assert_eq!(model.read_tensor(t6).expect("readable"), [6; 16]);
    }
}

#[test]
fn links_are_followed_by_name_not_by_target() {
    let (blobs, links) = (folder(), folder());
    let mut first = None;
    for (i, path) in split(blobs.path()).iter().enumerate() {
        let blob = blobs.path().join(format!("blob{i}"));
        fs::rename(path, &blob).expect("renamed");
        let link = links.path().join(path.file_name().expect("a name"));
        std::os::unix::fs::symlink(&blob, &link).expect("linked");
        first.get_or_insert(link);
    }
    assert_eq!(SplitModel::open(first.expect("three shards")).expect("valid").tensors().len(), 7);
}

#[test]
fn a_plain_file_is_a_model_of_one() {
    let folder = folder();
    for (name, keys) in [
        ("plain.gguf", vec![]),
        ("merged.gguf", keys(0, 0, 2)),
        ("single.gguf", keys(0, 1, 2)),
        ("single-00001-of-00001.gguf", keys(0, 1, 2)),
        ("bare-00001-of-00001.gguf", vec![]),
        ("odd-0001-of-0002.gguf", vec![]),
    ] {
        let path = folder.path().join(name);
        shard(&path, &keys, &["a", "b"]);
        let model = SplitModel::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((model.files().len(), model.tensors().len()), (1, 2));
    }
}

#[test]
fn a_missing_shard() {
    let folder = folder();
    let paths = split(folder.path());
    fs::remove_file(&paths[1]).expect("removed");
    for path in [&paths[0], &paths[2]] {
        let error = SplitModel::open(path).expect_err("one is missing");
        assert!(matches!(&error, SplitError::MissingShard { number: 2, count: 3, .. }), "{error}");
        assert_eq!(error.path(), paths[1]);
    }
}

#[test]
fn a_renamed_shard() {
    let folder = folder();
    let paths = split(folder.path());
    let plain = folder.path().join("plain.gguf");
    fs::copy(&paths[0], &plain).expect("copied");
    assert!(matches!(SplitModel::open(&plain), Err(SplitError::NameNotSplit { count: 3, .. })));
    let one = folder.path().join("other-00001-of-00001.gguf");
    fs::copy(&paths[0], &one).expect("copied");
    assert!(matches!(SplitModel::open(&one), Err(SplitError::CountDisagrees { found: 3, expected: 1, .. })));
    // Two of three, exchanged.
    let aside = folder.path().join("aside");
    fs::rename(&paths[1], &aside).expect("renamed");
    fs::rename(&paths[2], &paths[1]).expect("renamed");
    fs::rename(&aside, &paths[2]).expect("renamed");
    let error = SplitModel::open(&paths[0]).expect_err("exchanged");
    assert!(matches!(error, SplitError::NumberDisagrees { found: 2, expected: 1, .. }), "{error}");
}

#[test]
fn split_keys_that_disagree() {
    let folder = folder();
    let first = folder.path().join("m-00001-of-00002.gguf");
    let second = folder.path().join("m-00002-of-00002.gguf");
    let open = |second_keys: Vec<(&str, MetadataValue)>, tensors: &[&str]| {
        shard(&first, &[keys(0, 2, 3), vec![("general.name", "m".into())]].concat(), &["a", "b"]);
        shard(&second, &second_keys, tensors);
        SplitModel::open(&second)
    };
    assert_eq!(open(keys(1, 2, 3), &["c"]).expect("valid").tensors().len(), 3);

    let error = open(keys(0, 2, 3), &["c"]).expect_err("number");
    assert!(matches!(error, SplitError::NumberDisagrees { found: 0, expected: 1, .. }), "{error}");
    let error = open(keys(1, 3, 3), &["c"]).expect_err("count");
    assert!(matches!(error, SplitError::CountDisagrees { found: 3, expected: 2, .. }), "{error}");
    let error = open(keys(1, 2, 4), &["c"]).expect_err("total");
    assert!(matches!(error, SplitError::TotalDisagrees { found: 4, expected: 3, .. }), "{error}");
    for tensors in [&["c", "d"][..], &[]] {
        let error = open(keys(1, 2, 3), tensors).expect_err("sum");
        assert!(matches!(error, SplitError::TensorTotal { expected: 3, .. }), "{error}");
    }
    let error = open(keys(1, 2, 3), &["b"]).expect_err("duplicate");
    assert!(matches!(&error, SplitError::DuplicateTensor { name, .. } if name == "b"), "{error}");
    assert_eq!(error.path(), second);

    for (missing, key) in ["split.no", "split.count", "split.tensors.count"].into_iter().enumerate() {
        let mut keys = keys(1, 2, 3);
        keys.remove(missing);
        let error = open(keys, &["c"]).expect_err("missing key");
        assert!(matches!(error, SplitError::MissingKey { key: found, .. } if found == key), "{error}");
    }
    for (wrong, value, found, expected) in [
        (0, MetadataValue::U32(1), ValueType::U32, ValueType::U16),
        (1, MetadataValue::I32(2), ValueType::I32, ValueType::U16),
        (2, MetadataValue::U16(3), ValueType::U16, ValueType::I32),
    ] {
        let mut keys = keys(1, 2, 3);
        keys[wrong].1 = value;
        let error = open(keys, &["c"]).expect_err("wrong type");
        assert!(
            matches!(error, SplitError::KeyType { found: f, expected: e, .. } if (f, e) == (found, expected)),
            "{error}"
        );
    }
}

#[test]
fn shards_of_different_models() {
    let folder = folder();
    let first = folder.path().join("m-00001-of-00002.gguf");
    let second = folder.path().join("m-00002-of-00002.gguf");
    shard(&first, &[keys(0, 2, 2), vec![("general.name", "one".into()), ("x", f32::NAN.into())]].concat(), &["a"]);
    shard(&second, &[keys(1, 2, 2), vec![("general.name", "one".into()), ("x", f32::NAN.into())]].concat(), &["b"]);
    SplitModel::open(&first).expect("repeated metadata that agrees");
    shard(&second, &[keys(1, 2, 2), vec![("general.name", "two".into())]].concat(), &["b"]);
    let error = SplitModel::open(&first).expect_err("another model's name");
    assert!(matches!(&error, SplitError::MetadataDisagrees { key, .. } if key == "general.name"), "{error}");

    // The version is the first four bytes after the magic.
    shard(&second, &keys(1, 2, 2), &["b"]);
    let mut bytes = fs::read(&second).expect("readable");
    bytes[4] = 2;
    fs::write(&second, bytes).expect("written");
    let error = SplitModel::open(&first).expect_err("another version");
    assert!(matches!(error, SplitError::VersionDisagrees { found: 2, expected: 3, .. }), "{error}");
}

#[test]
fn single_files_with_wrong_split_keys() {
    let folder = folder();
    let path = folder.path().join("plain.gguf");
    shard(&path, &keys(1, 1, 1), &["a"]);
    assert!(matches!(SplitModel::open(&path), Err(SplitError::NumberDisagrees { found: 1, expected: 0, .. })));
    for total in [2, 0, -1] {
        shard(&path, &keys(0, 1, total), &["a"]);
        assert!(matches!(SplitModel::open(&path), Err(SplitError::TensorTotal { found: 1, .. })));
    }
}

#[test]
fn a_bad_shard_is_named() {
    let folder = folder();
    let paths = split(folder.path());
    let bytes = fs::read(&paths[1]).expect("readable");
    fs::write(&paths[1], &bytes[..bytes.len() - 33]).expect("written");
    let error = SplitModel::open(&paths[0]).expect_err("truncated");
    assert!(matches!(&error, SplitError::Open(OpenError::Format { .. })), "{error}");
    assert_eq!(error.path(), paths[1]);
}

#[test]
fn a_split_is_never_left_half_written() {
    let folder = folder();
    let blocker = folder.path().join("model-00003-of-00003.gguf");
    fs::write(&blocker, "in the way").expect("written");
    let mut writer = GgufWriter::new();
    for i in 0..7 {
        writer.tensor(format!("t{i}"), GgmlType::F32, &[1], TensorData::Zeros);
    }
    writer.write_split(folder.path(), "model", 3).expect_err("the third name is taken");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("readable").map(|e| e.expect("readable").path()).collect();
    assert_eq!(left, [blocker]);
}

#[test]
fn shard_names() {
    let parse = |name| ShardName::parse(name).map(|n| (n.prefix, n.number, n.count));
    assert_eq!(parse("a-b-00002-of-00003.gguf"), Some(("a-b".to_owned(), 2, 3)));
    assert_eq!(parse("-00001-of-65535.gguf"), Some((String::new(), 1, 65535)));
    for name in [
        "m.gguf",
        "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf",
        "m-0001-of-00003.gguf",
        "m-00001-of-000003.gguf",
        "m-00001-of-99999.gguf",
        "m-+0001-of-00003.gguf",
        "m-00001-of-00003.GGUF",
        "m-00001-of-00003.gguf.part",
        "m00001-of-00003.gguf",
        "00001-of-00003.gguf",
    ] {
        assert_eq!(parse(name), None, "{name}");
    }
    let name = ShardName { prefix: "x".to_owned(), number: 12, count: 345 };
    assert_eq!(ShardName::parse(&name.to_string()), Some(name));
}
