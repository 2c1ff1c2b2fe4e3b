//! Sets beside each other: what one takes from another, what is listed, and what is removed.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use b70_packset::{Depth, PreparedSet, SetDir, SetState, gc, list};
use common::files::{edit, flip, overwrite, payload, walk};
use common::mini::Mini;
use common::models::MINI_NAMES;
use serde_json::json;

fn counts(prepared: &PreparedSet) -> [u64; 3] {
    [prepared.packed, prepared.reused, prepared.imported]
}

#[test]
fn another_plan_over_the_same_model_imports_by_hard_link() {
    let mini = Mini::new();
    let donor = mini.set();
    let prepared = mini.second();
    assert_eq!(counts(&prepared), [0, 0, 4]);
    let key = prepared.set_key;
    assert_ne!(key, mini.key, "two plans never share a folder");
    for slot in 0..4 {
        let (own, other) = (payload(&mini.root.join(key.to_string()), slot), payload(&donor, slot));
        assert_eq!(fs::metadata(own).expect("a payload").ino(), fs::metadata(other).expect("a payload").ino());
    }
    let (manifest, _) = SetDir::open(&mini.root, key).and_then(|set| set.read_manifest()).expect("a set");
    let first = serde_json::to_value(&manifest.tensors[0]).expect("it has string keys only");
    assert_eq!(first["imported_from"]["set_key"], mini.key.to_string());
    assert_eq!(first["format"], "second-tensor-pack-v2");
    assert_eq!(mini.codes_of(key, Depth::Deep, Some(&mini.lab.path)), [""; 0]);
    // Its own link keeps the bytes when the donor goes.
    fs::remove_dir_all(&donor).expect("the donor");
    assert_eq!(mini.codes_of(key, Depth::Deep, None), [""; 0]);
    assert_eq!(counts(&mini.second()), [0, 4, 0]);
}

#[test]
fn a_damaged_donor_is_not_imported() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("payload", |set| flip(&payload(set, 1), 7)),
        ("truncated", |set| {
            let path = payload(set, 1);
            let bytes = fs::read(&path).expect("a payload");
            overwrite(&path, &bytes[..bytes.len() - 1]);
        }),
        ("link", |set| {
            let path = payload(set, 1);
            let elsewhere = set.join("elsewhere");
            fs::rename(&path, &elsewhere).expect("a payload");
            std::os::unix::fs::symlink(elsewhere, path).expect("a link");
        }),
        ("sidecar", |set| overwrite(&payload(set, 1).with_extension("json"), b"{}")),
        // The payload is good, what is said of its source is not.
        ("source digest", |set| {
            edit(&payload(set, 1).with_extension("json"), |sidecar| {
                sidecar["source_tensor"]["sha256"] = json!("0".repeat(64));
            });
        }),
        // Both documents agree on a digest that the bytes do not have.
        ("digests", |set| {
            for path in [payload(set, 1).with_extension("json"), set.join("manifest.json")] {
                edit(&path, |document| {
                    let entry = if document["tensors"].is_array() { &mut document["tensors"][1] } else { document };
                    entry["payload"]["sha256"] = json!("0".repeat(64));
                });
            }
        }),
    ];
    for (what, damage) in damages {
        let mini = Mini::new();
        damage(&mini.set());
        let prepared = mini.second();
        assert_eq!(counts(&prepared), [1, 0, 3], "{what}");
        assert_eq!(mini.codes_of(prepared.set_key, Depth::Deep, Some(&mini.lab.path)), [""; 0], "{what}");
    }
}

#[test]
fn without_a_manifest_a_donor_is_held_to_the_model() {
    let mini = Mini::new();
    let donor = mini.set();
    let sidecar = payload(&donor, 1).with_extension("json");
    fs::remove_file(donor.join("manifest.json")).expect("the manifest");
    edit(&sidecar, |sidecar| sidecar["source_tensor"]["sha256"] = json!("0".repeat(64)));
    let prepared = mini.second();
    assert_eq!(counts(&prepared), [1, 0, 3]);
    // The same for a set that a killed run left: its good sidecars are reused, the false one is not.
    let continued = mini.prepare();
    assert_eq!(counts(&continued), [0, 3, 1]);
    assert_eq!(continued.repaired, [MINI_NAMES[1]]);
    for key in [mini.key, prepared.set_key] {
        assert_eq!(mini.codes_of(key, Depth::Deep, Some(&mini.lab.path)), [""; 0]);
    }
}

#[test]
fn where_a_link_fails_the_payload_is_copied() {
    let mini = Mini::new();
    let prepared = mini.second();
    let set = mini.root.join(prepared.set_key.to_string());
    // The name is taken by other bytes, so linking fails (EEXIST), and the copy takes their place.
    let bad = payload(&set, 2);
    overwrite(&bad, b"damage");
    let repaired = mini.second();
    assert_eq!(counts(&repaired), [0, 3, 1]);
    assert_eq!(repaired.repaired, [MINI_NAMES[2]]);
    assert_ne!(fs::metadata(&bad).expect("a copy").ino(), fs::metadata(payload(&mini.set(), 2)).expect("it").ino());
    assert_eq!(fs::read(bad).expect("a copy"), fs::read(payload(&mini.set(), 2)).expect("the original"));
    assert_eq!(mini.codes_of(prepared.set_key, Depth::Deep, None), [""; 0]);
}

#[test]
fn list_and_gc_say_what_is_there_and_remove_only_what_nothing_needs() {
    let mini = Mini::new();
    let absent = mini.at("absent");
    assert_eq!(list(&absent).expect("a root").sets, []);
    assert_eq!(gc(&absent, true).expect("a root").actions, []);
    assert!(!absent.exists());
    let set = mini.set();
    let before = walk(&set);
    let gc = |execute| gc(&mini.root, execute).expect("a root");
    assert_eq!(gc(false).actions, []);
    // A stray file at the top and one among the payloads.
    fs::write(set.join("stray"), "x").expect("a file");
    fs::write(set.join("tensors/stray"), "xy").expect("a file");
    assert_eq!(gc(false).actions.len(), 2);
    assert!(set.join("stray").exists(), "without --execute nothing is removed");
    let done = gc(true);
    assert_eq!((done.bytes, done.executed), (3, true));
    assert_eq!(walk(&set), before);
    // An incomplete set goes, one with a damaged manifest stays, one with another set's manifest stays.
    let key = mini.second().set_key;
    let other = mini.root.join(key.to_string());
    for bytes in [b"{".to_vec(), fs::read(set.join("manifest.json")).expect("the other manifest")] {
        overwrite(&other.join("manifest.json"), &bytes);
        let report = gc(true);
        assert_eq!((report.actions.len(), report.kept.len()), (0, 1), "{report:?}");
        let sets = list(&mini.root).expect("a root").sets;
        let row = sets.iter().find(|row| row.set_key == key).expect("the set");
        assert_eq!(row.status, SetState::Unreadable);
    }
    fs::remove_file(other.join("manifest.json")).expect("the manifest");
    assert_eq!(gc(true).actions.len(), 1);
    assert!(!other.exists());
    assert_eq!(walk(&set), before);
}
