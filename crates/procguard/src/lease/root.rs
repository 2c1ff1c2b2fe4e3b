//! The directory of lock files, shared with users who are not trusted.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::{Lease, LeaseKind, LeaseOwner, LeaseReport, LeaseStatus};
use b70_manifest::PciAddress;

use crate::{files::open_pids, host::Host};

/// Longer than any label; a longer file was not written by the kit.
const MAX_LABEL: u64 = 64 << 10;
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
    dir: File,
    path: PathBuf,
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
        let io = |source: io::Error| LeaseError::Io { path: path.to_owned(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(e @ (rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR)) => {
                return Err(LeaseError::Unsafe {
                    path: path.to_owned(),
                    found: format!("it is no directory ({e})"),
                    expected: "a directory, not a link",
                });
            }
            Err(e) => return Err(io(e.into())),
        };
        let meta = dir.metadata().map_err(io)?;
        let me = rustix::process::geteuid().as_raw();
        let mode = meta.permissions().mode();
        let shared = mode & 0o022 != 0;
        if shared && mode & 0o1000 == 0 {
            return Err(LeaseError::Unsafe {
                path: path.to_owned(),
                found: format!("mode {:04o}: others may remove lock files", mode & 0o7777),
                expected: "mode 1777 (chmod 1777), or a directory that only its owner can write",
            });
        }
        let owner = meta.uid();
        if !shared && owner != me && me != 0 {
            return Err(LeaseError::Unsafe {
                path: path.to_owned(),
                found: format!("it belongs to user {owner} with mode {:04o}, and you are user {me}", mode & 0o7777),
                expected: "mode 1777, so that all users exclude each other",
            });
        }
        let foreign_owner = (owner != me && owner != 0).then_some(owner);
        Ok(Self { dir, path: path.to_owned(), foreign_owner })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The ordinary user who made the directory and could remove files in it, if that is neither you nor root.
    pub fn foreign_owner(&self) -> Option<u32> {
        self.foreign_owner
    }

    fn name(pci: PciAddress, kind: LeaseKind) -> String {
        format!("{pci}.{}", kind.suffix())
    }

    /// Opens the lock file without following anything and without trusting what is there.
    fn open_file(&self, name: &str, create: bool) -> Result<Option<File>, LeaseError> {
        let path = self.path.join(name);
        let io = |e: rustix::io::Errno| LeaseError::Io { path: path.clone(), source: e.into() };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // O_CREAT on another user's file in a sticky directory is refused where fs.protected_regular is set, so an
        // existing file is opened without it.
        let fd = loop {
            match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
                Ok(fd) => break fd,
                Err(rustix::io::Errno::NOENT) if !create => return Ok(None),
                Err(rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::LOOP | rustix::io::Errno::ISDIR) => {
                    return Err(LeaseError::Unsafe {
                        path,
                        found: "it is a link or a directory".into(),
                        expected: "a plain file (remove it)",
                    });
                }
                Err(e) => return Err(io(e)),
            }
            match rustix::fs::openat(&self.dir, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600))
            {
                Ok(fd) => {
                    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o666)).map_err(io)?;
                    break fd;
                }
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(io(e)),
            }
        };
        let stat = rustix::fs::fstat(&fd).map_err(io)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(LeaseError::Unsafe {
                path,
                found: "it is no plain file".into(),
                expected: "a plain file (remove it)",
            });
        }
        // A second name could be any file of ours, and the label would be written into it.
        if stat.st_nlink != 1 {
            return Err(LeaseError::Unsafe {
                path,
                found: format!("it has {} names", stat.st_nlink),
                expected: "a file with one name (remove it)",
            });
        }
        Ok(Some(File::from(fd)))
    }

    /// Is the open file still the one under its name?
    fn is_current(&self, file: &File, name: &str) -> io::Result<bool> {
        let ours = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(now) => Ok(now.st_ino == ours.st_ino && now.st_dev == ours.st_dev),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes a lock, waiting up to `wait` for it, and writes the owner into its file.
    ///
    /// # Errors
    /// [`LeaseError::Held`] with the holder's label if it could not be had in time.
    pub fn acquire(
        &self,
        pci: PciAddress,
        kind: LeaseKind,
        owner: &LeaseOwner,
        wait: Duration,
    ) -> Result<Lease, LeaseError> {
        let name = Self::name(pci, kind);
        let path = self.path.join(&name);
        let io = |source: io::Error| LeaseError::Io { path: path.clone(), source };
        let start = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let Some(file) = self.open_file(&name, true)? else { continue };
            match file.try_lock() {
                Ok(()) if self.is_current(&file, &name).map_err(io)? => {
                    let lease = Lease { file, path: path.clone(), pci, kind, inheritable: false };
                    lease.set_owner(owner).map_err(io)?;
                    return Ok(lease);
                }
                // Somebody removed the file between open and lock: that lock would exclude nobody.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
            let waited = start.elapsed();
            if waited >= wait.max(GRACE) {
                let waited = if wait.is_zero() { Duration::ZERO } else { waited };
                return Err(LeaseError::Held { pci, kind, owner: read_label(&file), waited });
            }
            thread::sleep(pause.min(wait.max(GRACE).saturating_sub(waited)));
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// State of one lock. Looking takes a shared lock for an instant and changes nothing.
    pub fn status(&self, host: &Host, pci: PciAddress, kind: LeaseKind) -> Result<LeaseStatus, LeaseError> {
        let name = Self::name(pci, kind);
        let free = LeaseStatus { pci, kind, held: false, owner: None, holders: Vec::new() };
        let Some(file) = self.open_file(&name, false)? else { return Ok(free) };
        match file.try_lock_shared() {
            Ok(()) => Ok(free),
            Err(TryLockError::WouldBlock) => {
                let meta = file.metadata().map_err(|source| LeaseError::Io { path: self.path.join(&name), source })?;
                let mut holders = open_pids(host, meta.dev(), meta.ino());
                holders.retain(|p| *p != std::process::id() || Self::is_own(&file, *p));
                Ok(LeaseStatus { held: true, owner: read_label(&file), holders, ..free })
            }
            Err(TryLockError::Error(source)) => Err(LeaseError::Io { path: self.path.join(&name), source }),
        }
    }

    /// This process has the file open for this look; does it hold the lock besides?
    fn is_own(file: &File, pid: u32) -> bool {
        read_label(file).is_some_and(|o| o.pid == pid)
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
        let io = |source: io::Error| LeaseError::Io { path: self.path.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io)? {
            let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
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

fn read_label(file: &File) -> Option<LeaseOwner> {
    let mut bytes = Vec::new();
    // The offset of this descriptor is its own: it was opened for this look.
    (&mut &*file).take(MAX_LABEL).read_to_end(&mut bytes).ok()?;
    (&mut &*file).rewind().ok()?;
    serde_json::from_slice(&bytes).ok()
}
