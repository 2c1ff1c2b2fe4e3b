//! The checksum list of a set, for `sha256sum -c`.

use b70_admission::Error;
use b70_manifest::Sha256Hex;
use b70_manifest::pack::{PackSet, TensorPack};

use crate::index::INDEX_FILE;
use crate::set::{MANIFEST_FILE, SUMS_FILE, SetDir, rel};
use crate::verify::Failures;

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

/// Compares the list with the set. Sets of other packers have none, and while anything it lists is itself in doubt the list
/// cannot be judged.
pub(crate) fn check_sums(set: &SetDir, document: &PackSet, manifest: &[u8], failures: &mut Failures) {
    const CODE: &str = "sha256sums";
    if !failures.is_empty() {
        return;
    }
    let Ok(index) = set.read_index() else { return };
    match set.root().read(&rel(SUMS_FILE), MAX_SUMS_BYTES) {
        Ok(found) if found == sums(&document.tensors, &index, manifest).into_bytes() => {}
        Ok(_) => failures.add(CODE, format!("{SUMS_FILE} is not the list of manifest, index and payloads")),
        Err(Error::Missing { .. }) => {}
        Err(error) => failures.add(CODE, error.to_string()),
    }
}
