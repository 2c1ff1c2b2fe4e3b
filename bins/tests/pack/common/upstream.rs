//! Turns a set that the kit made into the form that upstream's scripts write: the same keys, index and payloads; documents as
//! `json.dumps(indent=2, sort_keys=True)` and a newline, times as floats, no BLAKE3, no plan, no checksum list, and its own
//! record of a deep validation.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use b70_manifest::{Sha256Hex, canonical_sha256};
use serde_json::{Value, json};

/// The tool that upstream's documents name.
pub const TOOL: &str = "/opt/lab/scripts/qwen27-xe2-m6-pack-cache.py";
/// A time as Python's `time.time()` gives it.
pub const CREATED: f64 = 1_796_078_798.060_747_9;

/// A document as upstream writes it.
pub fn dumps(document: &Value) -> Vec<u8> {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let map: BTreeMap<_, _> = map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
                Value::Object(map.into_iter().collect())
            }
            Value::Array(list) => list.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    let mut bytes = serde_json::to_vec_pretty(&sorted(document)).expect("values print");
    bytes.push(b'\n');
    bytes
}

/// Writes a document in upstream's form with the mode its scripts leave.
pub fn write(path: &Path, document: &Value) {
    let _ = fs::remove_file(path);
    fs::write(path, dumps(document)).expect("the folder is ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("the file is ours");
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a document")).expect("JSON")
}

fn lab_tensor(tensor: &mut Value) {
    tensor["payload"].as_object_mut().expect("an object").remove("blake3");
    tensor["created_unix"] = json!(CREATED);
    tensor["pack_seconds"] = json!(0.003_753_688_999_999_999_7);
}

/// Rewrites the documents of the set in this folder.
pub fn rewrite(set: &Path) {
    let mut manifest = read(&set.join("manifest.json"));
    for tensor in manifest["tensors"].as_array_mut().expect("a list") {
        lab_tensor(tensor);
        let payload = set.join(tensor["payload"]["path"].as_str().expect("a path"));
        fs::set_permissions(&payload, fs::Permissions::from_mode(0o644)).expect("the file is ours");
        write(&payload.with_extension("json"), tensor);
    }
    manifest["created_unix"] = json!(CREATED);
    manifest["pack_seconds_this_run"] = json!(37.792_123_4);
    manifest["model_hash_seconds_this_run"] = json!(8.558_123_4);
    manifest["tool"] = json!({ "path": TOOL, "revision": 1 });
    manifest["loader_contract"]["required_validation"] =
        json!(["set-key", "tensor-key", "payload-size", "payload-sha256"]);
    manifest["source_model"].as_object_mut().expect("an object").remove("vouched_by");
    for name in ["plan", "created_utc"] {
        manifest.as_object_mut().expect("an object").remove(name);
    }
    write(&set.join("manifest.json"), &manifest);
    for name in ["SHA256SUMS", "deep-validation.json"] {
        let _ = fs::remove_file(set.join(name));
    }
    write(&set.join("deep-validation.json"), &deep_validation(set, &manifest));
    for name in ["runtime-index.tsv", "deep-validation.json", "manifest.json"] {
        fs::set_permissions(set.join(name), fs::Permissions::from_mode(0o644)).expect("the file is ours");
    }
}

fn deep_validation(set: &Path, manifest: &Value) -> Value {
    let tensors = manifest["tensors"].as_array().expect("a list");
    let table: Vec<Value> = tensors
        .iter()
        .map(|tensor| {
            let payload = &tensor["payload"];
            json!({ "key": tensor["key"], "path": payload["path"], "size_bytes": payload["size_bytes"], "sha256": payload["sha256"] })
        })
        .collect();
    let stats: Vec<Value> = tensors
        .iter()
        .map(|tensor| {
            let path = set.join(tensor["payload"]["path"].as_str().expect("a path"));
            let stat = fs::metadata(path).expect("a payload");
            let mtime = stat.mtime() * 1_000_000_000 + stat.mtime_nsec();
            json!({ "key": tensor["key"], "size_bytes": stat.len(), "mtime_ns": mtime, "device": stat.dev(), "inode": stat.ino() })
        })
        .collect();
    let bytes = dumps(manifest);
    json!({
        "schema_version": 1,
        "format": manifest["format"].as_str().expect("a format").replace("pack-set-v2", "deep-validation-v1"),
        "status": "trusted",
        "set_key": manifest["key"],
        "manifest_sha256": Sha256Hex::of(&bytes),
        "manifest_size_bytes": bytes.len(),
        "payload_table_sha256": canonical_sha256(&table).expect("a table of text and integers"),
        "payload_stat_table_sha256": canonical_sha256(&stats).expect("a table of text and integers"),
        "validated_bytes": manifest["payload_size_bytes"],
        "deep_validation_seconds": 7.213_456_7,
        "created_unix": CREATED,
        "trust_boundary": "local immutable artifact; invalidate when manifest identity changes",
    })
}
