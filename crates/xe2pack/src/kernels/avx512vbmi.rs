//! As [`super::avx512`], with VBMI's multishift: one instruction picks any eight bits of a 64-bit lane for each byte, so
//! that regrouping nibbles takes two of them and a bit selection instead of shifts, selections and a byte shuffle.
#![allow(clippy::wildcard_imports, reason = "intrinsics are known by their full names")]
#![expect(
    clippy::inline_always,
    reason = "only inside a caller that enables the instruction set is the code compiled for it"
)]
#![expect(unsafe_code, reason = "intrinsics; only a detected kernel leads here")]

use std::arch::x86_64::*;

use super::avx512::{Avx512, load_groups, load_rows, store_groups, store_rows, transpose};
use super::sse41::{load_scales, store_scales};
use super::x86::{Vector, compiled_for};

/// Rearranges with AVX-512 F, BW and VBMI.
struct Avx512Vbmi;

compiled_for!(Avx512Vbmi, "avx512vbmi", "avx512f, avx512bw and avx512vbmi (x86-64)", enable = "avx512f,avx512bw,avx512vbmi", detect = "avx512f" "avx512bw" "avx512vbmi");

impl Vector for Avx512Vbmi {
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
            // `words` leaves a row as groups 0, 2, 1, 3.
            let [g0, g2, g1, g3] = transpose(rows);
            store_groups::<STREAM>([g0, g1, g2, g3], quants);
            let (low, high) = load_scales(source, stride);
            _mm_storeu_si128(scales.cast(), low);
            _mm_storeu_si128(scales.add(16).cast(), high);
        }
    }

    #[inline(always)]
    unsafe fn unpack_tile(quants: *const u8, scales: *const u8, target: *mut u8, pitch: usize) {
        // SAFETY: as in `pack_tile`, with inputs and outputs exchanged.
        unsafe {
            let [g0, g1, g2, g3] = load_groups(quants);
            for (i, rows) in transpose([g0, g2, g1, g3]).into_iter().enumerate() {
                store_rows(bytes(rows), target.add(i * pitch + 2), pitch);
            }
            store_scales(scales, target, pitch);
        }
    }

    #[inline(always)]
    unsafe fn stream_line(source: *const u8, target: *mut u8) {
        // SAFETY: the caller's promise is the same.
        unsafe { Avx512::stream_line(source, target) }
    }
}

/// Truth table of "the second where the first is set, else the third".
const SELECT: i32 = 0xca;

/// Eight bit positions of a 64-bit lane, one for each byte of the result.
const fn positions(offsets: [u8; 8]) -> i64 {
    i64::from_le_bytes(offsets)
}

/// In each 64-bit lane, eight source bytes to the word of their low nibbles and the word of their high nibbles.
#[inline(always)]
unsafe fn words(q: __m512i) -> __m512i {
    // Byte i of the low word is the low nibble of byte 2i (bits 16i..) below the low nibble of byte 2i+1 (bits 16i+8..).
    // The window at 16i has the former in place, the window at 16i+4 the latter. For the high word the window at 16i+4
    // has its low half in place and the window at 16i+8 its high half.
    const IN_BYTE: i64 = positions([0, 16, 32, 48, 8, 24, 40, 56]);
    const ACROSS: i64 = positions([4, 20, 36, 52, 4, 20, 36, 52]);
    const FROM_IN_BYTE: i64 = 0xf0f0_f0f0_0f0f_0f0f_u64 as i64;
    // SAFETY: register operations; the CPU has the features by the callers' promise.
    unsafe {
        let in_byte = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(IN_BYTE), q);
        let across = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(ACROSS), q);
        let words = _mm512_ternarylogic_epi64::<SELECT>(_mm512_set1_epi64(FROM_IN_BYTE), in_byte, across);
        _mm512_xor_si512(words, _mm512_set1_epi8(crate::geometry::SIGN_XOR as i8))
    }
}

/// The inverse of [`words`].
#[inline(always)]
unsafe fn bytes(words: __m512i) -> __m512i {
    // Byte j takes nibble j of the low word (bits 4j..) as its low half and nibble j of the high word (bits 32+4j..) as
    // its high half; the window at 28+4j has the latter in place.
    const LOW: i64 = positions([0, 4, 8, 12, 16, 20, 24, 28]);
    const HIGH: i64 = positions([28, 32, 36, 40, 44, 48, 52, 56]);
    // SAFETY: as in `words`.
    unsafe {
        let low = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(LOW), words);
        let high = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(HIGH), words);
        let bytes = _mm512_ternarylogic_epi64::<SELECT>(_mm512_set1_epi8(0x0f), low, high);
        _mm512_xor_si512(bytes, _mm512_set1_epi8(crate::geometry::SIGN_XOR as i8))
    }
}
