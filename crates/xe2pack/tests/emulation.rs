//! The emulated consumer against the golden arithmetic, and against mistakes it must notice.

mod common;

use b70_packset::{LayoutError, MatrixShape};
use b70_testkit::bytes;
use b70_xe2pack::emulate::{self, Accumulation, EmulateError};
use common::{packed_by_reference, sha256};
use half::f16;

/// MT19937 seeded as `CPython`'s `random.seed(integer)` does for one 32-bit word.
struct Python {
    state: [u32; 624],
    next: usize,
}

impl Python {
    fn new(seed: u32) -> Self {
        let mut state = [0u32; 624];
        state[0] = 19_650_218;
        for i in 1..624 {
            state[i] = 1_812_433_253u32.wrapping_mul(state[i - 1] ^ (state[i - 1] >> 30)).wrapping_add(i as u32);
        }
        let mut i = 1;
        let mut step = |state: &mut [u32; 624], factor: u32, add: u32| {
            let mixed = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(factor);
            state[i] = (state[i] ^ mixed).wrapping_add(add);
            i += 1;
            if i == 624 {
                state[0] = state[623];
                i = 1;
            }
            i as u32
        };
        for _ in 0..624 {
            step(&mut state, 1_664_525, seed);
        }
        // After 624 steps from index 1 the next index is 2.
        let mut at = 2;
        for _ in 0..623 {
            at = step(&mut state, 1_566_083_941, 0u32.wrapping_sub(at));
        }
        state[0] = 0x8000_0000;
        Self { state, next: 624 }
    }

