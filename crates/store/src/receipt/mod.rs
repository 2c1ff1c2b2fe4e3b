//! Trust receipts: a durable record of one deep validation, void as soon as anything it names changes.
//!
//! A receipt says that some bytes were hashed, and what the file was then. Whether they may be believed unread from then on is
//! not the receipt's to say: it takes the kernel to keep them still. Inode, size and times alone do not tell: on tmpfs a store
//! through a mapping that was read first moves no time, and on ext4 and XFS an ioctl that exchanges extents needs no
//! privilege. So there are rungs ([`Trust`]), and the verdict names the one it rests on:
//!
//! 1. *immutable*: the flag (`chattr +i`) was set before the hashing began, a lease probe after that found nobody who could
//!    write from before, and it is set now, on the same inode with the same times; in memory also in the same boot;
//! 2. *sealed*: a memfd whose seals forbid every change, hashed after it was sealed. It has no name and needs no receipt;
//! 3. *quiet file*: an ordinary file on a local disk, this user's or root's, that nobody else can write to, nor to its folders,
//!    hashed between two granted lease probes; where the caller asks, without permission to write for its owner, too. It holds against accidents and other users, not against the owner;
//! 4. otherwise the bytes are *read again*; the receipt then saves the SHA-256, since it has the BLAKE3, too.
//!
//! A receipt is *issued* where any later change by the usual ways must show in the recorded tuple:
//!
//! 1. the file opens beneath its root without links, is regular, and has the expected size;
//! 2. its file system is ext4, xfs, btrfs or tmpfs; everything else is denied;
//! 3. it is immutable, or this user or root owns it and nobody else can write to it; nobody else can write to the folders;
//! 4. a read lease is granted for an instant, before and after the hashing: nobody can write through an old handle or
//!    mapping. Where the kernel gives no answer there is no receipt;
//! 5. the file has been quiet for 2 s, unless a probe file on the same file system proves that every change after a
//!    look gets a new time stamp;
//! 6. on disks, `fsync` write-protects pages that an old mapping could still store to; the tuple must not have moved;
//! 7. after the hashing the tuple is the same and the name still leads to the same file.
//!
//! Any step that fails yields [`ReceiptVerdict::VerifiedUntrusted`]: the bytes are right, but nothing is recorded. A receipt is
//! *honoured* on exact equality only. On tmpfs it is bound to the boot and the mount; on a file system with coarse stamps it is
//! bound to the boot and to an unstepped clock.
//!
//! What no receipt sees: root writing the block device, bugs of the file system, DAX, decay of the medium. That is what
//! deep verification is for.

mod admit;
mod document;
mod prove;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use b70_manifest::artifact;
pub use b70_manifest::artifact::{DirectoryHint, LeaseEvidence, Trust};
use serde::{Deserialize, Serialize};

pub use admit::{Admission, Examination, Standing, admit, admit_with, examine};
pub use prove::issue;

use crate::digest::{Content, Sha256};
use crate::identity::{FieldChange, FileSystem, FsKind};
use crate::path::{RelPath, Root};
use crate::progress::Progress;

/// Version of the rule by which receipts are issued and honoured.
pub(crate) const RULE: &str = "v2";

/// How long a file must have been left alone where time stamps are coarse: twice the coarsest granularity (1 s) of the
/// file systems on the list.
pub(crate) const QUIET_GUARD: Duration = Duration::from_secs(2);

/// A file that is to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its name beneath the subject's root.
    pub name: RelPath,
    /// Its size in bytes, checked before a byte is read.
    pub size: u64,
    /// Its SHA-256, where a document states it.
    pub sha256: Option<Sha256>,
}

/// What a receipt is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The directory that the names are beneath.
    pub root: &'a Root,
    /// The files, each once.
    pub files: &'a [Expected],
    /// Format name of the receipt document.
    pub format: &'a str,
    /// Values the receipt is bound to, such as a set key or a manifest's digest; another value voids it.
    pub bindings: &'a BTreeMap<String, String>,
    /// Whether other files beneath the root are of interest.
    pub extras: Extras<'a>,
}

