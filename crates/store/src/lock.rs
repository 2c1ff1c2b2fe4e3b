//! Advisory kernel locks (`flock`) on lock files that are never unlinked.
//!
//! A lock saves two processes from doing the same work twice. Correctness never depends on it: some cluster file
//! systems grant every lock to everyone, others have none. What protects the data is [`publish`](crate::TempFile).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::digest::pread_full;
use crate::error::{Error, Result};
use crate::fault::{self, FlockFault};
use crate::identity::identity_of;
use crate::path::{EntryKind, RelPath, Root};
use crate::progress::Progress;
use crate::publish::has_name;

/// Outcome of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    Got,
    Busy,
    Unsupported,
}

/// One attempt at a lock, without waiting.
pub(crate) fn try_flock(fd: impl AsFd, exclusive: bool) -> Result<Attempt, Errno> {
    match fault::flock_fault() {
        Some(FlockFault::Lie) => return Ok(Attempt::Got),
        Some(FlockFault::Unsupported) => return Ok(Attempt::Unsupported),
        None => {}
    }
    let operation =
        if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    loop {
        return match rustix::fs::flock(&fd, operation) {
            Ok(()) => Ok(Attempt::Got),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => Ok(Attempt::Busy),
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => Ok(Attempt::Unsupported),
            Err(e) => Err(e),
        };
    }
}

/// The most bytes of a lock file that are read as its label.
const MAX_LABEL: u64 = 64 << 10;

/// A lock file, open to look at or to lock. Opening it follows no link and takes nothing but a regular file of one name.
#[derive(Debug)]
pub struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Opens a lock file that may not be there.
    pub fn open(dir: &Root, name: &RelPath) -> Result<Option<Self>> {
        let path = dir.join(name);
        // Not blocking: a pipe of that name must not hold anybody up.
        let file = match dir.open_beneath(name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Error::Missing { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let identity = identity_of(&file, &path)?;
        if EntryKind::from_mode(identity.mode) != EntryKind::File {
            return Err(Error::Kind { path, found: "special file", expected: "regular file" });
        }
        // A second name could be any file, and the holder's label would be written into it.
        if identity.nlink > 1 {
            return Err(Error::Kind { path, found: "file with several names", expected: "file with one name" });
        }
        Ok(Some(Self { file, path }))
    }

    /// Opens a lock file, making it with `mode` if it is not there.
    pub fn open_or_create(dir: &Root, name: &RelPath, mode: u32) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CREATE | OFlags::EXCL;
        loop {
            // O_CREAT on another user's file in a sticky folder is refused where fs.protected_regular is set, so a file that
            // is there is opened without it.
            if let Some(file) = Self::open(dir, name)? {
                return Ok(file);
            }
            match dir.open_beneath(name, flags, Mode::from_raw_mode(mode)) {
                Ok(fd) => {
                    let path = dir.join(name);
                    // The umask must not take away what is meant for other users.
                    if mode & 0o022 != 0 {
                        rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))
                            .map_err(|e| Error::io("set the mode of", &path, e))?;
                    }
                    return Ok(Self { file: File::from(fd), path });
                }
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether somebody holds the lock. Looking takes it shared for an instant and changes nothing.
    pub fn is_held(&self) -> Result<bool> {
        match self.attempt(false)? {
            Attempt::Busy => Ok(true),
            Attempt::Unsupported => Err(Error::LockUnsupported { path: self.path.clone() }),
            Attempt::Got => {
                let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
                Ok(false)
            }
        }
    }

    /// What the holder wrote into the file.
    pub fn label(&self) -> Vec<u8> {
        let mut label = vec![0; MAX_LABEL as usize];
        let read = pread_full(&self.file, &mut label, 0).unwrap_or(0);
        label.truncate(read);
        label
    }

    fn attempt(&self, exclusive: bool) -> Result<Attempt> {
        try_flock(&self.file, exclusive).map_err(|e| Error::io("lock", &self.path, e))
    }

    /// Waits at most `timeout` for the exclusive lock of `name`, whose file gets `mode` if it has to be made. The file, when
    /// somebody else held the lock all that time.
    pub fn wait(
        dir: &Root,
        name: &RelPath,
        mode: u32,
        timeout: Duration,
        progress: &Progress<'_>,
    ) -> Result<Result<LockGuard, Self>> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let file = Self::open_or_create(dir, name, mode)?;
            match file.attempt(true)? {
                // Somebody removed the file between open and lock: that lock would exclude nobody.
                Attempt::Got if !has_name(dir, name.as_path().as_os_str(), &file.file)? => continue,
                Attempt::Got => {
                    return Ok(Ok(LockGuard { file: file.file, path: file.path, on_drop: OnDrop::Unlock }));
                }
                Attempt::Unsupported => return Err(Error::LockUnsupported { path: file.path }),
                Attempt::Busy => {}
            }
            progress.check()?;
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(Err(file));
            }
            std::thread::sleep(pause.min(timeout.saturating_sub(waited)));
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How a [`LockGuard`] that is dropped ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrop {
    /// The label is emptied and the lock released, whoever has a copy of the descriptor.
    Unlock,
    /// The label is emptied and the file closed: a child that has a copy of the descriptor keeps the lock.
    Close,
    /// The file is closed; the label and the lock are left to the children that have a copy of the descriptor.
    Leave,
}

/// A held lock; dropping it releases it. The file stays: unlinking it would let two owners in.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    file: File,
    path: PathBuf,
    on_drop: OnDrop,
}

