//! The consumer's view of a set directory: what opens, what a look-up accepts, what it refuses and why.

mod common;

use std::fs;
use std::path::Path;

use b70_manifest::Explain as _;
use b70_packset::{Expectation, Lookup, PackError, Stage};
use common::models::STANDARD;
use common::{Lab, sha256_of};

const NAME: &str = "blk.0.ffn_up.weight";

fn refused(path: &Path, lab: &Lab, expectation: &Expectation) -> Vec<String> {
    match Stage::open(path, &lab.layout, expectation) {
        Err(PackError::NotAdmitted { failures, .. }) => failures,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[test]
fn a_set_opens_and_gives_its_tensors() {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let path = lab.set("cache", &prepared);
    let expectation = Expectation {
        set_key: Some(prepared.set_key),
        model_sha256: Some(sha256_of(&lab.path)),
        architecture: Some("bmg-g31".to_owned()),
    };
    let stage = Stage::open(&path, &lab.layout, &expectation).expect("a ready set");
    assert_eq!(stage.manifest().tensors.len(), 5);
    let right = Lookup {
        target_model_sha256: prepared.source_sha256,
        tensor_name: NAME,
        tensor_shape: [64, 32],
        tensor_type: "GGML_TYPE_Q4_0",
        pack_layout_version: 2,
        target_architecture: "bmg-g31",
    };
    let tensor = stage.tensor(&right).expect("the tensor");
    let expected = fs::read(tensor.path()).expect("the payload");
    assert!(tensor.read().expect("good bytes") == expected);
    assert!(tensor.sealed().expect("good bytes").map().expect("mapped")[..] == expected[..]);
    assert_eq!(expected.len() as u64, tensor.entry().payload.size_bytes);
    // Its owner may change it, so that it is given as a copy.
    assert!(matches!(tensor.map(), Err(PackError::Store(b70_store::Error::NotStill { .. }))));
    assert!(matches!(tensor.read_into(&mut [0]), Err(PackError::Store(b70_store::Error::Size { .. }))));

    // Each field of the contract, wrong by itself, is refused by its name.
    let wrong = [
        ("target_model_sha256", Lookup { target_model_sha256: b70_manifest::Sha256Hex::of(b"x"), ..right.clone() }),
        ("tensor_shape", Lookup { tensor_shape: [32, 64], ..right.clone() }),
        ("tensor_type", Lookup { tensor_type: "GGML_TYPE_Q4_1", ..right.clone() }),
        ("pack_layout_version", Lookup { pack_layout_version: 1, ..right.clone() }),
        ("target_architecture", Lookup { target_architecture: "bmg-g21", ..right.clone() }),
    ];
    for (field, lookup) in wrong {
        let error = stage.tensor(&lookup).expect_err(field);
        assert!(matches!(&error, PackError::Contract { field: found, .. } if *found == field), "{error}");
        assert_eq!(error.exit_code(), 1);
    }
    let absent = Lookup { tensor_name: "output.weight", ..right.clone() };
    assert!(matches!(stage.tensor(&absent), Err(PackError::NoTensor { .. })));
}

#[test]
fn a_set_that_is_not_what_was_expected_does_not_open() {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let path = lab.set("cache", &prepared);
    let other = b70_manifest::Sha256Hex::of(b"another");
    let expect = |set_key, model_sha256, architecture: Option<&str>| Expectation {
        set_key,
        model_sha256,
        architecture: architecture.map(str::to_owned),
    };
    assert_eq!(refused(&path, &lab, &expect(Some(other), None, None)), ["set-key"]);
    assert_eq!(refused(&path, &lab, &expect(None, Some(other), None)), ["target-model-sha256"]);
    assert_eq!(refused(&path, &lab, &expect(None, None, Some("x"))), ["target-architecture"]);
    let all = expect(Some(other), Some(other), Some("x"));
    assert_eq!(refused(&path, &lab, &all), ["set-key", "target-model-sha256", "target-architecture"]);
    assert!(Stage::open(&lab.folder.path().join("absent"), &lab.layout, &Expectation::default()).is_err());
    assert!(Stage::open(lab.folder.path(), &lab.layout, &Expectation::default()).is_err());
}

#[test]
fn damage_that_needs_no_rehash_is_seen_on_opening_and_the_rest_on_demand() {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let path = lab.set("cache", &prepared);
    let stage = Stage::open(&path, &lab.layout, &Expectation::default()).expect("a ready set");
    let entry = stage.manifest().tensors.iter().find(|tensor| tensor.identity.tensor_name == NAME).expect("it").clone();
    drop(stage);
    let payload = path.join(&entry.payload.path);
    let good = fs::read(&payload).expect("a payload");
    let replace = |bytes: &[u8]| {
        fs::remove_file(&payload).expect("a payload");
        fs::write(&payload, bytes).expect("a payload");
    };

    replace(&good[..good.len() - 1]);
    assert_eq!(refused(&path, &lab, &Expectation::default()), [format!("payload-size:{NAME}")]);

    let mut flipped = good.clone();
    flipped[3] ^= 4;
    replace(&flipped);
    let stage = Stage::open(&path, &lab.layout, &Expectation::default()).expect("sizes and documents are right");
    let lookup = Lookup {
        target_model_sha256: prepared.source_sha256,
        tensor_name: NAME,
        tensor_shape: [64, 32],
        tensor_type: "GGML_TYPE_Q4_0",
        pack_layout_version: 2,
        target_architecture: "bmg-g31",
    };
    let tensor = stage.tensor(&lookup).expect("the tensor");
    assert!(matches!(tensor.read(), Err(PackError::PayloadDigest { .. })));
    assert!(matches!(tensor.sealed(), Err(PackError::PayloadDigest { .. })));
    // A file that loses its bytes after the set was opened is refused by the look-up, not by SIGBUS.
    replace(b"");
    assert!(stage.tensor(&lookup).is_err());
}
