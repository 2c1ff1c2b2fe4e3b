//! Where every byte of a payload lies: the layout as arithmetic, without touching data.

use b70_packset::{LayoutError, MatrixShape};

/// Elements of a Q4_0 block, the columns that share one scale.
pub(crate) const BLOCK_ELEMENTS: u64 = 32;
/// Bytes of a Q4_0 block in the source: an fp16 scale, then 16 bytes of two nibbles.
pub(crate) const BLOCK_BYTES: u64 = 18;
/// Rows of a tile: the N dimension of one DPAS instruction, one row for each of its 16 lanes.
pub(crate) const TILE_ROWS: u64 = 16;
/// Bytes of the quants of one tile in one block of columns: 4 groups of 16 lanes of 8 nibbles.
pub(crate) const TILE_QUANT_BYTES: u64 = 256;
/// Bytes of the scales of one tile in one block of columns: 16 fp16 values.
pub(crate) const TILE_SCALE_BYTES: u64 = 32;
/// XOR of every quant byte between source and payload: flips the top bit of both nibbles, which turns a code biased by
/// 8 into a two's-complement signed 4-bit value.
pub(crate) const SIGN_XOR: u8 = 0x88;

/// A validated shape with the sizes and index formulas of the layout.
///
/// A source element is named by its row `n` (0..N) and its column `k` (0..K). Derived names, used in all formulas:
///
/// ```text
/// b = k div 32   block of columns      c = k mod 32   column within the block
/// t = n div 16   tile of rows       lane = n mod 16   row within the tile
/// ```
///
/// The payload is the quant region followed directly by the scale region:
///
/// ```text
/// 0                                                    K*N/2                             K*N/2 + (K/32)*N*2
/// | b = 0: tile 0 | tile 1 | ... | tile N/16-1 | b = 1: ... | b = 0: N scales | b = 1: N scales | ... |
///
/// one tile, 256 bytes                 one word, 4 bytes                one scale, 2 bytes
/// c div 8 = 0: lane 0 .. lane 15      byte   0    1    2    3          the raw bytes of the
/// c div 8 = 1: lane 0 .. lane 15      low    c+0  c+2  c+4  c+6        block's fp16 d, copied
/// c div 8 = 2: lane 0 .. lane 15      high   c+1  c+3  c+5  c+7
/// c div 8 = 3: lane 0 .. lane 15      (low and high nibble of each byte; c = 8 * (c div 8))
/// ```
///
/// A tile's 256 bytes and the source's 16 blocks of 18 bytes correspond like this (lane i is row 16t + i):
///
/// ```text
/// source block:  d d | q0 q1 q2 ... q15          qj holds column j in its low nibble, column j + 16 in its high one
/// group 0 word:  low nibbles of q0..q7           group 2 word:  high nibbles of q0..q7
/// group 1 word:  low nibbles of q8..q15          group 3 word:  high nibbles of q8..q15      all XOR 0x88
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    k: u64,
    n: u64,
}

impl Geometry {
    /// Validates a shape: both dimensions positive, K a multiple of 32, N a multiple of 16, all sizes within 64 bits.
    ///
    /// # Errors
    /// [`LayoutError::Empty`], [`LayoutError::K`], [`LayoutError::N`] or [`LayoutError::Overflow`].
    pub fn new(shape: MatrixShape) -> Result<Self, LayoutError> {
        let MatrixShape { k, n } = shape;
        if k == 0 || n == 0 {
            return Err(LayoutError::Empty(shape));
        }
        if !k.is_multiple_of(BLOCK_ELEMENTS) {
            return Err(LayoutError::K { k, multiple: BLOCK_ELEMENTS });
        }
        if !n.is_multiple_of(TILE_ROWS) {
            return Err(LayoutError::N { n, multiple: TILE_ROWS });
        }
        // The payload is the largest offset any formula yields except the nibble index, which is twice the quant region.
        k.checked_mul(n).ok_or(LayoutError::Overflow(shape))?;
        (k / BLOCK_ELEMENTS * BLOCK_BYTES).checked_mul(n).ok_or(LayoutError::Overflow(shape))?;
        Ok(Self { k, n })
    }

    /// The shape this geometry was made for.
    pub fn shape(&self) -> MatrixShape {
        MatrixShape { k: self.k, n: self.n }
    }

    /// Blocks of 32 columns in a row, K/32.
    pub fn k_blocks(&self) -> u64 {
        self.k / BLOCK_ELEMENTS
    }

    /// Tiles of 16 rows, N/16.
    pub fn tiles(&self) -> u64 {
        self.n / TILE_ROWS
    }

    /// Bytes of one source row, (K/32)·18.
    pub fn row_bytes(&self) -> u64 {
        self.k_blocks() * BLOCK_BYTES
    }