impl LockGuard {
    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes who holds the lock, for those who wait for it in vain.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.file
            .write_all_at(label, 0)
            .and_then(|()| self.file.set_len(label.len() as u64))
            .map_err(|e| Error::write("write", &self.path, label.len() as u64, e))
    }

    /// Says what dropping the guard does.
    pub fn on_drop(&mut self, on_drop: OnDrop) {
        self.on_drop = on_drop;
    }
}

impl AsFd for LockGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.on_drop != OnDrop::Leave {
            // Emptied, before the lock goes, so that the next one to time out does not read of a holder long gone; a failure
            // is harmless.
            let _ = self.file.set_len(0);
        }
        if self.on_drop == OnDrop::Unlock {
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Takes the exclusive lock `name` beneath `dir`, waiting at most `timeout`.
///
/// `holder` says who is asking, for the message of whoever waits in vain: `b70-pack prepare`. The file holds
/// `pid <pid>`, `holder <text>` and `since <unix seconds>`, one per line.
///
/// `None` where the file system has no locks: the caller goes on without, since two who do the same work twice publish the
/// same bytes.
///
/// Errors: [`Error::LockTimeout`] naming the holder (exit code 124), [`Error::Cancelled`].
pub fn lock(
    dir: &Root,
    name: &RelPath,
    holder: &str,
    timeout: Duration,
    progress: &Progress<'_>,
) -> Result<Option<LockGuard>> {
    let start = Instant::now();
    match LockFile::wait(dir, name, 0o644, timeout, progress) {
        Ok(Ok(guard)) => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let holder: String = holder.chars().filter(|c| !c.is_control()).take(400).collect();
            // The text is for people; a full disk must not keep anybody from locking.
            let _ = guard.set_label(format!("pid {}\nholder {holder}\nsince {since}\n", std::process::id()).as_bytes());
            Ok(Some(guard))
        }
        Ok(Err(held)) => {
            let holder = holder_text(&String::from_utf8_lossy(&held.label()));
            Err(Error::LockTimeout { path: held.path, holder, waited_seconds: start.elapsed().as_secs_f64() })
        }
        Err(Error::LockUnsupported { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn holder_text(label: &str) -> String {
    let line = |key: &str| label.lines().find_map(|l| l.strip_prefix(key)).map(str::to_owned);
    match (line("pid "), line("holder "), line("since ")) {
        (Some(pid), Some(holder), since) => {
            let since = since.map_or_else(String::new, |s| format!(", since unix time {s}"));
            format!("{holder} (pid {pid}{since})")
        }
        _ => "an unnamed process".to_owned(),
    }
}
