use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::identity::{Boot, FileIdentity, FileSystem};
use crate::hex::{Blake3Hex, Sha256Hex};
use crate::time::UnixTime;
use crate::words::words;

/// `deep-validation.json` as upstream wrote it: readable, and never trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Deep-validation receipt (upstream, v1)")]
pub struct DeepValidationV1 {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// `<prefix>-deep-validation-v1`.
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,47}-deep-validation-v1$"), example = &"qwen27-xe2-m6-deep-validation-v1")]
    pub format: String,
    /// Outcome of the validation, `ready`.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// Key of the validated set.
    pub set_key: Sha256Hex,
    /// SHA-256 of the set's `manifest.json`.
    pub manifest_sha256: Sha256Hex,
    /// Size of that manifest in bytes.
    #[schemars(example = 353_211)]
    pub manifest_size_bytes: u64,
    /// Canonical hash of the payload table.
    pub payload_table_sha256: Sha256Hex,
    /// Canonical hash of the payloads' stat identities `{key, size_bytes, mtime_ns, device, inode}`.
    pub payload_stat_table_sha256: Sha256Hex,
    /// Bytes that were rehashed.
    #[schemars(example = 9_375_252_480_u64)]
    pub validated_bytes: u64,
    /// Seconds the validation took.
    #[schemars(range(min = 0.0), example = 7.21)]
    pub deep_validation_seconds: f64,
    /// When the receipt was written, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// What the receipt does not promise, in upstream's words.
    #[schemars(example = &"local filesystem")]
    pub trust_boundary: Value,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One deep validation, bound to the files it read: void as soon as anything it names changes. `Name` is how a program holds
/// the names of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Receipt (v2)")]
pub struct Receipt<Name = FileName> {
    /// Version of this document's form, 2.
    #[schemars(range(min = 2, max = 2), example = 2)]
    pub schema_version: u32,
    /// What the receipt is about: `<prefix>-deep-validation-v2` for a set or stage, other names for models.
    #[schemars(length(min = 1), example = &"qwen27-xe2-m6-deep-validation-v2")]
    pub format: String,
    /// Version of the rule by which it was issued and is honoured.
    #[schemars(length(min = 1), example = &"v2")]
    pub rule: String,
    /// The values it is bound to, such as a set key or a manifest's digest.
    #[schemars(example = serde_json::json!({"set_key": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}))]
    pub bindings: BTreeMap<String, String>,
    /// The boot and the clocks at issue.
    pub boot: Boot,
    /// The file system of all files.
    pub filesystem: FileSystem,
    /// Whether every change after a look was proved to get a new time stamp.
    #[schemars(example = true)]
    pub fine_stamps: bool,
    /// The root directory at issue.
    pub directory: DirectoryHint,
    /// The files, sorted by name.
    pub files: Vec<ReceiptFile<Name>>,
    /// Sum of their sizes.
    #[schemars(example = 9_375_252_480_u64)]
    pub validated_bytes: u64,
    /// BLAKE3 over a domain tag and this document without this field, serialized compactly in this order.
    pub checksum_blake3: Blake3Hex,
}

/// One file of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReceiptFile")]
pub struct ReceiptFile<Name = FileName> {
    /// Its name beneath the root.
    #[schemars(example = &"tensors/0f1e.bin")]
    pub name: Name,
    /// SHA-256 of its bytes.
    pub sha256: Sha256Hex,
    /// BLAKE3 of its bytes.
    pub blake3: Blake3Hex,
    /// Its identity when it was hashed, size included.
    pub identity: FileIdentity,
    /// The evidence that nobody could write.
    pub evidence: LeaseEvidence,
}

/// The name of a file as documents hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FileName {
    /// Text.
    Text(String),
    /// Bytes that are not UTF-8.
    Hex {
        /// The bytes.
        #[schemars(regex(pattern = "^([0-9a-f]{2})+$"), example = &"666fff")]
        hex: String,
    },
}

/// The directory as it was: a hint for people, not part of what is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectoryHint {
    /// Inode number.
    #[schemars(example = 131_073)]
    pub ino: u64,
    /// Last change of its entries, nanoseconds since 1970.
    #[schemars(example = 1_783_870_000_123_456_789_i64)]
    pub mtime_ns: i64,
    /// Last change of its inode, nanoseconds since 1970.
    #[schemars(example = 1_783_870_000_123_456_789_i64)]
    pub ctime_ns: i64,
}

words! {
    /// On what evidence a receipt says that nobody could write.
    LeaseEvidence {
        /// The file was immutable before it was hashed, and a lease probe after that found no writable handle and no writable
        /// mapping from before.
        Immutable = "immutable",
        /// Two lease probes, before and after the hashing, found no writable handle and no writable mapping.
        Lease = "lease",
        /// The kernel gave no answer (not the owner, or no leases). Kit 0.1 wrote such receipts; they stand for nothing.
        None = "none",
    }
}

words! {
    /// What a verdict on bytes rests on, the weakest first: where files differ, the verdict names the weakest.
    Trust {
        /// Not read: an ordinary file on a local disk, its owner's alone to write, is as it was when it was hashed. Worth what
        /// the owner is worth.
        QuietFile = "quiet-file",
        /// Not read: the kernel refuses every change since before the bytes were hashed (`chattr +i`).
        Immutable = "immutable",
        /// The kernel refuses every change of this file in memory for ever (`F_SEAL_WRITE`), and it was hashed after that.
        Sealed = "sealed",
        /// Read: the bytes have the BLAKE3 that stands beside their SHA-256.
        Blake3 = "blake3",
        /// Read: the bytes have their SHA-256.
        Sha256 = "sha256",
    }
}
