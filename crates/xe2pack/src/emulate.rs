//! What the device kernel computes, in Rust, on packed bytes: the semantic test of a packer.
//!
//! The consumer multiplies a block of activations (M rows of 32 signed bytes) with one tile of weights (16 rows of 32
//! signed 4-bit values) by DPAS instructions. For each block `b` of columns and tile `t` it loads the 64 words at word
//! `(b·N/16 + t)·64` and the 16 scales at `K·N/2 + (b·N + 16·t)·2`, forms the exact integer dot product of 32 pairs, and
//! scales it by both factors. [`packed`] does exactly these loads; [`unpacked`] computes the same numbers from plain
//! Q4_0 blocks, without knowing the layout. Equal results mean that a payload says what its source says.
//!
//! Only the integer dot is exact: every order of the later floating-point steps gives other bits. The orders offered are
//! listed in [`Accumulation`]. None is a claim about the bits of a particular device kernel.
//!
//! Activations are Q8_1 blocks of 36 bytes, [M, K] row-major, 32 columns a block: fp16 `d`, fp16 `s`, 32 × i8. `s` is
//! meant to be `d` times the sum of the quants; producers round it differently, see [`Accumulation::StridedF32`].

use b70_packset::{LayoutError, MatrixShape};
use half::f16;
use thiserror::Error;

use crate::geometry::{BLOCK_ELEMENTS, Geometry, TILE_ROWS};
use crate::reference::stored_nibble;

/// Bytes of a Q8_1 block: fp16 d, fp16 s, 32 signed bytes.
pub const Q8_1_BLOCK_BYTES: u64 = 36;

/// The order of the floating-point steps that follow the exact integer dot product of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accumulation {
    /// The rule of the golden fixtures: the sum over blocks, in ascending order, in f64, of `(d_w·d_x)·dot`, rounded to
    /// f32 once at the end. Every product is exact in f64, so this is the figure to compare others with.
    Contract,
    /// One f32 accumulator, blocks in ascending order, `acc += (dot·d_w)·d_x`: the order of ggml's portable dot product
    /// of Q4_0 with 8-bit activations.
    BlockOrderF32,
    /// The shape of the Xe2 kernel: 8 workers, worker w takes blocks w, w+8, …, each with its own f32 accumulator of
    /// `(dot·d_x + 8·(qsum·d_x − s))·d_w`; then the workers' sums are added in ascending order. `qsum` is the sum of the
    /// activation's quants. The second term brings in the rounding of `s`, as in kernels that use unsigned weights and
    /// subtract `8·s`. The device may contract or reorder these steps; compare with a tolerance.
    StridedF32,
}

impl Accumulation {
    /// All orders.
    pub const ALL: [Self; 3] = [Self::Contract, Self::BlockOrderF32, Self::StridedF32];
}

/// Inputs that cannot be multiplied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EmulateError {
    /// The weights' shape or bytes are refused by the layout.
    #[error(transparent)]
    Weights(#[from] LayoutError),
    /// The activations are not whole rows of K/32 Q8_1 blocks.
    #[error("activations must be whole rows of {row_bytes} bytes (K/32 Q8_1 blocks of 36 bytes), found {found} bytes")]
    Activations {
        /// Bytes of one row.
        row_bytes: u64,
        /// Bytes given.
        found: u64,
    },
}

/// Multiplies activations with a packed tensor, reading it as the device does. Returns [M, N] row-major.
///
/// ```
/// use b70_packset::{Layout, MatrixShape, Threads};
/// use b70_xe2pack::{Xe2DpasV2, emulate::{self, Accumulation}};
///
/// let shape = MatrixShape { k: 32, n: 16 };
/// // 16 rows of one block: d = 1.0 (fp16 0x3c00), all codes 9, that is +1.
/// let weights = [&[0x00, 0x3c][..], &[0x99; 16]].concat().repeat(16);
/// let mut payload = vec![0; weights.len()];
/// Xe2DpasV2::new().pack(shape, &weights, &mut payload, Threads::One)?;
/// // One activation row: d = 0.5, s = 0.5 · 64 = 32, all quants 2.
/// let input = [&[0x00, 0x38, 0x00, 0x50][..], &[2; 32]].concat();
/// assert_eq!(emulate::packed(shape, &payload, &input, Accumulation::Contract)?, [32.0; 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A refused shape, a payload of another length, or activations that are not whole rows.
pub fn packed(
    shape: MatrixShape,
    payload: &[u8],
    activations: &[u8],
    order: Accumulation,
) -> Result<Vec<f32>, EmulateError> {
    let g = Geometry::new(shape)?;
    g.expect_len("payload", g.payload_len(), payload.len())?;
    product(&g, activations, order, |input, b, n| {
        let (t, lane) = (n / TILE_ROWS, n % TILE_ROWS);
        let mut dot = 0;
        for group in 0..4 {
            let word = load_u32(payload, g.word_index(b, t, group, lane));
            for i in 0..8 {
                // Shifting the nibble to the top and back down extends its sign, as the instruction's s4 operand does.
                let weight = ((word << (28 - 4 * i)) as i32) >> 28;
                dot += weight * i32::from(input.quants[group as usize * 8 + i].cast_signed());
            }
        }
        (dot, load_f16(payload, g.scale_offset(b, TILE_ROWS * t) + 2 * lane))
    })
}

