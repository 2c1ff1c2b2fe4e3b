//! Sixteen streams side by side in the 32-bit lanes of AVX-512 registers.
//!
//! Vector `i` of the state holds word `i` of all sixteen streams, so that a round is a round of all of them. The blocks
//! are transposed on their way in. Two streams cost as much as sixteen.
#![allow(clippy::needless_range_loop, reason = "a loop over lanes indexes several arrays alike")]

use std::arch::x86_64::{
    __m512i, _mm_set_epi64x, _mm512_add_epi32, _mm512_broadcast_i32x4, _mm512_loadu_si512, _mm512_ror_epi32,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_shuffle_i32x4, _mm512_srli_epi32,
    _mm512_storeu_si512, _mm512_ternarylogic_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::{Block, K, State};

/// Streams of one call.
pub(super) const WIDTH: usize = 16;

/// Truth tables of three inputs for `vpternlogd`.
const XOR: i32 = 0x96;
const CHOOSE: i32 = 0xca;
const MAJORITY: i32 = 0xe8;

/// Proof that the CPU has what the functions of this module need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bw");
        has.then_some(Self(()))
    }

    /// Feeds `data[i]` to `states[i]`; all have the same number of blocks.
    #[expect(clippy::unused_self, reason = "the value is the proof that the features were detected")]
    pub(super) fn compress(self, states: &mut [State; WIDTH], data: [&[Block]; WIDTH]) {
        let blocks = data[0].len();
        assert!(data.iter().all(|lane| lane.len() == blocks), "lanes of one call have equally many blocks");
        // SAFETY: an `Avx512` exists only where the features were detected.
        #[expect(unsafe_code, reason = "calls a function with target features")]
        unsafe {
            compress(states, data, blocks);
        }
    }
}

/// One round: the names of the state's words rotate, their values stay where they are.
macro_rules! round {
    ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $w:expr, $k:expr) => {
        let sum1 = xor3(_mm512_ror_epi32::<6>($e), _mm512_ror_epi32::<11>($e), _mm512_ror_epi32::<25>($e));
        let choice = _mm512_ternarylogic_epi32::<CHOOSE>($e, $f, $g);
        let wk = _mm512_add_epi32($w, _mm512_set1_epi32($k as i32));
        let t1 = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32($h, wk), choice), sum1);
        let sum0 = xor3(_mm512_ror_epi32::<2>($a), _mm512_ror_epi32::<13>($a), _mm512_ror_epi32::<22>($a));
        let majority = _mm512_ternarylogic_epi32::<MAJORITY>($a, $b, $c);
        $d = _mm512_add_epi32($d, t1);
        $h = _mm512_add_epi32(t1, _mm512_add_epi32(sum0, majority));
    };
}

/// Sixteen rounds, after which every word has its name again; `$extend` makes word `i` of the schedule.
macro_rules! rounds16 {
    ($first:expr, $w:ident, $extend:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        rounds8!($first, 0, $w, $extend, $a $b $c $d $e $f $g $h);
        rounds8!($first, 8, $w, $extend, $a $b $c $d $e $f $g $h);
    };
}

macro_rules! rounds8 {
    ($first:expr, $i:expr, $w:ident, $extend:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        step!($first, $i, $w, $extend, $a $b $c $d $e $f $g $h);
        step!($first, $i + 1, $w, $extend, $h $a $b $c $d $e $f $g);
        step!($first, $i + 2, $w, $extend, $g $h $a $b $c $d $e $f);
        step!($first, $i + 3, $w, $extend, $f $g $h $a $b $c $d $e);
        step!($first, $i + 4, $w, $extend, $e $f $g $h $a $b $c $d);
        step!($first, $i + 5, $w, $extend, $d $e $f $g $h $a $b $c);
        step!($first, $i + 6, $w, $extend, $c $d $e $f $g $h $a $b);
        step!($first, $i + 7, $w, $extend, $b $c $d $e $f $g $h $a);
    };
}

macro_rules! step {
    ($first:expr, $i:expr, $w:ident, $extend:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        if $extend {
            extend(&mut $w, $i);
        }
        round!($a $b $c $d $e $f $g $h, $w[$i], K.0[$first + $i]);
    };
}

