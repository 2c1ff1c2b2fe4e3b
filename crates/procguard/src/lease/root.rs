//! The directory of lock files, shared with users who are not trusted.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use b70_manifest::PciAddress;
use b70_store::{Error, Exposure, LockFile, OnDrop, Owners, Progress, RelPath, Root};

use super::{Lease, LeaseKind, LeaseOwner, LeaseReport, LeaseStatus};
use crate::{files::open_pids, host::Host};

/// A reader of the status holds a shared lock for an instant; an attempt tries again for this long before it gives up.
const GRACE: Duration = Duration::from_millis(60);

/// A lease that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody holds it.
    #[error("{pci} is leased{}: {}; end that first, or wait with --wait", if *kind == LeaseKind::Measuring { " for measuring" } else { "" }, describe(owner.as_ref()))]
    Held {
        /// The card.
        pci: PciAddress,
        /// Which lock.
        kind: LeaseKind,
        /// What the holder wrote, if anything.
        owner: Option<LeaseOwner>,
        /// The time waited for it in vain; zero if it was not waited for.
        waited: Duration,
    },
    /// The directory or a file in it cannot be trusted.
    #[error("{} cannot hold leases: {found}; expected {expected}", path.display())]
    Unsafe {
        /// Which path.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// An I/O error.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl LeaseError {
    fn io(path: &Path, error: Error) -> Self {
        Self::Io { path: path.to_owned(), source: error.into() }
    }
}

fn describe(owner: Option<&LeaseOwner>) -> String {
    owner.map_or_else(
        || "its holder wrote no name".into(),
        |o| format!("pid {}, {:?}, since unix time {}", o.pid, o.command, o.since_unix),
    )
}

/// A directory of lock files, one per card and kind. Files are made once and never unlinked: unlinking a lock file
/// lets two processes hold "the" lock on two files.
#[derive(Debug)]
pub struct LeaseRoot {
    dir: Root,
    foreign_owner: Option<u32>,
}

impl LeaseRoot {
    /// Opens a directory, making it (1777: everybody may lock, nobody may remove another's file) if it is not there.
    /// Its parent must exist.
    ///
    /// # Errors
    /// [`LeaseError::Unsafe`] if it is a link, or writable by others without the sticky bit.
    pub fn open(path: &Path) -> Result<Self, LeaseError> {
        let io = |source: io::Error| LeaseError::Io { path: path.to_owned(), source };
        match fs::DirBuilder::new().mode(0o700).create(path) {
            // The mask of the process would cut the mode, so it is set afterwards; 0700 until then.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).map_err(io)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io(e)),
        }
        Self::open_existing(path)
    }