/// Multiplies activations with plain Q4_0 blocks ([N, K] row-major, as in a GGUF). Returns [M, N] row-major.
///
/// # Errors
/// As [`packed`].
pub fn unpacked(
    shape: MatrixShape,
    source: &[u8],
    activations: &[u8],
    order: Accumulation,
) -> Result<Vec<f32>, EmulateError> {
    let g = Geometry::new(shape)?;
    g.expect_len("source", g.source_len(), source.len())?;
    product(&g, activations, order, |input, b, n| {
        let dot = (0..BLOCK_ELEMENTS)
            .map(|c| {
                let weight = i32::from(stored_nibble(&g, source, n, b * BLOCK_ELEMENTS + c)) - 8;
                weight * i32::from(input.quants[c as usize].cast_signed())
            })
            .sum();
        (dot, load_f16(source, g.source_block_offset(n, b)))
    })
}

/// One Q8_1 block.
struct Input<'a> {
    d: f16,
    s: f16,
    quants: &'a [u8],
}

/// All outputs, given a function of (input block, b, n) that yields the integer dot and the weights' scale.
fn product(
    g: &Geometry,
    activations: &[u8],
    order: Accumulation,
    dot: impl Fn(&Input<'_>, u64, u64) -> (i32, f16),
) -> Result<Vec<f32>, EmulateError> {
    let wrong = |row_bytes| EmulateError::Activations { row_bytes, found: activations.len() as u64 };
    let row_bytes = g.k_blocks().checked_mul(Q8_1_BLOCK_BYTES).ok_or(wrong(u64::MAX))?;
    if activations.is_empty() || !(activations.len() as u64).is_multiple_of(row_bytes) {
        return Err(wrong(row_bytes));
    }
    let mut outputs = Vec::new();
    for row in activations.chunks_exact(row_bytes as usize) {
        for n in 0..g.shape().n {
            let blocks = row.chunks_exact(Q8_1_BLOCK_BYTES as usize).zip(0u64..).map(|(block, b)| {
                let input = Input { d: load_f16(block, 0), s: load_f16(block, 2), quants: &block[4..] };
                let (dot, d_w) = dot(&input, b, n);
                Term { dot, d_w, input }
            });
            outputs.push(accumulate(order, blocks));
        }
    }
    Ok(outputs)
}

/// What one block contributes to one output.
struct Term<'a> {
    dot: i32,
    d_w: f16,
    input: Input<'a>,
}

fn accumulate<'a>(order: Accumulation, blocks: impl Iterator<Item = Term<'a>>) -> f32 {
    match order {
        Accumulation::Contract => {
            blocks.fold(0.0, |sum, term| sum + term.d_w.to_f64() * term.input.d.to_f64() * f64::from(term.dot)) as f32
        }
        Accumulation::BlockOrderF32 => {
            blocks.fold(0.0, |sum, term| sum + term.dot as f32 * term.d_w.to_f32() * term.input.d.to_f32())
        }
        Accumulation::StridedF32 => {
            let mut workers = [0.0_f32; 8];
            for (b, Term { dot, d_w, input }) in blocks.enumerate() {
                let (d, s) = (input.d.to_f32(), input.s.to_f32());
                let sum: i32 = input.quants.iter().map(|q| i32::from(q.cast_signed())).sum();
                workers[b % 8] += (dot as f32 * d + 8.0 * (sum as f32 * d - s)) * d_w.to_f32();
            }
            workers.iter().fold(0.0, |sum, worker| sum + worker)
        }
    }
}

fn load_u32(bytes: &[u8], index: u64) -> u32 {
    let at = index as usize * 4;
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

fn load_f16(bytes: &[u8], at: u64) -> f16 {
    let at = at as usize;
    f16::from_le_bytes(bytes[at..at + 2].try_into().expect("a slice of two bytes"))
}
