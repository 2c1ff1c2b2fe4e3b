//! The model-pack manifest: which model, which packer, and what must hold before a pack is used.
//!
//! Its `…status`, `semantics` and lists of planned work are free text of the people who keep the file.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::hex::Sha256Hex;

/// The version `migrate` writes; version 1 is upstream's.
pub const MODEL_PACK_VERSION: u64 = 2;

/// Model-pack manifest: the model a lane serves, its packer, registry, RAM cache and what admission requires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Model-pack manifest")]
pub struct ModelPackManifest {
    /// Where an editor finds the schema of this document.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    #[schemars(title = "Schema", example = &"./schemas/model-pack-manifest.schema.json")]
    pub schema: Option<String>,
    /// Version of this document's form: 1 as upstream writes it, 2 after `b70-manifest migrate`.
    #[schemars(range(min = 1, max = 2), example = 2)]
    pub schema_version: u64,
    /// Name of the pack's format.
    #[schemars(length(min = 1), example = &"qwen27-b70-native-pack")]
    pub format: String,
    /// How far the format is implemented, in words.
    #[schemars(example = &"byte-identical-ram-cache-and-offline-artifact-registry-implemented")]
    pub format_status: String,
    /// Architecture of the device.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]*$"), example = &"bmg-g31")]
    pub target_architecture: String,
    /// The model itself.
    pub source: ModelFile,
    /// The model that drafts tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_source: Option<ModelFile>,
    /// The program that makes packs.
    pub packing_tool: PackingTool,
    /// The kernel interface packs are made for.
    pub kernel_abi: KernelAbi,
    /// The pack.
    pub pack: PackRecord,
    /// The registry of artifacts made elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration_artifact_registry: Option<RegistryPolicy>,
    /// The RAM cache of the model's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_cache: Option<RamCachePolicy>,
    /// Sections a later pack may hold.
    #[serde(default)]
    #[schemars(example = serde_json::json!(["vector_q4_0_weights"]))]
    pub planned_sections: Vec<String>,
    /// What must hold before a pack is used; `b70-pack verify --spec` enforces each or reports it as not checkable.
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["source_sha256_matches"]))]
    pub admission_requirements: Vec<String>,
    /// Free room for other tools; the kit keeps it and never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = serde_json::json!({"my-tool": {"colour": "blue"}}))]
    pub extensions: Option<Map<String, Value>>,
}

/// A model file and who vouches for its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Path of the GGUF.
    #[schemars(length(min = 1), example = &"/srv/models/Qwen3.6-27B-Q4_0.gguf")]
    pub path: String,
    /// SHA-256 of the whole file.
    pub sha256: Sha256Hex,
    /// Where the digest comes from, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"recorded")]
    pub sha256_status: Option<String>,
    /// Size of the file in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), example = 16_030_000_000_u64)]
    pub size_bytes: Option<u64>,
}

/// The program that makes packs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackingTool {
    /// Path or name.
    #[schemars(length(min = 1), example = &"tools/packer")]
    pub path: String,
    /// Revision that must have made a pack.
    pub revision: Revision,
    /// How far the tool is used, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"register-and-verify")]
    pub status: Option<String>,
}

/// A revision: a counter, or text such as a version or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Revision {
    /// A counter.
    Number(u64),
    /// A version or a commit.
    Text(String),
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for Revision {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Revision".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "title": "Revision",
            "description": "A counter, or text such as a version or a commit.",
            "type": ["integer", "string"],
            "minimum": 0,
            "examples": [1, "0.1.0"],
        })
    }
}

/// The kernel interface packs are made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelAbi {
    /// Name of the interface.
    #[schemars(length(min = 1), example = &"qwen27-b70-pack-v1")]
    pub name: String,
    /// Version of the layout.
    #[schemars(range(min = 0, max = 1_000_000), example = 1)]
    pub layout_version: u64,
}

/// The pack a manifest is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackRecord {
    /// Where the pack lies or will lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/packs/q4_0-pack-v1")]
    pub path: Option<String>,
    /// Root of the registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/results/packs")]
    pub registry_root: Option<String>,
    /// State of the pack, in words.
    #[schemars(example = &"registry-only")]
    pub status: String,
    /// SHA-256 of the pack; null while there is none.
    #[serde(default)]
    pub sha256: Option<Sha256Hex>,
    /// Table of the pack's tensors; null while there is none.
    #[serde(default)]
    #[schemars(example = Value::Null)]
    pub tensor_table: Option<Value>,
    /// Alignment of tensor data in bytes, a power of two.
    #[schemars(range(min = 1, max = 1_073_741_824), example = 4096)]
    pub alignment_bytes: u64,
}

impl PackRecord {
    /// The artifact root, below which `packs` holds the registry's records and `golden` the fixtures. A `registry_root` may
    /// be that root or its `packs`.
    ///
    /// ```
    /// let json = r#"{"status": "registry-only", "alignment_bytes": 4096, "registry_root": "/srv/results/packs"}"#;
    /// let pack: b70_manifest::model_pack::PackRecord = serde_json::from_str(json)?;
    /// assert_eq!(pack.artifact_root(), Some(std::path::Path::new("/srv/results")));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn artifact_root(&self) -> Option<&Path> {
        self.registry_root.as_deref().map(|root| artifact_root_of(Path::new(root)))
    }
}

/// The artifact root that a path names: the path itself, or the folder above it when it ends in `packs`.
pub fn artifact_root_of(path: &Path) -> &Path {
    path.parent().filter(|_| path.ends_with("packs")).unwrap_or(path)
}

/// How artifacts made elsewhere are registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryPolicy {
    /// How far it is implemented, in words.
    #[schemars(example = &"implemented")]
    pub status: String,
    /// Fields the registry's key is made of.
    #[schemars(inner(length(min = 1)), example = serde_json::json!(["source_model_sha256"]))]
    pub key_fields: Vec<String>,
    /// How artifacts are admitted, in words.
    #[schemars(example = &"recursive-per-file-sha256-and-aggregate-sha256")]
    pub admission: String,
    /// What registering does not promise, in words.
    #[schemars(example = &"no loader binding")]
    pub binding_boundary: String,
}

/// How the model's file is kept in RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RamCachePolicy {
    /// Root of the RAM cache.
    #[schemars(length(min = 1), example = &"/dev/shm/lab-model-cache")]
    pub root: String,
    /// How far it is implemented, in words.
    #[schemars(example = &"implemented")]
    pub status: String,
    /// Format of the cache's entries.
    #[schemars(length(min = 1), example = &"byte-identical-gguf-ram-cache")]
    pub format: String,
    /// What the cache does, in words.
    #[schemars(example = &"atomic-stage-checksum-admit-mmap-warm-shared-host-copy")]
    pub semantics: String,
    /// When a worker uses it, in words.
    #[schemars(example = &"prefer-admitted-cache-otherwise-source-fallback")]
    pub worker_policy: String,
    /// Layout of the bytes in the cache.
    #[schemars(example = &"original-gguf-no-offline-reorder")]
    pub decode_layout: String,
}
