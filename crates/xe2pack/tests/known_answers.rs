//! The bytes of the layout, fixed by vectors that other implementations can be held against.

mod common;

use b70_packset::{Layout, MatrixShape, Threads};
use b70_xe2pack::{Xe2DpasV2, source_pattern, vectors};
use common::{kernels, packed_by_reference, sha256};
use serde_json::Value;

/// (K, N, SHA-256 of the source, SHA-256 of the payload), from an implementation in another language.
const ANSWERS: [(u64, u64, &str, &str); 5] = [
    (
        32,
        16,
        "3c5dbd9ad0cdb99ef5144b81ebbeec23d80d7dadb571546a6852a7f5f4faf5e4",
        "1c5104706444a0ef1a76866ebf85f16707d5ad7ed4ac5355f15ecd9a8e2839c2",
    ),
    (
        64,
        32,
        "e9ddfa31a4b3d0c42f3800c498e4dd9df6f2b069b7bb06ad7497e59cedca9f41",
        "af8bb9335bab1a27a485b486d403e3983d74814549a827cbcd97edf0bc7bce9f",
    ),
    (
        96,
        16,
        "1ffbb1cc4433ca49d8b7db696be4ed5bdc6d7fc3fc6c96ccd7e06a724168ec38",
        "6631b72f5601668f2b12737f3ecfc078c066c9c5feaf7f51d0f1782da87b6a18",
    ),
    (
        160,
        48,
        "b9862d506c52d6a43f5258f8a68292066c1d92d767b6b913c402dcf4ee7a3a16",
        "cc08e4e7262b510a7e796a1d6187d7346621d5509a03c1509e3d1343cbc6b01d",
    ),
    (
        512,
        272,
        "d3f825d9ff5b488f46ef07635d50727061725002cabb36828fd43022f667abb5",
        "16d30d2d85b2de89e2ddf4b72020db94fb18ce1bc058bdf575be7c0fa3270093",
    ),
];

#[test]
fn every_kernel_gives_the_known_bytes() {
    for (k, n, source_sha256, payload_sha256) in ANSWERS {
        let shape = MatrixShape { k, n };
        let source = source_pattern(Xe2DpasV2::new().source_len(shape).expect("valid"));
        assert_eq!(sha256(&source), source_sha256, "source of {shape}");
        assert_eq!(sha256(&packed_by_reference(shape, &source)), payload_sha256, "reference, {shape}");
        for kernel in kernels() {
            let mut payload = vec![0; source.len()];
            Xe2DpasV2::with_kernel(kernel).pack(shape, &source, &mut payload, Threads::Pool).expect("valid");
            assert_eq!(sha256(&payload), payload_sha256, "{}, {shape}", kernel.name());
        }
    }
}

#[test]
fn the_committed_vectors_are_current() {
    let path = b70_testkit::fixture("vectors/xe2-dpas-v2.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask vectors` writes it", path.display());
    });
    let committed: Value = serde_json::from_str(&text).expect("the vectors are JSON");
    assert_eq!(committed, vectors(), "`cargo xtask vectors` renews the file, if the layout was meant to change");
    let cases = committed["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), ANSWERS.len());
    for (case, (k, n, source, payload)) in cases.iter().zip(ANSWERS) {
        assert_eq!((case["k"].as_u64(), case["n"].as_u64()), (Some(k), Some(n)));
        assert_eq!((case["source_sha256"].as_str(), case["payload_sha256"].as_str()), (Some(source), Some(payload)));
    }
}

/// One tile worked out by hand from the description: lane 3, column 21 and the scales.
#[test]
fn a_tile_by_hand() {
    let shape = MatrixShape { k: 32, n: 16 };
    let mut source = vec![0u8; 288];
    // Row 3: d = bytes 0x12 0x34; column 21 is the high nibble of q[5].
    source[3 * 18] = 0x12;
    source[3 * 18 + 1] = 0x34;
    source[3 * 18 + 2 + 5] = 0xe0;
    let mut expected = vec![0x88u8; 256];
    // Group 21 div 8 = 2, lane 3: word 2·16 + 3; nibble 21 mod 8 = 5 is the high nibble of byte 2; 0xe XOR 8 = 6.
    expected[(2 * 16 + 3) * 4 + 2] = 0x68;
    expected.extend([0; 32]);
    expected[256 + 3 * 2] = 0x12;
    expected[256 + 3 * 2 + 1] = 0x34;
    assert_eq!(packed_by_reference(shape, &source), expected);
}
