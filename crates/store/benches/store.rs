//! How fast files are hashed, one stream against many files and lanes, and what it costs to honour a receipt of 187 files.
#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;

use b70_store::{
    DigestKind, Expected, Extras, HashOptions, Job, OnExisting, Progress, Quiet, Receipt, ReceiptVerdict, RelPath,
    Root, Sha256, Sha256Streams, Source, StreamKernel, Subject, TempFile, admit, examine, hash_file, hash_many,
    hash_many_with, issue, pool,
};
use b70_testkit::memory;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const FILES: usize = 16;
const LEN: usize = 8 << 20;

fn hashing(c: &mut Criterion) {
    let dir = memory();
    let paths: Vec<PathBuf> = (0..FILES)
        .map(|i| {
            let path = dir.path().join(i.to_string());
            std::fs::write(&path, vec![i as u8; LEN]).expect("written");
            path
        })
        .collect();
    let jobs: Vec<Job<'_>> = paths.iter().map(|p| p.as_path().into()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (label, what) in [("sha256", DigestKind::Sha256), ("blake3", DigestKind::Blake3), ("both", DigestKind::Both)] {
        let mut group = c.benchmark_group(format!("hash-{label}"));
        group.sample_size(10).throughput(Throughput::Bytes(LEN as u64));
        group.bench_function("one-stream", |b| {
            b.iter(|| hash_file(black_box(paths[0].as_path()), what, &Progress::NONE).expect("hashed"));
        });
        group.throughput(Throughput::Bytes((FILES * LEN) as u64));
        for threads in [1, cores] {
            let pool = pool(threads).expect("a pool");
            group.bench_function(format!("many-{threads}-threads"), |b| {
                b.iter(|| pool.install(|| hash_many(black_box(&jobs), what, &Progress::NONE)));
            });
            group.bench_function(format!("many-{threads}-threads-plain"), |b| {
                b.iter(|| {
                    pool.install(|| hash_many_with(black_box(&jobs), what, StreamKernel::plain(), &Progress::NONE))
                });
            });
        }
        group.finish();
    }
}

/// Streams side by side in memory, by every kernel of this CPU and by their number.
fn lanes(c: &mut Criterion) {
    // Not a power of two apart, or all streams would fall on the same lines of the cache.
    let stride = (256 << 10) + 320;
    let data: Vec<u8> = (0..16 * stride).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut group = c.benchmark_group("sha256-lanes");
    group.sample_size(20);
    for kernel in StreamKernel::available().into_iter().chain([StreamKernel::best()]) {
        for count in [1, 2, 4, 8, 16] {
            let streams: Vec<&[u8]> = (0..count).map(|i| &data[i * stride..][..256 << 10]).collect();
            group.throughput(Throughput::Bytes((count as u64) << 18));
            group.bench_function(format!("{}-{count}-streams", kernel.name()), |b| {
                let mut lanes = Sha256Streams::new(count, kernel);
                b.iter(|| lanes.update(black_box(&streams)));
            });
        }
    }
    group.finish();
}

fn publishing(c: &mut Criterion) {
    let dir = memory();
    let root = Root::open(dir.path()).expect("opens");
    let source = dir.path().join("source");
    std::fs::write(&source, vec![7; 4 * LEN]).expect("written");
    let file = std::fs::File::open(&source).expect("opens");
    let name = RelPath::new("copy").expect("a name");
    let mut group = c.benchmark_group("publish");
    group.sample_size(10).throughput(Throughput::Bytes(4 * LEN as u64));
    group.bench_function("copy-hash-read-back", |b| {
        b.iter(|| {
            let mut temp = TempFile::create(&root, 0o444).expect("made");
            temp.reserve(4 * LEN as u64).expect("reserved");
            temp.copy_from(&file, &source, 4 * LEN as u64, &Progress::NONE).expect("copied");
            temp.commit(&name, OnExisting::Fail, None, &Progress::NONE).expect("published");
            root.remove_file(&name).expect("removed");
        });
    });
    group.bench_function("std-fs-copy", |b| {
        b.iter(|| {
            std::fs::copy(&source, dir.path().join("copy")).expect("copied");
            std::fs::remove_file(dir.path().join("copy")).expect("removed");
        });
    });
    group.finish();
}

fn honouring(c: &mut Criterion) {
    let dir = memory();
    let root = Root::open(dir.path()).expect("opens");
    let files: Vec<Expected> = (0..187_u64)
        .map(|i| {
            let name = RelPath::new(format!("{i:064x}.bin")).expect("a name");
            std::fs::write(dir.path().join(name.as_path()), i.to_le_bytes()).expect("written");
            Expected { name, size: 8, sha256: Some(Sha256::of(&i.to_le_bytes())) }
        })
        .collect();
    let bindings = BTreeMap::new();
    let known = |name: &RelPath| name.as_str() == Some("receipt.json");
    let subject =
        Subject { root: &root, files: &files, format: "bench-v2", bindings: &bindings, extras: Extras::Report(&known) };
    let how = HashOptions { quiet: Quiet::Wait(std::time::Duration::from_secs(3)), ..HashOptions::default() };
    let ReceiptVerdict::Trusted(receipt) = issue(&subject, &how).expect("verified") else { panic!("no receipt here") };
    let name = RelPath::new("receipt.json").expect("a name");
    receipt.store(&root, &name).expect("stored");
    let mut group = c.benchmark_group("receipt-187-files");
    group.sample_size(20);
    group.bench_function("load-and-admit", |b| {
        b.iter(|| {
            let admission = admit(&subject, Receipt::load(&root, &name), &how).expect("decided");
            assert_eq!(admission.bytes_read, 0);
        });
    });
    group.bench_function("examine", |b| b.iter(|| examine(&subject, &receipt, &how).expect("looked")));
    group.bench_function("open-beneath", |b| {
        b.iter(|| {
            hash_file(Source::Beneath(&root, &files[0].name), DigestKind::Blake3, &Progress::NONE).expect("hashed")
        });
    });
    group.finish();
}

criterion_group!(benches, hashing, lanes, publishing, honouring);
criterion_main!(benches);
