//! What a GGUF file says about itself, borrowed from its bytes or owned.

use std::borrow::Cow;
use std::str::Utf8Error;

use crate::error::GgufError;
use crate::parse::{self, MAX_DIMENSIONS};
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

/// A checked GGUF directory; names, keys and values borrow from the bytes it was read from.
#[derive(Debug, Clone)]
pub struct Directory<'a> {
    pub(crate) header: Header,
    pub(crate) metadata: Vec<MetadataEntry<'a>>,
    pub(crate) tensors: Vec<TensorEntry<'a>>,
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
    pub fn tensors(&self) -> &[TensorEntry<'a>] {
        &self.tensors
    }

    /// The tensor of a name, compared byte by byte.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Option<&TensorEntry<'a>> {
        let name = name.as_ref();
        self.tensors.iter().find(|entry| entry.name == name)
    }

    /// Header and tensors as plain data that outlives the bytes; the metadata stays behind.
    pub fn to_owned_directory(&self) -> OwnedDirectory {
        OwnedDirectory { header: self.header, tensors: self.tensors.iter().map(TensorEntry::to_info).collect() }
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

/// One tensor entry, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct TensorEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) dims: [u64; MAX_DIMENSIONS],
    pub(crate) n_dims: u8,
    pub(crate) ty: &'static GgmlType,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) at: u64,
    pub(crate) offset_at: u64,
    pub(crate) data_offset: u64,
}

impl<'a> TensorEntry<'a> {
    /// The name's bytes: 0 to 63, of any kind, control characters included.
    pub fn name_bytes(&self) -> &'a [u8] {
        self.name
    }

    /// The name as text.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn name(&self) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(self.name)
    }

    /// Elements along each axis, fastest first; the file's own 0 to 4 numbers (none: one element).
    pub fn shape(&self) -> &[u64] {
        &self.dims[..usize::from(self.n_dims)]
    }

    /// The type.
    pub fn ggml_type(&self) -> &'static GgmlType {
        self.ty
    }

    /// Where the data starts, from the start of the data section.
    pub fn offset_in_data(&self) -> u64 {
        self.offset
    }

    /// Where the data starts, from the start of the file.
    pub fn absolute_offset(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of data, without padding.
    pub fn size_bytes(&self) -> u64 {
        self.size
    }

    /// Where the entry starts in the file.
    pub fn entry_offset(&self) -> u64 {
        self.at
    }

    /// This entry as plain data.
    pub fn to_info(&self) -> TensorInfo {
        TensorInfo {
            name: self.name.to_vec(),
            shape: self.shape().to_vec(),
            type_id: self.ty.id,
            type_name: self.ty.name(),
            offset_in_data: self.offset,
            absolute_offset: self.data_offset,
            size_bytes: self.size,
        }
    }
}

/// Header and tensors of a file, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedDirectory {
    /// The fixed facts.
    pub header: Header,
    /// The tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

impl OwnedDirectory {
    /// The tensor of a name, compared byte by byte.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Option<&TensorInfo> {
        let name = name.as_ref();
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// One tensor, as plain data. Offsets and sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name's bytes: 0 to 63, of any kind, control characters included.
    pub name: Vec<u8>,
    /// Elements along each axis, fastest first; 0 to 4 numbers (none: one element).
    pub shape: Vec<u64>,
    /// ggml's number for the type.
    pub type_id: u32,
    /// The type's short name, for example `Q4_0`.
    pub type_name: &'static str,
    /// Where the data starts, from the start of the data section.
    pub offset_in_data: u64,
    /// Where the data starts, from the start of the file.
    pub absolute_offset: u64,
    /// Bytes of data, without padding.
    pub size_bytes: u64,
}

impl TensorInfo {
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
