//! Why bytes are not an acceptable GGUF: one [`Defect`] per reason, with the place, what was found and
//! what was expected.

use std::fmt;

use crate::value::ValueType;

/// A refusal: the defect and the file offset of the field that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufError {
    at: u64,
    // Boxed to keep the results of every small reading step small.
    defect: Box<Defect>,
}

impl GgufError {
    pub(crate) fn new(at: u64, defect: Defect) -> Self {
        Self { at, defect: Box::new(defect) }
    }

    /// Offset in the file, in bytes, of the field at fault.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// The reason.
    pub fn defect(&self) -> &Defect {
        &self.defect
    }

    /// What was found there, for a message or an error document.
    pub fn found(&self) -> String {
        self.defect.describe().found
    }

    /// What a good file has there.
    pub fn expected(&self) -> String {
        self.defect.describe().expected
    }

    /// If the bytes given were only a prefix and too short: the prefix length needed to go on.
    ///
    /// The file itself may still be good; every other error is final.
    pub fn needed_bytes(&self) -> Option<u64> {
        match *self.defect {
            Defect::NeedMoreBytes { needed, .. } => Some(needed),
            _ => None,
        }
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { title, subject, found, expected } = self.defect.describe();
        write!(f, "{title}")?;
        if let Some(subject) = subject {
            write!(f, " ('{subject}')")?;
        }
        write!(f, " at byte {}: found {found}, expected {expected}", self.at)
    }
}

impl std::error::Error for GgufError {}

/// The field being read when the bytes ran out, or the string that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The four bytes `GGUF`.
    Magic,
    /// Format version.
    Version,
    /// Number of tensors.
    TensorCount,
    /// Number of metadata entries.
    MetadataCount,
    /// A metadata key.
    Key,
    /// The type tag of a metadata value.
    ValueType,
    /// A metadata value.
    Value,
    /// The element type of an array value.
    ElementType,
    /// The element count of an array value.
    ElementCount,
    /// A string inside an array value.
    Element,
    /// A tensor's name.
    TensorName,
    /// A tensor's number of dimensions.
    DimensionCount,
    /// A tensor's dimensions.
    Dimension,
    /// A tensor's type.
    TensorType,
    /// A tensor's offset in the data section.
    TensorOffset,
}

impl Field {
    /// The field's name in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Magic => "magic",
            Self::Version => "version",
            Self::TensorCount => "tensor count",
            Self::MetadataCount => "metadata count",
            Self::Key => "metadata key",
            Self::ValueType => "value type",
            Self::Value => "metadata value",
            Self::ElementType => "array element type",
            Self::ElementCount => "array element count",
            Self::Element => "array element",
            Self::TensorName => "tensor name",
            Self::DimensionCount => "dimension count",
            Self::Dimension => "dimension",
            Self::TensorType => "tensor type",
            Self::TensorOffset => "tensor offset",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every reason to refuse. Keys and names are escaped and shortened for display.
///
/// Lengths, sizes and offsets are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the variant's line says, in its order")]
pub enum Defect {
    /// The prefix ends inside the directory although the file goes on: not a verdict on the file.
    NeedMoreBytes { present: u64, needed: u64 },
    /// The file ends inside a field of fixed size.
    Truncated { field: Field, needed: u64, remaining: u64 },

    /// The first four bytes are not `GGUF`.
    BadMagic { found: [u8; 4] },
    /// The file is something that people often have in a model's place.
    NotAModel { what: Impostor },
    /// Version 0.
    VersionZero,
    /// The version's low half is zero: written on a machine of the other byte order.
    ByteOrder { found: u32 },
    /// Version 1, whose counts and lengths had another width.
    VersionOne,
    /// A version after 3.
    VersionTooNew { found: u32 },
    /// The tensor count is negative as the signed number it is.
    TensorCountNegative { found: i64 },
    /// The metadata count is negative as the signed number it is.
    MetadataCountNegative { found: i64 },
    /// The file has fewer bytes left than this many tensor entries need at least.
    TensorCountPastEnd { found: u64, minimum_bytes: u128, remaining: u64 },
    /// The file has fewer bytes left than this many metadata entries need at least.
    MetadataCountPastEnd { found: u64, minimum_bytes: u128, remaining: u64 },

