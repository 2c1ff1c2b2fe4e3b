//! Deterministic Q4_0 x Q8_1 kernel fixtures, corpus status, focused test runner.
#![forbid(unsafe_code)]

mod capture;
mod corpus;
mod error;
mod focused;
mod generate;
mod numeric;
mod set;

pub use capture::{
    CAPTURE_FORMAT, Capture, CaptureKernel, CaptureRole, CaptureRuntime, CaptureTensor, Dtype, Found, ImportReport,
    captures_of, import,
};
pub use corpus::{CaseState, CaseStatus, CorpusStatus, REQUIRED_CASES, read_corpus, status};
pub use error::GoldenError;
pub use focused::{
    CardChoice, DEFAULT_TESTS, FocusedEvent, FocusedReport, FocusedRequest, focused, source_of_build, text_environment,
};
pub use generate::{
    INPUT_BOUND, PACKED, SetParameters, Tensor, WEIGHT_BOUND, WEIGHTS, expected_name, generate, input_name,
};
pub use numeric::{
    BLOCK, Mt19937, Q4_0_BYTES, Q8_0_BYTES, Q8_1_BYTES, contract_q4_0, contract_q8_1, f16_from_f64, ggml_q4_0,
    ggml_q8_0, ggml_q8_1,
};
pub use set::{
    HEADER, HEADER_NAME, MANIFEST, PrepareOptions, PrepareReport, PrepareStatus, SET_FORMAT, SET_NAME, SetCheck,
    TensorReport, prepare, verify,
};
