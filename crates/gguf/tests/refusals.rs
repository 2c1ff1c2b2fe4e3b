//! Every rule broken in turn, by bytes made for it: the variant, and the place where it is seen.

mod common;

use b70_gguf::{Defect, Directory, Field, Impostor, ValueType};
use common::{Raw, RawTensor, array, entry, raw_tensor};

const F32: i32 = 0;
const Q4_0: i32 = 2;
const I8: i32 = 24;
const I64: i32 = 27;

fn with_metadata(metadata: Vec<Vec<u8>>) -> Raw {
    Raw { metadata, ..Raw::default() }
}

fn with_tensors(tensors: Vec<RawTensor>, data_bytes: usize) -> Raw {
    Raw { tensors, data_bytes, ..Raw::default() }
}

fn alignment(value: u32) -> Vec<u8> {
    entry(b"general.alignment", 4, &value.to_le_bytes())
}

/// Asserts the defect and its file offset.
#[track_caller]
fn refused(raw: &Raw, at: u64, defect: &Defect) {
    let error = raw.verdict().expect_err("the file must be refused");
    assert_eq!((error.defect(), error.offset()), (defect, at));
    assert!(!error.found().is_empty() && !error.expected().is_empty());
}

#[test]
fn headers() {
    refused(&Raw { magic: *b"FUGG", ..Raw::default() }, 0, &Defect::BadMagic { found: *b"FUGG" });
    for (version, defect) in [
        (0, Defect::VersionZero),
        (1, Defect::VersionOne),
        (4, Defect::VersionTooNew { found: 4 }),
        (u32::MAX, Defect::VersionTooNew { found: u32::MAX }),
        (0x0300_0000, Defect::ByteOrder { found: 0x0300_0000 }),
        (0x0001_0000, Defect::ByteOrder { found: 0x0001_0000 }),
    ] {
        refused(&Raw { version, ..Raw::default() }, 4, &defect);
    }
    for version in [2, 3] {
        Raw { version, ..Raw::default() }.verdict().expect("an empty directory is valid");
    }
    for count in [-1, i64::MIN] {
        let raw = Raw { tensor_count: Some(count), ..Raw::default() };
        refused(&raw, 8, &Defect::TensorCountNegative { found: count });
        let raw = Raw { metadata_count: Some(count), ..Raw::default() };
        refused(&raw, 16, &Defect::MetadataCountNegative { found: count });
    }
    for count in [1, 1 << 50, i64::MAX] {
        let raw = Raw { tensor_count: Some(count), ..Raw::default() };
        let minimum_bytes = 24 * u128::from(count as u64);
        refused(&raw, 8, &Defect::TensorCountPastEnd { found: count as u64, minimum_bytes, remaining: 0 });
        let raw = Raw { metadata_count: Some(count), ..Raw::default() };
        let minimum_bytes = 14 * u128::from(count as u64);
        refused(&raw, 16, &Defect::MetadataCountPastEnd { found: count as u64, minimum_bytes, remaining: 0 });
    }
}

#[test]
fn short_headers_name_the_field() {
    let whole = Raw::default().bytes();
    for (len, field) in
        [(0, Field::Magic), (3, Field::Magic), (4, Field::Version), (8, Field::TensorCount), (23, Field::MetadataCount)]
    {
        let error = Directory::from_bytes(&whole[..len], len as u64).expect_err("truncated");
        assert!(matches!(error.defect(), Defect::Truncated { field: found, .. } if *found == field), "{error}");
    }
}

#[test]
fn keys() {
    let filler = || entry(b"filler", 10, &[0; 8]);
    let key_length = |length: u64| {
        let mut bad = filler();
        bad[..8].copy_from_slice(&length.to_le_bytes());
        with_metadata(vec![bad])
    };
    let too_long = |length| Defect::StringTooLong { field: Field::Key, length };
    refused(&key_length(u64::MAX), 24, &too_long(u64::MAX));
    refused(&key_length((1 << 30) + 1), 24, &too_long((1 << 30) + 1));
    let length = 1 << 30;
    refused(&key_length(length), 24, &Defect::StringPastEnd { field: Field::Key, length, remaining: 18 });
    refused(&with_metadata(vec![entry(b"", 0, &[0; 2])]), 24, &Defect::EmptyKey);
    let twice = with_metadata(vec![filler(), filler()]);
    let second = 24 + filler().len() as u64;
    refused(&twice, second, &Defect::DuplicateKey { key: "filler".to_owned(), first_at: 24 });
}

