//! `inspect`: what a plan would do with a model, without doing it.

use std::path::PathBuf;

use b70_manifest::pack::GgufFacts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::layout::Layout;
use crate::model::Model;
use crate::plan::{SkippedTensor, TensorPlan};

/// What a plan would do with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inspection {
    /// Version of this document's form.
    pub schema_version: u64,
    /// Whether the plan could be carried out.
    pub status: InspectStatus,
    /// The model.
    pub model: PathBuf,
    /// Facts of its GGUF directory.
    pub gguf: GgufFacts,
    /// The plan's name.
    pub plan: String,
    /// Tensors the plan selects.
    pub selected_tensor_count: u64,
    /// Tensors the plan needs; of a plan that takes what the model has, the selected ones.
    pub expected_tensor_count: u64,
    /// Sum of the payloads' sizes in bytes.
    pub expected_pack_size_bytes: u64,
    /// The selected tensors, in slot order.
    pub tensors: Vec<InspectedTensor>,
    /// The tensors left out, with the reason.
    pub skipped: Vec<SkippedTensor>,
    /// What keeps the plan from being carried out.
    pub problems: Vec<String>,
    /// What is unusual about the model and keeps nothing from being done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Whether a plan could be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InspectStatus {
    /// Everything the plan needs is there.
    Ready,
    /// The model is valid, and the plan selects nothing.
    NothingToPack,
    /// Something the plan needs is missing or does not fit.
    PlanMismatch,
}

/// A selected tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InspectedTensor {
    /// Its slot.
    pub slot: u64,
    /// Its name.
    pub name: String,
    /// `[K, N]`.
    pub shape: [u64; 2],
    /// Absolute offset in its file, in bytes.
    pub offset: u64,
    /// Size in bytes; its payload has the same.
    pub size_bytes: u64,
    /// The file of a split model it lies in, 0-based.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_index: Option<u64>,
}

/// Applies a plan to a model and reports what it would do.
pub fn inspect(model: &Model, plan: &TensorPlan, layout: &dyn Layout) -> Result<Inspection, PackError> {
    let (selection, problems) = plan.apply(model, layout)?;
    let selected = selection.tensors.len() as u64;
    let mut size = 0_u64;
    for tensor in &selection.tensors {
        size = size.saturating_add(layout.payload_len(tensor.shape)?);
    }
    let status = match (problems.is_empty(), selected) {
        (false, _) => InspectStatus::PlanMismatch,
        (true, 0) => InspectStatus::NothingToPack,
        (true, _) => InspectStatus::Ready,
    };
    Ok(Inspection {
        schema_version: 1,
        status,
        model: model.path().to_path_buf(),
        gguf: model.facts(),
        plan: plan.name().to_owned(),
        selected_tensor_count: selected,
        expected_tensor_count: plan.expected_tensor_count().unwrap_or(selected),
        expected_pack_size_bytes: size,
        tensors: selection
            .tensors
            .into_iter()
            .map(|tensor| InspectedTensor {
                slot: tensor.slot,
                name: tensor.name,
                shape: [tensor.shape.k, tensor.shape.n],
                offset: tensor.offset,
                size_bytes: tensor.size_bytes,
                file_index: model.is_split().then_some(tensor.file_index as u64),
            })
            .collect(),
        skipped: selection.skipped,
        problems: problems.iter().map(ToString::to_string).collect(),
        remarks: model.remarks(),
    })
}
