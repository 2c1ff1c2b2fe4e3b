//! SHA-256 over many independent streams at once.
//!
//! One stream is bound by the latency of its own rounds, whatever the CPU. Streams that have nothing to do with each other
//! can share a core: interleaved through the SHA instructions, or sixteen at a time in AVX-512 registers. What comes out is
//! what `sha2` gives for each stream by itself, and `sha2` is what runs where neither is there.

#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod shani;

use std::fmt;
use std::sync::OnceLock;

use sha2::block_api::compress256;

use crate::digest::Sha256;

const BLOCK: usize = 64;
type Block = [u8; BLOCK];
type State = [u32; 8];

/// Streams that the widest kernel takes at once; more are worked off in groups.
const MAX_WIDTH: usize = 16;

/// The initial state: fractional parts of the square roots of the first eight primes (FIPS 180-4, 5.3.3).
const INITIAL: State =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[repr(align(64))]
struct Aligned<T>(T);

/// The round constants: fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[rustfmt::skip]
static K: Aligned<[u32; 64]> = Aligned([
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
]);

/// How streams share a core. All give the same digests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamKernel {
    name: &'static str,
    #[cfg(target_arch = "x86_64")]
    narrow: Option<shani::ShaNi>,
    #[cfg(target_arch = "x86_64")]
    wide: Option<avx512::Avx512>,
    /// As many streams and more are worth the wide kernel.
    #[cfg(target_arch = "x86_64")]
    wide_from: usize,
}

impl fmt::Debug for StreamKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl StreamKernel {
    /// One stream after the other, by `sha2`.
    pub fn plain() -> Self {
        Self {
            name: "plain",
            #[cfg(target_arch = "x86_64")]
            narrow: None,
            #[cfg(target_arch = "x86_64")]
            wide: None,
            #[cfg(target_arch = "x86_64")]
            wide_from: usize::MAX,
        }
    }

    /// The kernels this CPU can run; `plain` is always the first.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut all = vec![Self::plain()];
        #[cfg(target_arch = "x86_64")]
        {
            let (narrow, wide) = (shani::ShaNi::detect(), avx512::Avx512::detect());
            if narrow.is_some() {
                all.push(Self { name: "sha-ni", narrow, ..Self::plain() });
            }
            if wide.is_some() {
                all.push(Self { name: "avx512", wide, wide_from: 2, ..Self::plain() });
            }
        }
        all
    }

    /// What is fastest here for any number of streams: measured once in a process, in about 0.1 ms.
    ///
    /// Which of the two ways wins differs between CPUs that have both, so that a look at the CPU's features is not enough.
    pub fn best() -> Self {
        static BEST: OnceLock<StreamKernel> = OnceLock::new();
        *BEST.get_or_init(Self::choose)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn choose() -> Self {
        Self::plain()
    }

    #[cfg(target_arch = "x86_64")]
    fn choose() -> Self {
        let (narrow, wide) = (shani::ShaNi::detect(), avx512::Avx512::detect());
        let without = Self { name: if narrow.is_some() { "sha-ni" } else { "plain" }, narrow, ..Self::plain() };
        let Some(_) = wide else { return without };
        let with = Self { name: "avx512", wide, wide_from: 2, ..Self::plain() };
        let alone = time(without, 4) / 4.0;
        let together = time(with, MAX_WIDTH);
        // The wide kernel takes the same time for any number of streams.
        let wide_from = (together / alone).ceil().max(2.0) as usize;
        if wide_from > MAX_WIDTH {
            return without;
        }
        Self { name: if narrow.is_some() { "avx512+sha-ni" } else { "avx512" }, wide, wide_from, ..without }
    }

    /// Its name, for reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Streams that one core should be given at once.
    pub fn width(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        {
            if self.wide.is_some() {
                return MAX_WIDTH;
            }
            if self.narrow.is_some() {
                return 4;
            }
        }
        1
    }

    /// Feeds every lane of `work` its blocks, and empties `work`.
    fn compress(self, work: &mut Vec<(&mut State, &[Block])>) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(wide) = self.wide {
                while work.len() >= self.wide_from {
                    let blocks = shortest(work, MAX_WIDTH);
                    let count = work.len().min(MAX_WIDTH);
                    // Lanes without a stream repeat the first one's data; what they compute is thrown away.
                    let data = std::array::from_fn(|i| &work[if i < count { i } else { 0 }].1[..blocks]);
                    let mut states = [INITIAL; MAX_WIDTH];
                    for (state, (own, _)) in states.iter_mut().zip(&*work) {
                        *state = **own;
                    }
                    wide.compress(&mut states, data);
                    for ((own, _), state) in work.iter_mut().zip(states) {
                        **own = state;
                    }
                    advance(work, count, blocks);
                }
            }
            if let Some(narrow) = self.narrow {
                while work.len() >= 4 {
                    let blocks = shortest(work, 4);
                    if let [(s0, d0), (s1, d1), (s2, d2), (s3, d3), ..] = &mut work[..] {
                        let data = [&d0[..blocks], &d1[..blocks], &d2[..blocks], &d3[..blocks]];
                        narrow.compress([s0, s1, s2, s3], data);
                    }
                    advance(work, 4, blocks);
                }
                while work.len() >= 2 {
                    let blocks = shortest(work, 2);
                    if let [(s0, d0), (s1, d1), ..] = &mut work[..] {
                        narrow.compress([s0, s1], [&d0[..blocks], &d1[..blocks]]);
                    }
                    advance(work, 2, blocks);
                }
            }
        }
        for (state, data) in work.drain(..) {
            compress256(state, data);
        }
    }
}