#[target_feature(enable = "avx512f,avx512bw")]
fn compress(states: &mut [State; WIDTH], data: [&[Block]; WIDTH], blocks: usize) {
    // Eight words of sixteen streams are two 8 × 16 halves: transposed by hand, since that happens once a call.
    let mut words = [[0_u32; WIDTH]; 8];
    for (lane, state) in states.iter().enumerate() {
        for (word, row) in words.iter_mut().enumerate() {
            row[lane] = state[word];
        }
    }
    let mut state: [__m512i; 8] = std::array::from_fn(|i| load(&words[i]));
    for block in 0..blocks {
        let mut w = load_blocks(&data, block);
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        rounds16!(0, w, false, a b c d e f g h);
        rounds16!(16, w, true, a b c d e f g h);
        rounds16!(32, w, true, a b c d e f g h);
        rounds16!(48, w, true, a b c d e f g h);
        for (before, after) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *before = _mm512_add_epi32(*before, after);
        }
    }
    for (row, vector) in words.iter_mut().zip(state) {
        // SAFETY: the row has the 64 bytes of the store, which needs no alignment.
        #[expect(unsafe_code, reason = "an unaligned store of a row")]
        unsafe {
            _mm512_storeu_si512(row.as_mut_ptr().cast(), vector);
        }
    }
    for (lane, state) in states.iter_mut().enumerate() {
        for (word, row) in words.iter().enumerate() {
            state[word] = row[lane];
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(row: &[u32; WIDTH]) -> __m512i {
    // SAFETY: the row has the 64 bytes of the load, which needs no alignment.
    #[expect(unsafe_code, reason = "an unaligned load of a row")]
    unsafe {
        _mm512_loadu_si512(row.as_ptr().cast())
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<XOR>(a, b, c)
}

/// Word `i` of the next sixteen words of the message schedule, in place of word `i` of the last ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn extend(w: &mut [__m512i; 16], i: usize) {
    let (w1, w14) = (w[(i + 1) % 16], w[(i + 14) % 16]);
    let sigma0 = xor3(_mm512_ror_epi32::<7>(w1), _mm512_ror_epi32::<18>(w1), _mm512_srli_epi32::<3>(w1));
    let sigma1 = xor3(_mm512_ror_epi32::<17>(w14), _mm512_ror_epi32::<19>(w14), _mm512_srli_epi32::<10>(w14));
    w[i] = _mm512_add_epi32(_mm512_add_epi32(w[i], sigma0), _mm512_add_epi32(w[(i + 9) % 16], sigma1));
}

/// Block `index` of every stream, transposed: vector `i` holds word `i` of all of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_blocks(data: &[&[Block]; WIDTH], index: usize) -> [__m512i; 16] {
    let swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203));
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, lane) in rows.iter_mut().zip(data) {
        // SAFETY: a block has the 64 bytes of the load, which needs no alignment.
        #[expect(unsafe_code, reason = "an unaligned load of a whole block")]
        let words = unsafe { _mm512_loadu_si512(lane[index].as_ptr().cast()) };
        *row = _mm512_shuffle_epi8(words, swap);
    }
    // 16 × 16 words in four steps: pairs of rows, pairs of pairs, and twice the 128-bit quarters.
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..4 {
        for j in 0..2 {
            rows[4 * i + 2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
            rows[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
        }
    }
    for i in 0..2 {
        for j in 0..4 {
            pairs[8 * i + j] = _mm512_shuffle_i32x4::<0x88>(rows[8 * i + j], rows[8 * i + 4 + j]);
            pairs[8 * i + 4 + j] = _mm512_shuffle_i32x4::<0xdd>(rows[8 * i + j], rows[8 * i + 4 + j]);
        }
    }
    for j in 0..8 {
        rows[j] = _mm512_shuffle_i32x4::<0x88>(pairs[j], pairs[8 + j]);
        rows[8 + j] = _mm512_shuffle_i32x4::<0xdd>(pairs[j], pairs[8 + j]);
    }
    rows
}
