use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::hex::{Blake3Hex, Sha256Hex};
use crate::time::UnixTime;
use crate::words::words;

/// `deep-validation.json` as the lab wrote it: readable, and never trusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Deep-validation receipt (lab, v1)")]
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
    /// What the receipt does not promise, in the lab's words.
    #[schemars(example = &"local filesystem")]
    pub trust_boundary: Value,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One deep validation, bound to the files it read: void as soon as anything it names changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Receipt (v2)")]
pub struct Receipt {
    /// Version of this document's form, 2.
    #[schemars(range(min = 2, max = 2), example = 2)]
    pub schema_version: u64,
    /// `<prefix>-deep-validation-v2` for a set or stage, `b70-receipt-v2` for single files.
    #[schemars(regex(pattern = r"^([a-z0-9][a-z0-9._-]{0,47}-deep-validation-v2|b70-receipt-v2)$"), example = &"qwen27-xe2-m6-deep-validation-v2")]
    pub format: String,
    /// Outcome of the validation, `ready`.
    #[schemars(length(min = 1), example = &"ready")]
    pub status: String,
    /// Version of the rule the receipt was issued by.
    #[schemars(range(min = 1), example = 1)]
    pub rule_version: u64,
    /// Key of the validated set; absent for single files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_key: Option<Sha256Hex>,
    /// SHA-256 of the set's `manifest.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_sha256: Option<Sha256Hex>,
    /// Size of that manifest in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 353_211)]
    pub manifest_size_bytes: Option<u64>,
    /// Canonical hash of the payload table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_table_sha256: Option<Sha256Hex>,
    /// Bytes that were rehashed.
    #[schemars(example = 9_375_252_480_u64)]
    pub validated_bytes: u64,
    /// Seconds the validation took.
    #[schemars(range(min = 0.0), example = 7.21)]
    pub deep_validation_seconds: f64,
    /// Every file that was validated; a file the list does not name voids nothing but is reported.
    pub files: Vec<FileReceipt>,
    /// Boot during which the receipt was issued; files in RAM are bound to it.
    #[schemars(regex(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), example = &"3d6f1c2e-0b7a-4a57-9a0e-0d2a4a3a9f10")]
    pub boot_id: String,
    /// Kernel release.
    #[schemars(length(min = 1), example = &"6.18.0")]
    pub kernel_release: String,
    /// When the receipt was issued, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// The same instant as nanoseconds since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 81_000_000_000_u64)]
    pub created_boottime_ns: Option<u64>,
    /// BLAKE3 of the canonical text of this object without this field and without `deep_validation_seconds`.
    pub receipt_blake3: Blake3Hex,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A validated file and everything its trust rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileReceipt {
    /// Path below the root the receipt stands in.
    #[schemars(length(min = 1), example = &"manifest.json")]
    pub path: String,
    /// Size in bytes.
    #[schemars(example = 353_211)]
    pub size_bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: Sha256Hex,
    /// BLAKE3 of the same bytes, from the same pass.
    pub blake3: Blake3Hex,
    /// What statx said before and after.
    pub stat: StatIdentity,
    /// Whether a read lease showed that no writer had the file open.
    pub lease: LeaseEvidence,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The identity statx gives a file; every field must be equal for the receipt to hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatIdentity {
    /// Device number; advisory for files on disk.
    #[schemars(example = 64_769)]
    pub device: u64,
    /// Inode number.
    #[schemars(example = 131_074)]
    pub inode: u64,
    /// Size in bytes.
    #[schemars(example = 353_211)]
    pub size_bytes: u64,
    /// File type and permissions.
    #[schemars(range(max = 65535), example = 33_060)]
    pub mode: u32,
    /// Owner.
    #[schemars(example = 1000)]
    pub uid: u32,
    /// Group.
    #[schemars(example = 1000)]
    pub gid: u32,
    /// Modification time.
    pub mtime: StatTime,
    /// Change time.
    pub ctime: StatTime,
    /// Birth time, where the filesystem keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub btime: Option<StatTime>,
    /// Unique mount id; binding for files in RAM, advisory on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = 4_294_968_000_u64)]
    pub mount_id: Option<u64>,
    /// Magic number of the filesystem, from statfs.
    #[schemars(example = 61_267)]
    pub filesystem_type: u64,
    /// Id of the filesystem, from statfs, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{1,32}$"), example = &"9f3c2a1b00000000")]
    pub filesystem_id: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An instant as the kernel keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatTime {
    /// Seconds since the epoch.
    #[schemars(example = 1_783_870_000_i64)]
    pub seconds: i64,
    /// Nanoseconds of the second.
    #[schemars(range(max = 999_999_999), example = 0)]
    pub nanoseconds: u32,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// What a read lease showed.
    LeaseEvidence {
        /// Granted before and after: nobody had the file open for writing.
        Granted = "granted",
        /// Not available on this file; the other rules carry the trust, on disk only.
        None = "none",
    }
}
