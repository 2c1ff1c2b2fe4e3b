//! 512-bit vectors: four rows, four apart, in one register; a whole tile in four.
#![allow(clippy::wildcard_imports, reason = "intrinsics are known by their full names")]
#![expect(
    clippy::inline_always,
    reason = "only inside a caller that enables the instruction set is the code compiled for it"
)]
#![expect(unsafe_code, reason = "intrinsics; only a detected kernel leads here")]

use std::arch::x86_64::*;

use super::sse41::{load_scales, store_scales};
use super::x86::{Vector, compiled_for};

/// Rearranges with AVX-512 F and BW.
pub(super) struct Avx512;

compiled_for!(Avx512, "avx512", "avx512f and avx512bw (x86-64)", enable = "avx512f,avx512bw", detect = "avx512f" "avx512bw");

impl Vector for Avx512 {
    #[inline(always)]
    unsafe fn pack_tile<const STREAM: bool>(source: *const u8, stride: usize, quants: *mut u8, scales: *mut u8) {
        // SAFETY: rows and outputs are the caller's promise.
        unsafe {
            let first = source.add(2);
            let rows = [
                words(load_rows(first, stride)),
                words(load_rows(first.add(stride), stride)),
                words(load_rows(first.add(2 * stride), stride)),
                words(load_rows(first.add(3 * stride), stride)),
            ];
            store_groups::<STREAM>(transpose(rows), quants);
            let (low, high) = load_scales(source, stride);
            _mm_storeu_si128(scales.cast(), low);
            _mm_storeu_si128(scales.add(16).cast(), high);
        }
    }

    #[inline(always)]
    unsafe fn unpack_tile(quants: *const u8, scales: *const u8, target: *mut u8, pitch: usize) {
        // SAFETY: as in `pack_tile`, with inputs and outputs exchanged.
        unsafe {
            for (i, rows) in transpose(load_groups(quants)).into_iter().enumerate() {
                store_rows(bytes(rows), target.add(i * pitch + 2), pitch);
            }
            store_scales(scales, target, pitch);
        }
    }

    #[inline(always)]
    unsafe fn stream_line(source: *const u8, target: *mut u8) {
        // SAFETY: 64 bytes on both sides, the target aligned, by the caller's promise.
        unsafe { _mm512_stream_si512(target.cast(), _mm512_loadu_si512(source.cast())) }
    }
}

/// The 16 bytes at `first` and at 4, 8 and 12 strides from it.
///
/// # Safety
/// Those bytes are readable; the CPU has AVX-512F.
#[inline(always)]
pub(super) unsafe fn load_rows(first: *const u8, stride: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let rows = _mm512_castsi128_si512(_mm_loadu_si128(first.cast()));
        let rows = _mm512_inserti32x4::<1>(rows, _mm_loadu_si128(first.add(4 * stride).cast()));
        let rows = _mm512_inserti32x4::<2>(rows, _mm_loadu_si128(first.add(8 * stride).cast()));
        _mm512_inserti32x4::<3>(rows, _mm_loadu_si128(first.add(12 * stride).cast()))
    }
}

/// The inverse of [`load_rows`].
///
/// # Safety
/// 16 bytes are writable at each of the four places; the CPU has AVX-512F.
#[inline(always)]
pub(super) unsafe fn store_rows(rows: __m512i, first: *mut u8, pitch: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm_storeu_si128(first.cast(), _mm512_castsi512_si128(rows));
        _mm_storeu_si128(first.add(4 * pitch).cast(), _mm512_extracti32x4_epi32::<1>(rows));
        _mm_storeu_si128(first.add(8 * pitch).cast(), _mm512_extracti32x4_epi32::<2>(rows));
        _mm_storeu_si128(first.add(12 * pitch).cast(), _mm512_extracti32x4_epi32::<3>(rows));
    }
}

/// Writes the four groups of a tile.
///
/// # Safety
/// `quants` is aligned to 64 and valid for writing 256 bytes; the CPU has AVX-512F.
#[inline(always)]
pub(super) unsafe fn store_groups<const STREAM: bool>(groups: [__m512i; 4], quants: *mut u8) {
    for (group, words) in groups.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let target = quants.add(group * 64).cast();
            if STREAM { _mm512_stream_si512(target, words) } else { _mm512_store_si512(target.cast(), words) }
        }
    }
}

/// Reads the four groups of a tile.
///
/// # Safety
/// 256 bytes are readable at `quants`; the CPU has AVX-512F.
#[inline(always)]
pub(super) unsafe fn load_groups(quants: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            _mm512_loadu_si512(quants.cast()),
            _mm512_loadu_si512(quants.add(64).cast()),
            _mm512_loadu_si512(quants.add(128).cast()),
            _mm512_loadu_si512(quants.add(192).cast()),
        ]
    }
}

/// In each quarter, four rows of four words to four groups of four lanes, and back. With rows four apart in a register
/// the lanes of a group come out in order.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
pub(super) unsafe fn transpose([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: register operations on a CPU that has them.
    unsafe {
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(ab, cd),
            _mm512_unpackhi_epi64(ab, cd),
            _mm512_unpacklo_epi64(ab_high, cd_high),
            _mm512_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// In each quarter, a row's 16 source bytes to its four words, group 0 first.
#[inline(always)]
unsafe fn words(q: __m512i) -> __m512i {
    // SAFETY: register operations; the CPU has AVX-512 F and BW by the callers' promise.
    unsafe {
        let order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        _mm512_shuffle_epi8(flip_and_swap(q), order)
    }
}

/// The inverse of [`words`].
#[inline(always)]
unsafe fn bytes(words: __m512i) -> __m512i {
    // SAFETY: as in `words`.
    unsafe {
        let order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
        flip_and_swap(_mm512_shuffle_epi8(words, order))
    }
}

/// As `sse41::flip_and_swap`, with three-input logic as bit selection.
#[inline(always)]
unsafe fn flip_and_swap(q: __m512i) -> __m512i {
    /// Truth table of "the second where the first is set, else the third".
    const SELECT: i32 = 0xca;
    // SAFETY: as in `words`.
    unsafe {
        let q = _mm512_xor_si512(q, _mm512_set1_epi8(crate::geometry::SIGN_XOR as i8));
        let (up, down) = (_mm512_slli_epi16::<4>(q), _mm512_srli_epi16::<4>(q));
        let inner = _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi16(0x0f00), up, down);
        _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi16(0xf00f_u16 as i16), q, inner)
    }
}
