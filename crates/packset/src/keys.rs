//! Keys: the content addresses of tensors and sets.

use b70_manifest::pack::{LAB_FORMAT_PREFIX, LAB_LAYOUT, SetIdentity, TensorIdentity};
use b70_manifest::{CanonicalError, Sha256Hex, canonical_sha256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::layout::{Layout, MatrixShape};
use crate::plan::TensorPlan;

/// The identity of one packed tensor; its canonical hash is the tensor key.
pub(crate) fn tensor_identity(layout: &dyn Layout, model: Sha256Hex, name: &str, shape: MatrixShape) -> TensorIdentity {
    let descriptor = layout.descriptor();
    TensorIdentity {
        target_model_sha256: model,
        tensor_name: name.to_owned(),
        tensor_shape: [shape.k, shape.n],
        tensor_type: layout.source_type().ggml_name().to_owned(),
        pack_layout_version: descriptor.version,
        target_architecture: descriptor.architecture.to_owned(),
        layout_name: (descriptor.name != LAB_LAYOUT).then(|| descriptor.name.to_owned()),
    }
}

/// The identity of a set; its canonical hash is the set key.
pub(crate) fn set_identity(
    layout: &dyn Layout,
    model: Sha256Hex,
    format_prefix: &str,
    tensor_keys: Vec<Sha256Hex>,
) -> SetIdentity {
    let descriptor = layout.descriptor();
    // Upstream's keys name neither prefix nor layout; any other plan must not share a folder with another over the same tensors.
    let named = format_prefix != LAB_FORMAT_PREFIX;
    SetIdentity {
        target_model_sha256: model,
        target_architecture: descriptor.architecture.to_owned(),
        pack_layout_version: descriptor.version,
        tensor_keys,
        format_prefix: named.then(|| format_prefix.to_owned()),
        layout_name: named.then(|| descriptor.name.to_owned()),
    }
}

/// The keys a model would have under a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyTable {
    /// Version of this document's form.
    pub schema_version: u64,
    /// The set key.
    pub set_key: Sha256Hex,
    /// The plan's name.
    pub plan: String,
    /// SHA-256 of the model.
    pub model_sha256: Sha256Hex,
    /// Number of tensors.
    pub tensor_count: u64,
    /// One row a slot.
    pub tensors: Vec<KeyRow>,
}

/// One row of a [`KeyTable`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRow {
    /// The slot.
    pub slot: u64,
    /// The tensor's name.
    pub name: String,
    /// `[K, N]`.
    pub shape: [u64; 2],
    /// The tensor key.
    pub key: Sha256Hex,
}

/// The keys of a model of known hash under a plan with exact shapes; the model itself is not needed.
pub fn plan_keys(plan: &TensorPlan, layout: &dyn Layout, model: Sha256Hex) -> Result<KeyTable, PackError> {
    plan.check_layout(layout)?;
    let slots = plan.exact_slots()?;
    for (_, _, shape) in &slots {
        layout.check(*shape)?;
    }
    Ok(key_table(plan, layout, model, slots)?)
}

pub(crate) fn key_table(
    plan: &TensorPlan,
    layout: &dyn Layout,
    model: Sha256Hex,
    slots: impl IntoIterator<Item = (u64, String, MatrixShape)>,
) -> Result<KeyTable, CanonicalError> {
    let mut tensors = Vec::new();
    for (slot, name, shape) in slots {
        let key = canonical_sha256(&tensor_identity(layout, model, &name, shape))?;
        tensors.push(KeyRow { slot, name, shape: [shape.k, shape.n], key });
    }
    let keys = tensors.iter().map(|row| row.key).collect();
    let set_key = canonical_sha256(&set_identity(layout, model, plan.format_prefix(), keys))?;
    Ok(KeyTable {
        schema_version: 1,
        set_key,
        plan: plan.name().to_owned(),
        model_sha256: model,
        tensor_count: tensors.len() as u64,
        tensors,
    })
}
