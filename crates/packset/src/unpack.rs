//! The inverse of packing: a tensor's Q4_0 blocks back from its payload, bit for bit.

use std::path::{Path, PathBuf};

use b70_manifest::Sha256Hex;
use b70_store::{OnExisting, Progress, Root, TempFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::layout::{Layout, MatrixShape};
use crate::pack::{WORKING_SET, for_each_band};
use crate::set::SetDir;

/// The outcome of an [`unpack`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unpacked {
    /// Version of this document's form.
    pub schema_version: u64,
    /// The set.
    pub set_key: Sha256Hex,
    /// The tensor.
    pub tensor: String,
    /// The file written.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// SHA-256 of its bytes, which is that of the source tensor.
    pub sha256: Sha256Hex,
}

/// Writes the source blocks of a tensor to `out`, which must not exist; they must have the recorded source digest.
pub fn unpack(
    set: &SetDir,
    name: &str,
    layout: &dyn Layout,
    out: &Path,
    progress: &Progress<'_>,
) -> Result<Unpacked, PackError> {
    unpack_in(set, name, layout, out, progress, WORKING_SET / 2)
}

/// [`unpack`] with another working set, in bytes: for tests of the path that unpacks a tensor in bands.
#[doc(hidden)]
pub fn unpack_in(
    set: &SetDir,
    name: &str,
    layout: &dyn Layout,
    out: &Path,
    progress: &Progress<'_>,
    working_set: u64,
) -> Result<Unpacked, PackError> {
    let (document, _) = set.read_manifest()?;
    let no_tensor = || PackError::NoTensor { set_key: document.key, name: name.to_owned() };
    let entry = document.tensors.iter().find(|tensor| tensor.identity.tensor_name == name).ok_or_else(no_tensor)?;
    let out = std::path::absolute(out).map_err(PackError::io("resolve", out))?;
    let no_name = || PackError::document(&out, "expected the path of a file to write");
    let file_name = b70_store::RelPath::new(out.file_name().ok_or_else(no_name)?)?;
    // Not created: a failure would leave it behind.
    let folder = Root::open(out.parent().ok_or_else(no_name)?)?;
    if folder.try_stat(&file_name).map_or(true, |found| found.is_some()) {
        return Err(b70_store::Error::Exists { path: out }.into());
    }
    let [k, n] = entry.identity.tensor_shape;
    let size = layout.source_len(MatrixShape { k, n })?;
    let mut temp = TempFile::create(&folder, 0o644)?;
    temp.reserve(size)?;
    for_each_band(set.root(), entry, layout, working_set, progress, |_, _, rows| {
        temp.write_all(rows)?;
        Ok(true)
    })?;
    let published = temp.commit(&file_name, OnExisting::Fail, Some(entry.source_tensor.sha256), &progress.silent())?;
    Ok(Unpacked {
        schema_version: 1,
        set_key: document.key,
        tensor: name.to_owned(),
        path: published.path,
        size_bytes: published.content.size,
        sha256: published.content.sha256,
    })
}