#[test]
fn value_types() {
    for found in [13, -1, i32::MAX] {
        let raw = with_metadata(vec![entry(b"k", found, &[0; 16])]);
        refused(&raw, 33, &Defect::UnknownValueType { key: "k".to_owned(), found });
        // The element type is wrong even if there is no element.
        let raw = with_metadata(vec![entry(b"k", 9, &array(found, 0, &[]))]);
        refused(&raw, 37, &Defect::UnknownElementType { key: "k".to_owned(), found });
    }
    let nested = array(9, 1, &array(0, 1, &[5]));
    refused(&with_metadata(vec![entry(b"k", 9, &nested)]), 37, &Defect::NestedArray { key: "k".to_owned() });
    let empty = array(9, 0, &[]);
    refused(&with_metadata(vec![entry(b"k", 9, &empty)]), 37, &Defect::NestedArray { key: "k".to_owned() });
}

#[test]
fn arrays() {
    for tag in [0, 8, 10] {
        for count in [1 << 63, u64::MAX, (1 << 30) + 1] {
            let raw = with_metadata(vec![entry(b"k", 9, &array(tag, count, &[]))]);
            refused(&raw, 41, &Defect::ArrayTooLong { key: "k".to_owned(), count });
        }
    }
    for (tag, element_bytes) in [(0, 1), (2, 2), (6, 4), (7, 1), (8, 8), (12, 8)] {
        let count = 16 / element_bytes + 1;
        let raw = with_metadata(vec![entry(b"k", 9, &array(tag, count, &[0; 16]))]);
        refused(&raw, 41, &Defect::ArrayPastEnd { key: "k".to_owned(), count, element_bytes, remaining: 16 });
    }
    // Two strings announced, the second longer than what is left.
    let strings = [common::string(b"ab"), 9_u64.to_le_bytes().to_vec()].concat();
    let raw = with_metadata(vec![entry(b"k", 9, &array(8, 2, &strings))]);
    refused(&raw, 59, &Defect::StringPastEnd { field: Field::Element, length: 9, remaining: 0 });
    // Enough bytes for two lengths, but the first string takes those of the second.
    let strings = common::string(b"12345678");
    let raw = with_metadata(vec![entry(b"k", 9, &array(8, 2, &strings))]);
    refused(&raw, 65, &Defect::Truncated { field: Field::Element, needed: 8, remaining: 0 });
}

#[test]
fn values_cut_short() {
    let raw = with_metadata(vec![entry(b"k", 10, &[0; 7])]);
    refused(&raw, 37, &Defect::Truncated { field: Field::Value, needed: 8, remaining: 7 });
    let raw = with_metadata(vec![entry(b"k", 8, &5_u64.to_le_bytes())]);
    refused(&raw, 37, &Defect::StringPastEnd { field: Field::Value, length: 5, remaining: 0 });
}

#[test]
fn alignments() {
    for found in [0, 13, 3, u32::MAX] {
        refused(&with_metadata(vec![alignment(found)]), 24, &Defect::AlignmentNotPowerOfTwo { found });
    }
    for (tag, value_type, width) in [(10, ValueType::U64, 8), (5, ValueType::I32, 4), (2, ValueType::U16, 2)] {
        let mut value = vec![0; width];
        value[0] = 32;
        let raw = with_metadata(vec![entry(b"general.alignment", tag, &value)]);
        refused(&raw, 24, &Defect::AlignmentType { found: value_type });
    }
    // Without tensors no byte needs to be aligned.
    with_metadata(vec![alignment(1 << 31)]).verdict().expect("valid");
    // With one, its data would start two gigabytes further on.
    let raw = Raw { tensors: vec![raw_tensor("a", &[8], F32, 0)], ..with_metadata(vec![alignment(1 << 31)]) };
    assert!(matches!(raw.defect(), Defect::DataStartPastEnd { data_offset: 0x8000_0000, .. }));
}

#[test]
fn tensor_names() {
    let named = |name: &[u8]| RawTensor { name: name.to_vec(), ..raw_tensor("", &[8], F32, 0) };
    for length in [64, 87] {
        let raw = with_tensors(vec![named(&vec![b'n'; length])], 32);
        refused(&raw, 24, &Defect::TensorNameTooLong { length: length as u64 });
    }
    for name in [&b""[..], &[b'n'; 63], b"a\0b", b"tab\tnewline\n", b"\xff\xfe"] {
        with_tensors(vec![named(name)], 32).verdict().expect("a name of at most 63 bytes of any kind is valid");
    }
    let twins = vec![named(b"a\0b"), RawTensor { offset: 32, ..named(b"a\0c") }];
    with_tensors(twins, 64).verdict().expect("names are compared whole");
    let twice = vec![named(b"a"), RawTensor { offset: 32, ..named(b"a") }];
    refused(&with_tensors(twice, 64), 57, &Defect::DuplicateTensor { name: "a".to_owned(), first_at: 24 });
}

