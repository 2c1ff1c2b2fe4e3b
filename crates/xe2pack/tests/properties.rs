//! Properties over random shapes and bytes.

mod common;

use b70_packset::{Layout, MatrixShape, Threads};
use b70_testkit::bytes;
use b70_xe2pack::Xe2DpasV2;
use b70_xe2pack::emulate::{self, Accumulation};
use common::{kernels, packed_by_reference};
use proptest::prelude::*;

fn shapes() -> impl Strategy<Value = MatrixShape> {
    (1u64..=40, 1u64..=12).prop_map(|(blocks, tiles)| MatrixShape { k: blocks * 32, n: tiles * 16 })
}

fn threads() -> impl Strategy<Value = Threads> {
    prop_oneof![Just(Threads::One), Just(Threads::Pool)]
}

/// A shape with random source bytes, special scales among them.
fn tensors() -> impl Strategy<Value = (MatrixShape, Vec<u8>)> {
    (shapes(), any::<u64>(), prop::collection::vec((any::<prop::sample::Index>(), special_scale()), 0..8)).prop_map(
        |(shape, seed, specials)| {
            let mut source = bytes((shape.k / 32 * shape.n * 18) as usize, seed);
            let blocks = source.len() / 18;
            for (index, bits) in specials {
                let at = index.index(blocks) * 18;
                source[at..at + 2].copy_from_slice(&u16::to_le_bytes(bits));
            }
            (shape, source)
        },
    )
}

/// Zeros of both signs, the smallest and largest subnormals, infinities, quiet and signalling NaNs.
fn special_scale() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0x0000, 0x8000, 0x0001, 0x83ff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfdff])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packing_agrees_with_the_reference_and_unpacking_inverts_it(
        (shape, source) in tensors(),
        threads in threads(),
        input in 0usize..64,
        output in 0usize..64,
    ) {
        let expected = packed_by_reference(shape, &source);
        let shifted = |bytes: &[u8], by: usize| [&vec![0; by], bytes].concat();
        let (source_at, payload_at) = (shifted(&source, input), shifted(&expected, input));
        for kernel in kernels() {
            let layout = Xe2DpasV2::with_kernel(kernel);
            let mut buffer = vec![0xee; output + source.len()];
            layout.pack(shape, &source_at[input..], &mut buffer[output..], threads).expect("valid");
            prop_assert!(buffer[output..] == expected, "pack {}", kernel.name());
            layout.unpack(shape, &payload_at[input..], &mut buffer[output..], threads).expect("valid");
            prop_assert!(buffer[output..] == source, "unpack {}", kernel.name());
        }
    }

    #[test]
    fn bands_scattered_by_their_segments_are_the_whole_payload(
        (shape, source) in tensors(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let layout = Xe2DpasV2::new();
        let tiles = shape.n / 16;
        let mut edges: Vec<u64> = cuts.iter().map(|cut| cut.index(tiles as usize) as u64 * 16).collect();
        edges.extend([0, shape.n]);
        edges.sort_unstable();
        edges.dedup();
        let mut whole = vec![0; source.len()];
        let mut written = vec![0u8; source.len()];
        let row_bytes = shape.k / 32 * 18;
        for pair in edges.windows(2) {
            let band_shape = MatrixShape { k: shape.k, n: pair[1] - pair[0] };
            let rows = &source[(pair[0] * row_bytes) as usize..(pair[1] * row_bytes) as usize];
            let mut band = vec![0; rows.len()];
            layout.pack(band_shape, rows, &mut band, Threads::One).expect("valid");
            let segments = layout.segments(shape, pair[0]..pair[1]).expect("whole tiles");
            prop_assert!(segments.is_sorted_by_key(|segment| segment.full_offset));
            for segment in segments {
                let (from, to, len) =
                    (segment.band_offset as usize, segment.full_offset as usize, segment.len as usize);
                whole[to..to + len].copy_from_slice(&band[from..from + len]);
                written[to..to + len].iter_mut().for_each(|count| *count += 1);
            }
        }
        prop_assert!(written.iter().all(|count| *count == 1), "every byte is written once");
        prop_assert!(whole == packed_by_reference(shape, &source));
    }

    #[test]
    fn the_consumer_computes_from_the_payload_what_the_blocks_say(
        (shape, source) in tensors(),
        m in 1u64..=3,
        seed in any::<u64>(),
    ) {
        let payload = packed_by_reference(shape, &source);
        let activations = bytes((m * shape.k / 32 * 36) as usize, seed);
        for order in Accumulation::ALL {
            let from_payload = emulate::packed(shape, &payload, &activations, order).expect("valid");
            let from_blocks = emulate::unpacked(shape, &source, &activations, order).expect("valid");
            prop_assert_eq!(from_payload.len() as u64, m * shape.n);
            for (a, b) in from_payload.iter().zip(&from_blocks) {
                // NaNs are compared as such: their payload bits are not defined by the arithmetic.
                prop_assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{a} {b} {order:?}");
            }
        }
    }
}
