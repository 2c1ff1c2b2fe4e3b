//! The directory parser: a cursor over a prefix of the file, and the checks in file order.

use std::collections::HashMap;

use crate::directory::{Directory, Header, MetadataEntry, Tensor};
use crate::error::{Defect, Field, GgufError, Impostor, label};
use crate::types::GgmlType;
use crate::value::{Array, Value, ValueType};

/// Longest string the format's readers take: 1 GiB.
pub(crate) const MAX_STRING_BYTES: u64 = 1 << 30;
/// Most elements of an array the format's readers take.
pub(crate) const MAX_ARRAY_ELEMENTS: u64 = 1 << 30;
/// Most dimensions of a tensor.
pub(crate) const MAX_DIMENSIONS: usize = 4;
/// Longest tensor name, in bytes.
pub(crate) const MAX_TENSOR_NAME_BYTES: u64 = 63;
/// Alignment of a file without `general.alignment`.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// The metadata key that sets the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Key length, one byte of key, value type, one byte of value.
const MIN_METADATA_BYTES: u64 = 8 + 1 + 4 + 1;
/// Name length, dimension count, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

type Result<T> = std::result::Result<T, GgufError>;

/// What an earlier pass over the same bytes, or over fewer of them, found out about arrays of strings: a vocabulary is most of
/// a directory, and walking it again costs more than all the rest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walked {
    /// Where long arrays that were walked to their end begin and end, in file order.
    whole: Vec<(usize, usize)>,
    /// The array that the bytes did not suffice for: where it begins, how many elements were walked, and where they end.
    part: Option<(usize, u64, usize)>,
}

/// Position in the prefix. Offsets in the prefix are offsets in the file.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    file_len: u64,
}

impl<'a> Cursor<'a> {
    fn at(&self) -> u64 {
        self.pos as u64
    }

    /// Bytes of the file (not only of the prefix) from here on.
    fn remaining(&self) -> u64 {
        self.file_len.saturating_sub(self.at())
    }

    /// The next `n` bytes. The caller has checked `n` against [`Cursor::remaining`].
    fn take_present(&mut self, n: u64) -> Result<&'a [u8]> {
        let present = &self.bytes[self.pos..];
        match usize::try_from(n).ok().and_then(|n| present.get(..n)) {
            Some(taken) => {
                self.pos += taken.len();
                Ok(taken)
            }
            None => Err(GgufError::new(
                self.at(),
                Defect::NeedMoreBytes { present: self.bytes.len() as u64, needed: self.at().saturating_add(n) },
            )),
        }
    }

    fn take(&mut self, field: Field, n: u64) -> Result<&'a [u8]> {
        if n > self.remaining() {
            let defect = Defect::Truncated { field, needed: n, remaining: self.remaining() };
            return Err(GgufError::new(self.at(), defect));
        }
        self.take_present(n)
    }

    fn array<const N: usize>(&mut self, field: Field) -> Result<[u8; N]> {
        let bytes = self.take(field, N as u64)?;
        Ok(bytes.try_into().expect("take returns as many bytes as asked for"))
    }

    fn u32(&mut self, field: Field) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn i32(&mut self, field: Field) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: Field) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn i64(&mut self, field: Field) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    /// The length of a string, checked against the format's limit and the file's end.
    fn string_length(&mut self, field: Field) -> Result<u64> {
        let at = self.at();
        let length = self.u64(field)?;
        if length > MAX_STRING_BYTES {
            return Err(GgufError::new(at, Defect::StringTooLong { field, length }));
        }
        if length > self.remaining() {
            return Err(GgufError::new(at, Defect::StringPastEnd { field, length, remaining: self.remaining() }));
        }
        Ok(length)
    }

    /// Walks over `count` strings, going on where an earlier pass had to stop.
    fn strings(&mut self, count: u64, walked: &mut Walked) -> Result<()> {
        let start = self.pos;
        if let Ok(known) = walked.whole.binary_search_by_key(&start, |&(begin, _)| begin) {
            self.pos = walked.whole[known].1;
            return Ok(());
        }
        let mut done = 0;
        if let Some((begin, elements, end)) = walked.part
            && begin == start
        {
            (done, self.pos) = (elements, end);
        }
        while done < count {
            // What can be wrong with an element is left to the slow way, which names it.
            let next = self.bytes.get(self.pos..).and_then(|rest| {
                let (length, rest) = rest.split_first_chunk::<8>()?;
                let length = u64::from_le_bytes(*length);
                (length <= MAX_STRING_BYTES && length <= rest.len() as u64).then(|| 8 + length as usize)
            });
            if let Some(bytes) = next {
                self.pos += bytes;
            } else {
                walked.part = Some((start, done, self.pos));
                self.string(Field::Element)?;
            }
            done += 1;
        }
        // Short ones are not worth an entry, of which there might be millions. What follows an array comes after it.
        if self.pos - start > 4096 && walked.whole.last().is_none_or(|&(begin, _)| begin < start) {
            walked.whole.push((start, self.pos));
        }
        Ok(())
    }

    fn string(&mut self, field: Field) -> Result<&'a [u8]> {
        let length = self.string_length(field)?;
        self.take_present(length)
    }
}

