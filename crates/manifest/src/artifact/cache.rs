use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Known;
use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::pack::ToolRecord;
use crate::time::UnixTime;

/// `cache-entry.json`: a byte-identical copy of a GGUF file in RAM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Cache entry")]
pub struct CacheEntry {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `byte-identical-gguf-ram-cache`.
    #[schemars(extend("const" = "byte-identical-gguf-ram-cache"))]
    pub format: String,
    /// Always `development-initialization-only`.
    #[schemars(extend("const" = "development-initialization-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// What the file is for: `target` or `draft`.
    #[schemars(length(min = 1), example = &"target")]
    pub role: String,
    /// The file that was copied.
    pub source: CacheCopy,
    /// The copy.
    pub cached: CacheCopy,
    /// When the copy was made, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Seconds the copy took.
    #[schemars(range(min = 0.0), example = 13.683)]
    pub copy_seconds: f64,
    /// Rate of the copy in MiB per second.
    #[schemars(range(min = 0.0), example = 1117.4)]
    pub copy_mib_per_second: f64,
    /// The program that made the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing_tool: Option<ToolRecord>,
    /// The llama.cpp source tree beside which the copy was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<CacheRuntime>,
    /// Kernel and driver packages of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"kernel": "6.18.0", "packages": {"intel-opencl-icd": "26.09"}}))]
    pub driver: Option<Map<String, Value>>,
    /// Architecture of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"bmg-g31")]
    pub target_architecture: Option<String>,
    /// Interface of the bytes, `gguf-byte-stream-v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"gguf-byte-stream-v1")]
    pub kernel_abi: Option<String>,
    /// Layout of the bytes, `original-gguf-no-offline-reorder`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"original-gguf-no-offline-reorder")]
    pub layout: Option<String>,
    /// The last check of the copy.
    pub admission: CacheAdmission,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A file with its identity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheCopy {
    /// Path of the file.
    #[schemars(length(min = 1), example = &"/srv/models/Qwen3.6-27B-Q4_0.gguf")]
    pub path: String,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// Size in bytes.
    #[schemars(example = 16_030_000_000_u64)]
    pub size_bytes: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The state of a source tree; `absent` without one, `unknown` where it could not be determined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheRuntime {
    /// Commit of the tree.
    #[serde(default)]
    pub commit: Known<String>,
    /// Whether the tree differs from the commit.
    #[serde(default)]
    pub dirty: Known<bool>,
    /// SHA-256 of the difference, see the fingerprint.
    #[serde(default)]
    pub dirty_patch_sha256: Known<Sha256Hex>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The last check of a copy: digest, and the stat values it is bound to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheAdmission {
    /// SHA-256 the copy had.
    pub sha256: Sha256Hex,
    /// Size the copy had, in bytes.
    #[schemars(example = 16_030_000_000_u64)]
    pub size_bytes: u64,
    /// Modification time, nanoseconds since the epoch.
    #[schemars(example = 1_783_870_000_000_000_000_i64)]
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the epoch.
    #[schemars(example = 1_783_870_000_000_000_000_i64)]
    pub ctime_ns: i64,
    /// When the copy was checked, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub verified_unix: UnixTime,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