    /// A string's length exceeds the format's limit of 1 GiB.
    StringTooLong { field: Field, length: u64 },
    /// A string reaches past the end of the file.
    StringPastEnd { field: Field, length: u64, remaining: u64 },
    /// A metadata key without a byte.
    EmptyKey,
    /// A metadata key used twice.
    DuplicateKey { key: String, first_at: u64 },
    /// A value type that does not exist.
    UnknownValueType { key: String, found: i32 },
    /// An array element type that does not exist.
    UnknownElementType { key: String, found: i32 },
    /// An array whose elements are arrays.
    NestedArray { key: String },
    /// An array with more elements than the limit of 2^30.
    ArrayTooLong { key: String, count: u64 },
    /// An array reaches past the end of the file.
    ArrayPastEnd { key: String, count: u64, element_bytes: u64, remaining: u64 },
    /// `general.alignment` is not a u32.
    AlignmentType { found: ValueType },
    /// `general.alignment` is 0 or not a power of two.
    AlignmentNotPowerOfTwo { found: u32 },

    /// A tensor name of 64 bytes or more.
    TensorNameTooLong { length: u64 },
    /// A tensor name used twice.
    DuplicateTensor { name: String, first_at: u64 },
    /// More than four dimensions.
    TooManyDimensions { name: String, found: u32 },
    /// A dimension that is negative as the signed number it is.
    NegativeDimension { name: String, axis: u32, found: i64 },
    /// The product of the dimensions leaves i64.
    ElementCountOverflow { name: String, shape: Vec<u64> },
    /// A tensor type that does not exist.
    UnknownTensorType { name: String, found: i32 },
    /// A tensor type that ggml has withdrawn.
    RemovedTensorType { name: String, id: u32, former_name: &'static str },
    /// A row that is not a whole number of the type's blocks.
    PartialBlock { name: String, type_name: &'static str, row_elements: u64, block_elements: u64 },
    /// A row for which multiplying before dividing leaves u64: readers that do so compute another size.
    RowSizeWraps { name: String, type_name: &'static str, row_elements: u64, row_bytes: u64, wrapped_bytes: u64 },
    /// A tensor's size leaves u64.
    TensorSizeOverflow { name: String, type_name: &'static str, shape: Vec<u64> },
    /// A tensor's size leaves u64 when padded to the alignment.
    PaddedSizeOverflow { name: String, size: u64, alignment: u32 },
    /// The sum of the padded tensor sizes, or the end of the data in the file, leaves u64.
    DataSizeOverflow { name: String, before: u64, padded_size: u64 },
    /// A tensor does not start where the one before it (padded) ends.
    OffsetMismatch { name: String, found: u64, expected: u64 },
    /// The data section would start past the end of the file.
    DataStartPastEnd { data_offset: u64, file_len: u64 },
    /// The file ends before this tensor's data does.
    DataTruncated { name: String, needed: u64, file_len: u64 },
}

pub(crate) struct Description {
    title: &'static str,
    subject: Option<String>,
    found: String,
    expected: String,
}

/// What is often found under a model's name, told by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Impostor {
    /// What Git has in a large file's place until Git LFS fetches it.
    GitLfsPointer,
    /// A page of a web site.
    Html,
    /// An answer of a server, usually an error.
    Json,
    /// A model in a format of before August 2023.
    Ggml,
    /// A zip archive; checkpoints of `PyTorch` are some.
    Zip,
    /// Compressed by gzip.
    Gzip,
    /// A model in the safetensors format.
    Safetensors,
}

impl Impostor {
    /// Looks at the first bytes of a file that is not a GGUF file.
    pub fn of(prefix: &[u8]) -> Option<Self> {
        let text = prefix.trim_ascii_start();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        // A safetensors file starts with the length of its header, which is a JSON object.
        let safetensors = prefix.get(8) == Some(&b'{') && prefix[5..8] == [0; 3];
        Some(match prefix {
            _ if starts(b"version https://git-lfs.github.com/spec/") => Self::GitLfsPointer,
            _ if [&b"<!doctype"[..], b"<html", b"<head"].iter().any(|word| starts(word)) => Self::Html,
            // Numbers that were written as integers: their letters stand in the other order.
            [b'l' | b'f' | b'a', b'm' | b'l', b'g', b'g', ..] | [b't', b'j', b'g', b'g', ..] => Self::Ggml,
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            [0x1f, 0x8b, ..] => Self::Gzip,
            _ if safetensors => Self::Safetensors,
            _ if starts(b"{") || starts(b"[") => Self::Json,
            _ => return None,
        })
    }

    /// What it is.
    pub fn name(self) -> &'static str {
        match self {
            Self::GitLfsPointer => "a Git LFS pointer",
            Self::Html => "an HTML page",
            Self::Json => "a JSON text, perhaps a server's error message",
            Self::Ggml => "a GGML, GGMF or GGJT file of before August 2023",
            Self::Zip => "a zip archive",
            Self::Gzip => "a gzip file",
            Self::Safetensors => "a safetensors file",
        }
    }

    /// How one gets the model instead.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::GitLfsPointer => "fetch it: git lfs pull",
            Self::Html => "download the file itself: /resolve/ instead of /blob/ in the address",
            Self::Json => "look at the text, and download again",
            Self::Ggml => "download the model as GGUF; its converter is long gone",
            Self::Zip => "unpack it, or convert the checkpoint with convert_hf_to_gguf.py",
            Self::Gzip => "unpack it: gunzip",
            Self::Safetensors => "convert it with convert_hf_to_gguf.py",
        }
    }
}

impl Defect {
    /// Whether this concerns what a tensor is (its type, its dimensions, its place), and nothing that must hold to find
    /// the directory's parts: a program that moves the bytes as they are can do without.
    pub fn concerns_tensors(&self) -> bool {
        matches!(
            self,
            Self::TooManyDimensions { .. }
                | Self::UnknownTensorType { .. }
                | Self::RemovedTensorType { .. }
                | Self::PartialBlock { .. }
                | Self::RowSizeWraps { .. }
                | Self::OffsetMismatch { .. }
                | Self::NegativeDimension { .. }
                | Self::ElementCountOverflow { .. }
                | Self::TensorSizeOverflow { .. }
        )
    }

