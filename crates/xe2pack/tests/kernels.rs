//! Every kernel at every boundary: sizes, threads, alignments, guard bytes.

mod common;

use b70_packset::{Layout, LayoutError, MatrixShape, Segment, Threads};
use b70_testkit::bytes;
use b70_xe2pack::{Xe2DpasV2, self_test};
use common::{kernels, len, packed_by_reference};

const GUARD: usize = 192;

/// Packs and unpacks with input and output at the given distances from a multiple of 64, inside guard bytes.
fn check(layout: &Xe2DpasV2, shape: MatrixShape, source: &[u8], payload: &[u8], threads: Threads, at: (usize, usize)) {
    let what = || format!("{} {shape} {threads:?} source+{} payload+{}", layout.kernel(), at.0, at.1);
    let place = |bytes: &[u8], offset: usize| {
        let mut buffer = vec![0x5a; bytes.len() + 2 * GUARD + 128];
        let start = buffer.as_ptr().addr().wrapping_neg() % 64 + GUARD + offset;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        (buffer, start..start + bytes.len())
    };
    let intact = |buffer: &[u8], range: &std::ops::Range<usize>| {
        buffer[..range.start].iter().chain(&buffer[range.end..]).all(|byte| *byte == 0x5a)
    };
    let dirty = vec![0xff; source.len()];

    let (input, from) = place(source, at.0);
    let (mut output, to) = place(&dirty, at.1);
    layout.pack(shape, &input[from], &mut output[to.clone()], threads).expect("valid");
    assert!(output[to.clone()] == *payload, "packed bytes: {}", what());
    assert!(intact(&output, &to), "bytes around the payload: {}", what());

    let (input, from) = place(payload, at.1);
    let (mut output, to) = place(&dirty, at.0);
    layout.unpack(shape, &input[from], &mut output[to.clone()], threads).expect("valid");
    assert!(output[to.clone()] == *source, "unpacked bytes: {}", what());
    assert!(intact(&output, &to), "bytes around the source: {}", what());
}

#[test]
fn every_block_count_and_tile_count_around_the_boundaries() {
    // Runs of 32 blocks when unpacking; pairs of tiles, stages of 8 tiles.
    let block_counts = (1..=9).chain([15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 95, 96, 97]);
    for blocks in block_counts {
        for tiles in [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 18] {
            if blocks > 34 && tiles > 9 {
                continue;
            }
            let shape = MatrixShape { k: blocks * 32, n: tiles * 16 };
            let source = bytes((blocks * tiles * 288) as usize, blocks * 100 + tiles);
            let payload = packed_by_reference(shape, &source);
            for kernel in kernels() {
                let layout = Xe2DpasV2::with_kernel(kernel);
                for threads in [Threads::One, Threads::Pool] {
                    for at in [(0, 0), (34, 16)] {
                        check(&layout, shape, &source, &payload, threads, at);
                    }
                }
            }
        }
    }
}

#[test]
fn every_misalignment_within_a_line() {
    for shape in [MatrixShape { k: 32 * 35, n: 16 * 3 }, MatrixShape { k: 64, n: 16 * 10 }] {
        let source = bytes(len(&Xe2DpasV2::new(), shape), shape.n);
        let payload = packed_by_reference(shape, &source);
        for kernel in kernels() {
            let layout = Xe2DpasV2::with_kernel(kernel);
            for offset in 0..64 {
                for at in [(offset, 0), (0, offset), (offset, 63 - offset)] {
                    check(&layout, shape, &source, &payload, Threads::One, at);
                }
            }
        }
    }
}

#[test]
fn pools_of_any_size_give_the_same_bytes() {
    let shape = MatrixShape { k: 96, n: 16 * 37 };
    let source = bytes(len(&Xe2DpasV2::new(), shape), 3);
    let payload = packed_by_reference(shape, &source);
    for threads in [1, 2, 3, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
        for kernel in kernels() {
            pool.install(|| {
                check(&Xe2DpasV2::with_kernel(kernel), shape, &source, &payload, Threads::Pool, (0, 0));
                check(&Xe2DpasV2::with_kernel(kernel), shape, &source, &payload, Threads::Pool, (2, 50));
            });
        }
    }
}

