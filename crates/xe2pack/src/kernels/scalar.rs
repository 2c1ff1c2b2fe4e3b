//! The portable kernel: one tile at a time, eight nibbles at a time, no intrinsics.

use super::view::{BLOCK, QUANTS, ROWS, SCALES, Tiles, TilesMut};

/// `SIGN_XOR` in each of eight bytes.
const SIGN: u64 = 0x8888_8888_8888_8888;

/// Packs the rows of the tiles of `out`; `source` starts at the first of them.
pub(super) fn pack(source: &[u8], out: &mut TilesMut<'_>) {
    let (dims, tiles) = (out.dims(), out.tiles());
    for (t, rows) in tiles.zip(source.chunks_exact(dims.row_bytes * ROWS)) {
        for b in 0..dims.k_blocks {
            // A tile is built in registers and L1, then written as one run: its destination is a line of its own.
            let (mut quants, mut scales) = ([0u8; QUANTS], [0u8; SCALES]);
            for (lane, row) in rows.chunks_exact(dims.row_bytes).enumerate() {
                let block = &row[b * BLOCK..(b + 1) * BLOCK];
                scales[lane * 2..lane * 2 + 2].copy_from_slice(&block[..2]);
                for half in 0..2 {
                    let (low, high) = words(read_u64(&block[2 + half * 8..]));
                    put_word(&mut quants, half, lane, low);
                    put_word(&mut quants, half + 2, lane, high);
                }
            }
            out.quants(b, t, 1).copy_from_slice(&quants);
            out.scales(b, t, 1).copy_from_slice(&scales);
        }
    }
}

/// Unpacks the tiles from `first_tile` on into `rows`, which starts at the first row of that tile.
pub(super) fn unpack(payload: Tiles<'_>, first_tile: usize, rows: &mut [u8]) {
    let dims = payload.dims();
    for (i, rows) in rows.chunks_exact_mut(dims.row_bytes * ROWS).enumerate() {
        for b in 0..dims.k_blocks {
            let (quants, scales) = (payload.quants(b, first_tile + i, 1), payload.scales(b, first_tile + i, 1));
            for (lane, row) in rows.chunks_exact_mut(dims.row_bytes).enumerate() {
                let block = &mut row[b * BLOCK..(b + 1) * BLOCK];
                block[..2].copy_from_slice(&scales[lane * 2..lane * 2 + 2]);
                for half in 0..2 {
                    let bytes = bytes(get_word(quants, half, lane), get_word(quants, half + 2, lane));
                    block[2 + half * 8..10 + half * 8].copy_from_slice(&bytes.to_le_bytes());
                }
            }
        }
    }
}

/// Eight source bytes to the word of their low nibbles and the word of their high nibbles.
#[inline]
fn words(q: u64) -> (u32, u32) {
    let q = swap_inner_nibbles(q ^ SIGN);
    (even_bytes(q), even_bytes(q >> 8))
}

/// The inverse of [`words`].
#[inline]
fn bytes(low: u32, high: u32) -> u64 {
    swap_inner_nibbles(spread_bytes(low) | (spread_bytes(high) << 8)) ^ SIGN
}

/// In each 16-bit lane of nibbles 3 2 1 0, exchanges 2 and 1: afterwards the low byte holds the two low nibbles and the
/// high byte the two high ones. Its own inverse.
#[inline]
fn swap_inner_nibbles(x: u64) -> u64 {
    (x & 0xf00f_f00f_f00f_f00f) | ((x & 0x00f0_00f0_00f0_00f0) << 4) | ((x >> 4) & 0x00f0_00f0_00f0_00f0)
}

/// Bytes 0, 2, 4, 6 of `x`, packed.
#[inline]
fn even_bytes(x: u64) -> u32 {
    let x = x & 0x00ff_00ff_00ff_00ff;
    let x = (x | (x >> 8)) & 0x0000_ffff_0000_ffff;
    (x | (x >> 16)) as u32
}

/// The inverse of [`even_bytes`].
#[inline]
fn spread_bytes(x: u32) -> u64 {
    let x = u64::from(x);
    let x = (x | (x << 16)) & 0x0000_ffff_0000_ffff;
    (x | (x << 8)) & 0x00ff_00ff_00ff_00ff
}

#[inline]
fn read_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("a slice of eight bytes"))
}

#[inline]
fn put_word(tile: &mut [u8; QUANTS], group: usize, lane: usize, word: u32) {
    let at = group * 64 + lane * 4;
    tile[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

#[inline]
fn get_word(tile: &[u8], group: usize, lane: usize) -> u32 {
    let at = group * 64 + lane * 4;
    u32::from_le_bytes(tile[at..at + 4].try_into().expect("a slice of four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_columns_in_order() {
        // Bytes q0..q7 with low nibbles 0..7 and high nibbles 8..15.
        let q = u64::from_le_bytes([0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7]);
        assert_eq!(words(q), (0x7654_3210 ^ 0x8888_8888, 0xfedc_ba98 ^ 0x8888_8888));
        assert_eq!(bytes(words(q).0, words(q).1), q);
    }
}
