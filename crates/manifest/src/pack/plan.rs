use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pack plan: which tensors of a model go to which slot of a pack set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Pack plan")]
pub struct PackPlan {
    /// Where an editor finds the schema of this document.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    #[schemars(title = "Schema", example = "./schemas/pack-plan.schema.json")]
    pub schema: Option<String>,
    /// Version of this document's form.
    #[schemars(title = "Schema version", range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Name by which the plan is chosen and reported.
    #[schemars(title = "Name", regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), example = "my-model-ffn")]
    pub name: String,
    /// First part of every format name in the set's documents; `qwen27-xe2-m6` is reserved for the built-in plan.
    #[schemars(title = "Format prefix", regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}$"), example = "my-model")]
    pub format_prefix: String,
    /// The device layout the payloads are written in.
    #[schemars(title = "Layout")]
    pub layout: PlanLayout,
    /// Which tensors are packed: `"every-eligible-tensor"`, or a list of rules that must all be satisfied.
    #[schemars(title = "Rules")]
    pub rules: PlanRules,
}

/// The device layout a plan asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanLayout {
    /// Name of the layout.
    #[schemars(title = "Layout name", example = "q4_0-xe2-dpas-v2")]
    pub name: String,
    /// Version of the layout.
    #[schemars(title = "Layout version", example = 2)]
    pub version: u64,
    /// Architecture of the device.
    #[schemars(title = "Architecture", example = "bmg-g31")]
    pub architecture: String,
}

/// Which tensors a plan selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PlanRules {
    /// Every tensor the layout can take, slots in file order.
    Every(EveryEligible),
    /// One rule a family of tensors; each tensor a rule names must be present.
    Listed(Vec<PlanRule>),
}

/// The word that selects every tensor the layout can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EveryEligible {
    /// Every tensor the layout can take.
    #[serde(rename = "every-eligible-tensor")]
    EveryEligibleTensor,
}

/// A family of tensors: one name a layer, all of one shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRule {
    /// Tensor name with exactly one `{layer}` hole.
    #[schemars(
        title = "Name pattern",
        regex(pattern = r"^[^{}]*\{layer\}[^{}]*$"),
        example = "blk.{layer}.ffn_gate.weight"
    )]
    pub pattern: String,
    /// Layers the rule covers.
    #[schemars(title = "Layers")]
    pub layers: LayerRange,
    /// Exact shape `[K, N]` (K fastest), or `"any"`.
    #[schemars(title = "Shape")]
    pub shape: RuleShape,
    /// Slot of the first layer.
    #[schemars(title = "Slot base", example = 0)]
    pub slot_base: u64,
    /// Slots from one layer to the next: slot = base + stride * (layer - first layer).
    #[schemars(title = "Slot stride", range(min = 1), example = 2)]
    pub slot_stride: u64,
}

/// An inclusive range of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerRange {
    /// First layer.
    #[schemars(title = "First layer", example = 0)]
    pub first: u64,
    /// Last layer, inclusive.
    #[schemars(title = "Last layer", example = 64)]
    pub last: u64,
}

/// The shape a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RuleShape {
    /// Exactly `[K, N]`.
    Exact([u64; 2]),
    /// Whatever the model has, as long as the layout takes it.
    Any(WildShape),
}

/// The word for a free shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WildShape {
    /// Any shape.
    #[serde(rename = "any")]
    Any,
}
