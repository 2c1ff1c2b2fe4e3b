//! Deterministic Q4_0 x Q8_1 kernel fixtures, the state of a golden corpus, and a runner of focused backend tests.
//!
//! # Purpose
//!
//! A kernel is right when it computes what its contract says, on bytes that everybody has. This crate makes such bytes from
//! a seed ([`generate`], [`prepare`]), the same on every machine; says which real captures a corpus still lacks
//! ([`status`]) and admits those that come with complete metadata ([`import`]); and runs a build's own backend tests such
//! that "passed" means that tests were executed ([`focused`]). Nothing it writes is ever promotion-eligible.
//!
//! # Vocabulary
//!
//! - *set*: the folder of weights, inputs and expected outputs of one list of parameters, with a manifest.
//! - *width* M: number of activation rows multiplied at once.
//! - *rule*: how random values become blocks: *contract* in f64, half to even; *ggml* as its reference quantisers do.
//! - *case*: one operation of a model that a corpus must cover; *capture*: one tensor of it, recorded from a real run.
//! - *focused run*: named tests of one build; its *key* is the canonical hash of everything the outcome depends on.
//!
//! # Example
//!
//! ```
//! use b70_golden::{FixtureOptions, SetParameters, prepare, verify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let root = scratch.path();
//! let parameters = SetParameters { k: 64, n: 32, widths: vec![1, 4], packed: true, ..SetParameters::default() };
//! let made = prepare(root, &parameters, &FixtureOptions::default())?;
//! assert_eq!(made.tensors.len(), 6);
//! assert!(verify(root, true)?.is_valid());
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! - Sets are synthetic: they test arithmetic, not a model. At most 2^31 weights.
//! - The expected f32 are the rounded exact sums; a kernel that sums in f32 agrees within a tolerance only.
//! - Rule *ggml* with values whose scale has no finite inverse follows x86-64, where the C source leaves it open.
//! - A focused run trusts what the test program prints. If the calling process is killed by SIGKILL, a running test goes on
//!   and keeps the card's lease until it ends; what leaves its process group is not ended with it.
#![forbid(unsafe_code)]

mod capture;
mod corpus;
mod error;
mod focused;
mod generate;
mod numeric;
mod set;

pub use capture::{
    Capture, CaptureKernel, CaptureRole, CaptureRuntime, CaptureTensor, Dtype, Found, ImportReport, import,
};
pub use corpus::{CaseState, CaseStatus, CorpusStatus, REQUIRED_CASES, read_corpus, status};
pub use error::GoldenError;
pub use focused::{CardChoice, DEFAULT_TESTS, FocusedEvent, FocusedReport, FocusedRequest, focused, text_environment};
pub use generate::{FixtureTensor, PACKED, SetParameters, WEIGHTS, expected_name, generate, input_name};
pub use numeric::{BLOCK, Mt19937, Q4_0_BYTES, Q8_0_BYTES, Q8_1_BYTES, ggml_q4_0, ggml_q8_0, ggml_q8_1};
pub use set::{
    FixtureOptions, HEADER, HEADER_NAME, MANIFEST, PrepareReport, PrepareStatus, SET_NAME, SetCheck, TensorReport,
    prepare, verify,
};

/// Schemas of what `b70-golden` prints with `--json`, and of a capture's metadata.
pub fn output_schemas() -> Vec<b70_manifest::schema::SchemaEntry> {
    use b70_manifest::schema::output;
    vec![
        output::<PrepareReport>("golden-prepare"),
        output::<SetCheck>("golden-verify"),
        output::<CorpusStatus>("golden-status"),
        output::<ImportReport>("golden-import"),
        output::<FocusedReport>("golden-focused"),
        output::<Capture>("golden-capture"),
    ]
}
