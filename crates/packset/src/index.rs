//! `runtime-index.tsv`: the table a loader reads.

use b70_manifest::Sha256Hex;
use b70_manifest::pack::TensorPack;
use b70_manifest::{CanonicalError, canonical_sha256};
use serde::Serialize;

use crate::layout::LayoutDescriptor;

/// File name below the set's folder.
pub(crate) const INDEX_FILE: &str = "runtime-index.tsv";

/// A row of the table whose canonical hash stands in the index.
#[derive(Serialize)]
struct PayloadRow<'a> {
    key: Sha256Hex,
    path: &'a str,
    size_bytes: u64,
    sha256: Sha256Hex,
}

/// Canonical hash of the slot-ordered list of payloads.
pub fn payload_table_sha256(tensors: &[TensorPack]) -> Result<Sha256Hex, CanonicalError> {
    let rows: Vec<_> = tensors
        .iter()
        .map(|tensor| PayloadRow {
            key: tensor.key,
            path: &tensor.payload.path,
            size_bytes: tensor.payload.size_bytes,
            sha256: tensor.payload.sha256,
        })
        .collect();
    canonical_sha256(&rows)
}

/// The bytes of the index: UTF-8, tab-separated, LF, with a final newline.
///
/// `source_type_id` is ggml's type id, 2 for Q4_0. Names were checked when the plan was applied: none has a control character.
pub fn runtime_index(
    format_prefix: &str,
    set_key: Sha256Hex,
    model: Sha256Hex,
    layout: &LayoutDescriptor,
    source_type_id: u32,
    tensors: &[TensorPack],
) -> Result<String, CanonicalError> {
    let mut text = format!(
        "{format_prefix}-runtime-index-v1\nset_key\t{set_key}\nmodel_sha256\t{model}\narchitecture\t{}\nlayout\t{}\t{}\n\
         tensor_count\t{}\npayload_table_sha256\t{}\n",
        layout.architecture,
        layout.name,
        layout.version,
        tensors.len(),
        payload_table_sha256(tensors)?,
    );
    for (slot, tensor) in tensors.iter().enumerate() {
        let identity = &tensor.identity;
        text.push_str(&format!(
            "tensor\t{slot}\t{}\t{}\t{}\t{}\t{source_type_id}\t{}\t{}\t{}\n",
            identity.tensor_name,
            identity.tensor_shape[0],
            identity.tensor_shape[1],
            identity.tensor_type,
            tensor.payload.size_bytes,
            tensor.payload.sha256,
            tensor.payload.path,
        ));
    }
    Ok(text)
}
