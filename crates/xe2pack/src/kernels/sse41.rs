//! 128-bit vectors: a row's 16 bytes in one register, four rows transposed at a time.
#![allow(clippy::wildcard_imports, reason = "intrinsics are known by their full names")]
#![expect(
    clippy::inline_always,
    reason = "only inside a caller that enables the instruction set is the code compiled for it"
)]
#![expect(unsafe_code, reason = "intrinsics; only a detected kernel leads here")]

use std::arch::x86_64::*;

use super::view::ROWS;
use super::x86::{Vector, compiled_for};

/// Rearranges with SSE4.1.
struct Sse41;

compiled_for!(Sse41, "sse41", "sse4.1 (x86-64)", enable = "sse4.1", detect = "sse4.1");

impl Vector for Sse41 {
    #[inline(always)]
    unsafe fn pack_tile<const STREAM: bool>(source: *const u8, stride: usize, quants: *mut u8, scales: *mut u8) {
        // SAFETY: rows 0..16 and the outputs are the caller's promise; group g of lanes 4q.. is at 64 g + 16 q, a
        // multiple of 16 below 256.
        unsafe {
            for quad in 0..4 {
                let first = source.add(quad * 4 * stride + 2);
                let rows = [
                    words(_mm_loadu_si128(first.cast())),
                    words(_mm_loadu_si128(first.add(stride).cast())),
                    words(_mm_loadu_si128(first.add(2 * stride).cast())),
                    words(_mm_loadu_si128(first.add(3 * stride).cast())),
                ];
                for (group, words) in transpose(rows).into_iter().enumerate() {
                    let target = quants.add(group * 64 + quad * 16).cast();
                    if STREAM { _mm_stream_si128(target, words) } else { _mm_store_si128(target, words) }
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
            for quad in 0..4 {
                let first = quants.add(quad * 16);
                let rows = transpose([
                    _mm_loadu_si128(first.cast()),
                    _mm_loadu_si128(first.add(64).cast()),
                    _mm_loadu_si128(first.add(128).cast()),
                    _mm_loadu_si128(first.add(192).cast()),
                ]);
                for (i, row) in rows.into_iter().enumerate() {
                    _mm_storeu_si128(target.add((quad * 4 + i) * pitch + 2).cast(), bytes(row));
                }
            }
            store_scales(scales, target, pitch);
        }
    }

    #[inline(always)]
    unsafe fn stream_line(source: *const u8, target: *mut u8) {
        // SAFETY: 64 bytes on both sides, the target aligned, by the caller's promise.
        unsafe {
            for at in [0, 16, 32, 48] {
                _mm_stream_si128(target.add(at).cast(), _mm_loadu_si128(source.add(at).cast()));
            }
        }
    }
}

/// The 16 scales of a tile's blocks, rows 0..8 and 8..16.
///
/// # Safety
/// Two bytes are readable at `source` and at each of the 15 places `stride` apart; the CPU has SSE4.1.
#[inline(always)]
pub(super) unsafe fn load_scales(source: *const u8, stride: usize) -> (__m128i, __m128i) {
    // SAFETY: the caller's promise.
    unsafe {
        // A closure without intrinsics: it is inlined into whatever instruction set the caller has.
        let d = |row: usize| i32::from(source.add(row * stride).cast::<i16>().read_unaligned());
        let mut low = _mm_cvtsi32_si128(d(0));
        low = _mm_insert_epi16::<1>(low, d(1));
        low = _mm_insert_epi16::<2>(low, d(2));
        low = _mm_insert_epi16::<3>(low, d(3));
        low = _mm_insert_epi16::<4>(low, d(4));
        low = _mm_insert_epi16::<5>(low, d(5));
        low = _mm_insert_epi16::<6>(low, d(6));
        low = _mm_insert_epi16::<7>(low, d(7));
        let mut high = _mm_cvtsi32_si128(d(8));
        high = _mm_insert_epi16::<1>(high, d(9));
        high = _mm_insert_epi16::<2>(high, d(10));
        high = _mm_insert_epi16::<3>(high, d(11));
        high = _mm_insert_epi16::<4>(high, d(12));
        high = _mm_insert_epi16::<5>(high, d(13));
        high = _mm_insert_epi16::<6>(high, d(14));
        high = _mm_insert_epi16::<7>(high, d(15));
        (low, high)
    }
}

/// Copies 16 scales to the starts of 16 blocks.
///
/// # Safety
/// 32 bytes are readable at `scales`, two bytes writable at `target` and at each of the 15 places `pitch` apart.
#[inline(always)]
pub(super) unsafe fn store_scales(scales: *const u8, target: *mut u8, pitch: usize) {
    for row in 0..ROWS {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(scales.add(row * 2), target.add(row * pitch), 2) };
    }
}

/// A row's 16 source bytes to its four words, group 0 first.
#[inline(always)]
unsafe fn words(q: __m128i) -> __m128i {
    // SAFETY: register operations; the CPU has SSE4.1 by the callers' promise.
    unsafe {
        let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        _mm_shuffle_epi8(flip_and_swap(q), order)
    }
}

/// The inverse of [`words`].
#[inline(always)]
unsafe fn bytes(words: __m128i) -> __m128i {
    // SAFETY: as in `words`.
    unsafe {
        let order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
        flip_and_swap(_mm_shuffle_epi8(words, order))
    }
}

/// XORs each byte with `SIGN_XOR` and exchanges the two inner nibbles of each 16-bit lane, so that the low byte holds
/// the low nibbles of both and the high byte the high ones. Its own inverse.
#[inline(always)]
unsafe fn flip_and_swap(q: __m128i) -> __m128i {
    // SAFETY: as in `words`.
    unsafe {
        let q = _mm_xor_si128(q, _mm_set1_epi8(crate::geometry::SIGN_XOR as i8));
        let outer = _mm_and_si128(q, _mm_set1_epi16(0xf00f_u16 as i16));
        let up = _mm_and_si128(_mm_slli_epi16::<4>(q), _mm_set1_epi16(0x0f00));
        let down = _mm_and_si128(_mm_srli_epi16::<4>(q), _mm_set1_epi16(0x00f0));
        _mm_or_si128(outer, _mm_or_si128(up, down))
    }
}

/// Four rows of four words to four groups of four lanes, and back.
#[inline(always)]
unsafe fn transpose([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
    // SAFETY: as in `words`.
    unsafe {
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        [
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_high, cd_high),
            _mm_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}
