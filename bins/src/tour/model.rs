//! The tour's model: small, deterministic, and a whole llama of random weights, so that a server can load it.

use std::path::Path;

use b70_cli::CliError;
use b70_gguf::{GgmlType, GgufWriter};

/// Layers of the model.
const LAYERS: u32 = 4;
/// Elements of a row.
const EMBEDDING: u64 = 512;
/// Rows of the wide matrices.
const FEED_FORWARD: u64 = 1024;
/// Attention heads, of 64 elements each.
const HEADS: u32 = 8;
/// Tokens: three special ones, 256 bytes, 95 printable characters. Not a multiple of 16 on purpose: the embedding is the
/// one Q4_0 tensor that has no place in the layout.
const TOKENS: u64 = 3 + 256 + 95;

/// Q4_0 tensors that can be packed: seven in each layer.
pub(crate) const PACKABLE: u64 = 7 * LAYERS as u64;
/// One of them.
pub(crate) const ONE_TENSOR: &str = "blk.0.ffn_down.weight";
/// Tokens that a prompt and its answer may have.
pub(crate) const CONTEXT: u32 = 8192;

/// Writes the model; the same bytes each time.
pub(crate) fn write(path: &Path) -> Result<(), CliError> {
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", "llama")
        .metadata("general.name", "b70-tour model of random weights")
        .metadata("llama.block_count", LAYERS)
        .metadata("llama.context_length", CONTEXT)
        .metadata("llama.embedding_length", EMBEDDING as u32)
        .metadata("llama.feed_forward_length", FEED_FORWARD as u32)
        .metadata("llama.attention.head_count", HEADS)
        .metadata("llama.attention.head_count_kv", HEADS)
        .metadata("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)
        .metadata("llama.rope.dimension_count", EMBEDDING as u32 / HEADS);
    tokenizer(&mut writer);
    let mut numbers = Numbers(0x6237_306b_6974);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        writer.tensor(name("attn_norm"), GgmlType::F32, &[EMBEDDING], numbers.floats(EMBEDDING));
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            writer.tensor(name(part), GgmlType::Q4_0, &[EMBEDDING, EMBEDDING], numbers.q4_0(EMBEDDING, EMBEDDING));
        }
        writer
            .tensor(name("ffn_norm"), GgmlType::F32, &[EMBEDDING], numbers.floats(EMBEDDING))
            .tensor(name("ffn_gate"), GgmlType::Q4_0, &[EMBEDDING, FEED_FORWARD], numbers.q4_0(EMBEDDING, FEED_FORWARD))
            .tensor(name("ffn_up"), GgmlType::Q4_0, &[EMBEDDING, FEED_FORWARD], numbers.q4_0(EMBEDDING, FEED_FORWARD))
            .tensor(
                name("ffn_down"),
                GgmlType::Q4_0,
                &[FEED_FORWARD, EMBEDDING],
                numbers.q4_0(FEED_FORWARD, EMBEDDING),
            );
    }
    writer.tensor("token_embd.weight", GgmlType::Q4_0, &[EMBEDDING, TOKENS], numbers.q4_0(EMBEDDING, TOKENS)).tensor(
        "output_norm.weight",
        GgmlType::F32,
        &[EMBEDDING],
        numbers.floats(EMBEDDING),
    );
    writer.write_file(path).map(|_| ()).map_err(|error| CliError::usage("tour-model", error.to_string()).path(path))
}

/// A vocabulary of single bytes and characters, in the form that llama.cpp calls `llama` (`SentencePiece`).
fn tokenizer(writer: &mut GgufWriter<'_>) {
    // The kinds of tokens, as llama.cpp numbers them.
    const NORMAL: i32 = 1;
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    let mut kinds = vec![UNKNOWN, CONTROL, CONTROL];
    for byte in 0..=255_u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(BYTE);
    }
    // A space is written as U+2581 in these vocabularies.
    for character in ' '..='~' {
        tokens.push(if character == ' ' { '\u{2581}' } else { character }.to_string());
        kinds.push(NORMAL);
    }
    let scores: Vec<f32> = (0..tokens.len()).map(|index| -(index as f32)).collect();
    writer
        .metadata("tokenizer.ggml.model", "llama")
        .metadata("tokenizer.ggml.tokens", tokens)
        .metadata("tokenizer.ggml.scores", scores)
        .metadata("tokenizer.ggml.token_type", kinds)
        .metadata("tokenizer.ggml.unknown_token_id", 0_u32)
        .metadata("tokenizer.ggml.bos_token_id", 1_u32)
        .metadata("tokenizer.ggml.eos_token_id", 2_u32);
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
