//! Quantisation of 32 values to one block, by both rules.
//!
//! Rule *contract* computes in f64 and rounds half to even; it is this project's own, exact on every machine. Rule *ggml*
//! is the arithmetic of ggml's portable quantisers, in f32: `quantize_row_q4_0_ref`, `quantize_row_q8_0_ref` and
//! `quantize_row_q8_1_ref` of `ggml-quants.c`.

use half::f16;

use super::fp16::{f16_from_f64, round_half_even};

/// Values of a block.
pub const BLOCK: usize = 32;
/// Bytes of a Q4_0 block: fp16 d, then 16 bytes, byte j = code of value j in the low nibble, of value j+16 in the high.
pub const Q4_0_BYTES: usize = 18;
/// Bytes of a Q8_0 block: fp16 d, 32 signed bytes.
pub const Q8_0_BYTES: usize = 34;
/// Bytes of a Q8_1 block: fp16 d, fp16 s, 32 signed bytes; s stands for d times the sum of the quants.
pub const Q8_1_BYTES: usize = 36;

fn largest(values: &[f64; BLOCK]) -> f64 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// Q4_0 by rule *contract*: d = max|x|/7 (1/7 for a block of zeros), q = x/d rounded half to even, −8..=7.
pub(crate) fn contract_q4_0(values: &[f64; BLOCK], out: &mut [u8; Q4_0_BYTES]) {
    let max = largest(values);
    let d = if max == 0.0 { 1.0 / 7.0 } else { max / 7.0 };
    let mut codes = [0_u8; BLOCK];
    for (code, x) in codes.iter_mut().zip(values) {
        *code = (round_half_even(x / d).clamp(-8.0, 7.0) + 8.0) as i32 as u8;
    }
    out[..2].copy_from_slice(&f16_from_f64(d).to_le_bytes());
    for j in 0..16 {
        out[2 + j] = codes[j] | (codes[j + 16] << 4);
    }
}

/// Q8_1 by rule *contract*: d = max|x|/127 (1/127 for a block of zeros), q = x/d rounded half to even, −128..=127;
/// s = fp16(d as stored · Σq).
pub(crate) fn contract_q8_1(values: &[f64; BLOCK], out: &mut [u8; Q8_1_BYTES]) {
    let max = largest(values);
    let d = if max == 0.0 { 1.0 / 127.0 } else { max / 127.0 };
    let mut sum = 0_i32;
    for (byte, x) in out[4..].iter_mut().zip(values) {
        let q = round_half_even(x / d).clamp(-128.0, 127.0) as i32;
        sum += q;
        *byte = q as u8;
    }
    let stored = f16_from_f64(d);
    out[..2].copy_from_slice(&stored.to_le_bytes());
    out[2..4].copy_from_slice(&f16_from_f64(stored.to_f64() * f64::from(sum)).to_le_bytes());
}

/// Q4_0 by rule *ggml*: the first value of the largest magnitude becomes code 0, so that d has the opposite sign;
/// code = min(15, trunc(x/d + 8.5)), with the unrounded d.
///
/// A quotient that no byte can hold (a block whose d is so small that 1/d is infinite) is code 0, as on x86-64; the C
/// source leaves that case undefined.
pub fn ggml_q4_0(values: &[f32; BLOCK], out: &mut [u8; Q4_0_BYTES]) {
    let (mut magnitude, mut signed) = (0.0_f32, 0.0_f32);
    for &x in values {
        if magnitude < x.abs() {
            (magnitude, signed) = (x.abs(), x);
        }
    }
    let d = signed / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let code = |x: f32| -> u8 {
        let x = x * inverse + 8.5;
        // Finite quotients lie in 0.5..=16.5.
        if x.is_finite() { (x as i32).clamp(0, 15) as u8 } else { 0 }
    };
    for j in 0..16 {
        out[2 + j] = code(values[j]) | (code(values[j + 16]) << 4);
    }
}

/// d and quants by ggml's 8-bit rule: d = max|x|/127, q = x·(1/d) rounded half away from zero.
fn ggml_q8(values: &[f32; BLOCK], quants: &mut [u8]) -> (f32, i32) {
    let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let d = max / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut sum = 0;
    for (byte, x) in quants.iter_mut().zip(values) {
        let x = x * inverse;
        let q = if x.is_finite() { x.round() as i32 } else { 0 };
        sum += i32::from(q as i8);
        *byte = q as u8;
    }
    (d, sum)
}

/// Q8_0 by rule *ggml*.
pub fn ggml_q8_0(values: &[f32; BLOCK], out: &mut [u8; Q8_0_BYTES]) {
    let (d, _) = ggml_q8(values, &mut out[2..]);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
}