    /// Bytes of the source tensor, N·(K/32)·18.
    pub fn source_len(&self) -> u64 {
        self.row_bytes() * self.n
    }

    /// Bytes of the quant region, K·N/2; also the offset of the scale region.
    pub fn quant_len(&self) -> u64 {
        self.k * self.n / 2
    }

    /// Bytes of the scale region, (K/32)·N·2.
    pub fn scale_len(&self) -> u64 {
        self.k_blocks() * self.n * 2
    }

    /// Bytes of the payload; always equal to [`Geometry::source_len`].
    pub fn payload_len(&self) -> u64 {
        self.quant_len() + self.scale_len()
    }

    /// Offset in the source of block `b` of row `n`.
    pub fn source_block_offset(&self, n: u64, b: u64) -> u64 {
        n * self.row_bytes() + b * BLOCK_BYTES
    }

    /// Index of the nibble of row `n`, column `k`:
    /// `(((b·(N/16) + t)·4 + c div 8)·16 + lane)·8 + c mod 8`.
    /// The byte is `index div 2`; an even index is the low nibble.
    pub fn nibble_index(&self, n: u64, k: u64) -> u64 {
        let (b, c) = (k / BLOCK_ELEMENTS, k % BLOCK_ELEMENTS);
        let (t, lane) = (n / TILE_ROWS, n % TILE_ROWS);
        (((b * self.tiles() + t) * 4 + c / 8) * 16 + lane) * 8 + c % 8
    }

    /// Index of the 32-bit little-endian word that holds columns 8·`group` .. 8·`group`+8 of block `b` for `lane` of
    /// tile `t`, lowest column in the lowest nibble: `(b·(N/16) + t)·64 + group·16 + lane`.
    pub fn word_index(&self, b: u64, t: u64, group: u64, lane: u64) -> u64 {
        (b * self.tiles() + t) * 64 + group * 16 + lane
    }

    /// Offset of the 256 quant bytes of tile `t` in block `b`.
    pub fn tile_offset(&self, b: u64, t: u64) -> u64 {
        (b * self.tiles() + t) * TILE_QUANT_BYTES
    }

    /// Offset of the scale of row `n` in block `b`: `K·N/2 + (b·N + n)·2`.
    pub fn scale_offset(&self, b: u64, n: u64) -> u64 {
        self.quant_len() + (b * self.n + n) * 2
    }

    /// Checks that a buffer called `what` has the `expected` bytes.
    pub(crate) fn expect_len(&self, what: &'static str, expected: u64, found: usize) -> Result<(), LayoutError> {
        if found as u64 == expected {
            Ok(())
        } else {
            Err(LayoutError::Length { what, shape: self.shape(), expected, found: found as u64 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(k: u64, n: u64) -> Geometry {
        Geometry::new(MatrixShape { k, n }).expect("a valid shape")
    }

    #[test]
    fn sizes_of_the_large_matrices() {
        for (k, n) in [(5120, 17408), (17408, 5120)] {
            let g = geometry(k, n);
            assert_eq!(g.payload_len(), 50_135_040);
            assert_eq!(g.source_len(), g.payload_len());
        }
    }

    #[test]
    fn formulas_agree_with_each_other() {
        let g = geometry(96, 48);
        for n in 0..48 {
            for k in 0..96 {
                let word = g.word_index(k / 32, n / 16, k % 32 / 8, n % 16);
                assert_eq!(g.nibble_index(n, k), word * 8 + k % 8);
                assert_eq!(g.nibble_index(n, k) / 2 / 256 * 256, g.tile_offset(k / 32, n / 16));
            }
        }
        assert_eq!(g.scale_offset(0, 0), 96 * 48 / 2);
        assert_eq!(g.scale_offset(2, 47) + 2, g.payload_len());
    }

    #[test]
    fn refused_shapes() {
        let new = |k, n| Geometry::new(MatrixShape { k, n });
        assert_eq!(new(0, 16), Err(LayoutError::Empty(MatrixShape { k: 0, n: 16 })));
        assert_eq!(new(32, 0), Err(LayoutError::Empty(MatrixShape { k: 32, n: 0 })));
        assert_eq!(new(33, 16), Err(LayoutError::K { k: 33, multiple: 32 }));
        assert_eq!(new(32, 24), Err(LayoutError::N { n: 24, multiple: 16 }));
        for (k, n) in [(1 << 60, 16), (32, 1 << 59), (1 << 32, 1 << 32), (u64::MAX - 31, 16), (32, u64::MAX - 15)] {
            assert_eq!(new(k, n), Err(LayoutError::Overflow(MatrixShape { k, n })), "({k}, {n})");
        }
    }
}
