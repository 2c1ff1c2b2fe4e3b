//! Why the files of a split model do not make one model.

use std::path::{Path, PathBuf};

use crate::file::OpenError;
use crate::value::ValueType;

/// A refusal of a split model. Every variant names the file at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// One of the files cannot be opened or is not a valid GGUF file.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A sibling file is not there.
    #[error(
        "shard {number} of {count} is missing: expected {} beside the others (is the download complete?)",
        path.display()
    )]
    MissingShard {
        /// Where it should be.
        path: PathBuf,
        /// Its number, from 1.
        number: u16,
        /// Number of shards.
        count: u16,
    },
    /// The metadata says split, the file name does not.
    #[error(
        "{} says it is one of {count} shards, expected a name like PREFIX-00001-of-{count:05}.gguf \
         (restore the name it was published under)",
        path.display()
    )]
    NameNotSplit {
        /// The file.
        path: PathBuf,
        /// Its `split.count`.
        count: u16,
    },
    /// The name says split into several files, the metadata lacks a split key.
    #[error("{} is named as a shard, but has no key {key}", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A split key has another type than llama.cpp writes and reads.
    #[error("{}: {key} is of type {found}, expected {expected}", path.display())]
    KeyType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its type.
        found: ValueType,
        /// The type it should have.
        expected: ValueType,
    },
    /// `split.no` (from 0) and the number in the name (from 1) disagree.
    #[error("{}: split.no is {found}, expected {expected} by the file's name", path.display())]
    NumberDisagrees {
        /// The file.
        path: PathBuf,
        /// Its `split.no`.
        found: u16,
        /// The number in its name, less one.
        expected: u16,
    },
    /// `split.count` and the count in the name disagree.
    #[error("{}: split.count is {found}, expected {expected} by the file's name", path.display())]
    CountDisagrees {
        /// The file.
        path: PathBuf,
        /// Its `split.count`.
        found: u16,
        /// The count in its name.
        expected: u16,
    },
    /// `split.tensors.count` is negative or not that of the first shard.
    #[error("{}: split.tensors.count is {found}, expected {expected} as in the first shard", path.display())]
    TotalDisagrees {
        /// The file.
        path: PathBuf,
        /// Its `split.tensors.count`.
        found: i32,
        /// That of the first shard.
        expected: i32,
    },
    /// The tensors of all files are not as many as announced.
    #[error("{}: split.tensors.count is {expected}, but all files together have {found} tensors", path.display())]
    TensorTotal {
        /// The first shard.
        path: PathBuf,
        /// Tensors found.
        found: u64,
        /// Tensors announced.
        expected: i32,
    },
    /// A tensor is in two shards.
    #[error("tensor '{name}' is in {} and again in {}", first.display(), path.display())]
    DuplicateTensor {
        /// The later file.
        path: PathBuf,
        /// The earlier file.
        first: PathBuf,
        /// The tensor, escaped.
        name: String,
    },
    /// A later shard repeats a metadata key of the first with another value: the files are of two models.
    #[error("{}: {key} differs from {} (shards of different models?)", path.display(), first.display())]
    MetadataDisagrees {
        /// The later file.
        path: PathBuf,
        /// The first shard.
        first: PathBuf,
        /// The key, escaped.
        key: String,
    },
    /// Shards of different format versions.
    #[error("{}: version {found}, expected {expected} as in {}", path.display(), first.display())]
    VersionDisagrees {
        /// The later file.
        path: PathBuf,
        /// The first shard.
        first: PathBuf,
        /// Its version.
        found: u32,
        /// The first shard's version.
        expected: u32,
    },
}

impl SplitError {
    /// The file at fault, or the place of a missing one.
    pub fn path(&self) -> &Path {
        match self {
            Self::Open(error) => error.path(),
            Self::MissingShard { path, .. }
            | Self::NameNotSplit { path, .. }
            | Self::MissingKey { path, .. }
            | Self::KeyType { path, .. }
            | Self::NumberDisagrees { path, .. }
            | Self::CountDisagrees { path, .. }
            | Self::TotalDisagrees { path, .. }
            | Self::TensorTotal { path, .. }
            | Self::DuplicateTensor { path, .. }
            | Self::MetadataDisagrees { path, .. }
            | Self::VersionDisagrees { path, .. } => path,
        }
    }
}
