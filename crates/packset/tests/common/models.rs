//! Small models, plans and specs, written by `b70-gguf`. Their bytes follow from the names of their tensors.

use std::fs;
use std::path::{Path, PathBuf};

use b70_gguf::{GgmlType, GgufWriter};
use serde_json::{Value, json};

/// A tensor to write: name, ggml type, shape.
pub type Tensor<'a> = (&'a [u8], GgmlType, &'a [u64]);

/// The tensors that the plan `mini` names, in slot order.
pub const MINI_NAMES: [&str; 4] =
    ["blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight"];

/// Four tensors of the plan `mini`, one more that the layout takes, and one of every kind it does not.
pub const STANDARD: [Tensor<'static>; 11] = [
    (b"token_embd.weight", GgmlType::Q4_0, &[64, 48]),
    (b"blk.0.ffn_down.weight", GgmlType::Q4_0, &[32, 64]),
    (b"blk.0.ffn_up.weight", GgmlType::Q4_0, &[64, 32]),
    (b"blk.0.attn_norm.weight", GgmlType::F32, &[64]),
    (b"blk.1.ffn_up.weight", GgmlType::Q4_0, &[64, 32]),
    (b"blk.1.ffn_down.weight", GgmlType::Q4_0, &[32, 64]),
    (b"blk.1.ffn_exps.weight", GgmlType::Q4_0, &[64, 16, 2]),
    (b"rows_17.weight", GgmlType::Q4_0, &[64, 17]),
    (b"vector.weight", GgmlType::Q4_0, &[64]),
    (b"other.weight", GgmlType::Q8_0, &[64, 16]),
    (b"output.weight", GgmlType::F16, &[64, 16]),
];

/// Deterministic bytes, another stream for every name.
pub fn bytes(name: &[u8], len: usize) -> Vec<u8> {
    let mut state = name.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
    });
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The bytes that a model made here has for a tensor.
pub fn tensor_bytes((name, ggml_type, shape): Tensor<'_>) -> Vec<u8> {
    let size = ggml_type.tensor_bytes(shape).expect("a known type and whole blocks");
    bytes(name, usize::try_from(size).expect("test tensors are small"))
}

fn writer(tensors: &[Tensor<'_>]) -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama");
    for &(name, ggml_type, shape) in tensors {
        writer.tensor(name, ggml_type, shape, tensor_bytes((name, ggml_type, shape)));
    }
    writer
}

/// Writes a model of these tensors.
pub fn write_model(path: &Path, tensors: &[Tensor<'_>]) {
    writer(tensors).write_file(path).expect("the model can be written");
}

/// Writes the same as shards; returns their paths.
pub fn write_split(folder: &Path, tensors: &[Tensor<'_>], per_shard: usize) -> Vec<PathBuf> {
    writer(tensors).write_split(folder, "model", per_shard).expect("the shards can be written")
}

fn rule(part: &str, shape: &Value, slot_base: u64) -> Value {
    json!({
        "pattern": format!("blk.{{layer}}.{part}.weight"),
        "layers": { "first": 0, "last": 1 },
        "shape": shape,
        "slot_base": slot_base,
        "slot_stride": 2,
    })
}

/// A plan over the four tensors of [`MINI_NAMES`], shapes exact.
pub fn mini_plan(format_prefix: &str) -> Value {
    json!({
        "schema_version": 1,
        "name": "mini",
        "format_prefix": format_prefix,
        "layout": { "name": "q4_0-xe2-dpas-v2", "version": 2, "architecture": "bmg-g31" },
        "rules": [rule("ffn_up", &json!([64, 32]), 0), rule("ffn_down", &json!([32, 64]), 1)],
    })
}

/// The same with free shapes.
pub fn any_plan() -> Value {
    let mut plan = mini_plan("any");
    plan["rules"] = json!([rule("ffn_up", &json!("any"), 0), rule("ffn_down", &json!("any"), 1)]);
    plan
}

/// Writes a JSON document.
pub fn write_json(path: &Path, document: &Value) {
    fs::write(path, serde_json::to_vec_pretty(document).expect("values print"))
        .expect("a temporary folder takes files");
}
