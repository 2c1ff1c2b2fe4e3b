use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::{Blake3Hex, Sha256Hex};
use crate::time::UnixTime;

/// `manifest.json` of a pack set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Pack set")]
pub struct PackSet {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `<prefix>-pack-set-v2`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-pack-set-v2$"), example = &"my-model-pack-set-v2")]
    pub format: String,
    /// `ready` once every payload is in place.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// Always `development-initialization-cache-only`.
    #[schemars(extend("const" = "development-initialization-cache-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// The set key: canonical hash of `identity`.
    pub key: Sha256Hex,
    /// The hashed object.
    pub identity: SetIdentity,
    /// The model the tensors come from.
    pub source_model: SourceModel,
    /// Facts of the model's GGUF directory.
    pub gguf: GgufFacts,
    /// The layout of every payload.
    pub layout: LayoutRecord,
    /// The packer.
    pub tool: ToolRecord,
    /// The plan's name; absent in sets upstream wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"all-q4_0")]
    pub plan: Option<String>,
    /// Number of tensors.
    #[schemars(example = 187)]
    pub tensor_count: u64,
    /// Tensors packed in the run that wrote this document.
    #[schemars(example = 187)]
    pub packed_count_this_run: u64,
    /// Tensors found ready in the run that wrote this document.
    #[schemars(example = 0)]
    pub reused_count_this_run: u64,
    /// Tensors imported from another set in the run that wrote this document.
    #[schemars(example = 0)]
    pub imported_count_this_run: u64,
    /// Sum of the payloads' sizes in bytes.
    #[schemars(example = 9_375_252_480_u64)]
    pub payload_size_bytes: u64,
    /// Seconds spent on the model's SHA-256.
    #[schemars(range(min = 0.0), example = 8.558)]
    pub model_hash_seconds_this_run: f64,
    /// Seconds spent on packing, hashing and writing payloads.
    #[schemars(range(min = 0.0), example = 37.792)]
    pub pack_seconds_this_run: f64,
    /// One entry a slot, in slot order.
    pub tensors: Vec<TensorPack>,
    /// The runtime index.
    pub runtime_index: IndexRecord,
    /// What a loader must compare before it uses a payload.
    pub loader_contract: LoaderContract,
    /// When the document was written, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The object whose canonical hash is the set key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetIdentity {
    /// SHA-256 of the model.
    pub target_model_sha256: Sha256Hex,
    /// Architecture of the device.
    #[schemars(length(min = 1), example = &"bmg-g31")]
    pub target_architecture: String,
    /// Version of the layout.
    #[schemars(example = 2)]
    pub pack_layout_version: u64,
    /// Tensor keys in slot order.
    pub tensor_keys: Vec<Sha256Hex>,
    /// The plan's format prefix; absent for upstream's, whose keys predate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"my-model")]
    pub format_prefix: Option<String>,
    /// The layout's name; absent for upstream's plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"q4_0-xe2-dpas-v2")]
    pub layout_name: Option<String>,
}

/// The object whose canonical hash is a tensor key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorIdentity {
    /// SHA-256 of the model.
    pub target_model_sha256: Sha256Hex,
    /// Name in the GGUF.
    #[schemars(length(min = 1), example = &"blk.0.ffn_gate.weight")]
    pub tensor_name: String,
    /// `[K, N]`, K fastest.
    #[schemars(example = serde_json::json!([5120, 17408]))]
    pub tensor_shape: [u64; 2],
    /// Type name, `GGML_TYPE_Q4_0`.
    #[schemars(length(min = 1), example = &"GGML_TYPE_Q4_0")]
    pub tensor_type: String,
    /// Version of the layout.
    #[schemars(example = 2)]
    pub pack_layout_version: u64,
    /// Architecture of the device.
    #[schemars(length(min = 1), example = &"bmg-g31")]
    pub target_architecture: String,
    /// The layout's name; absent for `q4_0-xe2-dpas-v2`, whose keys predate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"other-layout")]
    pub layout_name: Option<String>,
}

