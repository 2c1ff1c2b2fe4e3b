//! The order in which all x86 kernels walk memory, generic over how one tile is rearranged.
//!
//! Rearranging costs far less than moving the bytes, so this order decides the speed: rows are read from end to end (a
//! few sequential streams, which the hardware prefetcher follows), a tile's 256 bytes are written as four whole lines
//! with non-temporal stores (no line is read before it is written, none is cached), and the scales of two tiles are
//! joined into one line first. `docs/performance-xe2pack.md` records what else was tried.
#![expect(
    clippy::inline_always,
    reason = "only inside a caller that enables the instruction set is the code compiled for it"
)]
#![expect(unsafe_code, reason = "raw loads and non-temporal stores; every access is argued below")]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm_sfence};

use super::view::{BLOCK, QUANTS, ROWS, SCALES, Tiles, TilesMut};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Tiles packed together: their scales have the length of a line.
const PACK_TILES: usize = 2;
/// How far ahead in each source row packing prefetches.
const PACK_AHEAD: usize = 2 * LINE;
/// Tiles unpacked together; they share a line of scales.
const UNPACK_TILES: usize = 2;
/// Blocks of a row gathered in L1 before they are written: 576 bytes, nine lines.
const UNPACK_BLOCKS: usize = 32;
/// How many blocks of columns ahead unpacking prefetches.
const UNPACK_AHEAD: usize = 8;

/// One tile's rearrangement in one instruction set. Every function may only be called on a CPU that has it.
pub(super) trait Vector {
    /// Packs 16 source blocks, at `source`, `source + stride`, …, into 256 bytes of quants and 32 bytes of scales.
    ///
    /// # Safety
    /// 18 bytes are readable at each of the 16 places. `quants` is valid for writing 256 bytes and aligned to 64;
    /// `scales` is valid for writing 32 bytes. With `STREAM` the quants are written by non-temporal stores and the
    /// caller issues an `sfence` before anything else may read them.
    unsafe fn pack_tile<const STREAM: bool>(source: *const u8, stride: usize, quants: *mut u8, scales: *mut u8);

    /// The inverse: 256 bytes of quants and 32 of scales become 16 blocks at `target`, `target + pitch`, ….
    ///
    /// # Safety
    /// `quants` and `scales` are valid for reading 256 and 32 bytes; 18 bytes are writable at each of the 16 places.
    unsafe fn unpack_tile(quants: *const u8, scales: *const u8, target: *mut u8, pitch: usize);

    /// Copies 64 bytes with non-temporal stores.
    ///
    /// # Safety
    /// `target` is aligned to 64 and valid for writing 64 bytes, `source` is valid for reading 64.
    unsafe fn stream_line(source: *const u8, target: *mut u8);
}

/// An instruction set: [`super::Implementation`] around the generic order, compiled for it. The file's type implements
/// [`Vector`].
macro_rules! compiled_for {
    ($vector:ident, $name:literal, $needs:literal, enable = $enable:literal, detect = $($feature:tt)+) => {
        pub(super) const IMPLEMENTATION: super::Implementation = super::Implementation {
            name: $name,
            needs: $needs,
            detect: || [$(is_x86_feature_detected!($feature)),+].into_iter().all(|has| has),
            pack,
            unpack,
        };

        #[target_feature(enable = $enable)]
        fn pack(source: &[u8], out: &mut super::view::TilesMut<'_>) {
            // SAFETY: this function has the features.
            unsafe { super::x86::pack::<$vector>(source, out) }
        }

        #[target_feature(enable = $enable)]
        fn unpack(payload: super::view::Tiles<'_>, first_tile: usize, rows: &mut [u8]) {
            // SAFETY: this function has the features.
            unsafe { super::x86::unpack::<$vector>(payload, first_tile, rows) }
        }
    };
}
pub(super) use compiled_for;

#[repr(C, align(64))]
struct Aligned<const N: usize>([u8; N]);

