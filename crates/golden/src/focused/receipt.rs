//! Receipts of passes: what lets an exactly equal run be answered without running it.

use std::path::{Path, PathBuf};

use b70_manifest::golden::{FocusedResult, FocusedStatus, LabFocusedResult};
use b70_store::{
    EntryKind, Error as StoreError, RelPath, Root, Sha256, json_bytes, open_or_create, replace_bytes, sha256_file,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::identity::differences;
use crate::error::GoldenError;

/// Folder of receipts below `<artifact root>/focused`.
const PASSES: &str = "passes";
/// The largest receipt.
const MAX_RECEIPT: u64 = 16 << 20;
/// The most receipts that are compared with, newest first.
const MAX_COMPARED: usize = 256;

/// A pass, with everything its key was made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Receipt {
    /// Version of this document, 1.
    pub(super) schema_version: u64,
    /// The result, as it was published.
    pub(super) result: FocusedResult,
    /// Where the result was published.
    pub(super) path: PathBuf,
    /// The fingerprint whose digest the key has, to tell which part of it changed.
    pub(super) fingerprint: Value,
}

fn folder(root: &Path) -> PathBuf {
    root.join("focused").join(PASSES)
}

fn file_name(key: &Sha256) -> Result<RelPath, GoldenError> {
    Ok(RelPath::new(format!("{key}.json"))?)
}

/// Records a pass.
pub(super) fn record(root: &Path, receipt: &Receipt) -> Result<(), GoldenError> {
    let folder = open_or_create(&folder(root), 0o755)?;
    let text = json_bytes(folder.path(), receipt)?;
    replace_bytes(&folder, &file_name(&receipt.result.run_key)?, &text, 0o644)?;
    Ok(())
}

/// The pass of exactly this key; or why there is none, part by part.
pub(super) fn look_up(
    root: &Path,
    key: &Sha256,
    identity: &Value,
    fingerprint: &Value,
) -> Result<Result<Receipt, Vec<String>>, GoldenError> {
    let path = folder(root);
    let folder = match Root::open(&path) {
        Ok(folder) => folder,
        Err(StoreError::Missing { .. }) => {
            return Ok(Err(vec![format!("no pass is recorded in {}", path.display())]));
        }
        Err(error) => return Err(error.into()),
    };
    let name = file_name(key)?;
    match folder.read(&name, MAX_RECEIPT) {
        Ok(bytes) => {
            return Ok(proven(&bytes, key).map_err(|why| vec![format!("the pass of this key proves nothing: {why}")]));
        }
        Err(StoreError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut others: Vec<(i64, RelPath)> = folder
        .list()?
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::File && entry.name.as_bytes().ends_with(b".json"))
        .filter_map(|entry| Some((folder.stat(&entry.name).ok()?.mtime_ns, entry.name)))
        .collect();
    others.sort_by(|one, two| two.cmp(one));
    let parts =
        |identity: &Value, fingerprint: &Value| json!({ "run": stripped(identity), "build": stripped(fingerprint) });
    let now = parts(identity, fingerprint);
    let nearest = others
        .iter()
        .take(MAX_COMPARED)
        .filter_map(|(_, name)| {
            let receipt: Receipt = serde_json::from_slice(&folder.read(name, MAX_RECEIPT).ok()?).ok()?;
            let then = parts(&serde_json::to_value(&receipt.result.identity).ok()?, &receipt.fingerprint);
            Some(differences(&then, &now))
        })
        .min_by_key(Vec::len);
    Ok(Err(match nearest {
        None => vec![format!("no pass is recorded in {}", path.display())],
        Some(different) if different.is_empty() => vec!["the key differs although no part does".to_owned()],
        Some(different) => different,
    }))
}

/// Without what follows from other parts or is not part of the key.
fn stripped(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(map) = value.as_object_mut() {
        for derived in [
            "schema_version",
            "format",
            "sha256",
            "created_unix",
            "created_utc",
            "unknown",
            "warnings",
            "build_fingerprint_sha256",
        ] {
            map.shift_remove(derived);
        }
    }
    value
}

/// A receipt is a claim: its key must follow from its identity, every test must have been executed and passed, and every
/// log must still be there with the digest of that day.
fn proven(bytes: &[u8], key: &Sha256) -> Result<Receipt, String> {
    let receipt: Receipt = serde_json::from_slice(bytes).map_err(|e| {
        let upstream = serde_json::from_slice::<LabFocusedResult>(bytes).is_ok();
        if upstream { "it is a focused result of upstream's script".to_owned() } else { e.to_string() }
    })?;
    let result = &receipt.result;
    let own = b70_manifest::canonical_sha256(&result.identity).map_err(|e| e.to_string())?;
    if own != *key || result.run_key != *key {
        return Err(format!("its identity has the key {own}"));
    }
    if result.status != FocusedStatus::Passed || result.tests.is_empty() {
        return Err("it records no pass".to_owned());
    }
    if result.tests.iter().map(|t| &t.op).ne(&result.identity.tests) {
        return Err("its tests are not those of its identity".to_owned());
    }
    for test in &result.tests {
        if test.executed == 0 || test.passed != test.executed || test.failed != 0 {
            return Err(format!("{} was not passed", test.op));
        }
        let recorded = test.extra.get("log_sha256").and_then(Value::as_str).unwrap_or_default();
        let found = sha256_file(Path::new(&test.log)).map_err(|e| e.to_string())?;
        if found.to_string() != recorded {
            return Err(format!("{} is not the log of that run", test.log));
        }
    }
    Ok(receipt)
}