/// What to do about files beneath the root that the subject does not name.
#[derive(Clone, Copy)]
pub enum Extras<'a> {
    /// Do not look: the root is somebody's folder.
    Ignore,
    /// Report them, except those for which this function says that they belong there, such as manifest and receipt.
    Report(&'a (dyn Fn(&RelPath) -> bool + Sync)),
}

impl fmt::Debug for Extras<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ignore => "Ignore",
            Self::Report(_) => "Report",
        })
    }
}

/// How a validation runs.
#[derive(Debug, Clone, Copy)]
pub struct HashOptions<'a> {
    /// What to do when a file changed a moment ago.
    pub quiet: Quiet,
    /// Whether a quiet file ([`Trust::QuietFile`]) must be without any permission to write, its owner's included.
    pub read_only: bool,
    /// Whether a receipt older than this is void, against decay that no time stamp shows.
    pub max_age: Option<Duration>,
    /// Bytes hashed, and cancellation.
    pub progress: Progress<'a>,
}

impl Default for HashOptions<'_> {
    /// Waits up to 3 s for quiet, no age limit, no progress; the owner may have permission to write.
    fn default() -> Self {
        Self { quiet: Quiet::Wait(Duration::from_secs(3)), read_only: false, max_age: None, progress: Progress::NONE }
    }
}

/// What to do when a file's last change is too recent for coarse time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quiet {
    /// Wait, at most this long.
    Wait(Duration),
    /// Do without a receipt.
    GiveUp,
}

/// One file of a receipt.
pub type ReceiptFile = artifact::ReceiptFile<RelPath>;

/// A receipt, by the one rule of this crate: the document that is written, whose fields it lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt(pub artifact::Receipt<RelPath>);

