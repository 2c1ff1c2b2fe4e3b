//! MT19937 as `CPython` seeds and draws it.
//!
//! The generator is Matsumoto and Nishimura's of 1998 with their `init_by_array` of 2002. `CPython` hands it the absolute
//! value of the seed as little-endian 32-bit words, at least one, without leading zero words; its `random()` takes two
//! words `a` and `b` and returns `((a >> 5)·2^26 + (b >> 6)) / 2^53`.
//!
//! The published crates that offer MT19937 seed it otherwise or wrap it in a trait that changes between versions; the
//! sixty lines below are fixed by known answers instead.

const N: usize = 624;
const M: usize = 397;

/// The generator.
#[derive(Clone)]
pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl std::fmt::Debug for Mt19937 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mt19937").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Mt19937 {
    /// The generator after `random.seed(seed)` of `CPython`.
    ///
    /// ```
    /// // python3 -c 'import random; random.seed(270036); print(random.random().hex())'
    /// let first = b70_golden::Mt19937::from_python_seed(270_036).random();
    /// assert!((0.0..1.0).contains(&first));
    /// ```
    pub fn from_python_seed(seed: u64) -> Self {
        let words = [seed as u32, (seed >> 32) as u32];
        Self::by_array(if words[1] == 0 { &words[..1] } else { &words })
    }

    fn by_array(key: &[u32]) -> Self {
        let mut state = [0_u32; N];
        state[0] = 19_650_218;
        for i in 1..N {
            state[i] = 1_812_433_253_u32.wrapping_mul(state[i - 1] ^ (state[i - 1] >> 30)).wrapping_add(i as u32);
        }
        let (mut i, mut j) = (1, 0);
        let mixed = |state: &[u32; N], i: usize, factor: u32| {
            state[i] ^ (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(factor)
        };
        // A key of at most two words is shorter than the state, so the first pass has N steps.
        for _ in 0..N {
            state[i] = mixed(&state, i, 1_664_525).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
            j = (j + 1) % key.len();
        }
        for _ in 1..N {
            state[i] = mixed(&state, i, 1_566_083_941).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        state[0] = 0x8000_0000;
        Self { state, next: N }
    }

    /// Makes the next 624 words. Three runs, so that the compiler sees plain offsets and can use vectors.
    fn refill(&mut self) {
        let s = &mut self.state;
        let twist = |upper: u32, lower: u32, far: u32| {
            let y = (upper & 0x8000_0000) | (lower & 0x7fff_ffff);
            far ^ (y >> 1) ^ ((y & 1).wrapping_neg() & 0x9908_b0df)
        };
        for i in 0..N - M {
            s[i] = twist(s[i], s[i + 1], s[i + M]);
        }
        for i in N - M..N - 1 {
            s[i] = twist(s[i], s[i + 1], s[i + M - N]);
        }
        s[N - 1] = twist(s[N - 1], s[0], s[M - 1]);
        self.next = 0;
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.refill();
        }
        let word = self.state[self.next];
        self.next += 1;
        temper(word)
    }

    /// The next double of [0, 1), 53 bits.
    pub fn random(&mut self) -> f64 {
        let (a, b) = (self.next_u32(), self.next_u32());
        double(a, b)
    }

    /// Fills `out` with doubles of [−bound, bound): `−bound + (bound − −bound)·random()`, as `CPython`'s `uniform`.
    pub fn fill_uniform(&mut self, bound: f64, out: &mut [f64]) {
        let mut rest = out;
        while !rest.is_empty() {
            // Whole pairs of what is left of this state; a state has an even number of words.
            let pairs = ((N - self.next) / 2).min(rest.len());
            if pairs == 0 {
                if self.next == N {
                    self.refill();
                } else {
                    let (first, tail) = rest.split_at_mut(1);
                    first[0] = -bound + (bound + bound) * self.random();
                    rest = tail;
                }
                continue;
            }
            let (now, tail) = rest.split_at_mut(pairs);
            let words = &self.state[self.next..self.next + 2 * pairs];
            for (value, pair) in now.iter_mut().zip(words.chunks_exact(2)) {
                *value = -bound + (bound + bound) * double(temper(pair[0]), temper(pair[1]));
            }
            self.next += 2 * pairs;
            rest = tail;
        }
    }
}

fn temper(mut y: u32) -> u32 {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c_5680;
    y ^= (y << 15) & 0xefc6_0000;
    y ^ (y >> 18)
}

fn double(a: u32, b: u32) -> f64 {
    (f64::from(a >> 5) * 67_108_864.0 + f64::from(b >> 6)) / 9_007_199_254_740_992.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `init_by_array({0x123, 0x234, 0x345, 0x456})` has published outputs, but needs four words; the recurrence and the
    /// tempering are covered by one-word and two-word seeds against `CPython` (tests/python.rs) and by these answers of
    /// `random.seed(s); random.getrandbits(32)`.
    #[test]
    fn first_words_of_python_seeds() {
        let answers: [(u64, [u32; 4]); 8] = [
            (0_u64, [0xd82c_07cd, 0x629f_6fbe, 0xc209_4cac, 0xe3e7_0682]),
            (1_u64, [0x2265_b1f5, 0x91b7_584a, 0xd8f1_6adf, 0xcd61_3e30]),
            (270_036_u64, [0x88b1_1eb8, 0x3435_53e1, 0xdb12_3500, 0xbfbe_4f27]),
            (4_294_967_295_u64, [0xa2a6_c909, 0x9e9c_04f4, 0x3404_e941, 0x3720_bfa9]),
            (4_294_967_296_u64, [0x1ced_31d7, 0x59ef_8bbc, 0x6af6_d506, 0xef49_e4d2]),
            (4_294_967_301_u64, [0x2843_00d3, 0x7c49_76ab, 0x4851_0b35, 0xe3d2_2e6a]),
            (9_223_372_036_854_788_153_u64, [0x4e05_b753, 0x6377_7d00, 0x3661_f470, 0x27aa_de65]),
            (18_446_744_073_709_551_615_u64, [0x0596_5e7e, 0x3faf_f328, 0x568d_6a40, 0x9e66_7b13]),
        ];
        for (seed, words) in answers {
            let mut generator = Mt19937::from_python_seed(seed);
            let found = std::array::from_fn(|_| generator.next_u32());
            assert_eq!(found, words, "seed {seed}");
        }
    }

    #[test]
    fn filling_is_drawing() {
        for lengths in [[1, 311, 312, 5], [312, 1, 1, 700], [0, 0, 313, 623]] {
            let (mut one, mut two) = (Mt19937::from_python_seed(7), Mt19937::from_python_seed(7));
            for length in lengths {
                let mut filled = vec![0.0; length];
                one.fill_uniform(0.75, &mut filled);
                let drawn: Vec<f64> = (0..length).map(|_| -0.75 + 1.5 * two.random()).collect();
                assert_eq!(filled, drawn);
            }
        }
        // An odd word first: pairs then cross the end of a state.
        let (mut one, mut two) = (Mt19937::from_python_seed(9), Mt19937::from_python_seed(9));
        assert_eq!(one.next_u32(), two.next_u32());
        let mut filled = vec![0.0; 1000];
        one.fill_uniform(1.25, &mut filled);
        let drawn: Vec<f64> = (0..1000).map(|_| -1.25 + 2.5 * two.random()).collect();
        assert_eq!(filled, drawn);
    }
}
