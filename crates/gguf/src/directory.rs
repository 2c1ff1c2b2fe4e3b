//! What a GGUF file says about itself, header, metadata and tensors.

use std::borrow::Cow;
use std::str::Utf8Error;

use crate::error::GgufError;
use crate::parse;
use crate::types::GgmlType;
use crate::value::Value;

/// The fixed facts of a file. Offsets and sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Number of metadata entries.
    pub metadata_count: u64,
    /// What tensors and the data section are aligned to.
    pub alignment: u32,
    /// Where the last tensor entry ends.
    pub directory_bytes: u64,
    /// Where the data section starts; without tensors, the end of the directory, not padded.
    pub data_offset: u64,
    /// Length of the data section, with the padding after each tensor, the last included, though a file may lack that.
    pub data_bytes: u64,
    /// Length of the file.
    pub file_size: u64,
}

impl Header {
    /// Bytes after the data section. They belong to no tensor and are ignored.
    pub fn trailing_bytes(&self) -> u64 {
        self.file_size.saturating_sub(self.data_offset + self.data_bytes)
    }

    /// Bytes of padding after the last tensor that the file lacks. Readers do without: llama.cpp loads such a file.
    pub fn missing_padding_bytes(&self) -> u64 {
        (self.data_offset + self.data_bytes).saturating_sub(self.file_size)
    }
}

/// A checked GGUF directory; keys and values borrow from the bytes it was read from.
#[derive(Debug, Clone)]
pub struct Directory<'a> {
    pub(crate) header: Header,
    pub(crate) metadata: Vec<MetadataEntry<'a>>,
    pub(crate) tensors: Vec<Tensor>,
}

impl<'a> Directory<'a> {
    /// Reads the directory of a file of `file_len` bytes from its first bytes.
    ///
    /// `bytes` may be a prefix: if it ends inside the directory although the file goes on, the error is
    /// [`Defect::NeedMoreBytes`](crate::Defect::NeedMoreBytes) and says how many bytes the next step needs
    /// (later steps may need more). Bytes beyond `file_len` are not looked at. Tensor data is never read.
    ///
    /// # Errors
    /// One [`Defect`](crate::Defect) per reason; the first in file order, except that the completeness of
    /// the data is judged last.
    pub fn from_bytes(bytes: &'a [u8], file_len: u64) -> Result<Self, GgufError> {
        parse::directory(bytes, file_len, &mut parse::Walked::default())
    }

    /// The fixed facts.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The metadata entries in file order.
    pub fn metadata(&self) -> &[MetadataEntry<'a>] {
        &self.metadata
    }

    /// The value of a metadata key, compared byte by byte.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&Value<'a>> {
        let key = key.as_ref();
        self.metadata.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The tensors in file order, which is also their order in the data section.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of a name, compared byte by byte.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Option<&Tensor> {
        let name = name.as_ref();
        self.tensors.iter().find(|entry| entry.name == name)
    }
}

/// One metadata entry.
#[derive(Debug, Clone, Copy)]
pub struct MetadataEntry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: Value<'a>,
    pub(crate) at: u64,
}

impl<'a> MetadataEntry<'a> {
    /// The key's bytes: at least one, of any kind.
    pub fn key_bytes(&self) -> &'a [u8] {
        self.key
    }

    /// The key as text.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn key(&self) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(self.key)
    }

    /// The value.
    pub fn value(&self) -> &Value<'a> {
        &self.value
    }

    /// Where the entry starts in the file.
    pub fn offset(&self) -> u64 {
        self.at
    }
}

/// A tensor of a file or of a split model. Offsets and sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The name's bytes: 0 to 63, of any kind, control characters included.
    pub name: Vec<u8>,
    /// Elements along each axis, fastest first; 0 to 4 numbers (none: one element).
    pub shape: Vec<u64>,
    /// Its type.
    pub ggml_type: GgmlType,
    /// The file of a split model it lies in, 0-based: an index into [`SplitModel::files`](crate::SplitModel::files).
    pub file_index: usize,
    /// Where the data starts, from the start of its file.
    pub offset: u64,
    /// Bytes of data, without padding.
    pub size_bytes: u64,
}

impl Tensor {
    /// The name as text.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn name(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.name)
    }

    /// The name as text, with the replacement character for what is not UTF-8.
    pub fn name_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The parser has checked that the product fits.
        self.shape.iter().product()
    }
}
