//! Files of a set, looked at and damaged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A JSON string.
pub fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is a string")).to_owned()
}

/// Every entry below a folder with its kind and, for a file, its bytes; links are not followed.
pub fn walk(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn into(folder: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.expect("a readable folder");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                into(&entry.path(), &format!("{name}/"), found);
            } else if kind.is_file() {
                found.insert(name, fs::read(entry.path()).expect("a readable file"));
            } else {
                found.insert(name, b"not a file".to_vec());
            }
        }
    }
    let mut found = BTreeMap::new();
    into(folder, "", &mut found);
    found
}

/// Replaces a file, whatever its mode.
pub fn overwrite(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("the folder is ours");
}

/// Flips a bit of a byte of a file.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a readable file");
    bytes[at] ^= 1;
    overwrite(path, &bytes);
}

/// Changes a JSON document in place.
pub fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut document = serde_json::from_slice(&fs::read(path).expect("a readable file")).expect("JSON");
    change(&mut document);
    overwrite(path, &serde_json::to_vec_pretty(&document).expect("values print"));
}

/// The payload of slot `slot` of a set.
pub fn payload(set: &Path, slot: usize) -> PathBuf {
    let manifest: Value = serde_json::from_slice(&fs::read(set.join("manifest.json")).expect("a set")).expect("JSON");
    set.join(string(&manifest["tensors"][slot]["payload"]["path"]))
}