/// The model a set was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceModel {
    /// Path as given when the set was made.
    #[schemars(length(min = 1), example = &"/srv/models/Qwen3.6-27B-Q4_0.gguf")]
    pub path: String,
    /// SHA-256 of the whole file.
    pub sha256: Sha256Hex,
    /// Size of the file in bytes.
    #[schemars(range(min = 1), example = 16_030_000_000_u64)]
    pub size_bytes: u64,
    /// Whether the SHA-256 was computed in the run that wrote this, and agreed.
    pub hash_validated: bool,
    /// Who vouches for the SHA-256: `spec`, `argument`, or `nothing` when it was only computed and recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"spec")]
    pub vouched_by: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Facts of a GGUF directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GgufFacts {
    /// GGUF version, 2 or 3.
    #[schemars(range(min = 2, max = 3), example = 3)]
    pub version: u64,
    /// Number of tensors.
    #[schemars(example = 851)]
    pub tensor_count: u64,
    /// Number of key-value pairs.
    #[schemars(example = 42)]
    pub metadata_count: u64,
    /// Alignment of tensor data in bytes.
    #[schemars(range(min = 1), example = 32)]
    pub alignment: u64,
    /// Offset of the data section from the start of the file.
    #[schemars(example = 10_993_024)]
    pub data_offset: u64,
    /// Size of the file in bytes.
    #[schemars(range(min = 1), example = 16_030_000_000_u64)]
    pub file_size: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The layout of every payload of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayoutRecord {
    /// Name of the layout.
    #[schemars(length(min = 1), example = &"q4_0-xe2-dpas-v2")]
    pub name: String,
    /// Version of the layout.
    #[schemars(example = 2)]
    pub version: u64,
    /// Architecture of the device.
    #[schemars(length(min = 1), example = &"bmg-g31")]
    pub architecture: String,
    /// Order of the quant region.
    #[schemars(example = &"[k_block][n16_tile][k8_group][n_lane][8 signed-s4 nibbles]")]
    pub quant_region: String,
    /// Order of the scale region.
    #[schemars(example = &"fp16 [k_block][n_row]")]
    pub scale_region: String,
    /// How a stored nibble becomes the device's value.
    #[schemars(example = &"stored_nibble_xor_0x8")]
    pub q4_zero_point_transform: String,
    /// Byte order.
    #[schemars(example = &"little")]
    pub endianness: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The program that wrote a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolRecord {
    /// Name or path.
    #[schemars(length(min = 1), example = &"b70-pack")]
    pub path: String,
    /// Revision; upstream writes an integer, the kit its version.
    #[schemars(extend("type" = ["integer", "string"]), example = &"0.1.0")]
    pub revision: Value,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One tensor of a set: an entry of `manifest.json`, and the sidecar `tensors/<key>.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Tensor pack")]
pub struct TensorPack {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `<prefix>-tensor-pack-v2`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-tensor-pack-v2$"), example = &"my-model-tensor-pack-v2")]
    pub format: String,
    /// `ready`.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// The tensor key: canonical hash of `identity`.
    pub key: Sha256Hex,
    /// The hashed object.
    pub identity: TensorIdentity,
    /// Where the tensor lies in the model.
    pub source_tensor: SourceTensor,
    /// The packed bytes.
    pub payload: PayloadRecord,
    /// Seconds it took to pack.
    #[schemars(range(min = 0.0), example = 0.2)]
    pub pack_seconds: f64,
    /// When it was packed, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The set it was imported from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")]
    pub imported_from: Option<Value>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Where a tensor's bytes lie in its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceTensor {
    /// Absolute offset in the file.
    #[schemars(example = 10_993_024)]
    pub gguf_offset: u64,
    /// Size in bytes.
    #[schemars(range(min = 1), example = 50_135_040)]
    pub size_bytes: u64,
    /// SHA-256 of the source bytes.
    pub sha256: Sha256Hex,
    /// The file of a split model the offset counts in, 0-based; absent for a model of one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 0)]
    pub file_index: Option<u64>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A payload file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PayloadRecord {
    /// Path below the set's folder, `tensors/<key>.bin`.
    #[schemars(regex(pattern = "^tensors/[0-9a-f]{64}\\.bin$"), example = &"tensors/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.bin")]
    pub path: String,
    /// Size in bytes.
    #[schemars(range(min = 1), example = 50_135_040)]
    pub size_bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// BLAKE3 of the bytes, for fast re-checks; absent in sets upstream wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<Blake3Hex>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The runtime index of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IndexRecord {
    /// `<prefix>-runtime-index-v1`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-runtime-index-v1$"), example = &"my-model-runtime-index-v1")]
    pub format: String,
    /// Path below the set's folder.
    #[schemars(length(min = 1), example = &"runtime-index.tsv")]
    pub path: String,
    /// Size in bytes.
    #[schemars(range(min = 1), example = 41_000)]
    pub size_bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a loader must compare before it uses a payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoaderContract {
    /// Fields a tensor is looked up by; any mismatch is a refusal.
    #[schemars(example = serde_json::json!(["target_model_sha256", "tensor_name"]))]
    pub lookup_fields: Vec<String>,
    /// Checks that come before the first use.
    #[schemars(example = serde_json::json!(["payload size"]))]
    pub required_validation: Vec<String>,
    /// Whether payloads may be memory-mapped.
    pub mmap_safe: bool,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// `ram-stage.json`: a verified copy of a pack set in RAM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "RAM stage")]
pub struct RamStage {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `<prefix>-ram-stage-v1`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-ram-stage-v1$"), example = &"my-model-ram-stage-v1")]
    pub format: String,
    /// `ready`.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// Always `development-initialization-cache-only`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"development-initialization-cache-only")]
    pub evidence_class: Option<EvidenceClass>,
    /// Always false.
    #[serde(default)]
    pub promotion_eligible: NeverEligible,
    /// Key of the staged set.
    pub set_key: Sha256Hex,
    /// Path of the set's `manifest.json`.
    #[schemars(length(min = 1), example = &"/srv/cache/7fb8/manifest.json")]
    pub source_manifest: String,
    /// SHA-256 of that manifest.
    pub source_manifest_sha256: Sha256Hex,
    /// Canonical hash of the payload table.
    pub payload_table_sha256: Sha256Hex,
    /// Sum of the payloads' sizes in bytes.
    #[schemars(example = 9_375_252_480_u64)]
    pub payload_size_bytes: u64,
    /// Number of tensors.
    #[schemars(example = 187)]
    pub tensor_count: u64,
    /// When the stage was made, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
