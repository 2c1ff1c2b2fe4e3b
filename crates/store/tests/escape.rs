//! A receipt is a claim: names in it that leave the folder do not even parse.

use std::collections::BTreeMap;
use std::path::PathBuf;

use b70_store::{Expected, Extras, HashOptions, Receipt, ReceiptVerdict, RelPath, Root, Subject, issue};
use serde_json::{Value, json};

#[test]
fn names_of_a_receipt_do_not_leave_the_folder() {
    let dir = b70_testkit::memory();
    std::fs::write(dir.path().join("a.bin"), "content").expect("written");
    let root = Root::open(dir.path()).expect("our folder");
    let files = [Expected { name: RelPath::new("a.bin").expect("a name"), size: 7, sha256: None }];
    let bindings = BTreeMap::new();
    let subject = Subject { root: &root, files: &files, format: "x-v2", bindings: &bindings, extras: Extras::Ignore };
    let ReceiptVerdict::Trusted(receipt) = issue(&subject, &HashOptions::default()).expect("hashed") else {
        panic!("a file in memory gets a receipt");
    };
    let good: Value = serde_json::from_slice(&receipt.to_bytes()).expect("JSON");
    assert!(Receipt::from_bytes(good.to_string().as_bytes(), PathBuf::from("r")).is_ok());
    for evil in ["../a.bin", "/etc/passwd", "x/../../a.bin", "..", ".", "", "a\u{0}b", "a\nb"] {
        let mut forged = good.clone();
        forged["files"][0]["name"] = json!(evil);
        assert!(Receipt::from_bytes(forged.to_string().as_bytes(), PathBuf::from("r")).is_err(), "{evil:?}");
    }
}
