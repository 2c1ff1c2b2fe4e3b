//! Packing and unpacking relative to `memcpy`, measured in alternation so that a noisy machine disturbs both alike.
//!
//! Each round times every operation once; printed are the medians over all rounds and their ratio to the median of
//! `memcpy` with the same number of threads, then the same of the fastest rounds, which other load disturbs least. Rates count source bytes: `memcpy` copies the 50,135,040 source bytes into
//! an equally large destination that was touched before, packing reads the same bytes and writes as many.
//!
//! `cargo bench -p b70-xe2pack --bench ratio [-- ROUNDS [TARGET_OFFSET [SOURCE_OFFSET]]]`
#![expect(clippy::print_stdout, reason = "a report for the developer at the terminal")]

mod common;

use std::time::Instant;

use b70_packset::{Layout, MatrixShape, Threads};
use b70_xe2pack::{Kernel, Xe2DpasV2};
use common::{BYTES, Buffer, SHAPES, copy};

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let rounds = numbers.next().unwrap_or(15).max(1);
    let target_offset = numbers.next().unwrap_or(0);
    let source_offset = numbers.next().unwrap_or(0);
    println!(
        "{rounds} rounds, {} threads in the pool, source {source_offset} and target {target_offset} bytes past a page",
        rayon::current_num_threads()
    );
    for shape in SHAPES {
        for threads in [Threads::One, Threads::Pool] {
            measure(shape, threads, rounds, source_offset, target_offset);
        }
    }
}

fn measure(shape: MatrixShape, threads: Threads, rounds: usize, source_offset: usize, target_offset: usize) {
    let source = Buffer::random(BYTES, source_offset, 270_036);
    let mut target = Buffer::random(BYTES, target_offset, 1);
    let layouts: Vec<_> = Kernel::available().into_iter().map(Xe2DpasV2::with_kernel).collect();
    let mut times = vec![Vec::with_capacity(rounds); 1 + 2 * layouts.len()];
    for _ in 0..rounds {
        let mut slot = times.iter_mut();
        let mut time = |run: &mut dyn FnMut()| {
            let start = Instant::now();
            run();
            slot.next().expect("a slot for each operation").push(start.elapsed().as_secs_f64());
        };
        time(&mut || copy(source.get(), target.get_mut(), threads));
        for layout in &layouts {
            time(&mut || layout.pack(shape, source.get(), target.get_mut(), threads).expect("sizes agree"));
            time(&mut || layout.unpack(shape, source.get(), target.get_mut(), threads).expect("sizes agree"));
        }
    }
    let times: Vec<(f64, f64)> = times.iter_mut().map(|t| median_and_best(t)).collect();
    let (median, best) = times[0];
    println!("{} x {}, {threads:?}", shape.k, shape.n);
    println!("  {:<20} median {:6.2} GB/s          best {:6.2} GB/s", "memcpy", rate(median), rate(best));
    for (layout, pair) in layouts.iter().zip(times[1..].chunks(2)) {
        for (what, (m, b)) in ["pack", "unpack"].iter().zip(pair) {
            let name = format!("{what} {}", layout.kernel());
            let (m_ratio, b_ratio) = (median / m, best / b);
            println!(
                "  {name:<20} median {:6.2} GB/s {m_ratio:5.2} x  best {:6.2} GB/s {b_ratio:5.2} x",
                rate(*m),
                rate(*b)
            );
        }
    }
}

fn median_and_best(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn rate(seconds: f64) -> f64 {
    BYTES as f64 / seconds / 1e9
}
