use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::hex::Sha256Hex;
use crate::model_pack::Revision;
use crate::time::UnixTime;

/// `manifest.json` of a registered artifact: identities of something packed elsewhere, which is never copied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Registry record")]
pub struct RegistryRecord {
    /// Version of this document's form, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: Option<u64>,
    /// Always `qwen27-b70-offline-pack-registry-v1`.
    #[schemars(extend("const" = "qwen27-b70-offline-pack-registry-v1"))]
    pub format: String,
    /// `admitted`.
    #[schemars(length(min = 1), example = &"admitted")]
    pub status: String,
    /// Always `development-iteration-only`.
    #[schemars(extend("const" = "development-iteration-only"))]
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// SHA-256 of source model digest, packer revision, layout and artifact digest, joined by NUL bytes.
    pub key: Sha256Hex,
    /// SHA-256 of the model the artifact was made from.
    pub source_model_sha256: Sha256Hex,
    /// The artifact.
    pub artifact: RegisteredArtifact,
    /// Revision of the packer.
    pub packer_revision: Revision,
    /// Name of the layout.
    #[schemars(length(min = 1), example = &"q4_0-xe2-dpas-v2")]
    pub layout: String,
    /// Name of the kernel interface.
    #[schemars(length(min = 1), example = &"qwen27-b70-pack-v1")]
    pub kernel_abi: String,
    /// Fingerprint of the build it was made for; null without one.
    #[serde(default)]
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// When it was registered, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// What registering does not promise.
    #[schemars(length(min = 1), example = &"external-artifact-registered-loader-binding-required")]
    pub binding_status: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An artifact: one file or a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegisteredArtifact {
    /// Path of the file or folder.
    #[schemars(length(min = 1), example = &"/srv/packs/q4_0-pack-v1")]
    pub path: String,
    /// SHA-256 of the file, or over the folder's paths and digests.
    pub sha256: Sha256Hex,
    /// Sum of the sizes in bytes.
    #[schemars(example = 9_375_252_480_u64)]
    pub size_bytes: u64,
    /// The folder's regular files in path order; empty or one entry for a file.
    #[serde(default)]
    pub files: Vec<ArtifactFile>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A file of an artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactFile {
    /// Path below the artifact.
    #[schemars(length(min = 1), example = &"tensors/a.bin")]
    pub path: String,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// Size in bytes.
    #[schemars(example = 50_135_040)]
    pub size_bytes: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
