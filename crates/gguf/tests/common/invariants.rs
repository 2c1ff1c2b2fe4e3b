//! What must hold for any bytes whatever. Shared by the property tests, the replay of the fuzzing corpus,
//! and the fuzz target itself, which includes this file.

use b70_gguf::{Directory, GgufError, Value};

/// Reads `bytes` as the start of a file of `file_len` bytes and checks everything the reader promises.
pub(crate) fn check(bytes: &[u8], file_len: u64) -> Result<Directory<'_>, GgufError> {
    let outcome = Directory::from_bytes(bytes, file_len);
    match &outcome {
        Ok(directory) => accepted(directory, bytes, file_len),
        Err(error) => {
            if let Some(needed) = error.needed_bytes() {
                assert!((bytes.len() as u64) < needed, "asked for {needed} bytes, but was given {}", bytes.len());
                assert!(needed <= file_len, "asked for {needed} bytes of a file of {file_len}");
            }
            assert!(error.offset() <= file_len, "{error}");
            let message = error.to_string();
            assert!(message.len() < 2_000 && !message.contains(char::is_control), "{message}");
        }
    }
    outcome
}

fn accepted(directory: &Directory<'_>, bytes: &[u8], file_len: u64) {
    let header = directory.header();
    assert_eq!(header.file_size, file_len);
    assert!(header.alignment.is_power_of_two());
    assert!(header.directory_bytes <= bytes.len() as u64);
    assert!(header.directory_bytes <= header.data_offset && header.data_offset <= file_len);
    assert_eq!(header.tensor_count, directory.tensors().len() as u64);
    assert_eq!(header.metadata_count, directory.metadata().len() as u64);
    let (trailing, missing) = (header.trailing_bytes(), header.missing_padding_bytes());
    assert_eq!(header.data_offset + header.data_bytes + trailing, file_len + missing);
    assert!((trailing == 0 || missing == 0) && missing < u64::from(header.alignment));

    for entry in directory.metadata() {
        assert!(!entry.key_bytes().is_empty());
        assert!(directory.get(entry.key_bytes()).is_some_and(|found| found.same(entry.value())));
        if let Value::Array(array) = entry.value() {
            assert_eq!(array.iter().count() as u64, array.len(), "an array must yield what it announces");
            assert!(array.iter().all(|value| value.value_type() == array.element_type()));
            let last = array.iter().last();
            let direct = array.len().checked_sub(1).and_then(|index| array.get(index));
            match (last, direct) {
                (None, None) => {}
                (Some(a), Some(b)) => assert!(a.same(&b)),
                other => panic!("iteration and indexing differ: {other:?}"),
            }
            assert!(array.get(array.len()).is_none());
        }
    }

    let mut end = header.data_offset;
    for tensor in directory.tensors() {
        assert_eq!((tensor.offset, tensor.file_index), (end, 0), "tensors follow each other");
        assert_eq!(tensor.ggml_type.tensor_bytes(&tensor.shape), Some(tensor.size_bytes));
        let _ = (tensor.elements(), tensor.name_lossy());
        let padded = tensor.size_bytes.next_multiple_of(u64::from(header.alignment));
        end = end.checked_add(padded).expect("accepted sizes fit");
        assert!(tensor.offset + tensor.size_bytes <= file_len, "every tensor lies in the file");
    }
    assert_eq!(end, header.data_offset + header.data_bytes);
}
