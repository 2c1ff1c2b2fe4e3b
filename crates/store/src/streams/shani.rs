//! Several streams interleaved through the SHA instructions of x86.
//!
//! `sha256rnds2` has a latency of four cycles and can be started more often, so that a second stream fills the gaps of the
//! first. How much that gains is the CPU's: nearly a factor of two on AMD Zen 3 and 4, a quarter on Intel's server cores,
//! whose message instructions are the limit.
#![allow(clippy::needless_range_loop, reason = "a loop over lanes indexes several arrays alike")]

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_load_si128, _mm_loadu_si128, _mm_set_epi64x,
    _mm_setzero_si128, _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
    _mm_shuffle_epi32, _mm_storeu_si128,
};

use super::{Block, K, State};

/// Proof that the CPU has what the functions of this module need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShaNi(());

impl ShaNi {
    pub(super) fn detect() -> Option<Self> {
        let has = std::is_x86_feature_detected!("sha")
            && std::is_x86_feature_detected!("sse4.1")
            && std::is_x86_feature_detected!("ssse3")
            && std::is_x86_feature_detected!("avx");
        has.then_some(Self(()))
    }

    /// Feeds `data[i]` to `states[i]`; all have the same number of blocks.
    #[expect(clippy::unused_self, reason = "the value is the proof that the features were detected")]
    pub(super) fn compress<const N: usize>(self, states: [&mut State; N], data: [&[Block]; N]) {
        let blocks = data[0].len();
        assert!(data.iter().all(|lane| lane.len() == blocks), "lanes of one call have equally many blocks");
        // SAFETY: a `ShaNi` exists only where the features were detected.
        #[expect(unsafe_code, reason = "calls a function with target features")]
        unsafe {
            compress(states, data, blocks);
        }
    }
}

#[target_feature(enable = "sha,sse4.1,ssse3,avx")]
fn compress<const N: usize>(states: [&mut State; N], data: [&[Block]; N], blocks: usize) {
    let zero = _mm_setzero_si128();
    let (mut abef, mut cdgh) = ([zero; N], [zero; N]);
    for lane in 0..N {
        [abef[lane], cdgh[lane]] = load_state(states[lane]);
    }
    for block in 0..blocks {
        let (abef_before, cdgh_before) = (abef, cdgh);
        let mut w = [[zero; 4]; N];
        for (lane, words) in w.iter_mut().enumerate() {
            *words = load_block(&data[lane][block]);
        }
        for group in 0..16 {
            let i = group % 4;
            if group >= 4 {
                for words in &mut w {
                    let [w0, w1, w2, w3] = std::array::from_fn(|j| words[(i + j) % 4]);
                    let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8::<4>(w3, w2));
                    words[i] = _mm_sha256msg2_epu32(sum, w3);
                }
            }
            let constants = load_constants(group);
            let mut wk = [zero; N];
            for lane in 0..N {
                wk[lane] = _mm_add_epi32(w[lane][i], constants);
                cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], wk[lane]);
            }
            for lane in 0..N {
                abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], _mm_shuffle_epi32::<0x0e>(wk[lane]));
            }
        }
        for lane in 0..N {
            abef[lane] = _mm_add_epi32(abef[lane], abef_before[lane]);
            cdgh[lane] = _mm_add_epi32(cdgh[lane], cdgh_before[lane]);
        }
    }
    for (lane, state) in states.into_iter().enumerate() {
        store_state(state, abef[lane], cdgh[lane]);
    }
}

/// The four round constants of a group of rounds.
#[inline]
#[target_feature(enable = "sse4.1")]
fn load_constants(group: usize) -> __m128i {
    let constants = &K.0[4 * group..4 * group + 4];
    // SAFETY: the slice has 16 bytes, and `K` is aligned to 64 of them.
    #[expect(unsafe_code, reason = "an aligned load from a slice of that length")]
    unsafe {
        _mm_load_si128(constants.as_ptr().cast())
    }
}

/// The sixteen words of a block, which are big-endian in memory.
#[inline]
#[target_feature(enable = "ssse3")]
fn load_block(block: &Block) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
    std::array::from_fn(|i| {
        // SAFETY: `i` is below 4, so that the 16 bytes lie within the block's 64; the load needs no alignment.
        #[expect(unsafe_code, clippy::cast_ptr_alignment, reason = "an unaligned load within the block")]
        let words = unsafe { _mm_loadu_si128(block.as_ptr().cast::<__m128i>().add(i)) };
        _mm_shuffle_epi8(words, swap)
    })
}

/// The state in the order in which the instructions keep it: `[a b e f]` and `[c d g h]`.
#[inline]
#[target_feature(enable = "sse4.1,ssse3")]
fn load_state(state: &State) -> [__m128i; 2] {
    let at: *const __m128i = state.as_ptr().cast();
    // SAFETY: a state has 32 bytes; the loads need no alignment.
    #[expect(unsafe_code, reason = "two unaligned loads of a state's halves")]
    let (dcba, hgfe) = unsafe { (_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))) };
    let (cdab, efgh) = (_mm_shuffle_epi32::<0xb1>(dcba), _mm_shuffle_epi32::<0x1b>(hgfe));
    [_mm_alignr_epi8::<8>(cdab, efgh), _mm_blend_epi16::<0xf0>(efgh, cdab)]
}

#[inline]
#[target_feature(enable = "sse4.1,ssse3")]
fn store_state(state: &mut State, abef: __m128i, cdgh: __m128i) {
    let (feba, dchg) = (_mm_shuffle_epi32::<0x1b>(abef), _mm_shuffle_epi32::<0xb1>(cdgh));
    let at: *mut __m128i = state.as_mut_ptr().cast();
    // SAFETY: a state has 32 bytes; the stores need no alignment.
    #[expect(unsafe_code, reason = "two unaligned stores of a state's halves")]
    unsafe {
        _mm_storeu_si128(at, _mm_blend_epi16::<0xf0>(feba, dchg));
        _mm_storeu_si128(at.add(1), _mm_alignr_epi8::<8>(dchg, feba));
    }
}
