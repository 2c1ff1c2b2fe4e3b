//! Buffers and the copy that packing is compared with.

use b70_packset::{MatrixShape, Threads};
use rayon::prelude::*;

/// The two matrices of a feed-forward layer, and the bytes of each as Q4_0 (the payload has as many).
pub(crate) const SHAPES: [MatrixShape; 2] = [MatrixShape { k: 5120, n: 17408 }, MatrixShape { k: 17408, n: 5120 }];
/// Bytes of either matrix.
pub(crate) const BYTES: usize = 50_135_040;

/// A touched buffer whose bytes start `offset` past a page boundary.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Fills the buffer with pseudo-random bytes, so that every page is present.
    pub(crate) fn random(len: usize, offset: usize, seed: u64) -> Self {
        let mut memory = vec![0u8; len + 4096 + offset];
        let start = memory.as_ptr().addr().wrapping_neg() % 4096 + offset;
        let mut x = seed | 1;
        for chunk in memory.chunks_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            chunk.copy_from_slice(&x.to_le_bytes()[..chunk.len()]);
        }
        Self { memory, start }
    }

    /// The bytes.
    pub(crate) fn get(&self) -> &[u8] {
        &self.memory[self.start..self.start + BYTES]
    }

    /// The bytes.
    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BYTES]
    }
}

/// `memcpy` of the whole buffer, by one thread or in one piece for each thread of the pool.
pub(crate) fn copy(source: &[u8], target: &mut [u8], threads: Threads) {
    match threads {
        Threads::One => target.copy_from_slice(source),
        Threads::Pool => {
            let piece = source.len().div_ceil(rayon::current_num_threads()).next_multiple_of(4096);
            target.par_chunks_mut(piece).zip(source.par_chunks(piece)).for_each(|(t, s)| t.copy_from_slice(s));
        }
    }
}
