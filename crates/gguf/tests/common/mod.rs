//! A builder of GGUF bytes that knows no rules, so that it can break each of them.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod invariants;

use b70_gguf::{Defect, Directory, GgufError};

/// A tensor entry to be written as given.
#[derive(Clone)]
pub(crate) struct RawTensor {
    pub(crate) name: Vec<u8>,
    pub(crate) n_dims: Option<u32>,
    pub(crate) dims: Vec<i64>,
    pub(crate) type_id: i32,
    pub(crate) offset: u64,
}

pub(crate) fn raw_tensor(name: &str, dims: &[i64], type_id: i32, offset: u64) -> RawTensor {
    RawTensor { name: name.into(), n_dims: None, dims: dims.to_vec(), type_id, offset }
}

/// A whole file to be written as given.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<i64>,
    pub(crate) metadata_count: Option<i64>,
    /// Encoded entries.
    pub(crate) metadata: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<RawTensor>,
    pub(crate) alignment: usize,
    pub(crate) data_bytes: usize,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data_bytes: 0,
        }
    }
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A metadata entry: key, type tag, encoded value.
pub(crate) fn entry(key: &[u8], tag: i32, value: &[u8]) -> Vec<u8> {
    let mut out = string(key);
    out.extend_from_slice(&tag.to_le_bytes());
    out.extend_from_slice(value);
    out
}

/// An array value: element type tag, count, encoded elements.
pub(crate) fn array(tag: i32, count: u64, elements: &[u8]) -> Vec<u8> {
    let mut out = tag.to_le_bytes().to_vec();
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(elements);
    out
}

impl Raw {
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.tensor_count.unwrap_or(self.tensors.len() as i64).to_le_bytes());
        out.extend_from_slice(&self.metadata_count.unwrap_or(self.metadata.len() as i64).to_le_bytes());
        self.metadata.iter().for_each(|entry| out.extend_from_slice(entry));
        for tensor in &self.tensors {
            out.extend_from_slice(&string(&tensor.name));
            out.extend_from_slice(&tensor.n_dims.unwrap_or(tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
            out.extend_from_slice(&tensor.type_id.to_le_bytes());
            out.extend_from_slice(&tensor.offset.to_le_bytes());
        }
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend((0..self.data_bytes).map(|i| i as u8));
        out
    }

    /// The verdict on this file, given whole.
    pub(crate) fn verdict(&self) -> Result<(), GgufError> {
        let bytes = self.bytes();
        invariants::check(&bytes, bytes.len() as u64).map(|_| ())
    }

    /// The reason for refusal; panics if the file is accepted.
    pub(crate) fn defect(&self) -> Defect {
        self.verdict().expect_err("the file must be refused").defect().clone()
    }
}

/// The variant's name of a defect.
pub(crate) fn defect_name(defect: &Defect) -> String {
    let text = format!("{defect:?}");
    text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
}

/// A small valid file with every value type and four tensors, alignment 64.
pub(crate) fn sample() -> Vec<u8> {
    use b70_gguf::{GgmlType, GgufWriter};
    let mut writer = GgufWriter::new();
    writer
        .alignment(64)
        .metadata("u8", 200_u8)
        .metadata("i8", -2_i8)
        .metadata("u16", 60_000_u16)
        .metadata("i16", -300_i16)
        .metadata("u32", 4_000_000_000_u32)
        .metadata("i32", -70_000_i32)
        .metadata("f32", 1.5_f32)
        .metadata("bool", true)
        .metadata("string", "naïve")
        .metadata("u64", u64::MAX)
        .metadata("i64", i64::MIN)
        .metadata("f64", -0.1_f64)
        .metadata("array.i16", vec![1_i16, -1, 300])
        .metadata("array.string", vec!["a".to_owned(), String::new(), "ccc".to_owned()])
        .metadata("array.bool", vec![true, false])
        .metadata("array.empty", Vec::<f64>::new())
        .tensor("q", GgmlType::Q4_0, &[64, 3], (0..108_u8).collect::<Vec<u8>>())
        .tensor("norm", GgmlType::F32, &[5], vec![7; 20])
        .tensor("nothing", GgmlType::F16, &[4, 0], Vec::new())
        .tensor("cube", GgmlType::I8, &[2, 3, 4, 5], vec![9; 120]);
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("the sample is valid");
    assert!(Directory::from_bytes(&bytes, bytes.len() as u64).is_ok());
    bytes
}
