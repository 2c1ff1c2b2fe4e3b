//! The checksum list of a set, for `sha256sum -c`. The kit writes and mends it; no verdict rests on it.

use b70_manifest::Sha256Hex;
use b70_manifest::pack::TensorPack;

use crate::index::INDEX_FILE;
use crate::set::MANIFEST_FILE;

/// Longer lists are refused unread.
pub(crate) const MAX_SUMS_BYTES: u64 = 256 << 20;

/// The list in the form `sha256sum -c` reads.
pub(crate) fn sums(entries: &[TensorPack], index: &[u8], manifest: &[u8]) -> String {
    let mut text = format!("{}  {MANIFEST_FILE}\n{}  {INDEX_FILE}\n", Sha256Hex::of(manifest), Sha256Hex::of(index));
    for entry in entries {
        text.push_str(&format!("{}  {}\n", entry.payload.sha256, entry.payload.path));
    }
    text
}
