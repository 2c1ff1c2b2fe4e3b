//! Packing one tensor into one payload, and comparing a payload with its source, in bounded memory.
//!
//! A tensor that fits the pipeline's budget is packed whole. A larger one is handled in *bands*
//! of whole row groups: each band is copied, packed as a tensor of its own and scattered into the payload by
//! [`Layout::segments`].

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use b70_gguf::Tensor;
use b70_manifest::Sha256Hex;
use b70_manifest::pack::TensorPack;
use b70_store::{Content, DigestKind, Hasher, Progress, RelPath, Root, TempFile, on_threads};

use crate::buffer::Growing;
use crate::error::PackError;
use crate::layout::{Layout, MatrixShape, Threads};
use crate::model::Model;
use crate::plan::{SelectedTensor, check_working_set};
use crate::set::payload_name;

/// Memory for a tensor that is unpacked, in bytes.
pub(crate) const WORKING_SET: u64 = 384 << 20;
/// Memory of one thread for a tensor that is too large to be packed whole, in bytes: source and payload of a band.
pub(crate) const BAND_SET: u64 = 64 << 20;
/// Threads beyond these do not help: the model's own hash is one stream.
const MAX_JOBS: usize = 64;

/// How many workers are worth starting.
pub(crate) fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_JOBS)
}

/// Rows of a band: whole groups, source and payload together within `limit` bytes, at least one group.
fn band_rows(shape: MatrixShape, layout: &dyn Layout, limit: u64) -> Result<u64, PackError> {
    let group = layout.row_group();
    let one = MatrixShape { k: shape.k, n: group };
    let bytes = layout.source_len(one)? + layout.payload_len(one)?;
    Ok((limit / bytes.max(1)).max(1).saturating_mul(group).min(shape.n))
}

/// A packed tensor that has no name yet.
pub(crate) struct PackedTensor {
    pub(crate) file: TempFile,
    pub(crate) source_sha256: Sha256Hex,
    pub(crate) seconds: f64,
}

/// Buffers of one worker, kept from tensor to tensor.
#[derive(Default)]
struct Buffers {
    source: Growing,
    payload: Growing,
}

/// Permission bits of a payload.
const PAYLOAD_MODE: u32 = 0o444;

/// Packs a tensor whose bytes are in memory into an unnamed file beside its future name. The file's SHA-256 is left to the
/// proof that reads it back.
pub(crate) fn pack_whole(
    tensor: &SelectedTensor,
    source: &[u8],
    layout: &dyn Layout,
    tensors_dir: &Root,
    scratch: &mut Growing,
) -> Result<TempFile, PackError> {
    let payload_len = layout.payload_len(tensor.shape)?;
    let mut temp = TempFile::create(tensors_dir, PAYLOAD_MODE)?;
    temp.without_sha256();
    temp.reserve(payload_len)?;
    let payload = scratch.get_mut(payload_len as usize).map_err(PackError::io("get memory for", tensors_dir.path()))?;
    layout.pack(tensor.shape, source, payload, Threads::One)?;
    temp.write_all(payload)?;
    temp.close()?;
    temp.start_writeback();
    Ok(temp)
}

/// Reads, packs and writes one tensor in bands, and hashes what it reads; returns both digests of the source. Those of the
/// payload are left to the proof that reads the file back.
pub(crate) fn pack_banded(
    model: &Model,
    tensor: &SelectedTensor,
    layout: &dyn Layout,
    tensors_dir: &Root,
    limit: u64,
    progress: &Progress<'_>,
) -> Result<(TempFile, Content), PackError> {
    let shape = tensor.shape;
    let payload_len = layout.payload_len(shape)?;
    let mut temp = TempFile::create(tensors_dir, PAYLOAD_MODE)?;
    temp.without_sha256();
    temp.reserve(payload_len)?;
    let mut buffers = Buffers::default();
    let no_memory = || PackError::io("get memory for", model.path());
    let rows = band_rows(shape, layout, limit)?;
    let mut hasher = Hasher::new(DigestKind::Both);
    let mut first = 0;
    while first < shape.n {
        progress.check()?;
        let band = MatrixShape { k: shape.k, n: rows.min(shape.n - first) };
        let (source_len, band_len) = (layout.source_len(band)?, layout.payload_len(band)?);
        let source = buffers.source.get_mut(source_len as usize).map_err(no_memory())?;
        let payload = buffers.payload.get_mut(band_len as usize).map_err(no_memory())?;
        model.read_at(tensor.file_index, tensor.offset + first * (source_len / band.n), source)?;
        hasher.update(source);
        layout.pack(band, source, payload, Threads::One)?;
        if band == shape {
            temp.write_all(payload)?;
        } else {
            for segment in layout.segments(shape, first..first + band.n)? {
                let start = segment.band_offset as usize;
                temp.write_at(segment.full_offset, &payload[start..start + segment.len as usize])?;
            }
        }
        progress.add(source_len);
        first += band.n;
    }
    temp.close()?;
    temp.start_writeback();
    Ok((temp, hasher.finish().content().expect("both were asked for")))
}

