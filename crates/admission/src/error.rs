use std::path::PathBuf;

use b70_manifest::{ErrorReport, Explain, exit};
use b70_store::{Error, Mismatch};
use thiserror::Error;

/// What can go wrong with the RAM model cache, the artifact registry and the build fingerprint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// The layer below refused: a file, a lock, space, a digest.
    #[error(transparent)]
    Store(#[from] Error),
    /// Something in an artifact cannot be identified by its bytes; all of it is named.
    #[error("the artifact cannot be registered: {}", list(.0))]
    Unfit(Vec<Mismatch>),
    /// The shards of a split model do not belong together.
    #[error("{} is not a complete split model: {why}", path.display())]
    Split {
        /// The shard that was named.
        path: PathBuf,
        /// What is wrong with the set.
        why: String,
    },
    /// A file that should be a model is none, or not whole.
    #[error("{} is not a complete GGUF file: {why}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A document of the store does not say what it must.
    #[error("the document {} is refused: {why}", path.display())]
    Document {
        /// The document.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such entry or record.
    #[error("{what} is not in {}", root.display())]
    NotFound {
        /// What was looked for.
        what: String,
        /// Where.
        root: PathBuf,
    },
    /// An entry exists and is not admitted.
    #[error("{} is not admitted: {reason}", path.display())]
    NotAdmitted {
        /// The entry.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn list(items: &[Mismatch]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl AdmissionError {
    /// A stable word for scripts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Store(error) => error.kind(),
            Self::Unfit(_) => "unfit-artifact",
            Self::Split { .. } => "split-model",
            Self::Gguf { .. } => "gguf",
            Self::Document { .. } => "document",
            Self::NotFound { .. } => "not-found",
            Self::NotAdmitted { .. } => "not-admitted",
        }
    }
}

impl Explain for AdmissionError {
    fn report(&self) -> ErrorReport {
        let report = ErrorReport::new(self.kind(), self.to_string());
        match self {
            Self::Store(error) => error.report(),
            Self::Unfit(faults) => {
                let report = match faults.first() {
                    Some(first) => report.path(&first.path),
                    None => report,
                };
                report.hint("replace links by the files they lead to, and remove what is not a regular file")
            }
            Self::Gguf { path, .. } => report.path(path).hint("fetch the file again, or name the model's own"),
            Self::Split { path, .. } => report.path(path).hint("put all shards in one folder under their own names"),
            Self::Document { path, .. } => report.path(path).hint("move it away, then make it again"),
            Self::NotFound { root, .. } => report.path(root).hint("list what is there, or name another root"),
            Self::NotAdmitted { path, .. } => report.path(path).hint("verify it, then make it again"),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Store(error) => error.exit_code(),
            Self::Unfit(_) | Self::Split { .. } | Self::Gguf { .. } => exit::USAGE,
            Self::Document { .. } | Self::NotFound { .. } | Self::NotAdmitted { .. } => exit::CHECK_FAILED,
        }
    }
}
