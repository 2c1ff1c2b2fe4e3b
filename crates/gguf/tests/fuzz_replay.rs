//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

mod common;

use common::invariants;

#[test]
fn corpus_and_regressions() {
    b70_testkit::replay("gguf_directory", 50, |bytes| {
        let len = bytes.len() as u64;
        for file_len in [len, len + 1, len + (1 << 20), u64::MAX] {
            let _ = invariants::check(bytes, file_len);
        }
    });
}
