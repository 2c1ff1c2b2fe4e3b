//! The parts of the floor, measured in memory: what no pipeline can beat.

use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use b70_packset::{Layout, MatrixShape, Threads};
use b70_store::{DigestKind, Hasher, Sha256Streams, StreamKernel};
use b70_xe2pack::Xe2DpasV2;
use serde_json::{Value, json};

use super::sample::median;
use crate::failure::{AtPath, Failure};

const SHAPE: MatrixShape = MatrixShape { k: 5120, n: 17408 };

/// Rates in bytes per second.
pub(super) fn all(memory: &Path, quick: bool) -> Result<Value, Failure> {
    super::Bench::say("rates of the parts");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rounds = if quick { 1 } else { 7 };
    let stream = if quick { 1 << 20 } else { 16 << 20 };
    let kernel = StreamKernel::best();
    let width = kernel.width();
    let data: Vec<u8> = (0..stream * width.max(4)).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let lane_data: Vec<&[u8]> = data.chunks_exact(stream).take(width).collect();
    let lanes_once = || {
        let mut lanes = Sha256Streams::new(width, kernel);
        // As the pipelines feed them: a part of every stream at a time.
        for at in (0..stream).step_by(64 << 10) {
            let parts: Vec<&[u8]> = lane_data.iter().map(|lane| &lane[at..(at + (64 << 10)).min(stream)]).collect();
            lanes.update(&parts);
        }
        (0..width).map(|lane| lanes.take(lane)).collect::<Vec<_>>()
    };
    let blake3 = |parallel: bool| {
        let mut hasher = Hasher::new(DigestKind::Blake3);
        if parallel {
            hasher.update_parallel(&data);
        } else {
            hasher.update(&data);
        }
        hasher.finish()
    };
    let layout = Xe2DpasV2::new();
    let size = layout.source_len(SHAPE).unwrap_or(0) as usize;
    // On page boundaries, as the kit's own buffers are; and once more 16 bytes past one, as large vectors are.
    let (mut source, mut target) = (Paged::new(size + SHIFT, 7), Paged::new(size + SHIFT, 1));
    let mut rows: Vec<(&str, f64, Vec<f64>)> = [
        ("sha256_one_stream", stream as f64),
        ("sha256_lanes_one_core", (stream * width) as f64),
        ("sha256_lanes_all_cores", (stream * width * cores) as f64),
        ("blake3_one_core", data.len() as f64),
        ("blake3_all_cores", data.len() as f64),
        ("memcpy_one_core", size as f64),
        ("memcpy_all_cores", size as f64),
        ("pack_one_core", size as f64),
        ("pack_all_cores", size as f64),
        ("unpack_one_core", size as f64),
        ("unpack_all_cores", size as f64),
        ("memcpy_shifted_all_cores", size as f64),
        ("pack_shifted_all_cores", size as f64),
        ("unpack_shifted_all_cores", size as f64),
    ]
    .map(|(name, bytes)| (name, bytes, Vec::new()))
    .into();
    for _ in 0..rounds {
        let mut seconds = Vec::new();
        let mut time = |work: &mut dyn FnMut()| {
            let started = Instant::now();
            work();
            seconds.push(started.elapsed().as_secs_f64());
        };
        time(&mut || {
            let mut hasher = Hasher::new(DigestKind::Sha256);
            hasher.update(&data[..stream]);
            black_box(hasher.finish());
        });
        time(&mut || {
            black_box(lanes_once());
        });
        time(&mut || {
            std::thread::scope(|scope| {
                for _ in 0..cores {
                    scope.spawn(|| black_box(lanes_once()));
                }
            });
        });
        time(&mut || {
            black_box(blake3(false));
        });
        time(&mut || {
            black_box(blake3(true));
        });
        let (source, target) = (source.get(), target.get());
        time(&mut || target[..size].copy_from_slice(black_box(&source[..size])));
        time(&mut || copy_on_all(&source[..size], &mut target[..size], cores));
        for threads in [Threads::One, Threads::Pool] {
            time(&mut || layout.pack(SHAPE, &source[..size], &mut target[..size], threads).unwrap_or(()));
        }
        for threads in [Threads::One, Threads::Pool] {
            time(&mut || layout.unpack(SHAPE, &target[..size], &mut source[..size], threads).unwrap_or(()));
        }
        let (source, target) = (&mut source[SHIFT..], &mut target[SHIFT..]);
        time(&mut || copy_on_all(source, target, cores));
        time(&mut || layout.pack(SHAPE, source, target, Threads::Pool).unwrap_or(()));
        time(&mut || layout.unpack(SHAPE, target, source, Threads::Pool).unwrap_or(()));
        for ((_, _, all), seconds) in rows.iter_mut().zip(seconds) {
            all.push(seconds);
        }
    }
    let mut rates = serde_json::Map::new();
    for (name, bytes, seconds) in &rows {
        let rate = bytes / median(seconds.iter().copied()).max(1e-12);
        rates.insert((*name).to_owned(), json!({ "bytes_per_s": rate, "bytes": bytes, "samples_s": seconds }));
    }
    let bytes = if quick { data.len() as u64 } else { WRITTEN };
    super::touch_memory(bytes * 2);
    let write = write_rate(memory, &data, bytes, if quick { 1 } else { 3 })?;
    rates.insert("write_memory".to_owned(), write);
    Ok(Value::Object(rates))
}

/// Bytes that are written to find a rate: about as many as a run writes, since writing the same few pages again and again is
/// faster.
const WRITTEN: u64 = 2 << 30;

/// How far past a page boundary the second set of pack and unpack begins.
const SHIFT: usize = 16;

/// Memory on a page boundary, all of it touched.
struct Paged(Vec<u8>, usize);

impl Paged {
    fn new(len: usize, fill: u8) -> Self {
        let all = vec![fill; len + 4096];
        let from = all.as_ptr().align_offset(4096);
        Self(all, from)
    }

    fn get(&mut self) -> &mut [u8] {
        let len = self.0.len() - 4096;
        &mut self.0[self.1..][..len]
    }
}

fn copy_on_all(source: &[u8], target: &mut [u8], cores: usize) {
    let part = source.len().div_ceil(cores);
    std::thread::scope(|scope| {
        for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(black_box(from)));
        }
    });
}

/// Writing new files and fsync, as payloads are written: by one thread, `bytes` in all, in files of the size of `data`.
pub(super) fn write_rate(folder: &Path, data: &[u8], bytes: u64, rounds: usize) -> Result<Value, Failure> {
    let files = bytes.div_ceil(data.len() as u64).max(1);
    let path = |i: u64| folder.join(format!("write-rate-{i}"));
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        for i in 0..files {
            let mut file = std::fs::File::create(path(i)).at("create", &path(i))?;
            for part in data.chunks(1 << 20) {
                file.write_all(part).at("write", &path(i))?;
            }
            file.sync_all().at("flush", &path(i))?;
        }
        seconds.push(started.elapsed().as_secs_f64());
        for i in 0..files {
            std::fs::remove_file(path(i)).at("remove", &path(i))?;
        }
    }
    let written = files * data.len() as u64;
    let rate = written as f64 / median(seconds.iter().copied()).max(1e-12);
    Ok(json!({ "bytes_per_s": rate, "bytes": written, "samples_s": seconds }))
}
