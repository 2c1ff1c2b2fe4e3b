//! Making sets in memory: the default one, and one of a large projection. `cargo bench -p b70-golden`.

use b70_golden::{SetParameters, generate};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn sets(c: &mut Criterion) {
    let mut group = c.benchmark_group("generate");
    group.sample_size(10);
    let default = SetParameters::default();
    let large = SetParameters { k: 17_408, n: 5120, packed: true, ..SetParameters::default() };
    for (name, parameters) in [("k5120-n256", default), ("k17408-n5120-packed", large)] {
        group.throughput(Throughput::Elements(parameters.k * parameters.n));
        group.bench_function(name, |b| b.iter(|| generate(&parameters).expect("right parameters")));
    }
    group.finish();
}

criterion_group!(benches, sets);
criterion_main!(benches);
