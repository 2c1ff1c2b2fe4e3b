//! The tour's model: small, deterministic, with tensors that can be packed and tensors that cannot.

use std::path::Path;

use b70_cli::CliError;
use b70_gguf::{GgufWriter, types};

/// Layers of the model.
pub(crate) const LAYERS: u64 = 4;
/// Elements of a row.
pub(crate) const EMBEDDING: u64 = 512;
/// Rows of the wide matrices.
pub(crate) const FEED_FORWARD: u64 = 1024;

/// Writes the model; the same bytes each time.
pub(crate) fn write(path: &Path) -> Result<(), CliError> {
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", "tour")
        .metadata("general.name", "b70-tour model")
        .metadata("tour.block_count", u32::try_from(LAYERS).unwrap_or(u32::MAX));
    let mut numbers = Numbers(0x6237_306b_6974);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        writer
            .tensor(name("attn_norm"), types::F32, &[EMBEDDING], numbers.floats(EMBEDDING))
            .tensor(name("ffn_gate"), types::Q4_0, &[EMBEDDING, FEED_FORWARD], numbers.q4_0(EMBEDDING, FEED_FORWARD))
            .tensor(name("ffn_up"), types::Q4_0, &[EMBEDDING, FEED_FORWARD], numbers.q4_0(EMBEDDING, FEED_FORWARD))
            .tensor(name("ffn_down"), types::Q4_0, &[FEED_FORWARD, EMBEDDING], numbers.q4_0(FEED_FORWARD, EMBEDDING));
    }
    // Three that cannot be packed: rows that do not fill tiles of 16, an expert tensor of three dimensions, another type.
    writer
        .tensor("output_narrow.weight", types::Q4_0, &[EMBEDDING, 24], numbers.q4_0(EMBEDDING, 24))
        .tensor("blk.0.ffn_gate_exps.weight", types::Q4_0, &[64, 32, 2], numbers.q4_0(64, 64))
        .tensor("output_norm.weight", types::F32, &[EMBEDDING], numbers.floats(EMBEDDING));
    writer.write_file(path).map(|_| ()).map_err(|error| CliError::usage("tour-model", error.to_string()).path(path))
}

/// A splitmix64 sequence: reproducible, and good enough for weights.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Q4_0 blocks of an (K, N) matrix: a scale of about ±0.01 and 16 bytes of codes.
    fn q4_0(&mut self, k: u64, n: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..k / 32 * n {
            let bits = self.next();
            // fp16 0x2000 is 2^-7; the low bits vary the mantissa, the top one the sign.
            let scale = 0x2000_u16 | (bits as u16 & 0x83ff);
            bytes.extend_from_slice(&scale.to_le_bytes());
            bytes.extend_from_slice(&self.next().to_le_bytes());
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }

    fn floats(&mut self, count: u64) -> Vec<u8> {
        (0..count).flat_map(|_| (1.0 + (self.next() >> 40) as f32 / 1e9).to_le_bytes()).collect()
    }
}
