//! The kinds of damage a set can have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use crate::common::files::{edit, flip, overwrite, payload};
use crate::{manifest, relink, sidecar};

/// One kind of damage: what is done, and the codes of a shallow and (beyond those) of a deep verification.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) tamper: fn(&Path),
    pub(crate) shallow: &'static [&'static str],
    pub(crate) deep: &'static [&'static str],
    /// Whether a repair names the first tensor.
    pub(crate) tensor: bool,
    /// The document a repair names.
    pub(crate) document: Option<&'static str>,
}

/// A change of the manifest alone.
macro_rules! document {
    ($what:literal, [$($code:literal),*], $change:expr) => {
        Case {
            what: $what,
            tamper: |set| manifest(set, $change),
            shallow: &[$($code),*],
            deep: &[],
            tensor: false,
            document: Some("manifest.json"),
        }
    };
}

pub(crate) fn cases() -> Vec<Case> {
    const SIZE: &[&str] = &["payload-size:blk.0.ffn_up.weight"];
    const SHA: &[&str] = &["payload-sha256:blk.0.ffn_up.weight"];
    const CONTRACT: &[&str] = &["tensor-contract:blk.0.ffn_up.weight"];
    const INDEX: &[&str] = &["runtime-index-identity", "runtime-index-size"];
    let file = |what, tamper, shallow, deep, tensor, document| Case { what, tamper, shallow, deep, tensor, document };
    vec![
        document!("another format", ["set-format"], |m| m["format"] = json!("mini-pack-set-v3")),
        document!("another prefix", ["set-format"], |m| m["format"] = json!("other-pack-set-v2")),
        document!("another version", ["set-format"], |m| m["schema_version"] = json!(2)),
        document!("another status", ["set-format"], |m| m["status"] = json!("building")),
        document!("another evidence class", ["set-format"], |m| m["evidence_class"] = json!("diagnostic-only")),
        document!("promotion claimed", ["set-format"], |m| m["promotion_eligible"] = json!(true)),
        document!("a field of another type", ["set-format"], |m| m["tensor_count"] = json!("four")),
        document!("another key", ["runtime-index-identity", "set-key"], |m| m["key"] = json!("0".repeat(64))),
        document!(
            "another prefix in the identity",
            [
                "runtime-index-contract",
                "runtime-index-identity",
                "set-format",
                "set-key",
                "tensor-contract:blk.0.ffn_down.weight",
                "tensor-contract:blk.0.ffn_up.weight",
                "tensor-contract:blk.1.ffn_down.weight",
                "tensor-contract:blk.1.ffn_up.weight"
            ],
            |m| m["identity"]["format_prefix"] = json!("other")
        ),
        document!("another layout name in the identity", ["layout-contract", "set-key"], |m| {
            m["identity"]["layout_name"] = json!("q4_0-other");
        }),
        document!("another model in the identity", ["set-key", "target-model-sha256"], |m| {
            m["identity"]["target_model_sha256"] = json!("0".repeat(64));
        }),
        document!("another architecture", ["set-key", "target-architecture"], |m| {
            m["identity"]["target_architecture"] = json!("bmg-g21");
        }),
        document!("another layout version", ["pack-layout-version", "set-key"], |m| {
            m["identity"]["pack_layout_version"] = json!(3);
        }),
        document!("another layout record", ["layout-contract"], |m| m["layout"]["endianness"] = json!("big")),
        document!("another count", ["tensor-count"], |m| m["tensor_count"] = json!(5)),
        document!("another sum", ["tensor-count"], |m| m["payload_size_bytes"] = json!(u64::MAX)),
        document!("another index path", ["runtime-index-contract"], |m| {
            m["runtime_index"]["path"] = json!("../runtime-index.tsv");
        }),
        document!("another index format", ["runtime-index-contract"], |m| {
            m["runtime_index"]["format"] = json!("other-runtime-index-v1");
        }),
        document!("another index size", ["runtime-index-size"], |m| m["runtime_index"]["size_bytes"] = json!(1)),
        document!("another index digest", ["runtime-index-identity"], |m| {
            m["runtime_index"]["sha256"] = json!("0".repeat(64));
        }),
        document!("two tensors change places", ["runtime-index-identity", "tensor-key-table"], |m| {
            m["tensors"].as_array_mut().expect("a list").swap(0, 1);
        }),
        document!(
            "a tensor twice",
            ["runtime-index-identity", "tensor-count", "tensor-key-table", "tensor-slot-table"],
            |m| {
                let first = m["tensors"][0].clone();
                m["tensors"].as_array_mut().expect("a list").push(first);
            }
        ),
        document!("a key of the table", ["set-key", "tensor-key-table"], |m| {
            m["identity"]["tensor_keys"][0] = json!("0".repeat(64));
        }),
        Case {
            what: "a tensor's identity",
            tamper: |set| manifest(set, |m| m["tensors"][0]["identity"]["tensor_shape"] = json!([32, 64])),
            shallow: &[
                "runtime-index-identity",
                "tensor-contract:blk.0.ffn_up.weight",
                "tensor-key:blk.0.ffn_up.weight",
            ],
            deep: &[],
            tensor: true,
            document: Some("manifest.json"),
        },
        Case {
            what: "a tensor's source offset",
            tamper: |set| manifest(set, |m| m["tensors"][0]["source_tensor"]["gguf_offset"] = json!(1)),
            shallow: CONTRACT,
            deep: &[],
            tensor: true,
            document: Some("manifest.json"),
        },
        Case {
            what: "a payload digest in the manifest",
            tamper: |set| manifest(set, |m| m["tensors"][0]["payload"]["sha256"] = json!("0".repeat(64))),
            shallow: &["runtime-index-identity", "tensor-contract:blk.0.ffn_up.weight"],
            deep: SHA,
            tensor: true,
            document: Some("manifest.json"),
        },
        Case {
            what: "a payload size in the manifest",
            tamper: |set| manifest(set, |m| m["tensors"][0]["payload"]["size_bytes"] = json!(u64::MAX)),
            shallow: &[
                "payload-size:blk.0.ffn_up.weight",
                "runtime-index-identity",
                "tensor-contract:blk.0.ffn_up.weight",
                "tensor-count",
            ],
            deep: &[],
            tensor: true,
            document: Some("manifest.json"),
        },
        file(
            "the index is changed",
            |set| flip(&set.join("runtime-index.tsv"), 200),
            &["runtime-index-identity"],
            &[],
            false,
            Some("runtime-index.tsv"),
        ),
        file(
            "the index grows",
            |set| {
                let path = set.join("runtime-index.tsv");
                let mut bytes = fs::read(&path).expect("the index");
                bytes.push(b'\n');
                overwrite(&path, &bytes);
            },
            INDEX,
            &[],
            false,
            Some("runtime-index.tsv"),
        ),
        file(
            "the index is gone",
            |set| fs::remove_file(set.join("runtime-index.tsv")).expect("the index"),
            INDEX,
            &[],
            false,
            Some("runtime-index.tsv"),
        ),
        file(
            "the index is a link",
            |set| relink(&set.join("runtime-index.tsv")),
            INDEX,
            &[],
            false,
            Some("runtime-index.tsv"),
        ),
        file(
            "the checksum list is gone",
            |set| fs::remove_file(set.join("SHA256SUMS")).expect("the list"),
            &[],
            &[],
            false,
            Some("SHA256SUMS"),
        ),
        file(
            "the checksum list is changed",
            |set| flip(&set.join("SHA256SUMS"), 0),
            &[],
            &[],
            false,
            Some("SHA256SUMS"),
        ),
        file("the checksum list is a link", |set| relink(&set.join("SHA256SUMS")), &[], &[], false, Some("SHA256SUMS")),
        file("a byte of a payload", |set| flip(&payload(set, 0), 99), &[], SHA, true, None),
        file(
            "a truncated payload",
            |set| {
                let path = payload(set, 0);
                let bytes = fs::read(&path).expect("a payload");
                overwrite(&path, &bytes[..bytes.len() / 2]);
            },
            SIZE,
            SHA,
            true,
            None,
        ),
        file("an empty payload", |set| overwrite(&payload(set, 0), b""), SIZE, SHA, true, None),
        file(
            "a longer payload",
            |set| {
                let path = payload(set, 0);
                let mut bytes = fs::read(&path).expect("a payload");
                bytes.push(0);
                overwrite(&path, &bytes);
            },
            SIZE,
            SHA,
            true,
            None,
        ),
        file("a deleted payload", |set| fs::remove_file(payload(set, 0)).expect("a payload"), SIZE, SHA, true, None),
        file("a payload that is a link", |set| relink(&payload(set, 0)), SIZE, SHA, true, None),
        file(
            "a payload that is a dangling link",
            |set| {
                let path = payload(set, 0);
                fs::remove_file(&path).expect("a payload");
                symlink("/nonexistent/secret", path).expect("a link");
            },
            SIZE,
            SHA,
            true,
            None,
        ),
        file(
            "a payload that is a folder",
            |set| {
                let path = payload(set, 0);
                fs::remove_file(&path).expect("a payload");
                fs::create_dir(path).expect("a folder");
            },
            SIZE,
            SHA,
            true,
            None,
        ),
        file(
            "a payload that is a FIFO",
            |set| {
                let path = payload(set, 0);
                fs::remove_file(&path).expect("a payload");
                assert!(std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
            },
            SIZE,
            SHA,
            true,
            None,
        ),
        file("a sidecar that is not JSON", |set| overwrite(&sidecar(set), b"\0\0\0"), CONTRACT, &[], true, None),
        file(
            "a sidecar of another payload",
            |set| edit(&sidecar(set), |s| s["payload"]["sha256"] = json!("0".repeat(64))),
            CONTRACT,
            &[],
            true,
            None,
        ),
        file(
            "a sidecar with another source digest",
            |set| {
                edit(&sidecar(set), |s| s["source_tensor"]["sha256"] = json!("0".repeat(64)));
            },
            CONTRACT,
            &[],
            true,
            None,
        ),
        file("a deleted sidecar", |set| fs::remove_file(sidecar(set)).expect("a sidecar"), CONTRACT, &[], false, None),
        file("a sidecar that is a link", |set| relink(&sidecar(set)), CONTRACT, &[], true, None),
        file(
            "a sidecar that is a folder",
            |set| {
                fs::remove_file(sidecar(set)).expect("a sidecar");
                fs::create_dir(sidecar(set)).expect("a folder");
            },
            CONTRACT,
            &[],
            true,
            None,
        ),
    ]
}
