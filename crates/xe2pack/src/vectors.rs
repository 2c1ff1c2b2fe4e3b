//! Known answers of the layout, for other implementations and for this one's tests.

use b70_packset::MatrixShape;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::geometry::Geometry;
use crate::layout::DESCRIPTOR;
use crate::reference;

/// Shapes of the vectors: one block, several tiles, several blocks, odd counts of both, and one with many of each.
const SHAPES: [(u64, u64); 5] = [(32, 16), (64, 32), (96, 16), (160, 48), (512, 272)];

/// The formula of [`source_pattern`] in words.
const PATTERN: &str = "byte i = ((i*i*31 + i*7 + 13) >> 3) & 255, 64-bit unsigned arithmetic";

/// The source bytes of a vector: byte `i` is `((i·i·31 + i·7 + 13) >> 3) & 255`.
///
/// All codes occur; the scales are arbitrary bit patterns, which a packer must copy.
pub fn source_pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| ((i * i * 31 + i * 7 + 13) >> 3) as u8).collect()
}

/// The project's vectors as the document `fixtures/vectors/xe2-dpas-v2.json` holds them, computed by
/// [`reference::pack`].
///
/// For each shape the SHA-256 of source and payload; for the smallest also the payload itself in hexadecimal, so that a
/// packer that fails can see where.
pub fn vectors() -> Value {
    let cases: Vec<Value> = SHAPES
        .iter()
        .map(|&(k, n)| {
            let shape = MatrixShape { k, n };
            let geometry = Geometry::new(shape).expect("the shapes above are valid");
            let source = source_pattern(geometry.source_len());
            let mut payload = vec![0; source.len()];
            reference::pack(shape, &source, &mut payload).expect("buffers of the geometry's lengths");
            let mut case = json!({
                "k": k,
                "n": n,
                "size_bytes": payload.len(),
                "source_sha256": hex(&Sha256::digest(&source)),
                "payload_sha256": hex(&Sha256::digest(&payload)),
            });
            if (k, n) == SHAPES[0] {
                case["source_hex"] = json!(hex(&source));
                case["payload_hex"] = json!(hex(&payload));
            }
            case
        })
        .collect();
    json!({
        "format": "b70-xe2pack-vectors-v1",
        "layout": DESCRIPTOR.name,
        "layout_version": DESCRIPTOR.version,
        "architecture": DESCRIPTOR.architecture,
        "source_type": "GGML_TYPE_Q4_0",
        "source_pattern": PATTERN,
        "cases": cases,
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
