//! The published digests of the default set, the same bytes for any number of threads, and the emulated consumer.

mod common;

use std::collections::BTreeMap;

use b70_golden::{FixtureTensor, PACKED, SetParameters, WEIGHTS, generate};
use b70_manifest::golden::GoldenRule;
use b70_packset::MatrixShape;
use b70_store::Sha256;
use b70_xe2pack::emulate::{self, Accumulation};
use common::tensors;

#[derive(serde::Deserialize)]
struct Vectors {
    k: u64,
    n: u64,
    seed: u64,
    sha256: BTreeMap<String, Sha256>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../../fixtures/vectors/golden-contract.json")).expect("a committed document")
}

#[test]
fn the_nine_published_digests() {
    let vectors = vectors();
    let default = SetParameters::default();
    assert_eq!((vectors.k, vectors.n, vectors.seed), (default.k, default.n, default.seed));
    let made: BTreeMap<String, Sha256> =
        tensors(&default).into_iter().map(|t| (t.name, Sha256::of(&t.bytes))).collect();
    assert_eq!(made.len(), 9);
    assert_eq!(made, vectors.sha256);
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    for rule in [GoldenRule::Contract, GoldenRule::Ggml] {
        // More weights than one chunk, rows that end within a piece, and a last chunk of another length.
        let parameters = SetParameters { k: 9824, n: 112, seed: 5, widths: vec![1, 3], rule, packed: true };
        assert!(parameters.k * parameters.n > 1 << 20);
        let one = generate(&parameters).expect("right parameters");
        for threads in [2, 3, 8] {
            assert_eq!(
                one,
                b70_store::pool(threads).expect("threads").install(|| generate(&parameters)).expect("right parameters"),
                "{threads} threads"
            );
        }
    }
}

fn bytes<'a>(tensors: &'a [FixtureTensor], name: &str) -> &'a [u8] {
    &tensors.iter().find(|t| t.name == name).expect("every set has it").bytes
}

/// From the packed weights, read as the device reads them, the emulated consumer gives the expected outputs to the bit.
#[test]
fn the_emulated_consumer_reproduces_the_outputs_from_packed_weights() {
    let default = SetParameters { packed: true, ..SetParameters::default() };
    let small = SetParameters { k: 96, n: 48, seed: 11, widths: vec![1, 2, 5], ..default.clone() };
    let ggml = SetParameters { rule: GoldenRule::Ggml, ..small.clone() };
    for parameters in [default, small, ggml] {
        let set = tensors(&parameters);
        let shape = MatrixShape { k: parameters.k, n: parameters.n };
        for m in &parameters.widths {
            let input = bytes(&set, &b70_golden::input_name(*m));
            let expected = bytes(&set, &b70_golden::expected_name(*m));
            for found in [
                emulate::packed(shape, bytes(&set, PACKED), input, Accumulation::Contract).expect("valid"),
                emulate::unpacked(shape, bytes(&set, WEIGHTS), input, Accumulation::Contract).expect("valid"),
            ] {
                let found: Vec<u8> = found.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert!(found == expected, "width {m} of {parameters:?}");
            }
        }
    }
}

#[test]
fn refused_parameters_name_the_parameter() {
    let default = SetParameters::default();
    for (parameters, name) in [
        (SetParameters { k: 0, ..default.clone() }, "k is 0"),
        (SetParameters { k: 5119, ..default.clone() }, "k is 5119, expected a positive multiple of 32"),
        (SetParameters { n: 0, ..default.clone() }, "n is 0"),
        (SetParameters { n: 250, packed: true, ..default.clone() }, "n is 250, expected a multiple of 16 when packing"),
        (SetParameters { widths: vec![], ..default.clone() }, "widths is none"),
        (SetParameters { widths: vec![0, 1], ..default.clone() }, "widths is 0"),
        (SetParameters { widths: vec![4, 1], ..default.clone() }, "widths is 4,1, expected ascending"),
        (SetParameters { widths: vec![1, 1], ..default.clone() }, "widths is 1,1"),
        (SetParameters { widths: vec![4097], ..default.clone() }, "widths is 4097"),
        (SetParameters { k: 1 << 40, n: 1 << 40, ..default.clone() }, "k·n is"),
        (SetParameters { seed: u64::MAX, ..default.clone() }, "seed is"),
    ] {
        let error = generate(&parameters).expect_err(name).to_string();
        assert!(error.starts_with(name), "{error}");
    }
    // Not a multiple of 16 is fine without packing.
    generate(&SetParameters { k: 32, n: 3, widths: vec![1], ..default }).expect("right parameters");
}
