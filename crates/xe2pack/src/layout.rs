//! The layout behind packset's [`Layout`] trait.

use std::ops::Range;

use b70_manifest::pack::LayoutRecord;
use b70_packset::{BuiltInPlan, GgmlType, Layout, LayoutDescriptor, LayoutError, MatrixShape, Segment, Threads};

use crate::geometry::{Geometry, TILE_ROWS};
use crate::kernels::Kernel;

/// The layout's names in keys, plans and documents.
pub const DESCRIPTOR: LayoutDescriptor =
    LayoutDescriptor { name: "q4_0-xe2-dpas-v2", version: 2, architecture: "bmg-g31" };

/// The layout `q4_0-xe2-dpas-v2`, with the kernel that carries it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xe2DpasV2 {
    kernel: Kernel,
}

impl Xe2DpasV2 {
    /// The layout with the fastest kernel of this CPU.
    pub fn new() -> Self {
        Self::with_kernel(Kernel::best())
    }

    /// The layout with a kernel of choice. All kernels give the same bytes.
    pub fn with_kernel(kernel: Kernel) -> Self {
        Self { kernel }
    }
}

impl Default for Xe2DpasV2 {
    fn default() -> Self {
        Self::new()
    }
}

impl Layout for Xe2DpasV2 {
    fn descriptor(&self) -> &LayoutDescriptor {
        &DESCRIPTOR
    }

    fn record(&self) -> LayoutRecord {
        LayoutRecord {
            name: DESCRIPTOR.name.to_owned(),
            version: DESCRIPTOR.version,
            architecture: DESCRIPTOR.architecture.to_owned(),
            quant_region: "[k_block][n16_tile][k8_group][n_lane][8 signed-s4 nibbles]".to_owned(),
            scale_region: "fp16 [k_block][n_row]".to_owned(),
            q4_zero_point_transform: "stored_nibble_xor_0x8".to_owned(),
            endianness: "little".to_owned(),
            extra: serde_json::Map::default(),
        }
    }

    fn plans(&self) -> Vec<BuiltInPlan> {
        crate::plans::plans()
    }

    fn source_type(&self) -> GgmlType {
        GgmlType::Q4_0
    }

    fn row_group(&self) -> u64 {
        TILE_ROWS
    }

    fn kernel(&self) -> &'static str {
        self.kernel.name()
    }

    fn check(&self, shape: MatrixShape) -> Result<(), LayoutError> {
        Geometry::new(shape).map(drop)
    }

    fn source_len(&self, shape: MatrixShape) -> Result<u64, LayoutError> {
        Ok(Geometry::new(shape)?.source_len())
    }

    fn payload_len(&self, shape: MatrixShape) -> Result<u64, LayoutError> {
        Ok(Geometry::new(shape)?.payload_len())
    }

    /// Fastest when `payload` starts on a multiple of 64 bytes (a page-aligned buffer does; a large `Vec<u8>` usually
    /// does not); correct for any alignment.
    fn pack(&self, shape: MatrixShape, source: &[u8], payload: &mut [u8], threads: Threads) -> Result<(), LayoutError> {
        self.kernel.pack(&Geometry::new(shape)?, source, payload, threads)
    }

    fn unpack(
        &self,
        shape: MatrixShape,
        payload: &[u8],
        source: &mut [u8],
        threads: Threads,
    ) -> Result<(), LayoutError> {
        self.kernel.unpack(&Geometry::new(shape)?, payload, source, threads)
    }

    /// One segment when `rows` is the whole tensor; otherwise one run of quants and one of scales for each block of 32
    /// columns, in ascending order of both offsets.
    fn segments(&self, shape: MatrixShape, rows: Range<u64>) -> Result<Vec<Segment>, LayoutError> {
        let full = Geometry::new(shape)?;
        let Range { start, end } = rows;
        let whole_groups = start.is_multiple_of(TILE_ROWS) && end.is_multiple_of(TILE_ROWS);
        if start >= end || end > shape.n || !whole_groups {
            return Err(LayoutError::Rows { start, end, group: TILE_ROWS, n: shape.n });
        }
        if start == 0 && end == shape.n {
            return Ok(vec![Segment { band_offset: 0, full_offset: 0, len: full.payload_len() }]);
        }
        let band = Geometry::new(MatrixShape { k: shape.k, n: end - start })?;
        let mut segments = Vec::new();
        // Two segments of a few bytes for every 288 source bytes and more: a shape that came from a real tensor fits.
        let count = usize::try_from(2 * u128::from(full.k_blocks())).map_err(|_| LayoutError::Overflow(shape))?;
        segments.try_reserve_exact(count).map_err(|_| LayoutError::Overflow(shape))?;
        let tile = start / TILE_ROWS;
        segments.extend((0..full.k_blocks()).map(|b| Segment {
            band_offset: band.tile_offset(b, 0),
            full_offset: full.tile_offset(b, tile),
            len: band.tile_offset(1, 0),
        }));
        segments.extend((0..full.k_blocks()).map(|b| Segment {
            band_offset: band.scale_offset(b, 0),
            full_offset: full.scale_offset(b, start),
            len: (end - start) * 2,
        }));
        Ok(segments)
    }
}
