//! The parts of the floor, measured in memory: what no pipeline can beat.

use std::hint::black_box;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::Instant;

use b70_admission::{Hasher, LaneKernel, Sha256Lanes, What};
use b70_packset::{Layout, MatrixShape, Threads};
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
    let kernel = LaneKernel::best();
    let width = kernel.width();
    let data: Vec<u8> = (0..stream * width.max(4)).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let lane_data: Vec<&[u8]> = data.chunks_exact(stream).take(width).collect();
    let lanes_once = || {
        let mut lanes = Sha256Lanes::new(width, kernel);
        // As the pipelines feed them: a part of every stream at a time.
        for at in (0..stream).step_by(64 << 10) {
            let parts: Vec<&[u8]> = lane_data.iter().map(|lane| &lane[at..(at + (64 << 10)).min(stream)]).collect();
            lanes.update(&parts);
        }
        (0..width).map(|lane| lanes.take(lane)).collect::<Vec<_>>()
    };
    let blake3 = |parallel: bool| {
        let mut hasher = Hasher::new(What::Blake3);
        if parallel {
            hasher.update_parallel(&data);
        } else {
            hasher.update(&data);
        }
        hasher.finish()
    };
    let layout = Xe2DpasV2::new();
    let size = layout.source_len(SHAPE).unwrap_or(0) as usize;
    let (mut source, mut target) = (vec![7_u8; size], vec![1_u8; size]);
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
            let mut hasher = Hasher::new(What::Sha256);
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
        time(&mut || target.copy_from_slice(black_box(&source)));
        time(&mut || {
            let part = size.div_ceil(cores);
            std::thread::scope(|scope| {
                for (from, to) in source.chunks(part).zip(target.chunks_mut(part)) {
                    scope.spawn(|| to.copy_from_slice(black_box(from)));
                }
            });
        });
        for threads in [Threads::One, Threads::Pool] {
            time(&mut || layout.pack(SHAPE, &source, &mut target, threads).unwrap_or(()));
        }
        for threads in [Threads::One, Threads::Pool] {
            time(&mut || layout.unpack(SHAPE, &target, &mut source, threads).unwrap_or(()));
        }
        for ((_, _, all), seconds) in rows.iter_mut().zip(seconds) {
            all.push(seconds);
        }
    }
    let mut rates = serde_json::Map::new();
    for (name, bytes, seconds) in &rows {
        let rate = bytes / median(seconds.iter().copied()).max(1e-12);
        rates.insert((*name).to_owned(), json!({ "bytes_per_s": rate, "bytes": bytes, "samples_s": seconds }));
    }
    let write = write_rate(memory, &data, if quick { 1 } else { 5 })?;
    rates.insert("write_memory".to_owned(), write);
    Ok(Value::Object(rates))
}

/// Writing a new file and fsync, as a payload is written: by one thread.
pub(super) fn write_rate(folder: &Path, data: &[u8], rounds: usize) -> Result<Value, Failure> {
    let path = folder.join("write-rate");
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let mut file = std::fs::File::create(&path).at("create", &path)?;
        let started = Instant::now();
        for part in data.chunks(1 << 20) {
            file.write_all(part).at("write", &path)?;
        }
        file.sync_all().at("flush", &path)?;
        seconds.push(started.elapsed().as_secs_f64());
        file.rewind().at("rewind", &path)?;
        drop(file);
        std::fs::remove_file(&path).at("remove", &path)?;
    }
    let rate = data.len() as f64 / median(seconds.iter().copied()).max(1e-12);
    Ok(json!({ "bytes_per_s": rate, "bytes": data.len(), "samples_s": seconds }))
}
