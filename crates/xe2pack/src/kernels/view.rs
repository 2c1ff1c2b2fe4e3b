//! What a kernel is given: the rows of some tiles, and the bytes of the payload that belong to those tiles.
//!
//! The payload of a run of tiles is not contiguous: it is one short run per block of columns, at a fixed distance. Two
//! threads that pack different tiles therefore write interleaved runs of one buffer. [`TilesMut`] makes that a safe
//! operation, the way `split_at_mut` does for slices: it owns the bytes of its tiles exclusively and can be divided.

use std::marker::PhantomData;
use std::ops::Range;

use crate::geometry::{BLOCK_BYTES, Geometry, TILE_QUANT_BYTES, TILE_ROWS, TILE_SCALE_BYTES};

/// Bytes of a source block.
pub(crate) const BLOCK: usize = BLOCK_BYTES as usize;
/// Rows of a tile.
pub(crate) const ROWS: usize = TILE_ROWS as usize;
/// Quant bytes of a tile.
pub(crate) const QUANTS: usize = TILE_QUANT_BYTES as usize;
/// Scale bytes of a tile.
pub(crate) const SCALES: usize = TILE_SCALE_BYTES as usize;

/// [`Geometry`] in the machine's index type. Made only together with a buffer of the payload's length, so nothing here
/// overflows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) k_blocks: usize,
    pub(crate) tiles: usize,
    pub(crate) row_bytes: usize,
    quant_len: usize,
    payload_len: usize,
}

impl Dims {
    /// Panics if `len` is not the payload's length: the caller has checked it and reported the error.
    pub(crate) fn new(geometry: &Geometry, len: usize) -> Self {
        assert_eq!(geometry.payload_len(), len as u64, "the caller checks lengths");
        Self {
            k_blocks: geometry.k_blocks() as usize,
            tiles: geometry.tiles() as usize,
            row_bytes: geometry.row_bytes() as usize,
            quant_len: geometry.quant_len() as usize,
            payload_len: len,
        }
    }

    fn quants(&self, b: usize, t: usize, count: usize) -> Range<usize> {
        let start = (b * self.tiles + t) * QUANTS;
        start..start + count * QUANTS
    }

    fn scales(&self, b: usize, t: usize, count: usize) -> Range<usize> {
        let start = self.quant_len + (b * self.tiles + t) * SCALES;
        start..start + count * SCALES
    }
}

/// Shared view of a payload, to unpack from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles<'a> {
    payload: &'a [u8],
    dims: Dims,
}

impl<'a> Tiles<'a> {
    pub(crate) fn new(dims: Dims, payload: &'a [u8]) -> Self {
        assert_eq!(dims.payload_len, payload.len(), "the view spans the payload");
        Self { payload, dims }
    }

    pub(crate) fn dims(&self) -> Dims {
        self.dims
    }

    /// The quants of `count` tiles from `t` in block `b`.
    #[inline]
    pub(crate) fn quants(&self, b: usize, t: usize, count: usize) -> &'a [u8] {
        &self.payload[self.dims.quants(b, t, count)]
    }

    /// The scales of `count` tiles from `t` in block `b`.
    #[inline]
    pub(crate) fn scales(&self, b: usize, t: usize, count: usize) -> &'a [u8] {
        &self.payload[self.dims.scales(b, t, count)]
    }
}

/// Exclusive view of the payload bytes of a run of tiles, in all blocks of columns.
#[derive(Debug)]
pub(crate) struct TilesMut<'a> {
    base: *mut u8,
    dims: Dims,
    tiles: Range<usize>,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `TilesMut` stands for an exclusive borrow of the bytes of its tiles (see `split_at`), as `&mut [u8]` does
// for a contiguous run, and `&mut [u8]` may be sent to another thread.
#[expect(unsafe_code, reason = "an exclusive view of strided bytes, which slices cannot express")]
unsafe impl Send for TilesMut<'_> {}

