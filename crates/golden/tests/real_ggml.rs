//! ggml itself as the referee: its reference quantisers byte for byte, and its dequantiser on a published set.
//!
//! Needs a built llama.cpp and a Python: `cargo xtask test --all` runs them.

mod common;

use std::fs;
use std::path::PathBuf;

use b70_golden::{BLOCK, Q4_0_BYTES, Q8_0_BYTES, Q8_1_BYTES, SetParameters, WEIGHTS, ggml_q4_0, ggml_q8_0, ggml_q8_1};
use b70_manifest::golden::GoldenRule;
use b70_testkit::run;
use common::{python, tensors, values};

/// The library.
fn library() -> PathBuf {
    b70_testkit::llama_binary("libggml-base.so")
}

fn quantised<const N: usize>(values: &[[f32; BLOCK]], quantise: fn(&[f32; BLOCK], &mut [u8; N])) -> Vec<u8> {
    let mut out = vec![0; values.len() * N];
    for (values, block) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        quantise(values, block);
    }
    out
}

#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn the_reference_quantisers_of_the_built_library() {
    let library = library();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (source, out) = (folder.path().join("values.f32"), folder.path().join("out"));
    let mut values = values(120_000);
    values.push([-0.0; BLOCK]);
    let bytes: Vec<u8> = values.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    fs::write(&source, bytes).expect("a scratch file");
    run(python("real_ggml.py").arg(&library).arg(&source).arg(&out));
    let theirs = |kind: &str| fs::read(out.with_extension(kind)).expect("the script wrote it");
    assert!(quantised::<Q4_0_BYTES>(&values, ggml_q4_0) == theirs("q4_0"), "Q4_0");
    assert!(quantised::<Q8_0_BYTES>(&values, ggml_q8_0) == theirs("q8_0"), "Q8_0");
    assert!(quantised::<Q8_1_BYTES>(&values, ggml_q8_1) == theirs("q8_1"), "Q8_1");
}

/// ggml reads the weights of both rules as d · (code − 8).
#[test]
#[ignore = "needs a built llama.cpp: cargo xtask test --all"]
fn the_library_dequantises_the_weights_as_the_page_says() {
    let library = library();
    for rule in [GoldenRule::Contract, GoldenRule::Ggml] {
        let parameters = SetParameters { k: 256, n: 64, widths: vec![1], rule, ..SetParameters::default() };
        let set = tensors(&parameters);
        let weights = &set.iter().find(|t| t.name == WEIGHTS).expect("every set has weights").bytes;
        let expected: Vec<f32> = weights
            .as_chunks::<Q4_0_BYTES>()
            .0
            .iter()
            .flat_map(|block| {
                let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
                let code = move |j: usize| if j < 16 { block[2 + j] & 15 } else { block[2 + j - 16] >> 4 };
                (0..BLOCK).map(move |j| d * f32::from(i16::from(code(j)) - 8))
            })
            .collect();
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (source, out) = (folder.path().join("weights"), folder.path().join("out"));
        fs::write(&source, weights).expect("a scratch file");
        run(python("dequantise.py").arg(&library).arg(&source).arg(&out));
        let theirs: Vec<u8> = fs::read(&out).expect("the script wrote it");
        assert!(theirs == expected.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), "{rule}");
    }
}
