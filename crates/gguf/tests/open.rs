//! Opening by path: growth of the prefix, things that are not GGUF files, and files that change.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;

use b70_gguf::{DEFAULT_DIRECTORY_LIMIT, GgmlType, GgufFile, GgufWriter, OpenError, TensorData, Value, WriteError};
use common::{Raw, array, entry, raw_tensor, sample};

#[test]
fn a_small_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("small.gguf");
    fs::write(&path, sample()).expect("written");
    let file = GgufFile::open(&path).expect("valid");
    assert_eq!(file.path(), path);
    let header = file.header();
    assert_eq!((header.version, header.tensor_count, header.metadata_count, header.alignment), (3, 4, 17, 64));
    assert_eq!(header.file_size, sample().len() as u64);
    assert_eq!(file.directory().get("string").and_then(Value::as_str), Some("naïve"));

    let q = file.tensor("q").expect("written");
    assert_eq!((q.shape.as_slice(), q.ggml_type, q.size_bytes), (&[64, 3][..], GgmlType::Q4_0, 108));
    assert_eq!(q.offset, header.data_offset);
    assert!(file.read_tensor(q).expect("readable").iter().copied().eq(0..108));
}

#[test]
fn open_files_may_cross_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<GgufFile>();
    check::<b70_gguf::SplitModel>();
}

#[test]
fn a_directory_longer_than_the_first_reads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("vocabulary.gguf");
    let tokens: Vec<String> = (0..250_000).map(|i| format!("token number {i}")).collect();
    let mut writer = GgufWriter::new();
    writer.metadata("tokens", tokens).metadata("scores", vec![0.5_f32; 250_000]).tensor(
        "w",
        GgmlType::Q8_0,
        &[32, 4],
        TensorData::Zeros,
    );
    let length = writer.write_file(&path).expect("written");
    let file = GgufFile::open(&path).expect("valid");
    let header = file.header();
    assert_eq!(header.file_size, length);
    assert!(header.directory_bytes > 4 << 20);
    let directory = file.directory();
    let tokens = directory.get("tokens").and_then(Value::as_array).expect("written");
    assert_eq!(tokens.get(249_999).and_then(|v| v.as_str()), Some("token number 249999"));

    // The limit is exact.
    let needed = header.directory_bytes;
    GgufFile::open_with_limit(&path, needed).expect("just enough");
    let error = GgufFile::open_with_limit(&path, needed - 1).expect_err("one byte short");
    assert!(matches!(error, OpenError::DirectoryTooLarge { limit, .. } if limit == needed - 1), "{error}");
}

#[test]
fn a_huge_array_in_a_sparse_file_is_not_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sparse.gguf");
    let raw = Raw { metadata: vec![entry(b"k", 9, &array(10, 1 << 30, &[]))], ..Raw::default() };
    let mut file = File::create(&path).expect("created");
    file.write_all(&raw.head()).expect("written");
    file.set_len(1 << 40).expect("sparse");
    let error = GgufFile::open(&path).expect_err("eight gigabytes of metadata");
    assert!(matches!(error, OpenError::DirectoryTooLarge { limit: DEFAULT_DIRECTORY_LIMIT, .. }), "{error}");
}

#[test]
fn a_terabyte_of_data_costs_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sparse.gguf");
    let raw = Raw { tensors: vec![raw_tensor("big", &[1 << 40], 24, 0)], ..Raw::default() };
    let mut file = File::create(&path).expect("created");
    file.write_all(&raw.bytes()).expect("written");
    file.set_len(raw.bytes().len() as u64 + (1 << 40)).expect("sparse");
    assert_eq!(GgufFile::open(&path).expect("valid").tensors()[0].size_bytes, 1 << 40);
    file.set_len(raw.bytes().len() as u64 + (1 << 40) - 1).expect("sparse");
    GgufFile::open(&path).expect_err("one byte short");
}

#[test]
fn what_is_not_a_regular_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = GgufFile::open(folder.path()).expect_err("a folder");
    assert!(matches!(error, OpenError::NotAFile { found: "directory", .. }), "{error}");

    // Nobody writes to this FIFO; opening it must not wait.
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo (coreutils) is needed").success());
    let error = GgufFile::open(&fifo).expect_err("a FIFO");
    assert!(matches!(error, OpenError::NotAFile { found: "FIFO", .. }), "{error}");

    let error = GgufFile::open("/dev/zero").expect_err("a device");
    assert!(matches!(error, OpenError::NotAFile { found: "character device", .. }), "{error}");

    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("bound");
    assert!(matches!(GgufFile::open(&socket), Err(OpenError::Io { operation: "open", .. })));

    let empty = folder.path().join("empty.gguf");
    File::create(&empty).expect("created");
    assert!(matches!(GgufFile::open(&empty), Err(OpenError::Empty { .. })));

    let absent = folder.path().join("absent.gguf");
    let error = GgufFile::open(&absent).expect_err("absent");
    assert!(matches!(&error, OpenError::Io { operation: "open", .. }), "{error}");
    assert_eq!(error.path(), absent);
    assert!(error.to_string().contains("absent.gguf"));
}

#[test]
fn a_writer_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    let short = TensorData::Stream(Box::new(|sink: &mut dyn Write| sink.write_all(&[1; 17])));
    let long = TensorData::Stream(Box::new(|sink: &mut dyn Write| {
        sink.write_all(&[1; 18])?;
        sink.write_all(&[2])
    }));
    for (data, found) in [(short, 17), (long, 19), (vec![0; 3].into(), 3)] {
        let mut writer = GgufWriter::new();
        writer.tensor("w", GgmlType::Q4_0, &[32], data);
        let error = writer.write_file(&path).expect_err("wrong length");
        assert!(
            matches!(&error, WriteError::DataSize { found: f, expected: 18, .. } if *f == found),
            "{error}, expected {found}"
        );
        assert!(!path.exists());
    }

    let mut writer = GgufWriter::new();
    writer.metadata("", 1_u8);
    assert!(matches!(writer.write_file(&path), Err(WriteError::Invalid(_))));
    let mut writer = GgufWriter::new();
    writer.alignment(24);
    assert!(matches!(writer.write_file(&path), Err(WriteError::Invalid(_))));
    let mut writer = GgufWriter::new();
    writer.tensor("w", GgmlType::Q4_0, &[33], TensorData::Zeros);
    assert!(matches!(writer.write_file(&path), Err(WriteError::NoSize { type_name: "Q4_0", .. })));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);

    // An existing file is refused and kept.
    fs::write(&path, "precious").expect("written");
    assert!(matches!(GgufWriter::new().write_file(&path), Err(WriteError::File { .. })));
    assert_eq!(fs::read(&path).expect("readable"), b"precious");
}

#[test]
fn a_file_cut_after_it_was_opened_is_noticed_by_its_reader() {
    // The opener compares lengths before and after; from then on the reads themselves fail.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, sample()).expect("written");
    let file = GgufFile::open(&path).expect("valid");
    let mut writer = OpenOptions::new().write(true).open(&path).expect("writable");
    writer.set_len(100).expect("cut");
    writer.seek(SeekFrom::End(0)).expect("seekable");
    let q = file.tensor("q").expect("written");
    let foreign = b70_gguf::Tensor { size_bytes: u64::MAX / 2, ..q.clone() };
    assert!(file.read_tensor(&foreign).is_err(), "a tensor that this file never had");
    let error = file.read_tensor(q).expect_err("cut");
    assert!(error.to_string().contains("cannot read a tensor of"), "{error}");
    // The directory is in memory.
    assert_eq!(file.directory().tensors().len(), 4);
}
