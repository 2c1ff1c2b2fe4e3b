//! Independent referees: `CPython`'s generator and floats for rule contract, the package gguf for rule ggml.

mod common;

use std::collections::BTreeMap;

use b70_golden::{BLOCK, Q4_0_BYTES, Q8_0_BYTES, Q8_1_BYTES, SetParameters, ggml_q4_0, ggml_q8_0, ggml_q8_1};
use b70_store::Sha256;
use b70_testkit::run;
use common::{python, tensors, values};

#[test]
fn cpython_recomputes_three_other_sets() {
    for (k, n, seed, widths) in
        [(32, 7, 0, vec![1, 2]), (672, 33, 4_294_967_296 + 77, vec![1, 3, 8]), (96, 200, 4_294_967_291, vec![5, 6])]
    {
        let list = widths.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let arguments = [k.to_string(), n.to_string(), seed.to_string(), list];
        let said = run(python("contract.py").args(arguments));
        let said: BTreeMap<String, String> =
            said.lines().filter_map(|l| l.split_once(' ')).map(|(n, d)| (n.to_owned(), d.to_owned())).collect();
        let made: BTreeMap<String, String> = tensors(&SetParameters { k, n, seed, widths, ..SetParameters::default() })
            .into_iter()
            .map(|t| (t.name, Sha256::of(&t.bytes).to_string()))
            .collect();
        assert_eq!(made, said, "K {k}, N {n}, seed {seed}");
    }
}

fn gguf(kind: &str, values: &[[f32; BLOCK]]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (source, out) = (folder.path().join("values.f32"), folder.path().join("blocks"));
    let bytes: Vec<u8> = values.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(&source, bytes).expect("the scratch folder is writable");
    run(python("ggml.py").arg(kind).arg(&source).arg(&out));
    std::fs::read(&out).expect("the script wrote it")
}

fn compare<const N: usize>(kind: &str, quantise: fn(&[f32; BLOCK], &mut [u8; N])) {
    let values = values(120_000);
    let theirs = gguf(kind, &values);
    assert_eq!(theirs.len(), values.len() * N);
    let (mut different, mut first) = (0, None);
    for (i, (values, theirs)) in values.iter().zip(theirs.as_chunks::<N>().0).enumerate() {
        let mut ours = [0; N];
        quantise(values, &mut ours);
        if ours != *theirs {
            different += 1;
            first.get_or_insert_with(|| format!("block {i}: {values:?}\n ours   {ours:?}\n theirs {theirs:?}"));
        }
    }
    assert_eq!(different, 0, "of {} blocks of {kind}, the first {first:?}", values.len());
}

#[test]
fn q4_0_is_byte_equal_with_gguf_on_120_000_blocks() {
    compare::<Q4_0_BYTES>("Q4_0", ggml_q4_0);
}

#[test]
fn q8_0_is_byte_equal_with_gguf_on_120_000_blocks() {
    compare::<Q8_0_BYTES>("Q8_0", ggml_q8_0);
}

/// Q8_1 is Q8_0 with the sum beside the scale; gguf has no Q8_1.
#[test]
fn q8_1_is_q8_0_with_its_sum() {
    for values in values(2000) {
        let (mut q8_0, mut q8_1) = ([0; Q8_0_BYTES], [0; Q8_1_BYTES]);
        ggml_q8_0(&values, &mut q8_0);
        ggml_q8_1(&values, &mut q8_1);
        assert_eq!(q8_0[..2], q8_1[..2]);
        assert_eq!(q8_0[2..], q8_1[4..]);
        let max = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let sum: i32 = q8_1[4..].iter().map(|q| i32::from(q.cast_signed())).sum();
        let s = half::f16::from_f32(sum as f32 * (max / 127.0));
        assert_eq!(q8_1[2..4], s.to_le_bytes());
    }
}