/// The fewest blocks among the first `count` lanes.
#[cfg(target_arch = "x86_64")]
fn shortest(work: &[(&mut State, &[Block])], count: usize) -> usize {
    work.iter().take(count).map(|(_, data)| data.len()).min().unwrap_or(0)
}

/// Takes `blocks` off the first `count` lanes, and those out that have none left.
#[cfg(target_arch = "x86_64")]
fn advance(work: &mut Vec<(&mut State, &[Block])>, count: usize, blocks: usize) {
    for (_, data) in work.iter_mut().take(count) {
        *data = &data[blocks..];
    }
    work.retain(|(_, data)| !data.is_empty());
}

/// The least time in seconds of a few runs over some blocks in each of `lanes` streams.
#[cfg(target_arch = "x86_64")]
fn time(kernel: StreamKernel, lanes: usize) -> f64 {
    let data = [[0_u8; BLOCK]; 16];
    let mut states = [INITIAL; MAX_WIDTH];
    let mut least = f64::INFINITY;
    for _ in 0..6 {
        let started = std::time::Instant::now();
        let mut work: Vec<_> = states.iter_mut().take(lanes).map(|state| (state, &data[..])).collect();
        kernel.compress(&mut work);
        least = least.min(started.elapsed().as_secs_f64());
    }
    least.max(1e-9)
}

/// One stream: its state, and the part of a block that is not full yet.
#[derive(Clone)]
struct Lane {
    state: State,
    part: Block,
    filled: usize,
    size: u64,
}

impl Lane {
    const NEW: Self = Self { state: INITIAL, part: [0; BLOCK], filled: 0, size: 0 };

    /// Completes the block that was begun; returns what follows it.
    fn top_up<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.size += bytes.len() as u64;
        if self.filled == 0 {
            return bytes;
        }
        let (head, rest) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
        self.part[self.filled..][..head.len()].copy_from_slice(head);
        self.filled += head.len();
        if self.filled == BLOCK {
            compress256(&mut self.state, &[self.part]);
            self.filled = 0;
        }
        rest
    }

    fn keep(&mut self, tail: &[u8]) {
        self.part[self.filled..][..tail.len()].copy_from_slice(tail);
        self.filled += tail.len();
    }

    fn finish(mut self) -> Sha256 {
        // FIPS 180-4, 5.1.1: a one bit, zeros, and the length in bits as 64-bit big-endian at the end of a block.
        let bits = self.size.wrapping_mul(8);
        self.part[self.filled] = 0x80;
        self.part[self.filled + 1..].fill(0);
        if self.filled + 1 > BLOCK - 8 {
            compress256(&mut self.state, &[self.part]);
            self.part = [0; BLOCK];
        }
        self.part[BLOCK - 8..].copy_from_slice(&bits.to_be_bytes());
        compress256(&mut self.state, &[self.part]);
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        Sha256(digest)
    }
}

/// SHA-256 of several independent streams, fed side by side.
///
/// ```
/// use b70_store::{StreamKernel, Sha256, Sha256Streams};
///
/// let mut lanes = Sha256Streams::new(2, StreamKernel::best());
/// lanes.update(&[b"first ", b"another stream"]);
/// lanes.update(&[b"stream", b""]);
/// assert_eq!(lanes.take(0), Sha256::of(b"first stream"));
/// assert_eq!(lanes.take(1), Sha256::of(b"another stream"));
/// ```
#[derive(Clone)]
pub struct Sha256Streams {
    lanes: Vec<Lane>,
    kernel: StreamKernel,
}

impl fmt::Debug for Sha256Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sha256Streams").field("lanes", &self.lanes.len()).field("kernel", &self.kernel).finish()
    }
}

impl Sha256Streams {
    /// `count` fresh streams.
    pub fn new(count: usize, kernel: StreamKernel) -> Self {
        Self { lanes: vec![Lane::NEW; count], kernel }
    }

    /// How many streams there are.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Takes the next bytes of every stream, in the order of the streams: any lengths, also none. Streams beyond the end of
    /// `bytes` get none. Fastest when all are about as long, and a multiple of 64 bytes.
    ///
    /// # Panics
    /// When there are more slices than streams.
    pub fn update(&mut self, bytes: &[&[u8]]) {
        assert!(bytes.len() <= self.lanes.len(), "{} slices for {} streams", bytes.len(), self.lanes.len());
        let mut work = Vec::with_capacity(bytes.len());
        let mut tails = Vec::new();
        for (index, (lane, bytes)) in self.lanes.iter_mut().zip(bytes).enumerate() {
            let (blocks, tail) = lane.top_up(bytes).as_chunks::<BLOCK>();
            if !tail.is_empty() {
                tails.push((index, tail));
            }
            if !blocks.is_empty() {
                work.push((&mut lane.state, blocks));
            }
        }
        self.kernel.compress(&mut work);
        for (index, tail) in tails {
            self.lanes[index].keep(tail);
        }
    }

    /// The digest of everything a stream was given; the stream starts afresh.
    ///
    /// # Panics
    /// When there is no such stream.
    pub fn take(&mut self, lane: usize) -> Sha256 {
        std::mem::replace(&mut self.lanes[lane], Lane::NEW).finish()
    }
}
