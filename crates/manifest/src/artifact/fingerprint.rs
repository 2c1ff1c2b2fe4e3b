use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value, json};

use crate::hex::Sha256Hex;
use crate::time::UnixTime;

/// A fact that was looked for: its value, certainly not there, or not determined.
///
/// `absent` is a value like any other. `unknown` equals nothing, itself included: a fingerprint with an unknown part is
/// unfit for reusing a pass.
#[derive(Debug, Clone, Default)]
pub enum Known<T> {
    /// Found.
    Value(T),
    /// Looked for, and certainly not there.
    Absent,
    /// Could not be determined.
    #[default]
    Unknown,
}

impl<T> Known<T> {
    /// The value, when there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unknown => None,
        }
    }

    /// Whether the fact could not be determined.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

impl<T: PartialEq> PartialEq for Known<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(one), Self::Value(two)) => one == two,
            (Self::Absent, Self::Absent) => true,
            _ => false,
        }
    }
}

impl<T: Serialize> Serialize for Known<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Absent => serializer.serialize_str("absent"),
            Self::Unknown => serializer.serialize_str("unknown"),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Known<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value.as_str() {
            Some("absent") => Ok(Self::Absent),
            Some("unknown") => Ok(Self::Unknown),
            _ => T::deserialize(value).map(Self::Value).map_err(D::Error::custom),
        }
    }
}

impl<T: JsonSchema> JsonSchema for Known<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Known{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [generator.subschema_for::<T>(), { "enum": ["absent", "unknown"] }],
            "examples": ["absent"],
        })
    }
}

/// Everything a test result of a build depends on, and its canonical SHA-256.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Build fingerprint")]
pub struct Fingerprint {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `b70-build-fingerprint-v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "b70-build-fingerprint-v1"))]
    pub format: Option<String>,
    /// Canonical hash of this object without `schema_version`, `format`, `sha256`, `created_unix`, `created_utc`, `unknown` and `warnings`.
    /// `unknown` where it could not cover what the binaries load: such a build has no digest.
    pub sha256: Known<Sha256Hex>,
    /// The source tree.
    pub runtime: RuntimeSource,
    /// The build folder.
    #[schemars(length(min = 1), example = &"/srv/llama.cpp/build")]
    pub build_dir: String,
    /// SHA-256 of `CMakeCache.txt`.
    pub cmake_cache_sha256: Known<Sha256Hex>,
    /// SHA-256 of each binary, by name.
    #[schemars(example = json!({"llama-server": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}))]
    pub binaries: BTreeMap<String, Known<Sha256Hex>>,
    /// SHA-256 of each shared library those binaries load from the build folder, by name.
    #[schemars(example = json!({"libggml-base.so": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}))]
    pub libraries: BTreeMap<String, Known<Sha256Hex>>,
    /// The compiler, from `CMakeCache.txt`.
    pub compiler: Compiler,
    /// Architecture the device code was compiled for.
    pub target_architecture: Known<String>,
    /// The host.
    pub host: HostFacts,
    /// When the fingerprint was taken, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: Option<UnixTime>,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Parts that could not be determined, as JSON pointers; any entry makes the fingerprint unfit for reusing a pass.
    #[serde(default)]
    #[schemars(example = json!(["/host/firmware"]))]
    pub unknown: Vec<String>,
    /// What a reader should know, such as a source tree newer than the binaries.
    #[serde(default)]
    #[schemars(example = json!(["the source tree is newer than the binaries"]))]
    pub warnings: Vec<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A source tree: a Git commit and what differs from it, or a digest over its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeSource {
    /// The tree's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/llama.cpp")]
    pub path: Option<String>,
    /// Commit; absent without Git.
    pub commit: Known<String>,
    /// Whether the tree differs from the commit.
    pub dirty: Known<bool>,
    /// SHA-256 over the binary difference against HEAD, then each untracked file's path, NUL and digest.
    pub dirty_patch_sha256: Known<Sha256Hex>,
    /// Digest over the tree's files, where there is no Git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_sha256: Option<Sha256Hex>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A compiler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compiler {
    /// Path of the compiler.
    pub path: Known<String>,
    /// Its version.
    pub version: Known<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a test result depends on besides the build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: Known<String>,
    /// Versions of the GPU's user-space packages, by name.
    pub packages: Known<BTreeMap<String, String>>,
    /// Versions of the GPU's firmware, by name.
    #[serde(default)]
    pub firmware: Known<BTreeMap<String, String>>,
    /// PCI vendor and device ids of the cards, `8086:e223`.
    #[serde(default)]
    pub pci_ids: Known<Vec<String>>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