/// Packs the rows of the tiles of `out`; `source` starts at the first of them.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn pack<V: Vector>(source: &[u8], out: &mut TilesMut<'_>) {
    assert_eq!(source.len(), out.tiles().len() * ROWS * out.dims().row_bytes, "rows of exactly these tiles");
    // SAFETY: the length of `source` was just checked; the instruction set is the caller's promise.
    unsafe {
        if out.line_aligned() {
            pack_lines::<V>(source, out);
        } else {
            pack_staged::<V>(source, out);
        }
    }
    // Non-temporal stores are not ordered with the ones that will tell other threads that the work is done.
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// # Safety
/// As [`pack`]; `source` holds whole rows of exactly the tiles of `out`, whose payload starts on a line.
#[inline(always)]
unsafe fn pack_lines<V: Vector>(source: &[u8], out: &mut TilesMut<'_>) {
    let (dims, tiles) = (out.dims(), out.tiles());
    let tile_rows = ROWS * dims.row_bytes;
    let mut joined = Aligned([0u8; PACK_TILES * SCALES]);
    for t in tiles.clone().step_by(PACK_TILES) {
        let count = PACK_TILES.min(tiles.end - t);
        let rows = source[(t - tiles.start) * tile_rows..][..count * tile_rows].as_ptr();
        for b in 0..dims.k_blocks {
            let quants = out.quants(b, t, count).as_mut_ptr();
            // SAFETY: block b of each of the `count` tiles' rows lies within `rows`; `quants` spans `count` tiles and is
            // aligned because the payload is and runs start at multiples of 256; `joined` holds two tiles' scales.
            unsafe {
                let block = rows.add(b * BLOCK);
                prefetch_rows(block.wrapping_add(PACK_AHEAD), dims.row_bytes, count * ROWS);
                for i in 0..count {
                    let scales = joined.0.as_mut_ptr().add(i * SCALES);
                    V::pack_tile::<true>(block.add(i * tile_rows), dims.row_bytes, quants.add(i * QUANTS), scales);
                }
            }
            let target = out.scales(b, t, count);
            if count == PACK_TILES && target.as_ptr().addr().is_multiple_of(LINE) {
                // SAFETY: both are 64 bytes long and `target` was just found aligned.
                unsafe { V::stream_line(joined.0.as_ptr(), target.as_mut_ptr()) };
            } else {
                target.copy_from_slice(&joined.0[..count * SCALES]);
            }
        }
    }
}

/// For payloads that do not start on a line: tiles are built in L1, and the bytes after the last whole line wait for the
/// next pair of tiles, so that only the ends of this part's runs are written in pieces of lines.
///
/// # Safety
/// As [`pack`]; `source` holds whole rows of exactly the tiles of `out`.
#[inline(always)]
unsafe fn pack_staged<V: Vector>(source: &[u8], out: &mut TilesMut<'_>) {
    const PAIR_QUANTS: usize = PACK_TILES * QUANTS;
    const PAIR_SCALES: usize = PACK_TILES * SCALES;
    let (dims, tiles) = (out.dims(), out.tiles());
    let tile_rows = ROWS * dims.row_bytes;
    // A line of what came before, then the pair.
    let mut quants = Aligned([0u8; LINE + PAIR_QUANTS]);
    let mut scales = Aligned([0u8; LINE + PAIR_SCALES]);
    let mut before = vec![[[0u8; LINE]; 2]; dims.k_blocks];
    for t in tiles.clone().step_by(PACK_TILES) {
        let count = PACK_TILES.min(tiles.end - t);
        let back = if t == tiles.start { 0 } else { PACK_TILES };
        let more = t + count < tiles.end;
        let rows = source[(t - tiles.start) * tile_rows..][..count * tile_rows].as_ptr();
        for (b, [quants_before, scales_before]) in before.iter_mut().enumerate() {
            // SAFETY: block b of each of the `count` tiles' rows lies within `rows`; after their first line the stages
            // are aligned and hold `PACK_TILES` >= `count` tiles.
            unsafe {
                let block = rows.add(b * BLOCK);
                prefetch_rows(block.wrapping_add(PACK_AHEAD), dims.row_bytes, count * ROWS);
                for i in 0..count {
                    V::pack_tile::<false>(
                        block.add(i * tile_rows),
                        dims.row_bytes,
                        quants.0.as_mut_ptr().add(LINE + i * QUANTS),
                        scales.0.as_mut_ptr().add(LINE + i * SCALES),
                    );
                }
                let target = out.quants(b, t - back, back + count);
                stream_run::<V>(&mut quants.0, quants_before, count * QUANTS, target, back * QUANTS, more);
                let target = out.scales(b, t - back, back + count);
                stream_run::<V>(&mut scales.0, scales_before, count * SCALES, target, back * SCALES, more);
            }
        }
    }
}

