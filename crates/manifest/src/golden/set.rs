use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::time::UnixTime;
use crate::words::words;

/// A name beside the manifest: nothing that leads elsewhere.
const FILE_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// `manifest.json` of a set of deterministic kernel fixtures, as upstream writes it. The form of kit 0.1 (tensors by name,
/// cases with `m`, `weights`, `input` and `expected`) is read too, and becomes this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Golden set")]
pub struct GoldenSet {
    /// Version of this document's form, 1.
    #[serde(default, skip_serializing_if = "is_unstated")]
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `qwen27-mmvp-q4_0-q8_1-golden-v1`.
    #[schemars(extend("const" = "qwen27-mmvp-q4_0-q8_1-golden-v1"))]
    pub format: String,
    /// Always `synthetic-kernel-contract-diagnostic-only`.
    #[schemars(extend("const" = "synthetic-kernel-contract-diagnostic-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// `ready`, once every file is there; sets of kit 0.1 do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"ready")]
    pub status: Option<String>,
    /// What made the set; sets of kit 0.1 do not state it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<GoldenGenerator>,
    /// How values are quantised; `contract` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<GoldenRule>,
    /// Seed of the random values.
    #[schemars(example = 270_036)]
    pub seed: u64,
    /// Columns of the weights, a multiple of 32.
    #[schemars(range(min = 32), extend("multipleOf" = 32), example = 5120)]
    pub k: u64,
    /// Rows of the weights.
    #[schemars(range(min = 1), example = 256)]
    pub n: u64,
    /// Widths M of the inputs.
    #[schemars(length(min = 1), inner(range(min = 1, max = 4096)), example = json!([1, 4, 8, 16]))]
    pub required_widths: Vec<u64>,
    /// One case a width.
    #[serde(deserialize_with = "cases_of_either_form")]
    #[schemars(with = "Vec<EitherCase>")]
    pub cases: Vec<GoldenCase>,
    /// Every tensor file, each with its own digest.
    #[serde(deserialize_with = "tensors_of_either_form")]
    #[schemars(with = "EitherTensors")]
    pub tensors: Vec<GoldenTensor>,
    /// SHA-256 of the model the shapes stand for; null without one.
    #[serde(default)]
    pub source_model_sha256: Option<Sha256Hex>,
    /// Fingerprint of the build the set was made for; null without one.
    #[serde(default)]
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// When the set was made, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: Option<UnixTime>,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// What the set is not, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"Deterministic tensors made from a seed; not captured model activations.")]
    pub note: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl GoldenSet {
    /// The tensor file called `path`.
    pub fn tensor(&self, path: &str) -> Option<&GoldenTensor> {
        self.tensors.iter().find(|tensor| tensor.path == path)
    }
}

/// What made a set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenGenerator {
    /// The program.
    #[schemars(length(min = 1), example = &"b70-golden")]
    pub path: String,
    /// Its revision.
    #[schemars(example = 2)]
    pub revision: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One width: its input and its expected output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenCase {
    /// Width.
    #[schemars(range(min = 1, max = 4096), example = 4)]
    pub width: u64,
    /// Files of the input and of the expected output.
    #[schemars(example = json!(["input-m4.q8_1.bin", "expected-m4.f32.bin"]))]
    pub tensors: [String; 2],
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A tensor file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GoldenTensor {
    /// Name of the file, in the set's folder.
    #[schemars(regex(pattern = FILE_NAME), example = &"weights.q4_0.bin")]
    pub path: String,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// Size in bytes.
    #[schemars(example = 737_280)]
    pub size_bytes: u64,
    /// Rows and columns, columns fastest.
    #[schemars(length(min = 1), inner(range(min = 1)), example = json!([256, 5120]))]
    pub shape: Vec<u64>,
    /// Type of the elements.
    #[schemars(length(min = 1), example = &"q4_0")]
    pub dtype: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// How random values become blocks.
    GoldenRule {
        /// The project's contract: bit-identical everywhere.
        Contract = "contract",
        /// As ggml's reference quantises.
        Ggml = "ggml",
    }
}

/// A case as upstream writes it, or as kit 0.1 did.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a case with a width and two tensors")]
enum EitherCase {
    Present(GoldenCase),
    Kit01(Kit01Case),
}

/// One width in the form of kit 0.1.
#[derive(Deserialize, JsonSchema)]
struct Kit01Case {
    /// Width.
    #[schemars(range(min = 1, max = 4096), example = 4)]
    m: u64,
    /// File of the weights.
    #[schemars(length(min = 1), example = &"weights.q4_0.bin")]
    weights: String,
    /// File of the input.
    #[schemars(length(min = 1), example = &"input-m4.q8_1.bin")]
    input: String,
    /// File of the expected output.
    #[schemars(length(min = 1), example = &"expected-m4.f32.bin")]
    expected: String,
}

/// Tensors as upstream lists them, or by name as kit 0.1 did.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a list of tensors with path, dtype, shape, size_bytes and sha256")]
#[schemars(example = json!([{"path": "weights.q4_0.bin", "dtype": "q4_0", "shape": [256, 5120], "size_bytes": 737_280, "sha256": "a4b55ab9398e943e6fe2585d2db1b9cdabf331aa875a0d346df14be2c1482e4c"}]))]
enum EitherTensors {
    List(Vec<GoldenTensor>),
    ByName(#[schemars(extend("propertyNames" = {"pattern": FILE_NAME}))] BTreeMap<String, Kit01Tensor>),
}

/// A tensor file in the form of kit 0.1, whose name stands before it.
#[derive(Deserialize, JsonSchema)]
struct Kit01Tensor {
    /// SHA-256 of the bytes.
    sha256: Sha256Hex,
    /// Size in bytes.
    #[schemars(example = 737_280)]
    size_bytes: u64,
    /// Rows and columns, columns fastest.
    #[schemars(length(min = 1), inner(range(min = 1)), example = json!([256, 5120]))]
    shape: Vec<u64>,
    /// Type of the elements.
    #[schemars(length(min = 1), example = &"q4_0")]
    dtype: String,
}

fn cases_of_either_form<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GoldenCase>, D::Error> {
    let cases = Vec::<EitherCase>::deserialize(deserializer)?;
    let present = |case| match case {
        EitherCase::Present(case) => case,
        EitherCase::Kit01(Kit01Case { m, weights, input, expected }) => {
            let extra = Map::from_iter([("weights".to_owned(), weights.into())]);
            GoldenCase { width: m, tensors: [input, expected], extra }
        }
    };
    Ok(cases.into_iter().map(present).collect())
}

fn tensors_of_either_form<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GoldenTensor>, D::Error> {
    let named = |(path, Kit01Tensor { sha256, size_bytes, shape, dtype })| GoldenTensor {
        path,
        sha256,
        size_bytes,
        shape,
        dtype,
        extra: Map::new(),
    };
    Ok(match EitherTensors::deserialize(deserializer)? {
        EitherTensors::List(tensors) => tensors,
        EitherTensors::ByName(tensors) => tensors.into_iter().map(named).collect(),
    })
}

/// A set that states no version is written again without one.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde calls")]
fn is_unstated(version: &u64) -> bool {
    *version == 0
}
