//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

mod common;

#[path = "invariants/set_directory.rs"]
mod set_directory;

#[test]
fn corpus_and_regressions() {
    b70_testkit::replay("set_directory", 10, set_directory::check);
}
