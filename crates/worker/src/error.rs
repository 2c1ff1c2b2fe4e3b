//! What keeps a worker from being planned, started or stopped.

use std::{
    io,
    path::{Path, PathBuf},
};

use b70_client::ClientError;
use b70_manifest::{ErrorReport, Explain, document::DocumentError, exit};
use b70_procguard::{LeaseError, NoSuchCard, PinError};

/// An error of this crate. A refused plan is none: it is a plan with reasons.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A document that is not valid, and files that it names and that are missing.
    #[error("{source}\n  {}", missing.join("\n  "))]
    DocumentAndFiles {
        /// What is wrong with the document.
        source: DocumentError,
        /// A sentence for each file.
        missing: Vec<String>,
    },
    /// There is no worker of that name.
    #[error("there is no worker {name:?} in {}; it has {}", config.display(), present.join(", "))]
    NoWorker {
        /// Asked for.
        name: String,
        /// The file.
        config: PathBuf,
        /// Names in it.
        present: Vec<String>,
    },
    /// A profile that is not there.
    #[error("there is no profile {name:?} in {}; it has {}", config.display(), present.join(", "))]
    NoProfile {
        /// Asked for.
        name: String,
        /// The file.
        config: PathBuf,
        /// Names in it.
        present: Vec<String>,
    },
    /// A file operation failed.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A file operation of the layer below failed.
    #[error(transparent)]
    Store(#[from] b70_store::Error),
    /// The card is not there.
    #[error(transparent)]
    NoCard(#[from] NoSuchCard),
    /// The card cannot be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The lease could not be had.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A call to a server failed in a way that is not a verdict.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server wants an API key.
    #[error("{url} wants another API key; give it with --api-key-file or B70_API_KEY")]
    Unauthorized {
        /// The address.
        url: String,
    },
    /// The kernel's view of processes cannot be read.
    #[error("/proc: {0}")]
    Proc(io::Error),
    /// The worker cannot be run as asked.
    #[error("{worker}: {}", reasons.join("; "))]
    Blocked {
        /// Which worker.
        worker: String,
        /// Why, all of it.
        reasons: Vec<String>,
    },
    /// A fingerprint document that is not of the worker's build.
    #[error("the fingerprint {} is not of this build: {why}", path.display())]
    OtherBuild {
        /// The document.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// A file or folder that another user could have put there.
    #[error("{} is not trusted: {why}", path.display())]
    Untrusted {
        /// Which path.
        path: PathBuf,
        /// Why not, and what would do.
        why: String,
    },
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl WorkerError {
    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), doing, source }
    }
}

impl Explain for WorkerError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Document(error) => error.report(),
            Self::DocumentAndFiles { source, .. } => ErrorReport { message: self.to_string(), ..source.report() },
            Self::NoCard(error) => error.report(),
            Self::Pin(error) => error.report(),
            Self::Lease(error) => error.report(),
            Self::NoWorker { config, .. } => ErrorReport::new("no-such-worker", self.to_string()).path(config),
            Self::NoProfile { config, .. } => ErrorReport::new("no-such-profile", self.to_string()).path(config),
            Self::Io { path, .. } => ErrorReport::new("io", self.to_string()).path(path),
            Self::Store(error) => error.report(),
            Self::Client(error) => ErrorReport::new(error.code(), self.to_string()),
            Self::Unauthorized { .. } => ErrorReport::new("unauthorized", self.to_string()),
            Self::Proc(_) => ErrorReport::new("proc", self.to_string()),
            Self::Blocked { .. } => ErrorReport::new("blocked", self.to_string())
                .hint("validate the configuration; the plan of a start (without --execute) shows every reason"),
            Self::OtherBuild { path, .. } => ErrorReport::new("other-build", self.to_string()).path(path),
            Self::Untrusted { path, .. } => ErrorReport::new("untrusted", self.to_string()).path(path),
            Self::Usage(_) => ErrorReport::new("usage", self.to_string()),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Document(error) | Self::DocumentAndFiles { source: error, .. } => error.exit_code(),
            Self::NoCard(error) => error.exit_code(),
            Self::Pin(error) => error.exit_code(),
            Self::Lease(error) => error.exit_code(),
            Self::Store(error) => error.exit_code(),
            Self::Blocked { .. } | Self::OtherBuild { .. } => exit::CHECK_FAILED,
            _ => exit::USAGE,
        }
    }
}
