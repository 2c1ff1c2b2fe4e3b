//! Strict, zero-copy reader of GGUF directories, and a writer for fixtures.
//!
//! # Vocabulary
//! A GGUF file holds a model for llama.cpp: a *header*, *metadata* (keys with typed values), one *entry*
//! per tensor, and the *data section* with the tensors' bytes. Header, metadata and entries together are
//! the *directory*. This crate reads the directory and proves the geometry: every tensor lies inside the
//! file, exactly where the sizes before it put it. Tensor data is read when it is asked for.
//!
//! - [`Directory::from_bytes`] reads from memory: the whole file or its first bytes.
//! - [`GgufFile::open`] reads from a path, no more of it than the directory needs.
//! - [`SplitModel::open`] finds the sibling files of a split model and joins them.
//! - [`GgufWriter`] writes files and splits, with data from memory or from a callback.
//! - [`GgmlType`] is the table of ggml's tensor types.
//!
//! # Example
//! ```
//! use b70_gguf::{Directory, GgmlType, GgufWriter, Value};
//!
//! let mut writer = GgufWriter::new();
//! writer.metadata("general.architecture", "llama");
//! writer.tensor("weight", GgmlType::Q4_0, &[64, 2], vec![0; 72]);
//! let mut bytes = Vec::new();
//! writer.write_to(&mut bytes)?;
//!
//! let directory = Directory::from_bytes(&bytes, bytes.len() as u64)?;
//! assert_eq!(directory.get("general.architecture").and_then(Value::as_str), Some("llama"));
//! let tensor = &directory.tensors()[0];
//! assert_eq!((&tensor.shape[..], tensor.size_bytes), (&[64, 2][..], 72));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! - Versions 2 and 3, little-endian. Version 1 and big-endian files are refused with their own reasons.
//! - Strings up to 1 GiB, arrays up to 2^30 elements, no arrays of arrays, four dimensions, tensor names of
//!   63 bytes: the limits of llama.cpp b11434, whose verdicts this reader shares but for one class of
//!   files it accepts (see [`Defect::RowSizeWraps`]). `docs/formats/gguf.md` lists the doubtful cases.
//! - Memory is bounded by a small multiple of the bytes given; [`GgufFile`] reads at most
//!   [`DEFAULT_DIRECTORY_LIMIT`] of them unless told otherwise.
//! - Whether tensor data makes sense (finite scales, say) is not looked at.

#![forbid(unsafe_code)]

mod directory;
mod encode;
mod error;
mod file;
mod parse;
mod split;
mod split_error;
mod types;
mod value;
mod writer;

pub use directory::{Directory, Header, MetadataEntry, Tensor};
pub use encode::{MetadataArray, MetadataValue};
pub use error::{Defect, Field, GgufError, Impostor};
pub use file::{DEFAULT_DIRECTORY_LIMIT, GgufFile, OpenError};
pub use split::{ShardName, SplitModel};
pub use split_error::SplitError;
pub use types::GgmlType;
pub use value::{Array, ArrayIter, Value, ValueType};
pub use writer::{GgufWriter, TensorData, WriteError};