    /// Opens a directory that must be there; to look only.
    pub fn open_existing(path: &Path) -> Result<Self, LeaseError> {
        let refused = |found: String, expected| LeaseError::Unsafe { path: path.to_owned(), found, expected };
        let dir = Root::open_nofollow(path).map_err(|e| match e {
            Error::Escapes { .. } => refused("it is a link".to_owned(), "a directory"),
            Error::Kind { found, .. } => refused(format!("it is a {found}"), "a directory"),
            e => LeaseError::io(path, e),
        })?;
        let identity = dir.identity().map_err(|e| LeaseError::io(path, e))?;
        let me = rustix::process::geteuid().as_raw();
        // In a shared directory it does not matter whose it is, and root may lock in everybody's.
        let owner = if identity.mode & 0o022 != 0 || me == 0 { identity.uid } else { me };
        match Owners::only(owner).or_sticky(true).exposure(&identity) {
            None => {}
            Some(Exposure::Writers(mode)) => {
                return Err(refused(
                    format!("mode {mode:04o}: others may remove lock files"),
                    "mode 1777 (chmod 1777), or a directory that only its owner can write",
                ));
            }
            Some(Exposure::Owner(owner)) => {
                let mode = identity.mode & 0o7777;
                return Err(refused(
                    format!("it belongs to user {owner} with mode {mode:04o}, and you are user {me}"),
                    "mode 1777, so that all users exclude each other",
                ));
            }
        }
        let foreign_owner = (identity.uid != me && identity.uid != 0).then_some(identity.uid);
        Ok(Self { dir, foreign_owner })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The ordinary user who made the directory and could remove files in it, if that is neither you nor root.
    pub fn foreign_owner(&self) -> Option<u32> {
        self.foreign_owner
    }

    fn name(pci: PciAddress, kind: LeaseKind) -> RelPath {
        RelPath::new(format!("{pci}.{}", kind.suffix())).expect("an address and a suffix make a plain name")
    }

    /// What is refused of a lock file, which anybody could have put there.
    fn refuse(&self, name: &RelPath, error: Error) -> LeaseError {
        let path = self.dir.join(name);
        let refused = |found, expected| LeaseError::Unsafe { path: path.clone(), found, expected };
        match error {
            Error::Escapes { .. } => refused("it is a link or a directory".into(), "a plain file (remove it)"),
            Error::Io { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
                refused("it is a link or a directory".into(), "a plain file (remove it)")
            }
            Error::Kind { found, .. } => refused(format!("it is a {found}"), "a plain file with one name (remove it)"),
            e => LeaseError::io(&path, e),
        }
    }

    /// Takes the lock of a card (`&Card`, or its address alone), waiting up to `wait` for it, and writes the owner into
    /// its file.
    ///
    /// # Errors
    /// [`LeaseError::Held`] with the holder's label if it could not be had in time.
    pub fn acquire(
        &self,
        card: impl Into<PciAddress>,
        kind: LeaseKind,
        owner: &LeaseOwner,
        wait: Duration,
    ) -> Result<Lease, LeaseError> {
        let pci = card.into();
        let name = Self::name(pci, kind);
        let start = Instant::now();
        let taken = LockFile::wait(&self.dir, &name, 0o666, wait.max(GRACE), &Progress::NONE);
        match taken.map_err(|e| self.refuse(&name, e))? {
            Ok(mut lock) => {
                // A child that was handed the lock holds on to it when this process fails.
                lock.on_drop(OnDrop::Close);
                let lease = Lease { lock, pci, kind };
                lease.set_owner(owner).map_err(|source| LeaseError::Io { path: self.dir.join(&name), source })?;
                Ok(lease)
            }
            Err(held) => {
                let waited = if wait.is_zero() { Duration::ZERO } else { start.elapsed() };
                Err(LeaseError::Held { pci, kind, owner: read_label(&held), waited })
            }
        }
    }

    /// State of one lock. Looking takes a shared lock for an instant and changes nothing.
    pub fn status(&self, host: &Host, pci: PciAddress, kind: LeaseKind) -> Result<LeaseStatus, LeaseError> {
        let name = Self::name(pci, kind);
        let free = LeaseStatus { pci, kind, held: false, owner: None, holders: Vec::new() };
        let refuse = |e| self.refuse(&name, e);
        let Some(file) = LockFile::open(&self.dir, &name).map_err(refuse)? else { return Ok(free) };
        if !file.is_held().map_err(refuse)? {
            return Ok(free);
        }
        let stat =
            rustix::fs::fstat(&file).map_err(|e| LeaseError::Io { path: self.dir.join(&name), source: e.into() })?;
        let owner = read_label(&file);
        // This process has the file open for this look; does it hold the lock besides?
        let mine = owner.as_ref().is_some_and(|owner| owner.pid == std::process::id());
        let mut holders = open_pids(host, stat.st_dev, stat.st_ino);
        holders.retain(|pid| *pid != std::process::id() || mine);
        Ok(LeaseStatus { held: true, owner, holders, ..free })
    }

    /// The directory's report: the cards given, leased or not, and every lock that was ever taken. A directory that does
    /// not exist yet has no leases.
    pub fn report(path: &Path, host: &Host, cards: &[PciAddress]) -> Result<LeaseReport, LeaseError> {
        let mut report =
            LeaseReport { schema_version: 1, lease_root: path.to_owned(), leases: Vec::new(), directory_owner: None };
        match Self::open_existing(path) {
            Ok(root) => {
                report.leases = root.list(host)?;
                report.directory_owner = root.foreign_owner();
            }
            Err(LeaseError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        for pci in cards {
            if !report.leases.iter().any(|l| l.pci == *pci && l.kind == LeaseKind::Card) {
                report.leases.push(LeaseStatus {
                    pci: *pci,
                    kind: LeaseKind::Card,
                    held: false,
                    owner: None,
                    holders: Vec::new(),
                });
            }
        }
        report.leases.sort_by_key(|s| (s.pci, s.kind));
        Ok(report)
    }

    /// State of all locks that were ever taken here, ascending by card and kind.
    pub fn list(&self, host: &Host) -> Result<Vec<LeaseStatus>, LeaseError> {
        let mut found = Vec::new();
        for (name, _) in self.dir.raw_entries().map_err(|e| LeaseError::io(self.path(), e))? {
            let name = name.to_string_lossy();
            let kinds = [LeaseKind::Measuring, LeaseKind::Card];
            let hit = kinds
                .into_iter()
                .find_map(|k| name.strip_suffix(&format!(".{}", k.suffix()))?.parse().ok().map(|p: PciAddress| (p, k)));
            if let Some((pci, kind)) = hit {
                found.push(self.status(host, pci, kind)?);
            }
        }
        found.sort_by_key(|s| (s.pci, s.kind));
        Ok(found)
    }
}

fn read_label(file: &LockFile) -> Option<LeaseOwner> {
    serde_json::from_slice(&file.label()).ok()
}
