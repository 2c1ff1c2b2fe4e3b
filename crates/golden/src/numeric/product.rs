//! The reference product: for each output the exact integer dot of every block, scaled and summed in f64.

use half::f16;

use super::blocks::{BLOCK, Q4_0_BYTES, Q8_1_BYTES};

/// Activation rows of one or more widths, taken apart once for all rows of the weights.
pub(crate) struct Activations {
    k_blocks: usize,
    /// Quants as 16-bit numbers, [rows, K]: products of pairs then map to one instruction.
    quants: Vec<i16>,
    /// Scales, [rows, K/32].
    scales: Vec<f64>,
}

impl Activations {
    /// From whole rows of Q8_1 blocks.
    pub(crate) fn new(k_blocks: usize, bytes: &[u8]) -> Self {
        let blocks = bytes.chunks_exact(Q8_1_BYTES);
        Self {
            k_blocks,
            scales: blocks.clone().map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            quants: blocks.flat_map(|b| b[4..].iter().map(|q| i16::from(q.cast_signed()))).collect(),
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.scales.len() / self.k_blocks
    }
}

fn dot(a: &[i16; BLOCK], b: &[i16; BLOCK]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// Multiplies rows of Q4_0 weights with the activations: `out[row · activations + i]`.
///
/// `half(d_w)·half(d_x)` has 22 bits and the dot product 16, so every term is exact in f64; the sum over blocks runs in
/// ascending order and is rounded to f32 once.
pub(crate) fn product_rows(weights: &[u8], activations: &Activations, out: &mut [f32]) {
    let k_blocks = activations.k_blocks;
    let count = activations.rows();
    let mut codes = vec![[0_i16; BLOCK]; k_blocks];
    let mut scales = vec![0.0_f64; k_blocks];
    for (row, out) in weights.chunks_exact(k_blocks * Q4_0_BYTES).zip(out.chunks_exact_mut(count)) {
        for ((block, codes), scale) in row.chunks_exact(Q4_0_BYTES).zip(&mut codes).zip(&mut scales) {
            *scale = f16::from_le_bytes([block[0], block[1]]).to_f64();
            for j in 0..16 {
                codes[j] = i16::from(block[2 + j] & 15) - 8;
                codes[j + 16] = i16::from(block[2 + j] >> 4) - 8;
            }
        }
        for (i, out) in out.iter_mut().enumerate() {
            let (quants, _) = activations.quants[i * k_blocks * BLOCK..(i + 1) * k_blocks * BLOCK].as_chunks::<BLOCK>();
            let d_x = &activations.scales[i * k_blocks..(i + 1) * k_blocks];
            let mut sum = 0.0_f64;
            for b in 0..k_blocks {
                sum += scales[b] * d_x[b] * f64::from(dot(&codes[b], &quants[b]));
            }
            *out = sum as f32;
        }
    }
}