/// Every bit pattern of a scale survives: subnormals, both zeros, infinities, NaNs with their payloads.
#[test]
fn scales_are_copied_bit_for_bit() {
    let shape = MatrixShape { k: 32 * 32, n: 2048 };
    let mut source = vec![0x88; len(&Xe2DpasV2::new(), shape)];
    for (block, bits) in source.chunks_exact_mut(18).zip(0..=u16::MAX) {
        block[..2].copy_from_slice(&bits.to_le_bytes());
    }
    let quant_len = 32 * 32 * 2048 / 2;
    for kernel in kernels() {
        let layout = Xe2DpasV2::with_kernel(kernel);
        let (mut payload, mut back) = (vec![0; source.len()], vec![0; source.len()]);
        layout.pack(shape, &source, &mut payload, Threads::One).expect("valid");
        assert!(payload[..quant_len].iter().all(|byte| *byte == 0));
        for (i, bits) in (0..=u16::MAX).enumerate() {
            let (n, b) = (i / 32, i % 32);
            let at = quant_len + (b * 2048 + n) * 2;
            assert_eq!(payload[at..at + 2], bits.to_le_bytes(), "{} {bits:#06x}", layout.kernel());
        }
        layout.unpack(shape, &payload, &mut back, Threads::One).expect("valid");
        assert!(back == source, "{}", layout.kernel());
    }
}

#[test]
fn wrong_lengths_are_refused_and_nothing_is_written() {
    let shape = MatrixShape { k: 64, n: 32 };
    let size = len(&Xe2DpasV2::new(), shape);
    for kernel in kernels() {
        let layout = Xe2DpasV2::with_kernel(kernel);
        for wrong in [0, size - 1, size + 1] {
            let mut output = vec![7; size];
            let error = layout.pack(shape, &vec![0; wrong], &mut output, Threads::One).expect_err("a wrong source");
            assert_eq!(
                error,
                LayoutError::Length { what: "source", shape, expected: size as u64, found: wrong as u64 }
            );
            let error = layout.unpack(shape, &vec![0; wrong], &mut output, Threads::One).expect_err("a wrong payload");
            assert!(matches!(error, LayoutError::Length { what: "payload", .. }), "{error}");
            assert!(output.iter().all(|byte| *byte == 7));
            let mut output = vec![7; wrong];
            let error = layout.pack(shape, &vec![0; size], &mut output, Threads::Pool).expect_err("a wrong payload");
            assert!(matches!(error, LayoutError::Length { what: "payload", .. }), "{error}");
            assert!(layout.unpack(shape, &vec![0; size], &mut output, Threads::Pool).is_err());
            assert!(output.iter().all(|byte| *byte == 7));
        }
        for (k, n) in [(0, 16), (32, 0), (48, 16), (32, 8), (u64::MAX - 31, u64::MAX - 15)] {
            let shape = MatrixShape { k, n };
            assert!(layout.check(shape).is_err(), "{shape}");
            assert!(layout.pack(shape, &[], &mut [], Threads::One).is_err(), "{shape}");
        }
    }
}

#[test]
fn segments_of_refused_bands() {
    let (layout, shape) = (Xe2DpasV2::new(), MatrixShape { k: 64, n: 64 });
    #[expect(clippy::reversed_empty_ranges, reason = "a refused input")]
    for rows in [0..0, 16..16, 32..16, 0..8, 8..16, 48..80, 64..80, 0..u64::MAX] {
        let expected = LayoutError::Rows { start: rows.start, end: rows.end, group: 16, n: 64 };
        assert_eq!(layout.segments(shape, rows), Err(expected));
    }
    let all = Segment { band_offset: 0, full_offset: 0, len: 64 * 32 + 2 * 64 * 2 };
    assert_eq!(layout.segments(shape, 0..64), Ok(vec![all]));
    assert_eq!(
        layout.segments(shape, 16..48).expect("whole tiles"),
        [(0, 256, 512), (512, 1280, 512), (1024, 2080, 64), (1088, 2208, 64)]
            .map(|(band_offset, full_offset, len)| Segment { band_offset, full_offset, len })
    );
}

/// A shape no file can back must be an error, not an allocation.
#[test]
fn segments_of_an_absurd_shape() {
    let shape = MatrixShape { k: 1 << 57, n: 32 };
    assert_eq!(Xe2DpasV2::new().segments(shape, 0..16), Err(LayoutError::Overflow(shape)));
}

#[test]
fn the_self_test_passes_and_names_what_it_skipped() {
    let report = self_test(None);
    for skipped in &report.skipped {
        println!("skipped: kernel {} needs {}", skipped.kernel, skipped.needs);
    }
    for kernel in &report.kernels {
        assert_eq!(kernel.first_failure, None, "{}", kernel.kernel);
        assert!(kernel.passed());
        assert!(kernel.cases > 300 && kernel.bytes > 0);
    }
    assert!(report.passed());
    assert_eq!(report.kernels.len() + report.skipped.len(), b70_xe2pack::Kernel::known().len());
    let scalar = self_test(Some(b70_xe2pack::Kernel::scalar()));
    assert_eq!(scalar.kernels.len(), 1);
    assert!(scalar.passed());
}
