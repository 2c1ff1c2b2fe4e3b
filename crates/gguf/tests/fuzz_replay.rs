//! Replays the committed fuzzing corpus and every past finding, without a fuzzer.

mod common;

use std::path::{Path, PathBuf};

use common::invariants;

fn replay(folder: &Path) -> usize {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{} is committed: {error}", folder.display()));
    let mut inputs = 0;
    for entry in entries {
        let bytes = std::fs::read(entry.expect("readable").path()).expect("readable");
        let len = bytes.len() as u64;
        for file_len in [len, len + 1, len + (1 << 20), u64::MAX] {
            let _ = invariants::check(&bytes, file_len);
        }
        inputs += 1;
    }
    inputs
}

#[test]
fn corpus_and_regressions() {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    assert!(replay(&fuzz.join("corpus/gguf_directory")) >= 50, "the corpus holds the hand-made cases at least");
    replay(&fuzz.join("regressions/gguf_directory"));
}
