//! Documents of pack sets: the plan people write, and what the packer writes beside the payloads.
//!
//! A reader accepts fields it does not know in documents that tools wrote (they are kept in `extra`), so that older and
//! newer sets verify; a plan is written by people, and an unknown key there is an error.

mod plan;
mod set;

pub use plan::{EveryEligible, LayerRange, PackPlan, PlanLayout, PlanRule, PlanRules, RuleShape, WildShape};
pub use set::{
    GgufFacts, IndexRecord, LayoutRecord, LoaderContract, PackSet, PayloadRecord, RamStage, SetIdentity, SourceModel,
    SourceTensor, TensorIdentity, TensorPack, ToolRecord,
};

/// The prefix of upstream's documents, reserved for the built-in plan `qwen27-xe2-m6`.
pub const LAB_FORMAT_PREFIX: &str = "qwen27-xe2-m6";
/// The layout whose name upstream's keys leave out.
pub const LAB_LAYOUT: &str = "q4_0-xe2-dpas-v2";
