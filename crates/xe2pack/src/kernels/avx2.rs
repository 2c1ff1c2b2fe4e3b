//! 256-bit vectors: two rows, four apart, in one register; eight rows transposed at a time.
#![allow(clippy::wildcard_imports, reason = "intrinsics are known by their full names")]
#![expect(
    clippy::inline_always,
    reason = "only inside a caller that enables the instruction set is the code compiled for it"
)]
#![expect(unsafe_code, reason = "intrinsics; only a detected kernel leads here")]

use std::arch::x86_64::*;

use super::sse41::{load_scales, store_scales};
use super::x86::{Vector, compiled_for};

/// Rearranges with AVX2.
struct Avx2;

compiled_for!(Avx2, "avx2", "avx2 (x86-64)", enable = "avx2", detect = "avx2");

impl Vector for Avx2 {
    #[inline(always)]
    unsafe fn pack_tile<const STREAM: bool>(source: *const u8, stride: usize, quants: *mut u8, scales: *mut u8) {
        // SAFETY: rows 0..16 and the outputs are the caller's promise; group g of lanes 8h.. is at 64 g + 32 h, a
        // multiple of 32 below 256.
        unsafe {
            for half in 0..2 {
                let first = source.add(half * 8 * stride + 2);
                let rows = [
                    words(load_rows(first, stride)),
                    words(load_rows(first.add(stride), stride)),
                    words(load_rows(first.add(2 * stride), stride)),
                    words(load_rows(first.add(3 * stride), stride)),
                ];
                for (group, words) in transpose(rows).into_iter().enumerate() {
                    let target = quants.add(group * 64 + half * 32).cast();
                    if STREAM { _mm256_stream_si256(target, words) } else { _mm256_store_si256(target, words) }
                }
            }
            let (low, high) = load_scales(source, stride);
            _mm_storeu_si128(scales.cast(), low);
            _mm_storeu_si128(scales.add(16).cast(), high);
        }
    }

    #[inline(always)]
    unsafe fn unpack_tile(quants: *const u8, scales: *const u8, target: *mut u8, pitch: usize) {
        // SAFETY: as in `pack_tile`, with inputs and outputs exchanged.
        unsafe {
            for half in 0..2 {
                let first = quants.add(half * 32);
                let rows = transpose([
                    _mm256_loadu_si256(first.cast()),
                    _mm256_loadu_si256(first.add(64).cast()),
                    _mm256_loadu_si256(first.add(128).cast()),
                    _mm256_loadu_si256(first.add(192).cast()),
                ]);
                for (i, row) in rows.into_iter().enumerate() {
                    let (first, pair) = (target.add((half * 8 + i) * pitch + 2), bytes(row));
                    _mm_storeu_si128(first.cast(), _mm256_castsi256_si128(pair));
                    _mm_storeu_si128(first.add(4 * pitch).cast(), _mm256_extracti128_si256::<1>(pair));
                }
            }
            store_scales(scales, target, pitch);
        }
    }

    #[inline(always)]
    unsafe fn stream_line(source: *const u8, target: *mut u8) {
        // SAFETY: 64 bytes on both sides, the target aligned, by the caller's promise.
        unsafe {
            for at in [0, 32] {
                _mm256_stream_si256(target.add(at).cast(), _mm256_loadu_si256(source.add(at).cast()));
            }
        }
    }
}

/// The 16 bytes at `first` and at 4 strides from it.
#[inline(always)]
unsafe fn load_rows(first: *const u8, stride: usize) -> __m256i {
    // SAFETY: 16 bytes are readable at both places, by the caller's promise.
    unsafe {
        _mm256_inserti128_si256::<1>(
            _mm256_castsi128_si256(_mm_loadu_si128(first.cast())),
            _mm_loadu_si128(first.add(4 * stride).cast()),
        )
    }
}

/// In each half, a row's 16 source bytes to its four words, group 0 first.
#[inline(always)]
unsafe fn words(q: __m256i) -> __m256i {
    // SAFETY: register operations; the CPU has AVX2 by the callers' promise.
    unsafe {
        let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        _mm256_shuffle_epi8(flip_and_swap(q), order)
    }
}

/// The inverse of [`words`].
#[inline(always)]
unsafe fn bytes(words: __m256i) -> __m256i {
    // SAFETY: as in `words`.
    unsafe {
        let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
        flip_and_swap(_mm256_shuffle_epi8(words, order))
    }
}

/// As `sse41::flip_and_swap`.
#[inline(always)]
unsafe fn flip_and_swap(q: __m256i) -> __m256i {
    // SAFETY: as in `words`.
    unsafe {
        let q = _mm256_xor_si256(q, _mm256_set1_epi8(crate::geometry::SIGN_XOR as i8));
        let outer = _mm256_and_si256(q, _mm256_set1_epi16(0xf00f_u16 as i16));
        let up = _mm256_and_si256(_mm256_slli_epi16::<4>(q), _mm256_set1_epi16(0x0f00));
        let down = _mm256_and_si256(_mm256_srli_epi16::<4>(q), _mm256_set1_epi16(0x00f0));
        _mm256_or_si256(outer, _mm256_or_si256(up, down))
    }
}

/// In each half, four rows of four words to four groups of four lanes, and back.
#[inline(always)]
unsafe fn transpose([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: as in `words`.
    unsafe {
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}
