//! `capture.json`: what a capture must say of itself. Every field is mandatory; null is said, not left out.

use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Dtype;

/// Format of the document.
pub(crate) const CAPTURE_FORMAT: &str = "b70-golden-capture-v1";

/// Metadata of one captured tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Golden capture")]
pub struct Capture {
    /// Version of this document, 1.
    #[schemars(range(min = 1, max = 1))]
    pub schema_version: u64,
    /// Always `b70-golden-capture-v1`.
    pub format: String,
    /// Always `diagnostic-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// The case it belongs to.
    pub case: String,
    /// The tensor's part in the case.
    pub role: CaptureRole,
    /// Width M of the run it was taken from.
    #[schemars(range(min = 1, max = 4096))]
    pub width: u64,
    /// The tensor.
    pub tensor: CaptureTensor,
    /// Layer it was taken at; null for a tensor of no layer, such as logits.
    #[serde(deserialize_with = "present")]
    pub layer: Option<u64>,
    /// Positions of the tokens it was computed for.
    pub token_positions: Vec<u64>,
    /// SHA-256 of the operation's input, dense and little-endian.
    pub input_sha256: Sha256Hex,
    /// SHA-256 of the operation's output, dense and little-endian.
    pub output_sha256: Sha256Hex,
    /// SHA-256 of the model.
    pub source_model_sha256: Sha256Hex,
    /// The runtime that computed it.
    pub runtime: CaptureRuntime,
    /// The kernel that computed it.
    pub kernel: CaptureKernel,
}

/// The exact tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureTensor {
    /// Its exact name in the graph or the model.
    pub name: String,
    /// Rows to columns, the fastest dimension last.
    pub shape: Vec<u64>,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Bytes from one index to the next in each dimension, where it was captured; the stored copy is dense.
    pub stride_bytes: Vec<u64>,
    /// SHA-256 of its bytes, dense and little-endian.
    pub sha256: Sha256Hex,
}

/// The runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRuntime {
    /// Commit of its source; null when the source has no Git, and then the fingerprint says what it was.
    #[serde(deserialize_with = "present")]
    pub commit: Option<String>,
    /// SHA-256 of uncommitted changes; null when there were none.
    #[serde(deserialize_with = "present")]
    pub dirty_patch_sha256: Option<Sha256Hex>,
    /// Fingerprint of the build (`b70-registry fingerprint`).
    pub build_fingerprint_sha256: Sha256Hex,
}

/// The kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureKernel {
    /// Its name, as the runtime calls it.
    pub name: String,
    /// Its version or the digest of its source or binary.
    pub revision: String,
    /// The device it ran on, such as `0000:03:00.0 8086:e223` or `CPU`.
    pub device: String,
}

/// A tensor's part in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureRole {
    /// What the operation read.
    Input,
    /// What it wrote.
    Output,
    /// State before the step.
    Before,
    /// State after the step.
    After,
    /// Logits of the target model.
    Logits,
    /// Tokens.
    Tokens,
    /// Which drafted tokens were accepted.
    AcceptanceMask,
}

impl CaptureRole {
    /// The word in documents.
    pub fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Before => "before",
            Self::After => "after",
            Self::Logits => "logits",
            Self::Tokens => "tokens",
            Self::AcceptanceMask => "acceptance_mask",
        }
    }

    /// The tensors a case consists of.
    pub fn of_case(case: &str) -> &'static [Self] {
        match case {
            "gdn_state_before_after" | "kv_slice_before_after" => &[Self::Before, Self::After],
            "acceptance_commit_and_rollback" => {
                &[Self::Before, Self::After, Self::Logits, Self::Tokens, Self::AcceptanceMask]
            }
            _ => &[Self::Input, Self::Output],
        }
    }
}

/// Null is a statement, a missing field is an omission: unlike serde's default, the field must be there.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}

impl Capture {
    /// Every fault of the document in itself.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut say = |wrong: bool, text: String| {
            if wrong {
                faults.push(text);
            }
        };
        let t = &self.tensor;
        say(self.schema_version != 1, format!("schema_version is {}, expected 1", self.schema_version));
        say(self.format != CAPTURE_FORMAT, format!("format is {:?}, expected {CAPTURE_FORMAT:?}", self.format));
        say(
            self.evidence_class != EvidenceClass::DiagnosticOnly,
            "evidence_class must be diagnostic-only: a capture is never more".to_owned(),
        );
        say(t.name.is_empty(), "tensor.name is empty".to_owned());
        say(
            self.kernel.name.is_empty() || self.kernel.revision.is_empty() || self.kernel.device.is_empty(),
            "kernel.name, kernel.revision and kernel.device must be given".to_owned(),
        );
        say(self.token_positions.is_empty(), "token_positions is empty".to_owned());
        say(!(1..=4096).contains(&self.width), format!("width is {}, expected 1 to 4096", self.width));
        say(
            !CaptureRole::of_case(&self.case).contains(&self.role),
            format!(
                "role is {}, but the case {} consists of {}",
                self.role.word(),
                self.case,
                CaptureRole::of_case(&self.case).iter().map(|r| r.word()).collect::<Vec<_>>().join(", ")
            ),
        );
        say(
            t.shape.is_empty() || t.shape.contains(&0),
            format!("tensor.shape is {:?}, expected positive lengths", t.shape),
        );
        say(
            t.stride_bytes.len() != t.shape.len(),
            format!("tensor.stride_bytes has {} entries, tensor.shape has {}", t.stride_bytes.len(), t.shape.len()),
        );
        let unit = t.dtype.unit().1;
        say(
            t.stride_bytes.iter().any(|s| s % unit != 0 && !t.dtype.is_block()),
            format!("tensor.stride_bytes {:?} are not multiples of the {unit} bytes of {}", t.stride_bytes, t.dtype),
        );
        let own = match self.role {
            CaptureRole::Input | CaptureRole::Before => Some(("input_sha256", self.input_sha256)),
            CaptureRole::Output | CaptureRole::After => Some(("output_sha256", self.output_sha256)),
            _ => None,
        };
        if let Some((field, digest)) = own {
            say(digest != t.sha256, format!("{field} is {digest}, but this {} has {}", self.role.word(), t.sha256));
        }
        faults
    }
}