/// `walked` is about the same bytes, or a shorter prefix of the same file; new if there was no earlier pass.
pub(crate) fn directory<'a>(bytes: &'a [u8], file_len: u64, walked: &mut Walked) -> Result<Directory<'a>> {
    let bytes = match usize::try_from(file_len) {
        Ok(len) if len < bytes.len() => &bytes[..len],
        _ => bytes,
    };
    let mut cursor = Cursor { bytes, pos: 0, file_len };

    let version = preamble(&mut cursor)?;
    let (tensor_count, metadata_count) = counts(&mut cursor)?;
    let metadata = metadata(&mut cursor, metadata_count, walked)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = tensors(&mut cursor, tensor_count)?;

    let (data_offset, data_bytes) = layout(&cursor, alignment, &mut tensors)?;
    Ok(Directory {
        header: Header {
            version,
            tensor_count,
            metadata_count,
            alignment,
            directory_bytes: cursor.at(),
            data_offset,
            data_bytes,
            file_size: file_len,
        },
        metadata,
        tensors: tensors.into_iter().map(|(tensor, ..)| tensor).collect(),
    })
}

fn preamble(cursor: &mut Cursor<'_>) -> Result<u32> {
    let magic: [u8; 4] = cursor.array(Field::Magic)?;
    if magic != *b"GGUF" {
        let defect =
            Impostor::of(cursor.bytes).map_or(Defect::BadMagic { found: magic }, |what| Defect::NotAModel { what });
        return Err(GgufError::new(0, defect));
    }
    let at = cursor.at();
    let defect = match cursor.u32(Field::Version)? {
        version @ (2 | 3) => return Ok(version),
        0 => Defect::VersionZero,
        // A big-endian 1, 2 or 3 has its digits in the high half.
        found if found.trailing_zeros() >= 16 => Defect::ByteOrder { found },
        1 => Defect::VersionOne,
        found => Defect::VersionTooNew { found },
    };
    Err(GgufError::new(at, defect))
}

/// Both counts, checked together against the bytes the file has left.
fn counts(cursor: &mut Cursor<'_>) -> Result<(u64, u64)> {
    let tensors_at = cursor.at();
    let tensors = cursor.i64(Field::TensorCount)?;
    let tensors = u64::try_from(tensors)
        .map_err(|_| GgufError::new(tensors_at, Defect::TensorCountNegative { found: tensors }))?;
    let metadata_at = cursor.at();
    let metadata = cursor.i64(Field::MetadataCount)?;
    let metadata = u64::try_from(metadata)
        .map_err(|_| GgufError::new(metadata_at, Defect::MetadataCountNegative { found: metadata }))?;

    let remaining = cursor.remaining();
    let tensor_bytes = u128::from(tensors) * u128::from(MIN_TENSOR_BYTES);
    if tensor_bytes > u128::from(remaining) {
        let defect = Defect::TensorCountPastEnd { found: tensors, minimum_bytes: tensor_bytes, remaining };
        return Err(GgufError::new(tensors_at, defect));
    }
    let metadata_bytes = u128::from(metadata) * u128::from(MIN_METADATA_BYTES);
    if metadata_bytes + tensor_bytes > u128::from(remaining) {
        let defect = Defect::MetadataCountPastEnd { found: metadata, minimum_bytes: metadata_bytes, remaining };
        return Err(GgufError::new(metadata_at, defect));
    }
    Ok((tensors, metadata))
}

// The vectors and sets below grow with the entries actually read, never by a count from the file: what
// they hold is bounded by a small multiple of the bytes present.

