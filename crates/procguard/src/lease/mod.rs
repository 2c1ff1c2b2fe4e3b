//! The exclusive right to a physical card: one kernel lock per PCI address.

mod root;

pub use root::{LeaseError, LeaseRoot};

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use b70_manifest::PciAddress;
use b70_store::{LockGuard, OnDrop};
use rustix::io::FdFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The default directory: in memory, emptied at boot, open to every user so that they exclude each other.
pub const DEFAULT_LEASE_ROOT: &str = "/run/lock/b70kit";

/// Which of a card's two locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// The card itself: held by whatever computes on it.
    Card,
    /// The right to measure on it: held by a benchmark beside the worker that holds the card.
    Measuring,
}

impl LeaseKind {
    fn suffix(self) -> &'static str {
        match self {
            Self::Card => "lock",
            Self::Measuring => "measuring.lock",
        }
    }
}

/// Who holds a lease, as its lock file tells everybody. The lock is the truth; this is the label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseOwner {
    /// Process id of the holder.
    pub pid: u32,
    /// Its start time in clock ticks since boot.
    pub start_time: u64,
    /// What it is or runs, secrets removed by the caller.
    pub command: String,
    /// Since when, unix seconds.
    pub since_unix: u64,
    /// User id of the holder.
    #[serde(default)]
    pub uid: Option<u32>,
}

impl LeaseOwner {
    /// The calling process, as the owner of a lease from now on.
    pub fn this_process(command: impl Into<String>) -> io::Result<Self> {
        let me = crate::process::ProcessIdentity::of_self()?;
        Ok(Self::of(&me, command))
    }

    /// Another process, e.g. the server that inherited the lock.
    pub fn of(identity: &crate::process::ProcessIdentity, command: impl Into<String>) -> Self {
        let since_unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let uid = Some(rustix::process::geteuid().as_raw());
        Self { pid: identity.pid, start_time: identity.start_time, command: command.into(), since_unix, uid }
    }
}

/// One lock of a lease directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseStatus {
    /// The card.
    pub pci: PciAddress,
    /// Which lock.
    pub kind: LeaseKind,
    /// Is the lock held now?
    pub held: bool,
    /// What the file says of the holder; null when nobody holds it or nothing readable was written.
    pub owner: Option<LeaseOwner>,
    /// Processes found to have the lock open (where their files can be read). Those that inherited it are among them.
    pub holders: Vec<u32>,
}

/// All leases of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseReport {
    /// Version of this document.
    pub schema_version: u32,
    /// The directory.
    pub lease_root: PathBuf,
    /// Every card of the machine and every lock that was ever taken, by card and kind.
    pub leases: Vec<LeaseStatus>,
    /// Set if an ordinary user other than you owns the directory: that user could remove lock files.
    pub directory_owner: Option<u32>,
}

/// A held lease. Dropping it releases the lock, unless a child inherited it.
///
/// The lock belongs to the open file, not to the process: whoever inherits the descriptor keeps the lock alive. By
/// default nobody does (close-on-exec), so the lease ends with this process. After [`make_inheritable`] every program
/// started from then on holds it too: for a keeper that becomes the server by `exec`, so that the lock lasts exactly
/// as long as the server and whatever it leaves behind.
///
/// [`make_inheritable`]: Lease::make_inheritable
#[must_use = "a lease is released when it is dropped"]
#[derive(Debug)]
pub struct Lease {
    lock: LockGuard,
    pci: PciAddress,
    kind: LeaseKind,
}

impl Lease {
    /// The card.
    pub fn pci(&self) -> PciAddress {
        self.pci
    }

    /// Which lock.
    pub fn kind(&self) -> LeaseKind {
        self.kind
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        self.lock.path()
    }

    /// Rewrites the visible owner, e.g. when a child takes over.
    pub fn set_owner(&self, owner: &LeaseOwner) -> io::Result<()> {
        let mut text = serde_json::to_vec(owner).map_err(io::Error::other)?;
        text.push(b'\n');
        Ok(self.lock.set_label(&text)?)
    }

    /// Lets programs started from now on inherit the lock.
    pub fn make_inheritable(&mut self) -> io::Result<()> {
        rustix::io::fcntl_setfd(&self.lock, FdFlags::empty())?;
        self.lock.on_drop(OnDrop::Leave);
        Ok(())
    }

    /// Becomes another program that holds the lease as long as it, or what it leaves behind, lives. Returns only if that
    /// failed, with the lease released.
    pub fn exec(mut self, command: &mut Command) -> io::Error {
        if let Err(e) = self.make_inheritable() {
            return e;
        }
        let failed = command.exec();
        // Nobody inherited it after all: the label goes with the guard.
        self.lock.on_drop(OnDrop::Close);
        failed
    }

    /// Closes this process's descriptor and leaves the lock, and the visible owner, to those who inherited it.
    pub fn leave(mut self) {
        self.lock.on_drop(OnDrop::Leave);
    }
}

impl AsFd for Lease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}
