//! Pack sets: a model's quantised tensors, repacked offline into the layout a device kernel reads.
//!
//! A *set* is a folder of payloads, one a tensor, each content-addressed and byte-exactly reversible, with a manifest, a
//! runtime index for loaders and a checksum list. This crate knows plans, keys, folders, verification and the consumer's
//! view; it is neutral to the layout, which a crate such as `b70-xe2pack` provides through [`Layout`].
//!
//! # Vocabulary
//! - *plan*: which tensors of a model go to which slot. *slot*: a tensor's place in the runtime index.
//! - *tensor key*, *set key*: canonical hashes of identities (model hash, name, shape, layout …), never of payload bytes.
//! - *payload*: the packed bytes of one tensor. *sidecar*: the JSON document beside it.
//! - *shallow*: documents, keys, sizes and the index byte for byte. *deep*: every payload rehashed.
//!
//! # Example
//! ```
//! use b70_packset::{TensorPlan, plan_keys};
//! use b70_xe2pack::{QWEN27_PLAN, Xe2DpasV2};
//!
//! // The keys of a model need no model, only its hash and a plan with exact shapes.
//! let layout = Xe2DpasV2::new();
//! let plan = TensorPlan::built_in(QWEN27_PLAN, &layout).expect("a plan of the layout");
//! let model = "20c9c45d4d25b492b82117960b5f715ef9daff75e4e14c4fb878fa3793fb379a".parse()?;
//! let keys = plan_keys(&plan, &layout, model)?;
//! assert_eq!(keys.set_key.to_string(), "7fb8a0192d10819de692735c398e01037c89023fac3f9ac54e17bb6633c321c3");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! One row group of a tensor must fit the packer's working buffer; longer rows are refused. A consumer's slice is a memory
//! map: whoever can write the file can change it under the reader.
#![forbid(unsafe_code)]

mod buffer;
mod document;
mod error;
mod gate;
mod import;
mod index;
mod inspect;
mod keys;
mod layout;
mod manage;
mod model;
mod origin;
mod output;
mod pack;
mod plan;
mod prepare;
mod ram;
mod set;
mod source;
mod spec;
mod stage;
mod sums;
mod trust;
mod unpack;
mod verify;

pub use b70_gguf::GgmlType;
pub use error::{PackError, TensorProblem};
pub use index::{payload_table_sha256, runtime_index};
pub use inspect::{InspectStatus, InspectedTensor, Inspection, inspect};
pub use keys::{KeyRow, KeyTable, plan_keys};
pub use layout::{BuiltInPlan, Layout, LayoutDescriptor, LayoutError, MatrixShape, Segment, Threads};
pub use manage::{GcAction, GcReport, SetList, SetRow, SetState, gc, list};
pub use model::Model;
pub use output::output_schemas;
pub use plan::{SelectedTensor, SkippedTensor, TensorPlan, TensorSelection};
#[doc(hidden)]
pub use prepare::prepare_in;
pub use prepare::{PrepareOptions, PreparedSet, prepare};
pub use ram::{DEFAULT_MIN_FREE_TEXT, StageOptions, StageOutcome, StageReport, stage_ram, stage_validate};
pub use set::SetDir;
pub use source::ModelHash;
pub use spec::{model_hash, read_spec, spec_plan, tool_record};
pub use stage::{Lookup, Stage, StagedTensor};
#[doc(hidden)]
pub use unpack::unpack_in;
pub use unpack::{Unpacked, unpack};
pub use verify::{
    Depth, Expectation, FailureDetail, Requirement, RequirementOutcome, Verification, VerifyOptions, VerifyStatus,
    verify,
};
