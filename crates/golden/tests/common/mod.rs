//! Shared by the tests.
#![allow(dead_code, unreachable_pub)]

use std::path::PathBuf;
use std::process::Command;

use b70_golden::{BLOCK, FixtureTensor, Mt19937, SetParameters, generate};

/// The tensors of a set, by name.
pub fn tensors(parameters: &SetParameters) -> Vec<FixtureTensor> {
    generate(parameters).expect("the parameters are right")
}

/// A Python about to run one of our scripts.
pub fn python(script: &str) -> Command {
    let mut command = b70_testkit::python();
    command.arg("-I").arg("-B").arg(script_path(script));
    command
}

pub fn script_path(script: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script)
}

/// Values of every kind a quantiser can meet: smooth, of all magnitudes, ties, zeros, subnormals, and
/// magnitudes whose fp16 scale overflows.
pub fn values(blocks: usize) -> Vec<[f32; BLOCK]> {
    let mut random = Mt19937::from_python_seed(1_234_567);
    (0..blocks)
        .map(|b| {
            let exponent = (random.next_u32() % 60) as i32 - 30;
            std::array::from_fn(|j| {
                let x = random.random() * 2.0 - 1.0;
                match b % 10 {
                    // Positive zeros: for a block of negative ones gguf gives d = +0 and ggml's C source −0, which this
                    // crate follows (tests/real_ggml.rs).
                    0 => 0.0,
                    // Multiples of a half of a power of two: exact ties in every rounding.
                    1 | 2 => ((x * 34.0).round() / 4.0 * 2f64.powi(exponent / 4)) as f32,
                    // Extreme 127 and halves: ties of the 8-bit rule.
                    3 => {
                        if j == 5 {
                            127.0
                        } else {
                            (x * 254.0).round() as f32 / 2.0
                        }
                    }
                    // fp16 subnormal and vanishing scales.
                    4 => (x * 2f64.powi(-14 - (b / 10 % 16) as i32)) as f32,
                    // Scales that overflow fp16.
                    5 => (x * 2f64.powi(15 + (b / 10 % 12) as i32)) as f32,
                    // Equal magnitudes of both signs: the first extreme decides.
                    6 => {
                        if random.next_u32() & 1 == 0 {
                            1.5
                        } else {
                            -1.5
                        }
                    }
                    7 => {
                        if random.next_u32().is_multiple_of(3) {
                            x as f32
                        } else {
                            0.0
                        }
                    }
                    // Subnormal f32 that still have a finite inverse scale.
                    8 => (x * 2f64.powi(exponent - 80)) as f32,
                    _ => (x * 2f64.powi(exponent)) as f32,
                }
            })
        })
        .collect()
}
