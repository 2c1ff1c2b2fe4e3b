//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

#[path = "invariants/documents.rs"]
mod documents;

#[test]
fn corpus_and_regressions() {
    b70_testkit::replay("documents", 20, documents::check);
}
