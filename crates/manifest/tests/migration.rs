//! Migration loses nothing.

use b70_manifest::migrate::{migrate, revert};
use b70_manifest::validate::check_text;
use proptest::prelude::*;
use serde_json::{Value, json};

const DOCUMENTS: [&str; 3] = ["workers.json", "model-pack-manifest.json", "golden-corpus-manifest.json"];

fn lab(name: &str) -> Value {
    let path = b70_testkit::fixture("documents/lab").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).expect("a sample")).expect("JSON")
}

#[test]
fn lab_documents_come_forward_valid_and_go_back() {
    for name in DOCUMENTS {
        let before = lab(name);
        let migration = migrate(name.as_ref(), &before.to_string()).unwrap();
        assert_eq!((migration.from, migration.to), (1, 2));
        assert!(!migration.changes.is_empty());
        assert!(check_text(name.as_ref(), &migration.text(), None).valid);
        assert_eq!(revert(&migration.document), Some(before), "{name}");
        let again = migrate(name.as_ref(), &migration.text()).unwrap();
        assert!(again.changes.is_empty(), "{name}: a current document stays as it is");
        assert_eq!(again.document, migration.document);
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let mut broken = lab("workers.json");
    broken["workers"][0]["port"] = json!(0);
    assert!(migrate("workers.json".as_ref(), &broken.to_string()).is_err());
    let text = lab("workers.json").to_string().replace("\"mtp_p_min\":0.0", "\"mtp_p_min\":0.10000000000000000001");
    let error = migrate("workers.json".as_ref(), &text).unwrap_err();
    assert!(error.to_string().contains("/profiles/mtp3-control/mtp_p_min"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn unknown_content_is_kept(
        which in 0_usize..3,
        args in "[ -~]{0,24}",
        added in prop::collection::vec(("x[a-z~/ ]{2,8}", any::<i32>(), any::<bool>()), 0..5),
    ) {
        let name = DOCUMENTS[which];
        let mut before = lab(name);
        if which == 0 {
            before["profiles"]["mtp3-control"]["extra_llama_args"] = json!(args);
        }
        for (key, value, nested) in added {
            let inside = ["common", "pack", "reset_policy"][which];
            let place = if nested { before.get_mut(inside).unwrap() } else { &mut before };
            place[key] = json!({"value": value, "list": [value, null]});
        }
        // Arguments may be of another kind; such a document is refused, not changed.
        if let Ok(migration) = migrate(name.as_ref(), &before.to_string()) {
            prop_assert_eq!(revert(&migration.document), Some(before));
        } else {
            prop_assert!(which == 0);
        }
    }
}