fn metadata<'a>(cursor: &mut Cursor<'a>, count: u64, walked: &mut Walked) -> Result<Vec<MetadataEntry<'a>>> {
    let mut entries = Vec::new();
    let mut seen = HashMap::new();
    for _ in 0..count {
        let at = cursor.at();
        let key = cursor.string(Field::Key)?;
        if key.is_empty() {
            return Err(GgufError::new(at, Defect::EmptyKey));
        }
        if let Some(first_at) = seen.insert(key, at) {
            return Err(GgufError::new(at, Defect::DuplicateKey { key: label(key), first_at }));
        }
        let type_at = cursor.at();
        let tag = cursor.i32(Field::ValueType)?;
        let value_type = ValueType::from_tag(tag)
            .ok_or_else(|| GgufError::new(type_at, Defect::UnknownValueType { key: label(key), found: tag }))?;
        let value = match (value_type, value_type.fixed_bytes()) {
            (_, Some(size)) => {
                let bytes = cursor.take(Field::Value, size)?;
                Value::decode_fixed(value_type, bytes).expect("a fixed-size type and as many bytes")
            }
            (ValueType::String, None) => Value::String(cursor.string(Field::Value)?),
            (_, None) => Value::Array(array(cursor, key, walked)?),
        };
        entries.push(MetadataEntry { key, value, at });
    }
    Ok(entries)
}

fn array<'a>(cursor: &mut Cursor<'a>, key: &[u8], walked: &mut Walked) -> Result<Array<'a>> {
    let type_at = cursor.at();
    let tag = cursor.i32(Field::ElementType)?;
    let element_type = match ValueType::from_tag(tag) {
        Some(ValueType::Array) => return Err(GgufError::new(type_at, Defect::NestedArray { key: label(key) })),
        Some(element_type) => element_type,
        None => return Err(GgufError::new(type_at, Defect::UnknownElementType { key: label(key), found: tag })),
    };
    let count_at = cursor.at();
    let count = cursor.u64(Field::ElementCount)?;
    if count > MAX_ARRAY_ELEMENTS {
        return Err(GgufError::new(count_at, Defect::ArrayTooLong { key: label(key), count }));
    }
    // A string costs at least its length field. The product fits: 2^30 elements of at most 8 bytes.
    let element_bytes = element_type.fixed_bytes().unwrap_or(8);
    let least_bytes = count * element_bytes;
    if least_bytes > cursor.remaining() {
        let remaining = cursor.remaining();
        return Err(GgufError::new(
            count_at,
            Defect::ArrayPastEnd { key: label(key), count, element_bytes, remaining },
        ));
    }
    let start = cursor.pos;
    if element_type == ValueType::String {
        cursor.strings(count, walked)?;
    } else {
        cursor.take_present(least_bytes)?;
    }
    Ok(Array::new(element_type, count, &cursor.bytes[start..cursor.pos]))
}

fn alignment(metadata: &[MetadataEntry<'_>]) -> Result<u32> {
    let Some(entry) = metadata.iter().find(|entry| entry.key == ALIGNMENT_KEY.as_bytes()) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match entry.value {
        Value::U32(alignment) if alignment.is_power_of_two() => Ok(alignment),
        Value::U32(found) => Err(GgufError::new(entry.at, Defect::AlignmentNotPowerOfTwo { found })),
        other => Err(GgufError::new(entry.at, Defect::AlignmentType { found: other.value_type() })),
    }
}

/// A tensor, where its entry starts, and where its offset stands.
type Placed = (Tensor, u64, u64);

fn tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Placed>> {
    let mut entries = Vec::new();
    let mut seen = HashMap::new();
    for _ in 0..count {
        let entry = tensor(cursor, &mut seen)?;
        entries.push(entry);
    }
    Ok(entries)
}

fn tensor<'a>(cursor: &mut Cursor<'a>, seen: &mut HashMap<&'a [u8], u64>) -> Result<Placed> {
    let at = cursor.at();
    let length = cursor.string_length(Field::TensorName)?;
    if length > MAX_TENSOR_NAME_BYTES {
        return Err(GgufError::new(at, Defect::TensorNameTooLong { length }));
    }
    let name = cursor.take_present(length)?;
    if let Some(first_at) = seen.insert(name, at) {
        return Err(GgufError::new(at, Defect::DuplicateTensor { name: label(name), first_at }));
    }

    let dims_at = cursor.at();
    let n_dims = cursor.u32(Field::DimensionCount)?;
    if n_dims as usize > MAX_DIMENSIONS {
        return Err(GgufError::new(dims_at, Defect::TooManyDimensions { name: label(name), found: n_dims }));
    }
    let mut dims = [1_u64; MAX_DIMENSIONS];
    for axis in 0..n_dims {
        let axis_at = cursor.at();
        let found = cursor.i64(Field::Dimension)?;
        dims[axis as usize] = u64::try_from(found)
            .map_err(|_| GgufError::new(axis_at, Defect::NegativeDimension { name: label(name), axis, found }))?;
    }
    // Dimensions of zero are left out of the product: strides must be representable all the same.
    let elements = dims.iter().filter(|&&n| n != 0).try_fold(1_u64, |product, &n| product.checked_mul(n));
    if elements.is_none_or(|n| n >= i64::MAX as u64) {
        let shape = dims[..n_dims as usize].to_vec();
        return Err(GgufError::new(dims_at, Defect::ElementCountOverflow { name: label(name), shape }));
    }

    let type_at = cursor.at();
    let found = cursor.i32(Field::TensorType)?;
    let ty = tensor_type(found).map_err(|removed| {
        let defect = match removed {
            Some((id, former_name)) => Defect::RemovedTensorType { name: label(name), id, former_name },
            None => Defect::UnknownTensorType { name: label(name), found },
        };
        GgufError::new(type_at, defect)
    })?;
    let size = tensor_size(name, ty, dims, n_dims).map_err(|defect| GgufError::new(dims_at, defect))?;

    let offset_at = cursor.at();
    let offset = cursor.u64(Field::TensorOffset)?;
    let shape = dims[..n_dims as usize].to_vec();
    // The offset in the data section, until `layout` knows where that starts.
    Ok((Tensor { name: name.to_vec(), shape, ggml_type: ty, file_index: 0, offset, size_bytes: size }, at, offset_at))
}

