//! Packing and unpacking beside `memcpy` of the same bytes, for both large matrices, by one thread and by the pool.
//!
//! Rates count source bytes once. The buffers hold random bytes; source and target start at odd distances from a page
//! boundary as well as on one, since a payload that does not start on a cache line takes another path.
//! For ratios on a noisy machine use the bench `ratio`, which alternates.

mod common;

use std::time::Duration;

use b70_packset::{Layout, Threads};
use b70_xe2pack::{Kernel, Xe2DpasV2};
use common::{BYTES, Buffer, SHAPES, copy};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn benches(c: &mut Criterion) {
    for shape in SHAPES {
        for threads in [Threads::One, Threads::Pool] {
            let mut group = c.benchmark_group(format!("{}x{}/{threads:?}", shape.k, shape.n));
            group.throughput(Throughput::Bytes(BYTES as u64));
            group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
            for (place, source_offset, target_offset) in [("page", 0, 0), ("offset", 34, 16)] {
                let source = Buffer::random(BYTES, source_offset, 270_036);
                let mut target = Buffer::random(BYTES, target_offset, 1);
                group.bench_function(BenchmarkId::new("memcpy", place), |b| {
                    b.iter(|| copy(source.get(), target.get_mut(), threads));
                });
                for kernel in Kernel::available() {
                    let layout = Xe2DpasV2::with_kernel(kernel);
                    group.bench_function(BenchmarkId::new(format!("pack-{}", kernel.name()), place), |b| {
                        b.iter(|| layout.pack(shape, source.get(), target.get_mut(), threads).expect("sizes agree"));
                    });
                    group.bench_function(BenchmarkId::new(format!("unpack-{}", kernel.name()), place), |b| {
                        b.iter(|| layout.unpack(shape, source.get(), target.get_mut(), threads).expect("sizes agree"));
                    });
                }
            }
            group.finish();
        }
    }
}

criterion_group!(pack, benches);
criterion_main!(pack);
