//! Writes GGUF version 3 files and split models. Meant for fixtures and synthetic models: it holds the
//! directory in memory, and tensor data only where the caller hands it over as bytes.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::encode::{self, MetadataValue};
use crate::error::GgufError;
use crate::parse::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use crate::split::{SPLIT_COUNT_KEY, SPLIT_NO_KEY, SPLIT_TENSORS_KEY, ShardName};
use crate::types::GgmlType;

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The sink refused.
    #[error("cannot write GGUF: {0}")]
    Io(#[from] io::Error),
    /// A file could not be created, written or removed.
    #[error("cannot write {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What was asked for is not a valid GGUF file.
    #[error("the file would be invalid: {0}")]
    Invalid(#[from] GgufError),
    /// A tensor's type and shape have no size: partial block or overflow.
    #[error("tensor '{name}' has no size: type {type_name}, shape {shape:?}")]
    NoSize {
        /// The tensor, escaped.
        name: String,
        /// Its type.
        type_name: &'static str,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The data of a tensor is not as long as its type and shape say.
    #[error("data of tensor '{name}': found {found} bytes, expected {expected}")]
    DataSize {
        /// The tensor, escaped.
        name: String,
        /// Bytes given.
        found: u64,
        /// Bytes of the type and shape.
        expected: u64,
    },
    /// A split into no shards, or more than the naming scheme can count.
    #[error("cannot split into {shards} files: expected 1 to 65535")]
    ShardCount {
        /// Number of files asked for.
        shards: usize,
    },
}

/// Where a tensor's bytes come from.
pub enum TensorData<'a> {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// Zeros, of the right length.
    Zeros,
    /// A callback that writes exactly the tensor's bytes to the sink it is given. For models that do not
    /// fit in memory.
    Stream(StreamFn<'a>),
}

type StreamFn<'a> = Box<dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a>;

impl fmt::Debug for TensorData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Zeros => f.write_str("Zeros"),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl From<Vec<u8>> for TensorData<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

#[derive(Debug)]
struct Pending<'a> {
    name: Vec<u8>,
    ggml_type: GgmlType,
    shape: Vec<u64>,
    data: TensorData<'a>,
}

impl Pending<'_> {
    fn size(&self) -> Result<u64, WriteError> {
        self.ggml_type.tensor_bytes(&self.shape).ok_or_else(|| WriteError::NoSize {
            name: crate::error::label(&self.name),
            type_name: self.ggml_type.name(),
            shape: self.shape.clone(),
        })
    }
}

