//! Truncation at every byte, prefixes, mutations, and writer to reader.

mod common;

use b70_gguf::{Defect, Directory, GgmlType, GgufWriter, MetadataArray, MetadataValue, TensorData};
use common::{invariants, sample};
use proptest::prelude::*;

#[test]
fn every_truncation_of_a_valid_file_is_refused() {
    let bytes = sample();
    let whole = Directory::from_bytes(&bytes, bytes.len() as u64).expect("valid");
    let data_end = whole.tensors().iter().map(|tensor| tensor.offset + tensor.size_bytes).max();
    let data_end = data_end.expect("tensors") as usize;
    for len in data_end..bytes.len() {
        let header = *invariants::check(&bytes[..len], len as u64).expect("only padding is missing").header();
        assert_eq!(header.missing_padding_bytes(), (bytes.len() - len) as u64);
    }
    for len in 0..data_end {
        let error = invariants::check(&bytes[..len], len as u64).expect_err("truncated");
        assert!(!matches!(error.defect(), Defect::NeedMoreBytes { .. }), "the file ends at {len}: {error}");
    }
}

#[test]
fn every_prefix_of_the_directory_asks_for_more_and_every_longer_one_suffices() {
    let bytes = sample();
    let file_len = bytes.len() as u64;
    let whole = Directory::from_bytes(&bytes, file_len).expect("valid");
    let directory_bytes = whole.header().directory_bytes as usize;
    for len in 0..bytes.len() {
        match invariants::check(&bytes[..len], file_len) {
            Ok(directory) => {
                assert!(len >= directory_bytes);
                assert_eq!((directory.header(), directory.tensors()), (whole.header(), whole.tensors()));
            }
            Err(error) => {
                assert!(len < directory_bytes, "{error}");
                assert!(error.needed_bytes().is_some(), "{error}");
            }
        }
    }
}

#[test]
fn bytes_beyond_the_file_are_not_looked_at() {
    let mut bytes = sample();
    let file_len = bytes.len() as u64;
    bytes.extend_from_slice(b"of another file");
    assert_eq!(invariants::check(&bytes, file_len).expect("valid").header().trailing_bytes(), 0);
    let shorter = *invariants::check(&bytes, file_len - 1).expect("padding").header();
    assert_eq!((shorter.trailing_bytes(), shorter.missing_padding_bytes()), (0, 1));
}

#[test]
fn every_byte_of_the_directory_changed_in_every_bit() {
    let mut bytes = sample();
    let file_len = bytes.len() as u64;
    let end = Directory::from_bytes(&bytes, file_len).expect("valid").header().directory_bytes as usize;
    for position in 0..end {
        for bit in 0..8 {
            bytes[position] ^= 1 << bit;
            let _ = invariants::check(&bytes, file_len);
            bytes[position] ^= 1 << bit;
        }
    }
}

