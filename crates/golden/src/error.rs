//! The crate's error.

use std::path::PathBuf;

use b70_admission::AdmissionError;
use b70_manifest::document::DocumentError;
use b70_manifest::{ErrorReport, Explain, exit};
use b70_procguard::LeaseError;
use thiserror::Error;

/// Everything that can go wrong in this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// A parameter of a set that cannot be.
    #[error("{name} is {found}, expected {expected}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What was given.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// The weights could not be packed.
    #[error("the weights cannot be packed: {why}")]
    Packing {
        /// What the layout says.
        why: String,
    },
    /// Another sound set has the name.
    #[error("{} is a sound set with another {what} ({found}, expected {expected}); it was left as it is", path.display())]
    OtherSet {
        /// The set.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value.
        found: String,
        /// The value asked for.
        expected: String,
    },
    /// What has the name was not written by this version of the kit, and is not the set that was asked for.
    #[error("{} was written by {written_by}, and {why}; it was left as it is", path.display())]
    ForeignSet {
        /// The set.
        path: PathBuf,
        /// What wrote it, as its manifest states it.
        written_by: String,
        /// In what it is not the set that was asked for.
        why: String,
    },
    /// A set is not what its manifest says; every fault is named.
    #[error("the golden set {} is not valid: {}", path.display(), faults.join("; "))]
    BadSet {
        /// The set's folder.
        path: PathBuf,
        /// Each fault, with the tensor's name.
        faults: Vec<String>,
    },
    /// A capture that is not complete or does not agree with itself; every fault is named.
    #[error("the capture cannot be admitted: {}", faults.join("; "))]
    Capture {
        /// The file the faults are about.
        path: PathBuf,
        /// Each fault.
        faults: Vec<String>,
    },
    /// A file that cannot be read as what it should be.
    #[error("{}: {why}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A test binary that cannot be run at all.
    #[error("the test binary {} cannot be started: {why}", path.display())]
    Binary {
        /// The binary.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The card cannot be used.
    #[error("{0}")]
    Card(String),
    /// The card's lease could not be had.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A document is not readable or not valid.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The layer below refused: a file, a lock, space, a digest.
    #[error(transparent)]
    Store(#[from] b70_store::Error),
    /// The build's fingerprint could not be taken.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// A log or a process of a run failed at the system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The caller ended the operation.
    #[error("interrupted")]
    Interrupted,
}

impl Explain for GoldenError {
    fn report(&self) -> ErrorReport {
        let report = |kind: &str| ErrorReport::new(kind, self.to_string());
        match self {
            Self::Parameter { found, expected, .. } => report("parameter").found(found).expected(expected),
            Self::Packing { .. } => report("packing"),
            Self::OtherSet { path, found, expected, .. } => report("other-set")
                .path(path)
                .found(found)
                .expected(expected)
                .hint("choose another --artifact-root, or say --force: a set can be made again from its parameters"),
            Self::ForeignSet { path, written_by, .. } => report("foreign-set")
                .path(path)
                .found(written_by)
                .hint("choose another --artifact-root, or say --force to put a set of the kit in its place"),
            Self::BadSet { path, .. } => report("golden-set").path(path).hint(
                "prepare the set again: that makes it from its parameters (with --force where it was not the kit's)",
            ),
            Self::Capture { path, .. } => {
                report("capture").path(path).hint("complete the capture's metadata; docs/formats/golden.md lists it")
            }
            Self::BadFile { path, .. } => report("bad-file").path(path),
            Self::Binary { path, .. } => report("test-binary").path(path).hint("name it with --binary"),
            Self::Card(_) => report("card").hint("list the cards, or run without one by --no-gpu"),
            Self::Lease(error) => error.report(),
            Self::Document(error) => error.report(),
            Self::Store(error) => error.report(),
            Self::Admission(error) => error.report(),
            Self::Io { path, .. } => report("io").path(path),
            Self::Interrupted => report("interrupted"),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::OtherSet { .. } | Self::ForeignSet { .. } | Self::BadSet { .. } | Self::Capture { .. } => {
                exit::CHECK_FAILED
            }
            Self::Parameter { .. }
            | Self::Packing { .. }
            | Self::BadFile { .. }
            | Self::Binary { .. }
            | Self::Card(_)
            | Self::Io { .. } => exit::USAGE,
            Self::Lease(error) => error.exit_code(),
            Self::Document(error) => error.exit_code(),
            Self::Store(error) => error.exit_code(),
            Self::Admission(error) => error.exit_code(),
            Self::Interrupted => exit::INTERRUPTED,
        }
    }
}
