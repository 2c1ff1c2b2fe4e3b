//! Documents of golden fixtures: the corpus manifest people keep, the set the generator writes, the result of a run.

mod corpus;
mod focused;
mod set;

pub use corpus::{CorpusSource, GoldenCorpusManifest, ImplementedArtifact, ResetPolicy};
pub use focused::{
    FocusedIdentity, FocusedResult, FocusedStatus, FocusedTest, LabFocusedIdentity, LabFocusedLog, LabFocusedResult,
};
pub use set::{GoldenCase, GoldenGenerator, GoldenRule, GoldenSet, GoldenTensor};

/// The version `migrate` writes; version 1 is upstream's.
pub const GOLDEN_CORPUS_VERSION: u64 = 2;

/// The uses every reset policy must forbid; a manifest that leaves one out is invalid.
pub const FORBIDDEN_USES: [&str; 3] = ["strict-realistic-promotion", "localmaxxing-submission", "headline-throughput"];