impl Deref for Receipt {
    type Target = artifact::Receipt<RelPath>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Outcome of a validation in which every byte was as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiptVerdict {
    /// The next look may trust the inodes.
    Trusted(Box<Receipt>),
    /// The bytes are right, but no receipt can stand for them, for these reasons.
    VerifiedUntrusted {
        /// Each file's content.
        files: Vec<(RelPath, Content)>,
        /// Why there is no receipt.
        reasons: Vec<ReceiptReason>,
    },
}

/// Why there is no receipt, or why one is void. Serialized as `{"code": …, …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(tag = "code", rename_all = "kebab-case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant's Display text states it, and the fields are its values")]
pub enum ReceiptReason {
    ReceiptMissing { path: PathBuf },
    ReceiptUnreadable { path: PathBuf, why: String },
    ReceiptDamaged { path: PathBuf, why: String },
    ReceiptUnsafe { path: PathBuf, why: String },
    OtherRule { found: String },
    OtherFormat { recorded: String, expected: String },
    BindingChanged { key: String, recorded: Option<String>, expected: Option<String> },
    OtherBoot,
    OtherFileSystem { recorded: FileSystem, found: FileSystem },
    ClockStepped { by_ms: i64 },
    TooOld { age_seconds: i64 },
    NotListed { name: String },
    ListedButNotExpected { name: String },
    OtherDigestListed { name: String },
    IdentityChanged { name: String, changes: Vec<FieldChange> },
    FileSystemDenied { name: String, kind: FsKind, f_type: u64 },
    SeveralFileSystems { name: String },
    OpenForWriting { name: String },
    NoLeaseEvidence { name: String, why: String },
    NoMountId { name: String },
    MutableInMemory { name: String },
    Writable { name: String, mode: u32 },
    ChangeInTheFuture { name: String, ahead_ms: i64 },
    ForeignClock { off_ms: i64 },
    NotQuiet { name: String, changed_ms_ago: i64 },
    FsyncFailed { name: String, why: String },
    ChangedMeanwhile { name: String, changes: Vec<FieldChange> },
    NameMoved { name: String },
    Unvouched { name: String },
}

impl ReceiptReason {
    /// Whether it says only that nothing keeps the bytes still; as far as its inode tells the file is unchanged.
    pub fn is_want_of_a_rung(&self) -> bool {
        matches!(
            self,
            Self::MutableInMemory { .. }
                | Self::Writable { .. }
                | Self::NoLeaseEvidence { .. }
                | Self::ReceiptUnsafe { .. }
        )
    }
}

fn changes_text(changes: &[FieldChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for ReceiptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReceiptMissing { path } => write!(f, "there is no receipt {}", path.display()),
            Self::ReceiptUnreadable { path, why } => write!(f, "the receipt {} cannot be read: {why}", path.display()),
            Self::ReceiptDamaged { path, why } => write!(f, "the receipt {} is damaged: {why}", path.display()),
            Self::ReceiptUnsafe { path, why } => {
                write!(f, "the receipt is not trusted because {} {why}", path.display())
            }
            Self::OtherRule { found } => write!(f, "the receipt follows rule {found}, not {RULE}"),
            Self::OtherFormat { recorded, expected } => {
                write!(f, "the receipt has format {recorded}, expected {expected}")
            }
            Self::BindingChanged { key, recorded, expected } => {
                let show = |v: &Option<String>| v.clone().unwrap_or_else(|| "nothing".to_owned());
                write!(f, "the receipt is bound to {key} = {}, expected {}", show(recorded), show(expected))
            }
            Self::OtherBoot => write!(f, "the receipt is from another boot"),
            Self::OtherFileSystem { recorded, found } => write!(
                f,
                "the files were on {:?} {:016x} and are on {:?} {:016x}",
                recorded.kind, recorded.fsid, found.kind, found.fsid
            ),
            Self::ClockStepped { by_ms } => {
                write!(f, "the clock was set by {by_ms} ms since, and time stamps here are coarse")
            }
            Self::TooOld { age_seconds } => write!(f, "the receipt is {age_seconds} s old, over the limit"),
            Self::NotListed { name } => write!(f, "{name}: the receipt does not list it"),
            Self::ListedButNotExpected { name } => write!(f, "{name}: listed in the receipt but not expected"),
            Self::OtherDigestListed { name } => write!(f, "{name}: the receipt lists another digest or size"),
            Self::IdentityChanged { name, changes } => write!(f, "{name}: {}", changes_text(changes)),
            Self::FileSystemDenied { name, kind, f_type } => {
                write!(f, "{name}: no receipts on {kind:?} (type {f_type:#x})")
            }
            Self::SeveralFileSystems { name } => write!(f, "{name}: on another file system than the rest"),
            Self::OpenForWriting { name } => write!(f, "{name}: a process has it open or mapped for writing"),
            Self::NoLeaseEvidence { name, why } => {
                write!(f, "{name}: the kernel does not say whether it is being written ({why})")
            }
            Self::NoMountId { name } => {
                write!(
                    f,
                    "{name}: this kernel has no unique mount ids (Linux 6.8), without which files in memory can be mistaken"
                )
            }
            Self::MutableInMemory { name } => {
                write!(f, "{name}: it lies in memory, where a mapping changes it unseen, and is not immutable")
            }
            Self::Writable { name, mode } => {
                write!(
                    f,
                    "{name}: it has mode {mode:04o}; chmod a-w it, and what keeps as it is need not be read again"
                )
            }
            Self::ChangeInTheFuture { name, ahead_ms } => write!(f, "{name}: changed {ahead_ms} ms in the future"),
            Self::ForeignClock { off_ms } => {
                write!(f, "the file system's clock is {off_ms} ms off this machine's")
            }
            Self::NotQuiet { name, changed_ms_ago } => {
                write!(f, "{name}: changed only {changed_ms_ago} ms ago, and time stamps here are coarse")
            }
            Self::FsyncFailed { name, why } => write!(f, "{name}: fsync failed: {why}"),
            Self::ChangedMeanwhile { name, changes } => {
                write!(f, "{name}: changed while it was hashed ({})", changes_text(changes))
            }
            Self::NameMoved { name } => write!(f, "{name}: another file took its name while it was hashed"),
            Self::Unvouched { name } => write!(f, "{name}: no document states its digest"),
        }
    }
}