fn tensor_type(found: i32) -> std::result::Result<GgmlType, Option<(u32, &'static str)>> {
    let id = u32::try_from(found).map_err(|_| None)?;
    GgmlType::from_id(id).ok_or_else(|| GgmlType::removed_name(id).map(|former| (id, former)))
}

fn tensor_size(
    name: &[u8],
    ty: GgmlType,
    dims: [u64; MAX_DIMENSIONS],
    n_dims: u32,
) -> std::result::Result<u64, Defect> {
    let row_elements = dims[0];
    let type_name = ty.name();
    if !row_elements.is_multiple_of(ty.block_elements()) {
        let block_elements = ty.block_elements();
        return Err(Defect::PartialBlock { name: label(name), type_name, row_elements, block_elements });
    }
    let overflow =
        || Defect::TensorSizeOverflow { name: label(name), type_name, shape: dims[..n_dims as usize].to_vec() };
    let row_bytes = ty.row_bytes(row_elements).ok_or_else(overflow)?;
    // ggml multiplies a row's elements by the block's bytes before it divides by the block's elements. Where
    // that wraps, it sees a tensor of another size than this file describes: nobody may rely on either.
    if ty.block_elements() > 1 && row_elements.checked_mul(ty.block_bytes()).is_none() {
        let wrapped_bytes = row_elements.wrapping_mul(ty.block_bytes()) / ty.block_elements();
        return Err(Defect::RowSizeWraps { name: label(name), type_name, row_elements, row_bytes, wrapped_bytes });
    }
    ty.tensor_bytes(&dims).ok_or_else(overflow)
}

/// Whether the directory's parts lie in the file and no tensor starts past its end, or ends there as far as its size is
/// known: what a program needs to know that copies a model whose tensors it cannot judge.
pub(crate) fn bounds(bytes: &[u8], file_len: u64, walked: &mut Walked) -> Result<()> {
    let mut cursor = Cursor { bytes, pos: 0, file_len };
    preamble(&mut cursor)?;
    let (tensor_count, metadata_count) = counts(&mut cursor)?;
    let metadata = metadata(&mut cursor, metadata_count, walked)?;
    let alignment = alignment(&metadata)?;
    let mut last = None;
    for _ in 0..tensor_count {
        let at = cursor.at();
        let name = cursor.string(Field::TensorName)?;
        let dimensions = cursor.u32(Field::DimensionCount)?;
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(cursor.u64(Field::Dimension)?);
        }
        let kind = u32::try_from(cursor.i32(Field::TensorType)?).ok().and_then(GgmlType::from_id);
        let offset = cursor.u64(Field::TensorOffset)?;
        let end = offset.saturating_add(kind.and_then(|kind| kind.tensor_bytes(&shape)).unwrap_or(0));
        if last.is_none_or(|(_, most, _)| end > most) {
            last = Some((name, end, at));
        }
    }
    let Some((name, end, at)) = last else { return Ok(()) };
    let needed = cursor.at().next_multiple_of(u64::from(alignment)).saturating_add(end);
    if needed > file_len {
        return Err(GgufError::new(at, Defect::DataTruncated { name: label(name), needed, file_len }));
    }
    Ok(())
}

