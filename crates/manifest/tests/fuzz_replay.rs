//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

use std::path::PathBuf;

#[path = "invariants/documents.rs"]
mod documents;

#[test]
fn corpus_and_regressions() {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut inputs = 0;
    for folder in ["corpus/documents", "regressions/documents"].map(|name| fuzz.join(name)) {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{} is committed: {error}", folder.display()));
        for entry in entries {
            documents::check(&std::fs::read(entry.expect("readable").path()).expect("readable"));
            inputs += 1;
        }
    }
    assert!(inputs >= 20, "the corpus holds the sample documents at least");
}
