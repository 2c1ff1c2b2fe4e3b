//! Kernels and the one place where one is chosen.
//!
//! A [`Kernel`] can only be obtained from the functions of this module, which detect what the CPU has: safe code cannot
//! name an instruction set that is not there.

mod scalar;
mod view;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512vbmi;
#[cfg(target_arch = "x86_64")]
mod sse41;
#[cfg(target_arch = "x86_64")]
mod x86;

use b70_packset::{LayoutError, Threads};
use rayon::prelude::*;
use thiserror::Error;

use crate::geometry::Geometry;
use view::{Dims, ROWS, Tiles, TilesMut};

/// Tiles that one piece of work starts on a multiple of. Two tiles share a 64-byte line of scales.
const PIECE_TILES: usize = 2;
/// Pieces of work for each thread of a pool, so that a thread delayed by something else costs little.
const PIECES_PER_THREAD: usize = 8;

/// One implementation: its two functions, and what the CPU must have for them.
struct Implementation {
    name: &'static str,
    /// For people; empty when nothing is needed.
    needs: &'static str,
    detect: fn() -> bool,
    /// Packs rows from the first of the tiles on. Safe to call where `detect` says yes.
    pack: unsafe fn(&[u8], &mut TilesMut<'_>),
    /// Unpacks the tiles from the given one on into rows. Safe to call where `detect` says yes.
    unpack: unsafe fn(Tiles<'_>, usize, &mut [u8]),
}

static SCALAR: Implementation =
    Implementation { name: "scalar", needs: "", detect: || true, pack: scalar::pack, unpack: scalar::unpack };

/// All of them, slowest first.
static KNOWN: &[&Implementation] = &[
    &SCALAR,
    #[cfg(target_arch = "x86_64")]
    &sse41::IMPLEMENTATION,
    #[cfg(target_arch = "x86_64")]
    &avx2::IMPLEMENTATION,
    #[cfg(target_arch = "x86_64")]
    &avx512::IMPLEMENTATION,
    #[cfg(target_arch = "x86_64")]
    &avx512vbmi::IMPLEMENTATION,
];

/// An implementation of packing and unpacking that this CPU can run.
///
/// ```
/// use b70_xe2pack::Kernel;
///
/// assert!(Kernel::available().iter().any(|kernel| kernel.name() == Kernel::best().name()));
/// assert!(Kernel::by_name("scalar").is_ok());
/// assert!(Kernel::by_name("abacus").is_err());
/// ```
#[derive(Clone, Copy)]
pub struct Kernel(&'static Implementation);

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Kernel {}

/// A kernel that was asked for by name and cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No kernel has this name.
    #[error("no kernel is called {name:?}; known kernels: {}", known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// This CPU lacks what the kernel needs.
    #[error("kernel {name} needs {needs}, which this CPU does not have; available: {}", available.join(", "))]
    Unsupported {
        /// The name asked for.
        name: &'static str,
        /// CPU features it needs.
        needs: &'static str,
        /// The kernels this CPU can run.
        available: Vec<&'static str>,
    },
}

impl Kernel {
    /// The kernels this CPU can run, slowest first; `scalar` is always there.
    pub fn available() -> Vec<Self> {
        KNOWN.iter().filter_map(|implementation| Self::detect(implementation)).collect()
    }

    /// Names of all kernels of the crate, slowest first, whether or not this CPU can run them.
    pub fn known() -> Vec<&'static str> {
        KNOWN.iter().map(|implementation| implementation.name).collect()
    }

    /// The kernel called `name`.
    ///
    /// # Errors
    /// [`KernelError::Unknown`], or [`KernelError::Unsupported`] when the CPU lacks its instructions.
    pub fn by_name(name: &str) -> Result<Self, KernelError> {
        let Some(implementation) = KNOWN.iter().find(|known| known.name == name) else {
            return Err(KernelError::Unknown { name: name.to_owned(), known: Self::known() });
        };
        Self::detect(implementation).ok_or_else(|| KernelError::Unsupported {
            name: implementation.name,
            needs: implementation.needs,
            available: Self::available().iter().map(Self::name).collect(),
        })
    }

    /// The fastest kernel this CPU can run.
    pub fn best() -> Self {
        KNOWN.iter().rev().find_map(|implementation| Self::detect(implementation)).unwrap_or(Self::scalar())
    }

    /// The portable kernel.
    pub fn scalar() -> Self {
        Self(&SCALAR)
    }

    /// Its name, as [`Kernel::by_name`] takes it.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// What the CPU must have for the kernel called `name`; empty when nothing, `None` for an unknown name.
    pub fn needs(name: &str) -> Option<&'static str> {
        KNOWN.iter().find(|known| known.name == name).map(|known| known.needs)
    }

