//! The referee: packing and unpacking written one element at a time, straight from the formulas of [`Geometry`].
//!
//! Nothing here is clever, so that it can be compared with the format's description by eye. Every kernel is tested
//! against these functions; they are not meant to be fast.

use b70_packset::{LayoutError, MatrixShape};

use crate::geometry::{BLOCK_ELEMENTS, Geometry};

/// Packs `source` (N rows of K/32 Q4_0 blocks) into `payload`, element by element.
///
/// # Errors
/// A shape the layout refuses, or a buffer whose length is not the shape's.
pub fn pack(shape: MatrixShape, source: &[u8], payload: &mut [u8]) -> Result<(), LayoutError> {
    let g = Geometry::new(shape)?;
    g.expect_len("source", g.source_len(), source.len())?;
    g.expect_len("payload", g.payload_len(), payload.len())?;
    for n in 0..shape.n {
        for k in 0..shape.k {
            let stored = stored_nibble(&g, source, n, k);
            put_nibble(payload, g.nibble_index(n, k), stored ^ 8);
        }
        for b in 0..g.k_blocks() {
            let (from, to) = (g.source_block_offset(n, b) as usize, g.scale_offset(b, n) as usize);
            payload[to..to + 2].copy_from_slice(&source[from..from + 2]);
        }
    }
    Ok(())
}

/// The inverse of [`pack`]: the Q4_0 blocks again, bit for bit.
///
/// # Errors
/// As [`pack`].
pub fn unpack(shape: MatrixShape, payload: &[u8], source: &mut [u8]) -> Result<(), LayoutError> {
    let g = Geometry::new(shape)?;
    g.expect_len("payload", g.payload_len(), payload.len())?;
    g.expect_len("source", g.source_len(), source.len())?;
    for n in 0..shape.n {
        for k in 0..shape.k {
            let stored = get_nibble(payload, g.nibble_index(n, k)) ^ 8;
            let (b, c) = (k / BLOCK_ELEMENTS, k % BLOCK_ELEMENTS);
            let byte = (g.source_block_offset(n, b) + 2 + c % 16) as usize;
            source[byte] = if c < 16 { (source[byte] & 0xf0) | stored } else { (source[byte] & 0x0f) | (stored << 4) };
        }
        for b in 0..g.k_blocks() {
            let (from, to) = (g.scale_offset(b, n) as usize, g.source_block_offset(n, b) as usize);
            source[to..to + 2].copy_from_slice(&payload[from..from + 2]);
        }
    }
    Ok(())
}

/// The code (0..15, biased by 8) that a Q4_0 tensor stores for row `n`, column `k`.
pub(crate) fn stored_nibble(g: &Geometry, source: &[u8], n: u64, k: u64) -> u8 {
    let (b, c) = (k / BLOCK_ELEMENTS, k % BLOCK_ELEMENTS);
    let byte = source[(g.source_block_offset(n, b) + 2 + c % 16) as usize];
    if c < 16 { byte & 0x0f } else { byte >> 4 }
}

fn put_nibble(payload: &mut [u8], index: u64, value: u8) {
    let byte = &mut payload[(index / 2) as usize];
    *byte = if index.is_multiple_of(2) { (*byte & 0xf0) | value } else { (*byte & 0x0f) | (value << 4) };
}

fn get_nibble(payload: &[u8], index: u64) -> u8 {
    let byte = payload[(index / 2) as usize];
    if index.is_multiple_of(2) { byte & 0x0f } else { byte >> 4 }
}