impl<'a> TilesMut<'a> {
    /// The view of all tiles of `payload`.
    pub(crate) fn new(dims: Dims, payload: &'a mut [u8]) -> Self {
        assert_eq!(dims.payload_len, payload.len(), "the view spans the payload");
        Self { base: payload.as_mut_ptr(), dims, tiles: 0..dims.tiles, borrow: PhantomData }
    }

    /// Divides the view: the tiles before `tile`, and those from it on. Consumes `self`, so every byte stays with
    /// exactly one view.
    pub(crate) fn split_at(self, tile: usize) -> (Self, Self) {
        assert!(self.tiles.start <= tile && tile <= self.tiles.end, "the cut lies within the view");
        let half = |tiles| Self { base: self.base, dims: self.dims, tiles, borrow: PhantomData };
        (half(self.tiles.start..tile), half(tile..self.tiles.end))
    }

    pub(crate) fn dims(&self) -> Dims {
        self.dims
    }

    /// The tiles of this view, as numbered in the whole payload.
    pub(crate) fn tiles(&self) -> Range<usize> {
        self.tiles.clone()
    }

    /// Whether every run of quants starts on a 64-byte line.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn line_aligned(&self) -> bool {
        self.base.addr().is_multiple_of(64)
    }

    /// The quants of `count` tiles from `t` in block `b`.
    #[inline]
    pub(crate) fn quants(&mut self, b: usize, t: usize, count: usize) -> &mut [u8] {
        self.assert_owned(b, t, count);
        self.bytes(self.dims.quants(b, t, count))
    }

    /// The scales of `count` tiles from `t` in block `b`.
    #[inline]
    pub(crate) fn scales(&mut self, b: usize, t: usize, count: usize) -> &mut [u8] {
        self.assert_owned(b, t, count);
        self.bytes(self.dims.scales(b, t, count))
    }

    #[inline]
    fn assert_owned(&self, b: usize, t: usize, count: usize) {
        assert!(b < self.dims.k_blocks, "block within the tensor");
        assert!(t >= self.tiles.start && t <= self.tiles.end && count <= self.tiles.end - t, "tiles of this view");
    }

    /// `range` must come from `Dims::quants` or `Dims::scales` for tiles that `assert_owned` has accepted.
    #[inline]
    #[expect(unsafe_code, reason = "an exclusive view of strided bytes, which slices cannot express")]
    fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(range.end <= self.dims.payload_len);
        // SAFETY: for b < k_blocks and t + count <= tiles both formulas of `Dims` stay within the payload, whose length
        // `new` checked and whose exclusive borrow lives for 'a. The ranges of different tiles are disjoint (each b has
        // one run of `tiles` times 256 or 32 bytes, t selects its own piece), views never share a tile (`split_at`
        // consumes), and `&mut self` excludes a second slice from this view.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use b70_packset::MatrixShape;

    use super::*;

    /// The runs of all parts cover the payload exactly once, however the view was cut.
    #[test]
    fn parts_tile_the_payload() {
        let g = Geometry::new(MatrixShape { k: 96, n: 80 }).expect("valid");
        let mut payload = vec![0u8; g.payload_len() as usize];
        let view = TilesMut::new(Dims::new(&g, payload.len()), &mut payload);
        let (a, rest) = view.split_at(2);
        let (b, c) = rest.split_at(2);
        for mut part in [a, b, c] {
            let Range { start, end } = part.tiles();
            for block in 0..3 {
                part.quants(block, start, end - start).iter_mut().for_each(|x| *x += 1);
                part.scales(block, start, end - start).iter_mut().for_each(|x| *x += 1);
            }
        }
        assert!(payload.iter().all(|x| *x == 1));
    }

    #[test]
    #[should_panic(expected = "tiles of this view")]
    fn foreign_tiles_are_refused() {
        let g = Geometry::new(MatrixShape { k: 32, n: 32 }).expect("valid");
        let mut payload = vec![0u8; g.payload_len() as usize];
        let (mut first, _second) = TilesMut::new(Dims::new(&g, payload.len()), &mut payload).split_at(1);
        first.quants(0, 0, 2);
    }
}
