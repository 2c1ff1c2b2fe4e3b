//! Deterministic tensor data from a counter: any part can be made without what comes before it.
//!
//! The words are those of `SplitMix64` (Steele, Lea and Flood, 2014): a Weyl sequence through a 64-bit finaliser. Scales are
//! built from their bits, so that every one is finite, not zero, and as large as real weights have them.

use b70_gguf::GgmlType;

/// The types that can be filled.
pub(super) const KINDS: [&str; 4] = ["F32", "F16", "Q4_0", "Q4_1"];

pub(super) fn can_fill(ggml_type: GgmlType) -> bool {
    KINDS.contains(&ggml_type.name())
}

/// The data of one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    kind: Kind,
    key: u64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    F16,
    Q4Zero,
    Q4One,
}

impl Stream {
    /// The stream of tensor number `index` of the model with this seed; `None` for a type that cannot be filled.
    pub(super) fn new(ggml_type: GgmlType, seed: u64, index: u64) -> Option<Self> {
        let kind = match ggml_type.name() {
            "F32" => Kind::F32,
            "F16" => Kind::F16,
            "Q4_0" => Kind::Q4Zero,
            "Q4_1" => Kind::Q4One,
            _ => return None,
        };
        Some(Self { kind, key: word(word(seed, 0), index) })
    }

    /// Bytes of one unit, the smallest part that can be made by itself: a block, or one number.
    pub(super) fn unit(self) -> usize {
        match self.kind {
            Kind::F32 => 4,
            Kind::F16 => 2,
            Kind::Q4Zero => 18,
            Kind::Q4One => 20,
        }
    }

    /// Makes the units from number `first` on; `out` holds whole units.
    pub(super) fn fill(self, first: u64, out: &mut [u8]) {
        let units = out.chunks_exact_mut(self.unit());
        match self.kind {
            // 0.5 up to 1, as norms have it.
            Kind::F32 => {
                for (unit, i) in units.zip(first..) {
                    let bits = 0x3f00_0000 | (word(self.key, i) as u32 >> 9);
                    unit.copy_from_slice(&bits.to_le_bytes());
                }
            }
            Kind::F16 => {
                for (unit, i) in units.zip(first..) {
                    unit.copy_from_slice(&scale(word(self.key, i)).to_le_bytes());
                }
            }
            Kind::Q4Zero => {
                for (block, i) in units.zip(first..) {
                    let (scale_part, nibbles) = block.split_at_mut(2);
                    scale_part.copy_from_slice(&scale(word(self.key, 3 * i)).to_le_bytes());
                    self.nibbles(i, nibbles);
                }
            }
            Kind::Q4One => {
                for (block, i) in units.zip(first..) {
                    let (scales, nibbles) = block.split_at_mut(4);
                    // A positive step, and a minimum of minus eight steps: values around zero.
                    let step = scale(word(self.key, 3 * i)) & 0x7fff;
                    scales[..2].copy_from_slice(&step.to_le_bytes());
                    scales[2..].copy_from_slice(&((step + (3 << 10)) | 0x8000).to_le_bytes());
                    self.nibbles(i, nibbles);
                }
            }
        }
    }

    fn nibbles(self, block: u64, out: &mut [u8]) {
        out[..8].copy_from_slice(&word(self.key, 3 * block + 1).to_le_bytes());
        out[8..].copy_from_slice(&word(self.key, 3 * block + 2).to_le_bytes());
    }
}

/// An fp16 of either sign between 2^-10 and 2^-6.
fn scale(random: u64) -> u16 {
    let (sign, mantissa) = ((random & 1) as u16, (random >> 1 & 0x3ff) as u16);
    let exponent = 5 + (random >> 11 & 3) as u16;
    sign << 15 | exponent << 10 | mantissa
}

/// Word number `counter` of the sequence that starts at `key`.
fn word(key: u64, counter: u64) -> u64 {
    let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str, seed: u64, index: u64) -> Stream {
        Stream::new(b70_gguf::GgmlType::from_name(name).expect(name), seed, index).expect(name)
    }

    #[test]
    fn words_are_those_of_splitmix64() {
        // The first outputs of the published generator for seed 1234567.
        let words: Vec<u64> = (0..3).map(|i| word(1_234_567, i)).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn parts_are_the_same_as_the_whole() {
        for kind in KINDS {
            let stream = stream(kind, 7, 3);
            let unit = stream.unit();
            let mut whole = vec![0; 100 * unit];
            stream.fill(0, &mut whole);
            let mut parts = vec![0; 100 * unit];
            for (first, length) in [(0, 1), (1, 62), (63, 37)] {
                stream.fill(first, &mut parts[first as usize * unit..][..length * unit]);
            }
            assert!(whole == parts, "{kind}");
        }
    }

    #[test]
    fn tensors_and_seeds_differ() {
        let first = |seed, index| {
            let mut block = [0; 18];
            stream("Q4_0", seed, index).fill(0, &mut block);
            block
        };
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(0, 1), first(1, 0));
    }

    #[test]
    fn scales_are_finite_and_of_the_size_of_weights() {
        let mut blocks = vec![0; 20 * 10_000];
        stream("Q4_1", 5, 0).fill(0, &mut blocks);
        let mut seen = [false; 4];
        for block in blocks.chunks_exact(20) {
            let (step, minimum) = (u16::from_le_bytes([block[0], block[1]]), u16::from_le_bytes([block[2], block[3]]));
            let exponent = step >> 10;
            assert!((5..=8).contains(&exponent), "{step:#06x}");
            seen[usize::from(exponent - 5)] = true;
            assert_eq!((minimum >> 10 & 0x1f, minimum >> 15, minimum & 0x3ff), (exponent + 3, 1, step & 0x3ff));
        }
        assert_eq!(seen, [true; 4]);
    }
}