/// Collects metadata and tensors, then writes them in the order given.
///
/// What it writes is checked by this crate's own reader before the first byte leaves.
#[derive(Debug, Default)]
pub struct GgufWriter<'a> {
    alignment: Option<u32>,
    metadata: Vec<(Vec<u8>, MetadataValue)>,
    tensors: Vec<Pending<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// An empty file: version 3, alignment 32.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the alignment and writes `general.alignment` as the first metadata entry.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = Some(alignment);
        self
    }

    /// Adds a metadata entry.
    pub fn metadata(&mut self, key: impl AsRef<[u8]>, value: impl Into<MetadataValue>) -> &mut Self {
        self.metadata.push((key.as_ref().to_vec(), value.into()));
        self
    }

    /// Adds a tensor: its type, shape with the fastest axis first, data.
    pub fn tensor(
        &mut self,
        name: impl AsRef<[u8]>,
        ggml_type: GgmlType,
        shape: &[u64],
        data: impl Into<TensorData<'a>>,
    ) -> &mut Self {
        let (name, shape) = (name.as_ref().to_vec(), shape.to_vec());
        self.tensors.push(Pending { name, ggml_type, shape, data: data.into() });
        self
    }

    /// Writes the file and returns its length in bytes.
    ///
    /// # Errors
    /// If the file would be invalid (nothing is written then), if a tensor's data has another length than
    /// its type and shape say, or if the sink fails.
    pub fn write_to(self, sink: &mut impl Write) -> Result<u64, WriteError> {
        let sizes = self.tensors.iter().map(Pending::size).collect::<Result<Vec<_>, _>>()?;
        let alignment = u64::from(self.alignment.unwrap_or(DEFAULT_ALIGNMENT)).max(1);
        let (head, padding, file_len) = self.head(&sizes, alignment);
        Directory::from_bytes(&head, file_len)?;
        for (tensor, &expected) in self.tensors.iter().zip(&sizes) {
            if let TensorData::Bytes(bytes) = &tensor.data
                && bytes.len() as u64 != expected
            {
                return Err(tensor.data_size(bytes.len() as u64, expected));
            }
        }

        sink.write_all(&head)?;
        zeros(sink, padding)?;
        for (mut tensor, size) in self.tensors.into_iter().zip(sizes) {
            match &mut tensor.data {
                TensorData::Bytes(bytes) => sink.write_all(bytes)?,
                TensorData::Zeros => zeros(sink, size)?,
                TensorData::Stream(callback) => {
                    let mut limited = Limited { sink, written: 0, limit: size };
                    let outcome = callback(&mut limited);
                    let written = limited.written;
                    // A wrong length explains the callback's error better than the error itself.
                    if written > size || (outcome.is_ok() && written < size) {
                        return Err(tensor.data_size(written, size));
                    }
                    outcome?;
                }
            }
            // The reader has found every padded size to fit.
            zeros(sink, size.next_multiple_of(alignment) - size)?;
        }
        Ok(file_len)
    }

    /// Writes a new file and returns its length. An existing file is refused; after an error none is left.
    ///
    /// The file grows under its final name: this is for fixtures, not for publishing to other readers.
    pub fn write_file(self, path: impl AsRef<Path>) -> Result<u64, WriteError> {
        let path = path.as_ref();
        let file_error = |source| WriteError::File { path: path.to_owned(), source };
        let file = File::create_new(path).map_err(file_error)?;
        let mut sink = BufWriter::with_capacity(1 << 20, file);
        let outcome = self
            .write_to(&mut sink)
            .and_then(|length| sink.flush().map(|()| length).map_err(WriteError::Io))
            .map_err(|error| match error {
                WriteError::Io(source) => file_error(source),
                other => other,
            });
        if outcome.is_err() {
            // What is in the buffer must not be written by its drop.
            let _ = sink.into_parts();
            // The first error matters more than a failure to clean up.
            let _ = fs::remove_file(path);
        }
        outcome
    }

    /// Writes a split model into `folder` as `prefix-0000I-of-0000N.gguf`, with at most `tensors_per_shard`
    /// tensors per file, and returns the paths in order. All metadata goes to the first file; the three
    /// split keys go to every file. After an error none of the files is left.
    pub fn write_split(
        self,
        folder: impl AsRef<Path>,
        prefix: &str,
        tensors_per_shard: usize,
    ) -> Result<Vec<PathBuf>, WriteError> {
        let total = self.tensors.len();
        let shards = total.div_ceil(tensors_per_shard.max(1)).max(1);
        let (Ok(count), Ok(total_key)) = (u16::try_from(shards), i32::try_from(total)) else {
            return Err(WriteError::ShardCount { shards });
        };
        let mut tensors = self.tensors.into_iter();
        let mut metadata = self.metadata;
        let mut written = Vec::new();
        for no in 0..count {
            let mut shard = GgufWriter {
                alignment: self.alignment,
                metadata: std::mem::take(&mut metadata),
                tensors: tensors.by_ref().take(tensors_per_shard.max(1)).collect(),
            };
            shard.metadata(SPLIT_NO_KEY, no).metadata(SPLIT_COUNT_KEY, count).metadata(SPLIT_TENSORS_KEY, total_key);
            let name = ShardName { prefix: prefix.to_owned(), number: no + 1, count };
            let path = folder.as_ref().join(name.to_string());
            if let Err(error) = shard.write_file(&path) {
                for path in written {
                    let _ = fs::remove_file(path);
                }
                return Err(error);
            }
            written.push(path);
        }
        Ok(written)
    }

    /// The directory, the length of the padding after it, and the length of the whole file. Sums that
    /// overflow are left to the reader's check to refuse.
    fn head(&self, sizes: &[u64], alignment: u64) -> (Vec<u8>, u64, u64) {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        let entries = self.metadata.len() + usize::from(self.alignment.is_some());
        out.extend_from_slice(&(entries as u64).to_le_bytes());
        if let Some(alignment) = self.alignment {
            encode::string(&mut out, ALIGNMENT_KEY.as_bytes());
            MetadataValue::U32(alignment).encode(&mut out);
        }
        for (key, value) in &self.metadata {
            encode::string(&mut out, key);
            value.encode(&mut out);
        }
        let mut offset = 0_u64;
        for (tensor, &size) in self.tensors.iter().zip(sizes) {
            encode::string(&mut out, &tensor.name);
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            for n in &tensor.shape {
                out.extend_from_slice(&n.to_le_bytes());
            }
            out.extend_from_slice(&tensor.ggml_type.id().to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset = offset.saturating_add(size.checked_next_multiple_of(alignment).unwrap_or(u64::MAX));
        }
        let length = out.len() as u64;
        let data_offset = if self.tensors.is_empty() { length } else { length.next_multiple_of(alignment) };
        (out, data_offset - length, data_offset.saturating_add(offset))
    }
}

impl Pending<'_> {
    fn data_size(&self, found: u64, expected: u64) -> WriteError {
        WriteError::DataSize { name: crate::error::label(&self.name), found, expected }
    }
}

fn zeros(sink: &mut impl Write, mut n: u64) -> io::Result<()> {
    const CHUNK: [u8; 4096] = [0; 4096];
    while n > 0 {
        let part = n.min(CHUNK.len() as u64);
        sink.write_all(&CHUNK[..part as usize])?;
        n -= part;
    }
    Ok(())
}

/// Passes on what a callback writes, counts it, and stops it at the tensor's size.
struct Limited<'s, W> {
    sink: &'s mut W,
    written: u64,
    limit: u64,
}

impl<W: Write> Write for Limited<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.limit.saturating_sub(self.written) {
            self.written = self.written.saturating_add(bytes.len() as u64);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more data than the tensor has"));
        }
        let n = self.sink.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