#[test]
fn shapes() {
    let one = |dims: &[i64], type_id, data| with_tensors(vec![raw_tensor("a", dims, type_id, 0)], data);
    let name = || "a".to_owned();
    refused(&one(&[1; 5], F32, 32), 33, &Defect::TooManyDimensions { name: name(), found: 5 });
    let raw = RawTensor { n_dims: Some(u32::MAX), ..raw_tensor("a", &[1], F32, 0) };
    refused(&with_tensors(vec![raw], 32), 33, &Defect::TooManyDimensions { name: name(), found: u32::MAX });
    refused(&one(&[1, -1], F32, 32), 45, &Defect::NegativeDimension { name: name(), axis: 1, found: -1 });
    let four_times_int_max = 4 * i64::from(i32::MAX);
    let wide = [
        vec![four_times_int_max; 2],
        vec![i64::MAX, 2],
        vec![i64::MAX],
        // As unsigned 64-bit numbers this product wraps to 4.
        vec![4_194_305, 4_194_305, 211_106_198_978_564],
        // No elements, but strides that cannot be expressed.
        vec![i64::MAX, 0, 2],
    ];
    for dims in wide {
        let shape = dims.iter().map(|&n| n as u64).collect();
        refused(&one(&dims, F32, 32), 33, &Defect::ElementCountOverflow { name: name(), shape });
    }
    for dims in [&[][..], &[0], &[64, 0], &[0, 5, 0], &[8]] {
        let bytes = 4 * dims.iter().product::<i64>() as usize;
        one(dims, F32, bytes.next_multiple_of(32)).verdict().expect("up to four dimensions, of any size");
    }
}

#[test]
fn tensor_types() {
    let one = |dims: &[i64], type_id| with_tensors(vec![raw_tensor("a", dims, type_id, 0)], 64);
    let name = || "a".to_owned();
    for found in [43, -1, i32::MAX, i32::MIN] {
        refused(&one(&[32], found), 45, &Defect::UnknownTensorType { name: name(), found });
    }
    for (id, former_name) in b70_gguf::GgmlType::REMOVED {
        let defect = Defect::RemovedTensorType { name: name(), id: *id, former_name };
        refused(&one(&[32], *id as i32), 45, &defect);
    }
    for dims in [&[33][..], &[16, 2], &[1], &[]] {
        let row_elements = dims.first().map_or(1, |&n| n as u64);
        let defect = Defect::PartialBlock { name: name(), type_name: "Q4_0", row_elements, block_elements: 32 };
        refused(&one(dims, Q4_0), 33, &defect);
    }
}

#[test]
fn sizes_that_overflow() {
    let name = || "a".to_owned();
    let one = |dims: &[i64], type_id| with_tensors(vec![raw_tensor("a", dims, type_id, 0)], 32);
    let eighth = i64::MAX / 4 + 9;
    let defect = Defect::TensorSizeOverflow { name: name(), type_name: "I64", shape: vec![eighth as u64] };
    refused(&one(&[eighth], I64), 33, &defect);
    // 2^64 - 16 bytes: the size fits, the padded size does not.
    let padded = Defect::PaddedSizeOverflow { name: name(), size: 0_u64.wrapping_sub(16), alignment: 32 };
    refused(&one(&[4, (1 << 30) - 1, (1 << 30) + 1], F32), 24, &padded);
    let wraps = Defect::RowSizeWraps {
        name: name(),
        type_name: "Q4_0",
        row_elements: 5_124_095_576_030_431_008,
        row_bytes: 2_882_303_761_517_117_442,
        wrapped_bytes: 2,
    };
    refused(&one(&[5_124_095_576_030_431_008], Q4_0), 33, &wraps);

    // Two tensors whose sum fits 64 bits but no file.
    let huge = 0x7fff_ffff_ffff_ffc0_i64;
    let two = vec![raw_tensor("a", &[huge], I8, 0), raw_tensor("b", &[huge], I8, huge as u64)];
    let raw = with_tensors(two, 32);
    let file_len = raw.bytes().len() as u64;
    let needed = 96 + huge as u64;
    refused(&raw, 96, &Defect::DataTruncated { name: name(), needed, file_len });
    // Three whose sum does not fit.
    let three = (0..3_u64).map(|i| raw_tensor(&i.to_string(), &[huge], I8, i.wrapping_mul(huge as u64)));
    assert!(matches!(with_tensors(three.collect(), 32).defect(), Defect::DataSizeOverflow { .. }));
}