    fn word(&mut self) -> u32 {
        if self.next == 624 {
            for i in 0..624 {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ if y & 1 == 1 { 0x9908_b0df } else { 0 };
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn uniform(&mut self, bound: f64) -> f64 {
        let (a, b) = (f64::from(self.word() >> 5), f64::from(self.word() >> 6));
        -bound + 2.0 * bound * ((a * 67_108_864.0 + b) / 9_007_199_254_740_992.0)
    }
}

fn largest(block: &[f64]) -> f64 {
    block.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// Rounds to the nearest fp16, ties to even. `f16::from_f64` drops the low half of the mantissa before it rounds, which
/// turns values just above a tie into ties; here the rounding is done in f64 and the conversion is exact.
fn to_f16(x: f64) -> f16 {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let quantum = 2f64.powi((exponent - 10).max(-24));
    f16::from_f64((x / quantum).round_ties_even() * quantum)
}

/// Symmetric Q4_0 of the golden contract: d = max|x|/7.
fn q4_0(block: &[f64]) -> Vec<u8> {
    let max = largest(block);
    let d = if max == 0.0 { 1.0 / 7.0 } else { max / 7.0 };
    let code = |x: f64| ((x / d).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
    let mut bytes = to_f16(d).to_le_bytes().to_vec();
    bytes.extend((0..16).map(|j| code(block[j]) | (code(block[j + 16]) << 4)));
    bytes
}

/// Q8_1 of the golden contract: d = max|x|/127, s = half(d)·Σq.
fn q8_1(block: &[f64]) -> Vec<u8> {
    let max = largest(block);
    let d = if max == 0.0 { 1.0 / 127.0 } else { max / 127.0 };
    let quants: Vec<i8> = block.iter().map(|x| (x / d).round_ties_even().clamp(-128.0, 127.0) as i8).collect();
    let half_d = to_f16(d);
    let sum: i32 = quants.iter().map(|q| i32::from(*q)).sum();
    let mut bytes = half_d.to_le_bytes().to_vec();
    bytes.extend(to_f16(half_d.to_f64() * f64::from(sum)).to_le_bytes());
    bytes.extend(quants.iter().map(|q| q.cast_unsigned()));
    bytes
}

fn tensor(seed: u32, bound: f64, elements: usize, quantise: fn(&[f64]) -> Vec<u8>) -> Vec<u8> {
    let mut random = Python::new(seed);
    let values: Vec<f64> = (0..elements).map(|_| random.uniform(bound)).collect();
    values.chunks(32).flat_map(quantise).collect()
}

/// The published golden set (K 5120, N 256, seed 270036): from the packed weights the emulated consumer must give the
/// golden outputs to the bit.
#[test]
fn the_golden_outputs_from_packed_weights() {
    let shape = MatrixShape { k: 5120, n: 256 };
    let weights = tensor(270_036, 0.75, 5120 * 256, q4_0);
    assert_eq!(sha256(&weights), "a4b55ab9398e943e6fe2585d2db1b9cdabf331aa875a0d346df14be2c1482e4c");
    let payload = packed_by_reference(shape, &weights);
    for (m, input_sha256, expected_sha256) in [
        (
            1,
            "57c76afd5f5acce47f174612a0f6a6561ae383046c7b971327646be768f63ffd",
            "773aa1d8faf5463cfab973166af01cfabe38d2b413b605e3337499086b84ebe3",
        ),
        (
            4,
            "e74bbdb879273a43a65bea1237e1d385660962c8c75a905afd64b9156b937e3e",
            "4425dda7e81d750a51322672c2e5f658ae16327dd4442637d4fc14a9727530f0",
        ),
    ] {
        let input = tensor(270_036 + m, 1.25, 5120 * m as usize, q8_1);
        assert_eq!(sha256(&input), input_sha256, "input of width {m}");
        let outputs = emulate::packed(shape, &payload, &input, Accumulation::Contract).expect("valid");
        let bytes: Vec<u8> = outputs.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(sha256(&bytes), expected_sha256, "outputs of width {m}");
        // The other orders are the same sum with other roundings.
        for order in [Accumulation::BlockOrderF32, Accumulation::StridedF32] {
            let other = emulate::packed(shape, &payload, &input, order).expect("valid");
            let error: f64 = outputs.iter().zip(&other).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let norm: f64 = outputs.iter().map(|a| f64::from(*a).powi(2)).sum();
            assert!(error / norm < 1e-4, "{order:?}: normalised error {}", error / norm);
        }
    }
}

/// A payload with one wrong nibble, one wrong scale or without the XOR must not pass for right.
#[test]
fn a_wrong_payload_gives_other_outputs() {
    let shape = MatrixShape { k: 64, n: 32 };
    let weights = tensor(1, 0.75, 64 * 32, q4_0);
    let input = tensor(2, 1.25, 64, q8_1);
    let right = emulate::unpacked(shape, &weights, &input, Accumulation::Contract).expect("valid");
    let payload = packed_by_reference(shape, &weights);
    let outputs = |payload: &[u8]| emulate::packed(shape, payload, &input, Accumulation::Contract).expect("valid");
    assert_eq!(outputs(&payload), right);
    for at in [0, 511, 1024, 1151] {
        let mut wrong = payload.clone();
        wrong[at] ^= 0x10;
        assert_ne!(outputs(&wrong), right, "byte {at}");
    }
    let unsigned: Vec<u8> = payload.iter().map(|byte| byte ^ 0x88).collect();
    assert_ne!(outputs(&unsigned), right);
}

#[test]
fn refused_inputs() {
    let shape = MatrixShape { k: 64, n: 16 };
    let payload = vec![0; 576];
    let packed = |payload: &[u8], input: &[u8]| emulate::packed(shape, payload, input, Accumulation::Contract);
    for found in [0, 1, 36, 71, 73] {
        let expected = EmulateError::Activations { row_bytes: 72, found };
        assert_eq!(packed(&payload, &bytes(found as usize, 1)), Err(expected));
    }
    let error = packed(&payload[1..], &[0; 72]).expect_err("a short payload");
    assert!(matches!(error, EmulateError::Weights(LayoutError::Length { what: "payload", found: 575, .. })));
}
