//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

#[path = "invariants/sse.rs"]
mod sse;

#[test]
fn corpus_and_regressions() {
    b70_testkit::replay("sse", 10, sse::check);
}