/// Q8_1 by rule *ggml*: as Q8_0, and s = fp16(Σq · d) with the unrounded d.
pub fn ggml_q8_1(values: &[f32; BLOCK], out: &mut [u8; Q8_1_BYTES]) {
    let (d, sum) = ggml_q8(values, &mut out[4..]);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(sum as f32 * d).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(block: &[u8; Q4_0_BYTES]) -> Vec<i32> {
        let low = block[2..].iter().map(|b| i32::from(b & 15) - 8);
        low.chain(block[2..].iter().map(|b| i32::from(b >> 4) - 8)).collect()
    }

    fn quants(block: &[u8; Q8_1_BYTES]) -> Vec<i32> {
        block[4..].iter().map(|b| i32::from(b.cast_signed())).collect()
    }

    /// max = 7 makes d exactly 1, so that halves are exact ties.
    #[test]
    fn q4_0_ties_go_to_even_on_both_sides() {
        let mut values = [0.0; BLOCK];
        values[..13].copy_from_slice(&[0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, -0.5, -1.5, -2.5, -3.5, -6.5, 7.0]);
        let mut block = [0; Q4_0_BYTES];
        contract_q4_0(&values, &mut block);
        assert_eq!(block[..2], [0x00, 0x3c]);
        assert_eq!(codes(&block)[..13], [0, 2, 2, 4, 4, 6, 6, 0, -2, -2, -4, -6, 7]);
        // One step of f64 beside the tie decides.
        values[0] = 0.5_f64.next_up();
        values[1] = 1.5_f64.next_down();
        values[7] = (-0.5_f64).next_down();
        contract_q4_0(&values, &mut block);
        assert_eq!(codes(&block)[..8], [1, 1, 2, 4, 4, 6, 6, -1]);
    }

    #[test]
    fn q8_1_ties_go_to_even_on_both_sides() {
        let mut values = [0.0; BLOCK];
        values[..9].copy_from_slice(&[0.5, 1.5, 2.5, 126.5, -0.5, -1.5, -2.5, -126.5, -127.0]);
        let mut block = [0; Q8_1_BYTES];
        contract_q8_1(&values, &mut block);
        assert_eq!(quants(&block)[..9], [0, 2, 2, 126, 0, -2, -2, -126, -127]);
        // d = 1, sum = 2 + 2 + 126 - 2 - 2 - 126 - 127 = -127.
        assert_eq!(block[..4], [&f16::ONE.to_le_bytes()[..], &f16::from_f32(-127.0).to_le_bytes()].concat()[..]);
        // The same block by ggml's rule rounds away from zero.
        let single: [f32; BLOCK] = std::array::from_fn(|i| values[i] as f32);
        ggml_q8_1(&single, &mut block);
        assert_eq!(quants(&block)[..9], [1, 2, 3, 127, -1, -2, -3, -127, -127]);
    }

    #[test]
    fn blocks_of_zeros() {
        let mut q4 = [0xff; Q4_0_BYTES];
        contract_q4_0(&[0.0; BLOCK], &mut q4);
        assert_eq!(q4[..2], f16_from_f64(1.0 / 7.0).to_le_bytes());
        assert_eq!(q4[2..], [0x88; 16]);
        contract_q4_0(&[-0.0; BLOCK], &mut q4);
        assert_eq!(q4[2..], [0x88; 16]);
        let mut q8 = [0xff; Q8_1_BYTES];
        contract_q8_1(&[0.0; BLOCK], &mut q8);
        assert_eq!(q8[..2], f16_from_f64(1.0 / 127.0).to_le_bytes());
        assert_eq!(q8[2..], [0; 34]);
        // ggml: d is minus zero for Q4_0 and zero for Q8.
        ggml_q4_0(&[0.0; BLOCK], &mut q4);
        assert_eq!(q4[..2], [0x00, 0x80]);
        assert_eq!(q4[2..], [0x88; 16]);
        ggml_q8_1(&[0.0; BLOCK], &mut q8);
        assert_eq!(q8, [0; Q8_1_BYTES]);
    }

    #[test]
    fn scales_at_the_edges_of_fp16() {
        let d_of = |max: f64| {
            let mut values = [0.0; BLOCK];
            values[31] = max;
            let mut block = [0; Q4_0_BYTES];
            contract_q4_0(&values, &mut block);
            assert_eq!(codes(&block)[31], 7 * max.signum() as i32);
            u16::from_le_bytes([block[0], block[1]])
        };
        assert_eq!(d_of(7.0 * 65_504.0), 0x7bff);
        assert_eq!(d_of(7.0 * 65_520.0), 0x7c00, "overflow is infinity");
        assert_eq!(d_of(-7.0 * 65_504.0), 0x7bff, "d is never negative");
        assert_eq!(d_of(7.0 * 2_f64.powi(-24)), 0x0001);
        assert_eq!(d_of(7.0 * 2_f64.powi(-25)), 0x0000, "underflow keeps the codes");
        assert_eq!(d_of(7.0 * 2_f64.powi(-14)), 0x0400);
    }

    #[test]
    fn ggml_takes_the_first_extreme_and_its_sign() {
        let mut values = [0.0_f32; BLOCK];
        (values[3], values[9]) = (-4.0, 4.0);
        let mut block = [0; Q4_0_BYTES];
        ggml_q4_0(&values, &mut block);
        assert_eq!(block[..2], f16::from_f32(0.5).to_le_bytes());
        assert_eq!((codes(&block)[3], codes(&block)[9]), (-8, 7));
        values[3] = 4.0;
        values[9] = -4.0;
        ggml_q4_0(&values, &mut block);
        assert_eq!(block[..2], f16::from_f32(-0.5).to_le_bytes());
    }
}