    fn describe(&self) -> Description {
        let line = |title, subject: Option<&String>, found, expected| Description {
            title,
            subject: subject.cloned(),
            found,
            expected,
        };
        match self {
            Self::NeedMoreBytes { present, needed } => line(
                "directory continues past the given prefix",
                None,
                format!("a prefix of {present} bytes"),
                format!("at least {needed} bytes"),
            ),
            Self::Truncated { field, needed, remaining } => line(
                "file ends inside the directory",
                None,
                format!("{remaining} bytes left"),
                format!("{needed} bytes of {field}"),
            ),
            Self::BadMagic { found } => {
                line("not a GGUF file: wrong magic", None, format!("'{}'", found.escape_ascii()), "'GGUF'".to_owned())
            }
            Self::NotAModel { what } => {
                line("not a GGUF file", None, what.name().to_owned(), format!("a model ({})", what.remedy()))
            }
            Self::VersionZero => line("unsupported version", None, "0".to_owned(), "2 or 3".to_owned()),
            Self::ByteOrder { found } => line(
                "byte order is big-endian",
                None,
                format!("version {found:#010x}"),
                "a little-endian file of version 2 or 3 (convert it with gguf-convert-endian)".to_owned(),
            ),
            Self::VersionOne => line(
                "version 1 is no longer supported",
                None,
                "1".to_owned(),
                "2 or 3 (convert the model again with a current tool)".to_owned(),
            ),
            Self::VersionTooNew { found } => {
                line("version is newer than this reader", None, found.to_string(), "2 or 3".to_owned())
            }
            Self::TensorCountNegative { found } => {
                line("negative tensor count", None, found.to_string(), "0 or more".to_owned())
            }
            Self::MetadataCountNegative { found } => {
                line("negative metadata count", None, found.to_string(), "0 or more".to_owned())
            }
            Self::TensorCountPastEnd { found, minimum_bytes, remaining } => line(
                "tensor count does not fit the file",
                None,
                format!("{found} tensors, which need {minimum_bytes} bytes or more"),
                format!("entries that fit the {remaining} bytes left"),
            ),
            Self::MetadataCountPastEnd { found, minimum_bytes, remaining } => line(
                "metadata count does not fit the file",
                None,
                format!("{found} entries, which need {minimum_bytes} bytes or more"),
                format!("entries that fit the {remaining} bytes left"),
            ),
            Self::StringTooLong { field, length } => line(
                "string is too long",
                Some(&field.to_string()),
                format!("{length} bytes"),
                format!("{} bytes at most", crate::parse::MAX_STRING_BYTES),
            ),
            Self::StringPastEnd { field, length, remaining } => line(
                "string reaches past the end of the file",
                Some(&field.to_string()),
                format!("{length} bytes"),
                format!("at most the {remaining} bytes left"),
            ),
            Self::EmptyKey => line("empty metadata key", None, "0 bytes".to_owned(), "1 byte or more".to_owned()),
            Self::DuplicateKey { key, first_at } => line(
                "duplicate metadata key",
                Some(key),
                "a second entry".to_owned(),
                format!("only the one at byte {first_at}"),
            ),
            Self::UnknownValueType { key, found } => {
                line("unknown value type", Some(key), found.to_string(), "0 to 12".to_owned())
            }
            Self::UnknownElementType { key, found } => {
                line("unknown array element type", Some(key), found.to_string(), "0 to 8 or 10 to 12".to_owned())
            }
            Self::NestedArray { key } => line(
                "nested array",
                Some(key),
                "elements of type array (9)".to_owned(),
                "elements that are scalars or strings".to_owned(),
            ),
            Self::ArrayTooLong { key, count } => line(
                "array is too long",
                Some(key),
                format!("{count} elements"),
                format!("{} elements at most", crate::parse::MAX_ARRAY_ELEMENTS),
            ),
            Self::ArrayPastEnd { key, count, element_bytes, remaining } => line(
                "array reaches past the end of the file",
                Some(key),
                format!("{count} elements of {element_bytes} bytes or more"),
                format!("at most the {remaining} bytes left"),
            ),
            Self::AlignmentType { found } => {
                line("general.alignment has the wrong type", None, found.to_string(), "u32".to_owned())
            }
            Self::AlignmentNotPowerOfTwo { found } => {
                line("general.alignment is unusable", None, found.to_string(), "a power of two".to_owned())
            }
            Self::TensorNameTooLong { length } => {
                line("tensor name is too long", None, format!("{length} bytes"), "63 bytes at most".to_owned())
            }
            Self::DuplicateTensor { name, first_at } => line(
                "duplicate tensor name",
                Some(name),
                "a second entry".to_owned(),
                format!("only the one at byte {first_at}"),
            ),
            Self::TooManyDimensions { name, found } => {
                line("too many dimensions", Some(name), found.to_string(), "4 at most".to_owned())
            }
            Self::NegativeDimension { name, axis, found } => {
                line("negative dimension", Some(name), format!("{found} on axis {axis}"), "0 or more".to_owned())
            }
            Self::ElementCountOverflow { name, shape } => line(
                "element count overflows",
                Some(name),
                format!("shape {shape:?}"),
                format!("fewer than {} elements", i64::MAX),
            ),
            Self::UnknownTensorType { name, found } => line(
                "unknown tensor type",
                Some(name),
                format!("{found}, of a newer ggml or of a fork"),
                "a ggml type, 0 to 42".to_owned(),
            ),
            Self::RemovedTensorType { name, id, former_name } => line(
                "removed tensor type",
                Some(name),
                format!("{id} (once {former_name})"),
                "a type ggml still has (quantise the model again)".to_owned(),
            ),
            Self::PartialBlock { name, type_name, row_elements, block_elements } => line(
                "row is not a whole number of blocks",
                Some(name),
                format!("{row_elements} elements of {type_name}"),
                format!("a multiple of {block_elements}"),
            ),
            Self::RowSizeWraps { name, type_name, row_elements, row_bytes, wrapped_bytes } => line(
                "row size wraps in readers that multiply first",
                Some(name),
                format!(
                    "{row_elements} elements of {type_name}, which are {row_bytes} bytes but pass for {wrapped_bytes}"
                ),
                "a row whose elements times block bytes fit 64 bits".to_owned(),
            ),
            Self::TensorSizeOverflow { name, type_name, shape } => line(
                "tensor size overflows",
                Some(name),
                format!("shape {shape:?} of {type_name}"),
                "a size that fits 64 bits".to_owned(),
            ),
            Self::PaddedSizeOverflow { name, size, alignment } => line(
                "padded tensor size overflows",
                Some(name),
                format!("{size} bytes before padding to {alignment}"),
                "a padded size that fits 64 bits".to_owned(),
            ),
            Self::DataSizeOverflow { name, before, padded_size } => line(
                "data section size overflows",
                Some(name),
                format!("{padded_size} bytes after {before} bytes"),
                "a sum that fits 64 bits".to_owned(),
            ),
            Self::OffsetMismatch { name, found, expected } => line(
                "tensor offset out of sequence",
                Some(name),
                found.to_string(),
                format!("{expected}, the end of the tensors before it"),
            ),
            Self::DataStartPastEnd { data_offset, file_len } => line(
                "data section is missing",
                None,
                format!("a file of {file_len} bytes"),
                format!("data from byte {data_offset}"),
            ),
            Self::DataTruncated { name, needed, file_len } => line(
                "tensor data is truncated",
                Some(name),
                format!("a file of {file_len} bytes"),
                format!("{needed} bytes or more"),
            ),
        }
    }
}

/// Bytes of a key or name as a message may show them: escaped, and shortened if long.
pub(crate) fn label(bytes: &[u8]) -> String {
    const SHOWN: usize = 96;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= SHOWN => return text.escape_debug().to_string(),
        _ => bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string(),
    };
    if bytes.len() > SHOWN { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}