/// Text, arbitrary bytes, and nothing.
fn name(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof!["[a-z_.]{1,20}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 1..=longest),]
}

fn value() -> impl Strategy<Value = MetadataValue> {
    let list = 0..6_usize;
    let scalar = prop_oneof![
        any::<u8>().prop_map(MetadataValue::U8),
        any::<i8>().prop_map(MetadataValue::I8),
        any::<u16>().prop_map(MetadataValue::U16),
        any::<i16>().prop_map(MetadataValue::I16),
        any::<u32>().prop_map(MetadataValue::U32),
        any::<i32>().prop_map(MetadataValue::I32),
        any::<u32>().prop_map(|bits| MetadataValue::F32(f32::from_bits(bits))),
        any::<bool>().prop_map(MetadataValue::Bool),
        any::<u64>().prop_map(MetadataValue::U64),
        any::<i64>().prop_map(MetadataValue::I64),
        any::<u64>().prop_map(|bits| MetadataValue::F64(f64::from_bits(bits))),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(MetadataValue::String),
    ];
    macro_rules! arrays {
        ($($variant:ident $element:expr),* $(,)?) => {
            prop_oneof![$(
                proptest::collection::vec($element, list.clone())
                    .prop_map(|values| MetadataValue::Array(MetadataArray::$variant(values)))
            ),*]
        };
    }
    let small = arrays!(
        U8 any::<u8>(), I8 any::<i8>(), U16 any::<u16>(), I16 any::<i16>(), U32 any::<u32>(), I32 any::<i32>(),
    );
    let large = arrays!(
        F32 any::<f32>(), Bool any::<bool>(), U64 any::<u64>(), I64 any::<i64>(), F64 any::<f64>(),
        String proptest::collection::vec(any::<u8>(), 0..12),
    );
    prop_oneof![scalar, small, large]
}

/// A type and a shape of whole blocks, at most a few kilobytes.
fn geometry() -> impl Strategy<Value = (GgmlType, Vec<u64>)> {
    (0..GgmlType::ALL.len(), proptest::collection::vec(0_u64..4, 1..=4)).prop_map(|(index, mut shape)| {
        let ty = GgmlType::ALL[index];
        shape[0] *= ty.block_elements();
        (ty, shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn the_reader_finds_what_the_writer_wrote(
        metadata in proptest::collection::btree_map(name(300), value(), 0..8),
        tensors in proptest::collection::btree_map(name(63), (geometry(), 0_u8..3, any::<u8>()), 0..8),
        alignment in prop_oneof![Just(None), (0_u32..13).prop_map(|power| Some(1_u32 << power))],
    ) {
        prop_assume!(!metadata.contains_key(&b"general.alignment"[..]));
        let mut writer = GgufWriter::new();
        if let Some(alignment) = alignment {
            writer.alignment(alignment);
        }
        for (key, value) in &metadata {
            writer.metadata(key, value.clone());
        }
        for (name, ((ty, shape), source, fill)) in &tensors {
            let size = ty.tensor_bytes(shape).expect("whole blocks") as usize;
            let fill = *fill;
            let data = match source {
                0 => TensorData::Zeros,
                1 => TensorData::Bytes(vec![fill; size]),
                _ => TensorData::Stream(Box::new(move |sink| {
                    // In uneven pieces, as a generator would.
                    let mut left = size;
                    while left > 0 {
                        let piece = left.min(7);
                        sink.write_all(&vec![fill; piece])?;
                        left -= piece;
                    }
                    Ok(())
                })),
            };
            writer.tensor(name, *ty, shape, data);
        }
        let mut bytes = Vec::new();
        let length = writer.write_to(&mut bytes).expect("a valid file");
        prop_assert_eq!(length, bytes.len() as u64);

        let directory = invariants::check(&bytes, length).expect("valid");
        let header = directory.header();
        prop_assert_eq!((header.version, header.alignment), (3, alignment.unwrap_or(32)));
        prop_assert_eq!(header.trailing_bytes(), 0);
        prop_assert_eq!(header.metadata_count as usize, metadata.len() + usize::from(alignment.is_some()));
        for (key, value) in &metadata {
            prop_assert!(value.matches(directory.get(key).expect("written")), "{:?}", value);
        }
        prop_assert_eq!(directory.tensors().len(), tensors.len());
        for (entry, (name, ((ty, shape), source, fill))) in directory.tensors().iter().zip(&tensors) {
            prop_assert_eq!(&entry.name, name);
            prop_assert_eq!((entry.ggml_type, &entry.shape), (*ty, shape));
            let start = entry.offset as usize;
            let data = &bytes[start..start + entry.size_bytes as usize];
            let fill = if *source == 0 { 0 } else { *fill };
            prop_assert!(data.iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn any_byte_may_change_without_harm(position in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = sample();
        let position = position.index(bytes.len());
        bytes[position] = byte;
        let _ = invariants::check(&bytes, bytes.len() as u64);
        let _ = invariants::check(&bytes, u64::MAX);
    }

    #[test]
    fn any_bytes_after_a_header_are_harmless(
        tensors in 0_u64..4, metadata in 0_u64..4, rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend_from_slice(&tensors.to_le_bytes());
        bytes.extend_from_slice(&metadata.to_le_bytes());
        bytes.extend_from_slice(&rest);
        let _ = invariants::check(&bytes, bytes.len() as u64);
        let _ = invariants::check(&bytes, 1 << 40);
    }
}