    /// The only way to a kernel of an instruction set.
    fn detect(implementation: &'static Implementation) -> Option<Self> {
        (implementation.detect)().then_some(Self(implementation))
    }

    /// Packs a whole tensor. Checks the lengths of both buffers.
    pub(crate) fn pack(
        self,
        geometry: &Geometry,
        source: &[u8],
        payload: &mut [u8],
        threads: Threads,
    ) -> Result<(), LayoutError> {
        geometry.expect_len("source", geometry.source_len(), source.len())?;
        geometry.expect_len("payload", geometry.payload_len(), payload.len())?;
        let dims = Dims::new(geometry, payload.len());
        let mut rest = TilesMut::new(dims, payload);
        match piece_tiles(dims.tiles, threads) {
            None => self.pack_part(source, &mut rest),
            Some(piece) => {
                let mut parts = Vec::with_capacity(dims.tiles.div_ceil(piece));
                for rows in source.chunks(piece * ROWS * dims.row_bytes) {
                    let cut = (rest.tiles().start + piece).min(dims.tiles);
                    let (part, after) = rest.split_at(cut);
                    parts.push((rows, part));
                    rest = after;
                }
                parts.into_par_iter().for_each(|(rows, mut part)| self.pack_part(rows, &mut part));
            }
        }
        Ok(())
    }

    /// Unpacks a whole tensor. Checks the lengths of both buffers.
    pub(crate) fn unpack(
        self,
        geometry: &Geometry,
        payload: &[u8],
        source: &mut [u8],
        threads: Threads,
    ) -> Result<(), LayoutError> {
        geometry.expect_len("payload", geometry.payload_len(), payload.len())?;
        geometry.expect_len("source", geometry.source_len(), source.len())?;
        let dims = Dims::new(geometry, payload.len());
        let tiles = Tiles::new(dims, payload);
        match piece_tiles(dims.tiles, threads) {
            None => self.unpack_part(tiles, 0, source),
            Some(piece) => source
                .par_chunks_mut(piece * ROWS * dims.row_bytes)
                .enumerate()
                .for_each(|(i, rows)| self.unpack_part(tiles, i * piece, rows)),
        }
        Ok(())
    }

    fn pack_part(self, rows: &[u8], out: &mut TilesMut<'_>) {
        // SAFETY: a kernel exists only where its instruction set was detected.
        #[expect(unsafe_code, reason = "calls a function with target features")]
        unsafe {
            (self.0.pack)(rows, out);
        }
    }

    fn unpack_part(self, payload: Tiles<'_>, first_tile: usize, rows: &mut [u8]) {
        // SAFETY: as in `pack_part`.
        #[expect(unsafe_code, reason = "calls a function with target features")]
        unsafe {
            (self.0.unpack)(payload, first_tile, rows);
        }
    }
}

/// Tiles of one piece of work, or `None` for all at once on the calling thread.
fn piece_tiles(tiles: usize, threads: Threads) -> Option<usize> {
    match threads {
        Threads::One => None,
        Threads::Pool => {
            let pieces = rayon::current_num_threads() * PIECES_PER_THREAD;
            Some(tiles.div_ceil(pieces).next_multiple_of(PIECE_TILES))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_kernel_is_known_and_found_by_its_name() {
        let available = Kernel::available();
        assert_eq!(available[0], Kernel::scalar());
        assert_eq!(available.last(), Some(&Kernel::best()));
        for kernel in available {
            assert_eq!(Kernel::by_name(kernel.name()), Ok(kernel));
            assert!(Kernel::needs(kernel.name()).is_some());
        }
        for name in Kernel::known() {
            match Kernel::by_name(name) {
                Ok(kernel) => assert_eq!(kernel.name(), name),
                Err(KernelError::Unsupported { .. }) => println!("skipped: kernel {name} is not available here"),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Kernel::by_name("AVX2").expect_err("names are exact");
        assert_eq!(
            error.to_string(),
            "no kernel is called \"AVX2\"; known kernels: scalar, sse41, avx2, avx512, avx512vbmi"
        );
    }

    #[test]
    fn pieces_cover_all_tiles() {
        assert_eq!(piece_tiles(1088, Threads::One), None);
        for tiles in 1..100 {
            let piece = piece_tiles(tiles, Threads::Pool).expect("a pool divides");
            assert!(piece >= PIECE_TILES && piece.is_multiple_of(PIECE_TILES));
        }
    }
}