/// Where the data starts and how long it is (padding included), after checking that every tensor lies
/// where the sizes before it put it and that the file holds them all.
fn layout(cursor: &Cursor<'_>, alignment: u32, tensors: &mut [Placed]) -> Result<(u64, u64)> {
    let directory_end = cursor.at();
    let file_len = cursor.file_len;
    if tensors.is_empty() {
        return Ok((directory_end, 0));
    }
    let alignment_bytes = u64::from(alignment);
    // Cannot overflow: the directory is in memory and an alignment is at most 2^31.
    let data_offset = directory_end.next_multiple_of(alignment_bytes);
    if data_offset > file_len {
        return Err(GgufError::new(directory_end, Defect::DataStartPastEnd { data_offset, file_len }));
    }
    let mut sum = 0_u64;
    let mut truncated = None;
    for (tensor, at, offset_at) in tensors.iter_mut() {
        let name = || label(&tensor.name);
        if tensor.offset != sum {
            let defect = Defect::OffsetMismatch { name: name(), found: tensor.offset, expected: sum };
            return Err(GgufError::new(*offset_at, defect));
        }
        let padded_size = tensor.size_bytes.checked_next_multiple_of(alignment_bytes).ok_or_else(|| {
            let defect = Defect::PaddedSizeOverflow { name: name(), size: tensor.size_bytes, alignment };
            GgufError::new(*at, defect)
        })?;
        let next = sum
            .checked_add(padded_size)
            .filter(|next| next.checked_add(data_offset).is_some())
            .ok_or_else(|| GgufError::new(*at, Defect::DataSizeOverflow { name: name(), before: sum, padded_size }))?;
        // Both sums are below `data_offset + next`, which fits.
        let end = data_offset + sum + tensor.size_bytes;
        if truncated.is_none() && end > file_len {
            let defect = Defect::DataTruncated { name: name(), needed: end, file_len };
            truncated = Some(GgufError::new((data_offset + sum).min(file_len), defect));
        }
        tensor.offset = data_offset + sum;
        sum = next;
    }
    // Reported last, so that a wrong offset is named even in a file that is also short.
    truncated.map_or(Ok((data_offset, sum)), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
    }

    /// A file with two long vocabularies, a short one between them, and no tensors.
    fn file(word: impl Fn(u64) -> Vec<u8>) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes(), &0_u64.to_le_bytes(), &3_u64.to_le_bytes()].concat();
        for (key, count) in [("long", 900_u64), ("short", 3), ("last", 700)] {
            bytes.extend(string(key.as_bytes()));
            bytes.extend([9_u32, 8].iter().flat_map(|tag| tag.to_le_bytes()));
            bytes.extend(count.to_le_bytes());
            bytes.extend((0..count).flat_map(|i| string(&word(i))));
        }
        bytes
    }

    #[test]
    fn a_pass_that_goes_on_from_an_earlier_one_says_what_a_fresh_one_says() {
        let good = file(|i| vec![b'x'; i as usize % 17]);
        // A length that no string has, in the middle of the second vocabulary.
        let mut bad = good.clone();
        let at = bad.len() - 3000;
        bad[at..at + 32].fill(0xff);
        for (bytes, valid) in [(good, true), (bad, false)] {
            let len = bytes.len() as u64;
            assert_eq!(directory(&bytes, len, &mut Walked::default()).is_ok(), valid);
            for step in [1, 7, 997, 5000] {
                let mut walked = Walked::default();
                for end in (0..=bytes.len()).step_by(step).chain([bytes.len(), bytes.len()]) {
                    let fresh = directory(&bytes[..end], len, &mut Walked::default());
                    let resumed = directory(&bytes[..end], len, &mut walked);
                    match (fresh, resumed) {
                        (Ok(fresh), Ok(resumed)) => {
                            assert_eq!(resumed.header(), fresh.header());
                            assert_eq!(format!("{:?}", resumed.metadata()), format!("{:?}", fresh.metadata()));
                        }
                        (fresh, resumed) => {
                            assert_eq!(resumed.err().map(|e| e.to_string()), fresh.err().map(|e| e.to_string()));
                        }
                    }
                }
                assert!(walked.whole.len() <= 2, "short arrays are not noted");
            }
        }
    }
}
