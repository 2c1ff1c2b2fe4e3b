//! The crate's one error type. Each variant names the path, what was expected, what was found and what to do next.

use std::io;
use std::path::{Path, PathBuf};

use b70_manifest::{ErrorReport, Explain, exit};

use crate::digest::{Blake3, Sha256};
use crate::path::NameFault;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// One file whose bytes are not what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The file.
    pub path: PathBuf,
    /// What differs, with expected and found value.
    pub what: String,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

fn list(items: &[Mismatch]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a step.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb: `read`, `create`, `fsync`.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no such file.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The path looked for.
        path: PathBuf,
    },
    /// A relative name breaks the grammar of [`RelPath`](crate::RelPath).
    #[error("the name {name:?} is refused: {fault}")]
    Name {
        /// The name, non-UTF-8 bytes replaced.
        name: String,
        /// The rule it breaks.
        fault: NameFault,
    },
    /// A component of the path is a symbolic link, or the path leaves its root.
    #[error(
        "{} is refused: a component is a link or leaves the root; replace the link by the file or directory itself",
        path.display()
    )]
    Escapes {
        /// The path that was refused.
        path: PathBuf,
    },
    /// Something else than a regular file (or a directory, where one is needed).
    #[error("{} is a {found}, expected a {expected}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The kernel offers no `openat2`, so that a path cannot be proved to stay beneath its root.
    #[error(
        "cannot open {} safely: this kernel or sandbox offers no openat2 (Linux 5.6); nothing was opened",
        path.display()
    )]
    NoOpenat2 {
        /// The path that was not opened.
        path: PathBuf,
    },
    /// A file cannot be made immutable, or one that is cannot be changed.
    #[error(
        "cannot {action} {}{}: {source}; that needs root (CAP_LINUX_IMMUTABLE){}",
        path.display(), if *action == "make" { " immutable" } else { ", which is immutable" },
        if *action == "make" { ", and a file system with that flag: ext4, xfs, btrfs, tmpfs of newer kernels" } else { "; run the same command as root" }
    )]
    Immutable {
        /// `make` or `change`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file whose bytes the kernel does not keep still, where that is needed.
    #[error("{} can be changed: {why}", path.display())]
    NotStill {
        /// The file.
        path: PathBuf,
        /// What is missing, and what to do.
        why: String,
    },
    /// The system refuses a thread.
    #[error(
        "cannot start a thread for {what}: {source}; let this user have more processes (ulimit -u) or ask for fewer workers"
    )]
    Thread {
        /// What it would have done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The target has no room (blocks or inodes).
    #[error("no space for {} ({needed} bytes): {source}; free space or choose another root", path.display())]
    NoSpace {
        /// What was being written.
        path: PathBuf,
        /// Bytes that were needed.
        needed: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// Headroom is too small; nothing was written.
    #[error(
        "{} needs {needed} bytes and must leave {reserve} free, but only {available} are available ({source_name}); \
         free some or lower the reserve",
        path.display()
    )]
    Headroom {
        /// The directory that would be written to.
        path: PathBuf,
        /// Bytes wanted.
        needed: u64,
        /// Bytes that must stay free.
        reserve: u64,
        /// Bytes available.
        available: u64,
        /// The limit that is the least: `statvfs`, `MemAvailable`, `cgroup …`.
        source_name: String,
    },
    /// A file has another size than expected.
    #[error("{} has {found} bytes, expected {expected}{}", path.display(), empty_hint(*found))]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A document is larger than such a document may be; it was not read.
    #[error("{} has {found} bytes, expected at most {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read.
        limit: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file changed while it was read.
    #[error("{} changed while it was read ({what}); try again when nothing writes it", path.display())]
    ChangedWhileReading {
        /// The file.
        path: PathBuf,
        /// What was seen.
        what: String,
    },
    /// The bytes have another SHA-256 than expected.
    #[error("{} has SHA-256 {found}, expected {expected}{}", path.display(), empty_digest_hint(found))]
    Sha256 {
        /// The file.
        path: PathBuf,
        /// Digest expected.
        expected: Sha256,
        /// Digest found.
        found: Sha256,
    },
    /// Several files are not what was expected; all of them are named.
    #[error("{} files are not what was expected: {}", .0.len(), list(.0))]
    Mismatches(Vec<Mismatch>),
    /// What was read back is not what was written.
    #[error(
        "{} read back differently from what was written (BLAKE3 {found}, expected {expected}); nothing was published; \
         suspect the medium or memory",
        path.display()
    )]
    ReadBack {
        /// The file that would have been published.
        path: PathBuf,
        /// BLAKE3 of the bytes written.
        expected: Blake3,
        /// BLAKE3 of the bytes found.
        found: Blake3,
    },
    /// The name is taken.
    #[error("{} already exists and was left as it is", path.display())]
    Exists {
        /// The name.
        path: PathBuf,
    },
    /// The name is taken by a file with other bytes, and replacing it was not asked for.
    #[error("{} exists with other content ({what}); it was left as it is", path.display())]
    Damaged {
        /// The name.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A temporary file or directory of ours was removed by someone else before it was published.
    #[error("the temporary file {} vanished before it was published; nothing was published, run again", path.display())]
    TempVanished {
        /// Its path.
        path: PathBuf,
    },
    /// A lock was not free in time.
    #[error("{} is locked by {holder}; gave up after {waited_seconds:.1} s", path.display())]
    LockTimeout {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, as written in the file.
        holder: String,
        /// Seconds waited.
        waited_seconds: f64,
    },
    /// The file system has no kernel locks.
    #[error("{}: this file system offers no locks; continue without one or choose a local root", path.display())]
    LockUnsupported {
        /// The lock file.
        path: PathBuf,
    },
    /// A root directory is not safe to use.
    #[error("the root {} is refused: {why}", path.display())]
    RootUnsafe {
        /// The root.
        path: PathBuf,
        /// Why, and what would make it safe.
        why: String,
    },
    /// A root directory lies inside a Git work tree.
    #[error(
        "the root {} lies inside the Git work tree {}; choose another root or allow it explicitly",
        path.display(), repository.display()
    )]
    RootInGit {
        /// The root.
        path: PathBuf,
        /// The work tree.
        repository: PathBuf,
    },
    /// No default root can be derived.
    #[error("no default root: {0}")]
    NoRoot(String),
    /// The operation was cancelled by its caller.
    #[error("interrupted; nothing was published")]
    Cancelled,
}