/// SHA-256 of the model's own bytes of a tensor.
pub(crate) fn source_sha256(
    model: &Model,
    tensor: &SelectedTensor,
    progress: &Progress<'_>,
) -> Result<Sha256Hex, PackError> {
    let mut hash = Hasher::new(DigestKind::Sha256);
    let mut buffer = vec![0; tensor.size_bytes.min(1 << 20) as usize];
    let mut done = 0;
    while done < tensor.size_bytes {
        progress.check()?;
        let len = buffer.len().min((tensor.size_bytes - done) as usize);
        model.read_at(tensor.file_index, tensor.offset + done, &mut buffer[..len])?;
        hash.update(&buffer[..len]);
        done += len as u64;
    }
    Ok(hash.finish().sha256.expect("SHA-256 was asked for"))
}

/// The name of a payload within its folder.
pub(crate) fn payload_file_name(key: Sha256Hex) -> String {
    let name = payload_name(key);
    name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Unpacks a payload and compares it with the model's blocks; the first row that differs, or none.
pub(crate) fn compare_with_source(
    set: &Root,
    entry: &TensorPack,
    layout: &dyn Layout,
    model: &Model,
    source: &Tensor,
    progress: &Progress<'_>,
) -> Result<Option<u64>, PackError> {
    let mut expected = Vec::new();
    let mut difference = None;
    for_each_band(set, entry, layout, WORKING_SET / 2, progress, |first, row_bytes, rows| {
        expected.resize(rows.len(), 0);
        model.read_at(source.file_index, source.offset + first * row_bytes, &mut expected)?;
        if rows != expected {
            let at = rows.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0) as u64;
            difference = Some(first + at / row_bytes.max(1));
        }
        Ok(difference.is_none())
    })?;
    Ok(difference)
}

/// Unpacks a payload band by band and hands each band's source rows to `sink` (first row, bytes of a row, the rows),
/// which says whether to go on. `limit` bounds the bytes of a band, source and payload together.
pub(crate) fn for_each_band(
    set: &Root,
    entry: &TensorPack,
    layout: &dyn Layout,
    limit: u64,
    progress: &Progress<'_>,
    mut sink: impl FnMut(u64, u64, &[u8]) -> Result<bool, PackError>,
) -> Result<(), PackError> {
    let [k, n] = entry.identity.tensor_shape;
    let shape = MatrixShape { k, n };
    layout.check(shape)?;
    check_working_set(shape, layout).map_err(|problem| PackError::document(set.path(), problem))?;
    let name = RelPath::new(&entry.payload.path)?;
    let (file, path) = (set.open_file(&name)?, set.join(&name));
    let size = file.metadata().map_err(PackError::io("stat", &path))?.len();
    let payload_len = layout.payload_len(shape)?;
    if size != payload_len {
        return Err(b70_store::Error::Size { path, expected: payload_len, found: size }.into());
    }
    let rows = band_rows(shape, layout, limit)?;
    let mut buffers = Buffers::default();
    let mut first = 0;
    while first < n {
        progress.check()?;
        let band = MatrixShape { k, n: rows.min(n - first) };
        let (source_len, band_len) = (layout.source_len(band)?, layout.payload_len(band)?);
        let source =
            buffers.source.get_mut(source_len as usize).map_err(PackError::io("get memory for", set.path()))?;
        let payload =
            buffers.payload.get_mut(band_len as usize).map_err(PackError::io("get memory for", set.path()))?;
        read_band(&file, &path, layout, shape, first, band, payload)?;
        on_threads(|| layout.unpack(band, payload, source, Threads::Pool))??;
        progress.add(band_len);
        if !sink(first, source_len / band.n, source)? {
            return Ok(());
        }
        first += band.n;
    }
    Ok(())
}

fn read_band(
    file: &File,
    path: &Path,
    layout: &dyn Layout,
    shape: MatrixShape,
    first: u64,
    band: MatrixShape,
    payload: &mut [u8],
) -> Result<(), PackError> {
    if band == shape {
        return file.read_exact_at(payload, 0).map_err(PackError::io("read", path));
    }
    for segment in layout.segments(shape, first..first + band.n)? {
        let start = segment.band_offset as usize;
        file.read_exact_at(&mut payload[start..start + segment.len as usize], segment.full_offset)
            .map_err(PackError::io("read", path))?;
    }
    Ok(())
}
