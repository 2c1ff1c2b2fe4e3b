//! The one place where a device layout meets the rest of the kit.
//!
//! A *layout* turns the bytes of one source tensor into the bytes a device kernel reads, and back. Everything above this
//! trait (plans, keys, set directories, verification, staging) is neutral to it; a layout's name occurs only in its own
//! crate, in plans and in documents.

use b70_gguf::GgmlType;
use std::ops::Range;

use b70_manifest::pack::{LayoutRecord, PlanRules};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

/// The two dimensions of a matrix as GGUF states them: `k` is the fastest (the length of a row, the reduction
/// dimension of a matrix product), `n` the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct MatrixShape {
    /// Elements of a row (GGUF `ne[0]`).
    pub k: u64,
    /// Number of rows (GGUF `ne[1]`).
    pub n: u64,
}

impl std::fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.k, self.n)
    }
}

/// The names by which keys, plans and the index know a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutDescriptor {
    /// Name, for example `q4_0-xe2-dpas-v2`.
    pub name: &'static str,
    /// Version of the byte layout; part of every key.
    pub version: u64,
    /// Device architecture the kernel is built for; part of every key.
    pub architecture: &'static str,
}

/// A plan that comes with a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltInPlan {
    /// Its name.
    pub name: &'static str,
    /// First part of every format name in the documents of its sets.
    pub format_prefix: &'static str,
    /// What model-pack manifests call the kernel ABI of its sets, beside its own name.
    pub kernel_abi: Option<&'static str>,
    /// Which tensors go to which slot.
    pub rules: PlanRules,
}

/// Whether a call may use the threads of the current rayon pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// Only the calling thread.
    One,
    /// The current rayon pool.
    Pool,
}

/// A run of bytes that lies contiguously both in a band's payload and in the whole tensor's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the payload of the band.
    pub band_offset: u64,
    /// Offset in the payload of the whole tensor.
    pub full_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A shape or a buffer that a layout refuses.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// K is not a multiple of what the layout needs.
    #[error("K = {k} is not a multiple of {multiple}")]
    K {
        /// Found row length.
        k: u64,
        /// Needed divisor.
        multiple: u64,
    },
    /// N is not a multiple of what the layout needs.
    #[error("N = {n} is not a multiple of {multiple}")]
    N {
        /// Found number of rows.
        n: u64,
        /// Needed divisor.
        multiple: u64,
    },
    /// K or N is zero.
    #[error("shape {0} has no elements")]
    Empty(MatrixShape),
    /// The size of the tensor does not fit in 64 bits (or in this machine's address space).
    #[error("shape {0} overflows the size of a payload")]
    Overflow(MatrixShape),
    /// A buffer has another length than the shape requires.
    #[error("{what} of shape {shape} must have {expected} bytes, found {found}")]
    Length {
        /// Which buffer: `source` or `payload`.
        what: &'static str,
        /// The tensor's shape.
        shape: MatrixShape,
        /// Bytes the shape requires.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A band of rows does not start or end on the layout's row group, or leaves the tensor.
    #[error("rows {start}..{end} are not whole groups of {group} rows within {n}")]
    Rows {
        /// First row.
        start: u64,
        /// One past the last row.
        end: u64,
        /// Rows of a group.
        group: u64,
        /// Rows of the tensor.
        n: u64,
    },
}

/// A device layout: a pure, reversible function on bytes.
///
/// Implementations never touch files. Packing any band of whole row groups *as a tensor of its own* must give bytes
/// that [`Layout::segments`] scatters into the whole payload; that is how tensors larger than memory are packed.
pub trait Layout: Send + Sync {
    /// Its names.
    fn descriptor(&self) -> &LayoutDescriptor;

    /// What documents say of it.
    fn record(&self) -> LayoutRecord;

    /// The plans that come with it.
    fn plans(&self) -> Vec<BuiltInPlan>;

    /// The tensor type it packs.
    fn source_type(&self) -> GgmlType;

    /// Rows that must stay together; bands are multiples of it.
    fn row_group(&self) -> u64;

    /// Name of the kernel that will run, for reports.
    fn kernel(&self) -> &'static str;

    /// Whether a tensor of this shape can be packed.
    fn check(&self, shape: MatrixShape) -> Result<(), LayoutError>;

    /// Bytes of the source tensor.
    fn source_len(&self, shape: MatrixShape) -> Result<u64, LayoutError>;

    /// Bytes of the payload.
    fn payload_len(&self, shape: MatrixShape) -> Result<u64, LayoutError>;

    /// Packs `source` (rows in order) into `payload`; every payload byte is written.
    fn pack(&self, shape: MatrixShape, source: &[u8], payload: &mut [u8], threads: Threads) -> Result<(), LayoutError>;

    /// The inverse of [`Layout::pack`].
    fn unpack(
        &self,
        shape: MatrixShape,
        payload: &[u8],
        source: &mut [u8],
        threads: Threads,
    ) -> Result<(), LayoutError>;

    /// Where the payload of rows `rows`, packed as a tensor of its own, lies in the payload of `shape`.
    fn segments(&self, shape: MatrixShape, rows: Range<u64>) -> Result<Vec<Segment>, LayoutError>;
}
