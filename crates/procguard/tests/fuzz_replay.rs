//! Replays the committed fuzzing corpora and every past finding, without a fuzzer.

use std::path::{Path, PathBuf};

#[path = "invariants/affinity.rs"]
mod affinity;
#[path = "invariants/fdinfo.rs"]
mod fdinfo;

fn replay(target: &str, check: impl Fn(&[u8])) -> usize {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let folders = ["corpus", "regressions"].map(|kind| fuzz.join(kind).join(target));
    folders.iter().map(|folder| replay_folder(folder, &check)).sum()
}

fn replay_folder(folder: &Path, check: &impl Fn(&[u8])) -> usize {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{} is committed: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.map(|path| check(&std::fs::read(path).expect("readable"))).count()
}

#[test]
fn affinity_corpus_and_regressions() {
    assert!(replay("affinity", affinity::check) >= 20, "the corpus holds the hand-made seeds at least");
}

#[test]
fn fdinfo_corpus_and_regressions() {
    assert!(replay("fdinfo", fdinfo::check) >= 20, "the corpus holds the hand-made seeds at least");
}
