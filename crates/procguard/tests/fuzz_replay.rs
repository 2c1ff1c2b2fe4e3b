//! Replays the committed fuzzing corpora and every past finding, without a fuzzer.

use b70_testkit::replay;

#[path = "invariants/affinity.rs"]
mod affinity;
#[path = "invariants/fdinfo.rs"]
mod fdinfo;

#[test]
fn affinity_corpus_and_regressions() {
    replay("affinity", 20, affinity::check);
}

#[test]
fn fdinfo_corpus_and_regressions() {
    replay("fdinfo", 20, fdinfo::check);
}