/// Writes `len` new bytes, staged after the first line of `stage`, to `target[at..]`, up to the last whole line if there
/// is `more` to come. What an earlier call held back is in `before`; what this one holds back is left there.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn stream_run<V: Vector>(
    stage: &mut [u8],
    before: &mut [u8; LINE],
    len: usize,
    target: &mut [u8],
    at: usize,
    more: bool,
) {
    let end = target.as_ptr().addr() + at + len;
    let held = if at == 0 { 0 } else { (end - len) % LINE };
    let hold = if more { end % LINE } else { 0 };
    stage[..LINE].copy_from_slice(before);
    // SAFETY: the caller's promise.
    unsafe { stream_copy::<V>(&stage[LINE - held..LINE + len - hold], &mut target[at - held..at + len - hold]) };
    before.copy_from_slice(&stage[len..len + LINE]);
}

/// Unpacks the tiles from `first_tile` on into `rows`, which starts at the first row of that tile.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn unpack<V: Vector>(payload: Tiles<'_>, first_tile: usize, rows: &mut [u8]) {
    // Of each row, a line of what came before, then a run of blocks.
    const PITCH: usize = LINE + UNPACK_BLOCKS * BLOCK;
    let dims = payload.dims();
    let tile_rows = ROWS * dims.row_bytes;
    assert!(rows.len().is_multiple_of(tile_rows), "whole tiles");
    #[expect(clippy::large_stack_arrays, reason = "20 KiB, sized for the first-level cache")]
    let mut stage = Aligned([0u8; UNPACK_TILES * ROWS * PITCH]);
    for (i, rows) in rows.chunks_mut(UNPACK_TILES * tile_rows).enumerate() {
        let (t, count) = (first_tile + i * UNPACK_TILES, rows.len() / tile_rows);
        for first in (0..dims.k_blocks).step_by(UNPACK_BLOCKS) {
            let blocks = UNPACK_BLOCKS.min(dims.k_blocks - first);
            for b in 0..blocks {
                let (quants, scales) = (payload.quants(first + b, t, count), payload.scales(first + b, t, count));
                if first + b + UNPACK_AHEAD < dims.k_blocks {
                    prefetch_lines(payload.quants(first + b + UNPACK_AHEAD, t, count));
                    prefetch_lines(payload.scales(first + b + UNPACK_AHEAD, t, count));
                }
                for i in 0..count {
                    // SAFETY: the slices span `count` tiles; the stage has 16 rows of PITCH bytes for each of them, and
                    // b < UNPACK_BLOCKS, so that 18 bytes from LINE + b * 18 lie within a row.
                    unsafe {
                        let target = stage.0.as_mut_ptr().add(i * ROWS * PITCH + LINE + b * BLOCK);
                        V::unpack_tile(quants.as_ptr().add(i * QUANTS), scales.as_ptr().add(i * SCALES), target, PITCH);
                    }
                }
            }
            let (len, at, more) = (blocks * BLOCK, first * BLOCK, first + blocks < dims.k_blocks);
            for (row, staged) in rows.chunks_exact_mut(dims.row_bytes).zip(stage.0.chunks_exact_mut(PITCH)) {
                // Bytes after the last whole line wait for the next run of blocks.
                let end = row.as_ptr().addr() + at + len;
                let held = if at == 0 { 0 } else { (end - len) % LINE };
                let hold = if more { end % LINE } else { 0 };
                // SAFETY: the instruction set is the caller's promise.
                unsafe {
                    stream_copy::<V>(&staged[LINE - held..LINE + len - hold], &mut row[at - held..at + len - hold]);
                }
                if more {
                    staged.copy_within(len..len + LINE, 0);
                }
            }
        }
    }
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// Copies with non-temporal stores wherever `target` has a whole line. The caller issues an `sfence`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn stream_copy<V: Vector>(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "a copy of equal lengths");
    let len = source.len();
    let (source, target) = (source.as_ptr(), target.as_mut_ptr());
    let head = (target.addr().wrapping_neg() % LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head + 64 * lines <= len, the common length of both; after `head` bytes the target is aligned to 64 (or
    // nothing is left). A shared and an exclusive slice do not overlap.
    unsafe {
        if head > 0 {
            std::ptr::copy_nonoverlapping(source, target, head);
        }
        for line in 0..lines {
            let at = head + line * LINE;
            V::stream_line(source.add(at), target.add(at));
        }
        if tail < len {
            std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), len - tail);
        }
    }
}

#[inline(always)]
fn prefetch_rows(first: *const u8, stride: usize, rows: usize) {
    for row in 0..rows {
        prefetch(first.wrapping_add(row * stride));
    }
}

#[inline(always)]
fn prefetch_lines(bytes: &[u8]) {
    for at in (0..bytes.len()).step_by(LINE) {
        prefetch(bytes.as_ptr().wrapping_add(at));
    }
}

#[inline(always)]
fn prefetch(at: *const u8) {
    // SAFETY: a hint that reads nothing and faults on no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}
