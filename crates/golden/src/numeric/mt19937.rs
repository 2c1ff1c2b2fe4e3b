//! MT19937 as `CPython` seeds and draws it, on the crate `rand_mt`.
//!
//! `CPython` seeds by the array of the seed's 32-bit words, least significant first, at least one, without leading zero
//! words; its `random()` takes two outputs `a` and `b` and returns `((a >> 5)·2^26 + (b >> 6)) / 2^53`.

use rand_mt::Mt;

/// The generator.
#[derive(Debug, Clone)]
pub struct Mt19937(Mt);

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
        Self(Mt::new_with_key(words.into_iter().take(if words[1] == 0 { 1 } else { 2 })))
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// The next double of [0, 1), 53 bits.
    pub fn random(&mut self) -> f64 {
        let (a, b) = (self.next_u32(), self.next_u32());
        (f64::from(a >> 5) * 67_108_864.0 + f64::from(b >> 6)) / 9_007_199_254_740_992.0
    }

    /// Fills `out` with doubles of [−bound, bound): `−bound + (bound − −bound)·random()`, as `CPython`'s `uniform`.
    pub fn fill_uniform(&mut self, bound: f64, out: &mut [f64]) {
        for value in out {
            *value = -bound + (bound + bound) * self.random();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of `random.seed(s); random.getrandbits(32)`, for seeds of one and of two words.
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
}
