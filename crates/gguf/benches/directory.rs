//! Reading a directory with a vocabulary of 250,000 strings, as many scores and types, and 1,000 tensors.

use std::hint::black_box;
use std::io::Write;

use b70_gguf::{Directory, GgmlType, GgufFile, GgufWriter, TensorData, Value};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const TOKENS: usize = 250_000;
const TENSORS: usize = 1_000;

fn model() -> Vec<u8> {
    let tokens: Vec<String> = (0..TOKENS).map(|i| format!("token{:0width$}", i, width = i % 17)).collect();
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", "llama")
        .metadata("tokenizer.ggml.tokens", tokens)
        .metadata("tokenizer.ggml.scores", vec![0.0_f32; TOKENS])
        .metadata("tokenizer.ggml.token_type", vec![1_i32; TOKENS]);
    for i in 0..TENSORS {
        writer.tensor(format!("blk.{i}.ffn_down.weight"), GgmlType::Q4_0, &[32, 2], TensorData::Zeros);
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("a valid model");
    bytes
}

fn directory(criterion: &mut Criterion) {
    let bytes = model();
    let file_len = bytes.len() as u64;
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&bytes).expect("room for the model");

    let mut group = criterion.benchmark_group("250k-token vocabulary, 1000 tensors");
    group.throughput(Throughput::Bytes(file_len));
    group.bench_function("from_bytes", |b| {
        b.iter(|| Directory::from_bytes(black_box(&bytes), file_len).expect("valid").tensors().len());
    });
    group.bench_function("from_bytes, every token visited", |b| {
        b.iter(|| {
            let directory = Directory::from_bytes(black_box(&bytes), file_len).expect("valid");
            let tokens = directory.get("tokenizer.ggml.tokens").and_then(Value::as_array).expect("present").iter();
            tokens.filter(|token| matches!(token, Value::String(text) if text.len() > 8)).count()
        });
    });
    group.bench_function("open", |b| {
        b.iter(|| GgufFile::open(black_box(file.path())).expect("valid").tensors().len());
    });
    group.finish();
}

criterion_group!(benches, directory);
criterion_main!(benches);