#[test]
fn offsets() {
    let two = |first, second| vec![raw_tensor("a", &[3], F32, first), raw_tensor("b", &[3], F32, second)];
    with_tensors(two(0, 32), 64).verdict().expect("padded to 32");
    let mismatch = |name: &str, found, expected| Defect::OffsetMismatch { name: name.to_owned(), found, expected };
    for (second, what) in [(64, "gap"), (0, "overlap"), (12, "unpadded"), (u64::MAX, "wild")] {
        let error = with_tensors(two(0, second), 96).defect();
        assert_eq!(error, mismatch("b", second, 32), "{what}");
    }
    assert_eq!(with_tensors(two(32, 0), 64).defect(), mismatch("a", 32, 0), "swapped");
    refused(&with_tensors(vec![raw_tensor("a", &[8], F32, u64::MAX)], 32), 49, &mismatch("a", u64::MAX, 0));
    // Laid out for an alignment of 1 without saying so.
    assert_eq!(with_tensors(two(0, 12), 24).defect(), mismatch("b", 12, 32));
    let one = Raw { alignment: 1, ..with_tensors(two(0, 12), 24) };
    Raw { metadata: vec![alignment(1)], ..one }.verdict().expect("an alignment of 1 is a power of two");
}

#[test]
fn what_people_have_in_a_models_place_is_named_with_the_remedy() {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:44\nsize 7516192768\n";
    for (bytes, what) in [
        (&lfs[..], Impostor::GitLfsPointer),
        (b"<!DOCTYPE html>\n<html><head>", Impostor::Html),
        (b"\n  <html lang=en>", Impostor::Html),
        (b"{\"error\":\"Repository not found\"}", Impostor::Json),
        (b"[{\"message\": 1}]", Impostor::Json),
        (b"tjgg\x03\0\0\0\0\0\0\0", Impostor::Ggml),
        (b"lmgg\0\0\0\0\0\0\0\0", Impostor::Ggml),
        (b"fmgg\x01\0\0\0\0\0\0\0", Impostor::Ggml),
        (b"PK\x03\x04\0\0\0\0\0\0\0\0", Impostor::Zip),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0", Impostor::Gzip),
        (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{", Impostor::Safetensors),
    ] {
        let error = Directory::from_bytes(bytes, bytes.len() as u64).expect_err("no model");
        assert_eq!(error.defect(), &Defect::NotAModel { what }, "{}", bytes.escape_ascii());
        assert!(error.to_string().contains(what.remedy()), "{error}");
    }
    for bytes in [&b"GGUX\x03\0\0\0"[..], b"\0\0\0\0", b"vers", b"lmg"] {
        let error = Directory::from_bytes(bytes, bytes.len() as u64).expect_err("no model");
        assert!(!matches!(error.defect(), Defect::NotAModel { .. }), "{error}");
    }
}

#[test]
fn data_must_be_complete() {
    let tensors = vec![raw_tensor("a", &[8], F32, 0), raw_tensor("b", &[3], F32, 32)];
    let file = |data_bytes| with_tensors(tensors.clone(), data_bytes);
    let start = file(0).bytes().len() as u64;
    file(64).verdict().expect("complete");
    // The padding after the last tensor is nobody's data.
    for data in 44..64 {
        let bytes = file(data as usize).bytes();
        let directory = Directory::from_bytes(&bytes, bytes.len() as u64).expect("the data is complete");
        assert_eq!((directory.header().missing_padding_bytes(), directory.header().trailing_bytes()), (64 - data, 0));
    }
    for data in 32..44 {
        let defect = Defect::DataTruncated { name: "b".to_owned(), needed: start + 44, file_len: start + data };
        refused(&file(data as usize), start + 32, &defect);
    }
    for data in 0..32 {
        let defect = Defect::DataTruncated { name: "a".to_owned(), needed: start + 32, file_len: start + data };
        refused(&file(data as usize), start, &defect);
    }
    // The data section would start after the end.
    let head = file(0).head();
    let file_len = head.len() as u64;
    assert_ne!(file_len % 32, 0);
    let error = Directory::from_bytes(&head, file_len).expect_err("no data section");
    assert_eq!(error.defect(), &Defect::DataStartPastEnd { data_offset: start, file_len });
    // More than complete.
    let bytes = file(71).bytes();
    let directory = Directory::from_bytes(&bytes, bytes.len() as u64).expect("trailing bytes are accepted");
    assert_eq!(directory.header().trailing_bytes(), 7);
}