fn empty_hint(found: u64) -> &'static str {
    if found == 0 { " (the file is empty: an interrupted download or copy?)" } else { "" }
}

fn empty_digest_hint(found: &Sha256) -> &'static str {
    if *found == Sha256::EMPTY { " (that is the digest of an empty file)" } else { "" }
}

impl Error {
    /// Wraps an I/O error; `ENOENT` becomes [`Error::Missing`].
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        let (path, source) = (path.as_ref().to_path_buf(), source.into());
        if source.kind() == io::ErrorKind::NotFound {
            Self::Missing { path }
        } else {
            Self::Io { action, path, source }
        }
    }

    /// Like [`Error::io`], with `ENOSPC` and `EDQUOT` as [`Error::NoSpace`].
    pub(crate) fn write(
        action: &'static str,
        path: impl AsRef<Path>,
        needed: u64,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path: path.as_ref().to_path_buf(), needed, source }
            }
            _ => Self::io(action, path, source),
        }
    }

    /// Whether a lock, readiness or stop deadline passed (the binaries' exit code 124).
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::LockTimeout { .. })
    }

    /// Whether the caller's own cancellation ended the operation (exit code 130).
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }

    /// The path the error is about, when there is exactly one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Missing { path }
            | Self::Escapes { path }
            | Self::Kind { path, .. }
            | Self::NoOpenat2 { path }
            | Self::Immutable { path, .. }
            | Self::NotStill { path, .. }
            | Self::NoSpace { path, .. }
            | Self::Headroom { path, .. }
            | Self::Size { path, .. }
            | Self::TooLarge { path, .. }
            | Self::ChangedWhileReading { path, .. }
            | Self::Sha256 { path, .. }
            | Self::ReadBack { path, .. }
            | Self::Exists { path }
            | Self::Damaged { path, .. }
            | Self::TempVanished { path }
            | Self::LockTimeout { path, .. }
            | Self::LockUnsupported { path }
            | Self::RootUnsafe { path, .. }
            | Self::RootInGit { path, .. } => Some(path),
            Self::Name { .. } | Self::Thread { .. } | Self::Mismatches(_) | Self::NoRoot(_) | Self::Cancelled => None,
        }
    }
}

/// The system's answer where the error was one; any other error with its own text.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { source, .. } | Error::NoSpace { source, .. } | Error::Immutable { source, .. } => source,
            Error::Missing { .. } => rustix::io::Errno::NOENT.into(),
            other => Self::other(other),
        }
    }
}

impl Error {
    /// A stable word for scripts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Missing { .. } => "missing",
            Self::Name { .. } => "unsafe-name",
            Self::Escapes { .. } => "unsafe-path",
            Self::Kind { .. } => "file-kind",
            Self::NoOpenat2 { .. } => "no-openat2",
            Self::Immutable { .. } => "immutable",
            Self::NotStill { .. } => "not-still",
            Self::Thread { .. } => "thread",
            Self::NoSpace { .. } => "no-space",
            Self::Headroom { .. } => "headroom",
            Self::Size { .. } => "size",
            Self::TooLarge { .. } => "too-large",
            Self::ChangedWhileReading { .. } => "changed-while-reading",
            Self::Sha256 { .. } => "sha256",
            Self::Mismatches(_) => "mismatches",
            Self::ReadBack { .. } => "read-back",
            Self::Exists { .. } => "exists",
            Self::Damaged { .. } => "damaged",
            Self::TempVanished { .. } => "temp-vanished",
            Self::LockTimeout { .. } => "lock-timeout",
            Self::LockUnsupported { .. } => "lock-unsupported",
            Self::RootUnsafe { .. } => "root-unsafe",
            Self::RootInGit { .. } => "root-in-git",
            Self::NoRoot(_) => "no-root",
            Self::Cancelled => "interrupted",
        }
    }
}

impl Explain for Error {
    fn report(&self) -> ErrorReport {
        let mut report = ErrorReport::new(self.kind(), self.to_string());
        if let Some(path) = self.path() {
            report = report.path(path);
        }
        match self {
            Self::Size { expected, found, .. } => report.expected(expected).found(found),
            Self::TooLarge { limit, found, .. } => report.expected(format!("at most {limit} bytes")).found(found),
            Self::Sha256 { expected, found, .. } => report.expected(expected).found(found),
            Self::ReadBack { expected, found, .. } => report.expected(expected).found(found),
            Self::Kind { expected, found, .. } => report.expected(expected).found(found),
            Self::Headroom { needed, reserve, available, .. } => {
                report.expected(format!("{needed} bytes plus a reserve of {reserve}")).found(available)
            }
            _ => report,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::LockTimeout { .. } => exit::TIMEOUT,
            Self::Cancelled => exit::INTERRUPTED,
            Self::Headroom { .. }
            | Self::Size { .. }
            | Self::Sha256 { .. }
            | Self::Mismatches(_)
            | Self::Exists { .. }
            | Self::Damaged { .. } => exit::CHECK_FAILED,
            _ => exit::USAGE,
        }
    }
}
