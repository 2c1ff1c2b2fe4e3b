//! The device layout `q4_0-xe2-dpas-v2`: a GGML Q4_0 matrix rearranged for the DPAS units of Xe2 graphics (Arc Pro B70).
//!
//! A `MUL_MAT` kernel for few activation rows wants its weights in the order in which the matrix units eat them: for
//! each block of 32 columns and each tile of 16 rows, 64 words of eight signed 4-bit values, and the blocks' fp16 scales
//! in a region of their own. This crate states that order once ([`Geometry`]), carries it out ([`Xe2DpasV2`], an
//! implementation of [`b70_packset::Layout`]) and shows that it means what it should ([`emulate`]).
//!
//! # Vocabulary
//!
//! - *shape* (K, N): GGUF's order, K the row length (the reduction dimension), N the number of rows.
//! - *block*: 32 columns of a row, 18 bytes: an fp16 scale `d` and 16 bytes of two codes biased by 8.
//! - *tile*: 16 rows, one for each lane of a DPAS instruction.
//! - *quants*, *scales*: the two regions of a payload.
//! - *kernel*: an implementation for one instruction set. All kernels give the same bytes; [`Kernel`] chooses one.
//! - *reference*: [`reference::pack`] and [`reference::unpack`], the description written as code; the referee.
//!
//! # Example
//!
//! ```
//! use b70_packset::{Layout, MatrixShape, Threads};
//! use b70_xe2pack::{Xe2DpasV2, source_pattern};
//!
//! let layout = Xe2DpasV2::new();
//! let shape = MatrixShape { k: 160, n: 48 };
//! let source = source_pattern(layout.source_len(shape)?);
//!
//! let mut payload = vec![0; layout.payload_len(shape)? as usize];
//! layout.pack(shape, &source, &mut payload, Threads::Pool)?;
//!
//! let mut back = vec![0; source.len()];
//! layout.unpack(shape, &payload, &mut back, Threads::One)?;
//! assert_eq!(back, source);
//! # Ok::<(), b70_packset::LayoutError>(())
//! ```
//!
//! # Limits
//!
//! - K must be a multiple of 32 and N of 16; both must be positive. Anything else is refused.
//! - Packing permutes nibbles and flips the top bit of each; it never converts a number. Every scale, whatever its bit
//!   pattern (subnormal, −0, infinity, NaN), is copied, and [`Layout::unpack`](b70_packset::Layout::unpack) gives the
//!   source back bit for bit. Whether a scale makes sense is not this crate's question.
//! - The pool divides a tensor by pairs of tiles: a tensor of 32 rows or fewer is packed by one thread.
//! - The emulation reproduces integer dot products exactly; it claims nothing of a device's floating-point order.
//!
//! Unsafe code is confined to the kernels: intrinsics behind tokens that prove CPU detection, and one view of strided
//! bytes that lets threads pack into one buffer.
#![deny(unsafe_code)]

pub mod emulate;
mod geometry;
mod kernels;
mod layout;
mod plans;
pub mod reference;
mod selftest;
mod vectors;

pub use geometry::Geometry;
pub use kernels::{Kernel, KernelError};
pub use layout::{DESCRIPTOR, Xe2DpasV2};
pub use plans::{ALL_PLAN, QWEN27_PLAN};
pub use selftest::{Failure, Fault, KernelReport, SelfTest, SelfTestStatus, SkippedKernel, self_test};
/// Schemas of what the commands over this layout print with `--json`.
pub fn output_schemas() -> Vec<b70_manifest::schema::SchemaEntry> {
    vec![b70_manifest::schema::output::<SelfTest>("pack-self-test")]
}

pub use vectors::{source_pattern, vectors};
