//! Advisory kernel locks (`flock`) on lock files that are never unlinked.
//!
//! A lock saves two processes from doing the same work twice. Correctness never depends on it: some cluster file
//! systems grant every lock to everyone, others have none. What protects the data is [`publish`](crate::TempFile).

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::fault::{self, FlockFault};
use crate::path::{RelPath, Root};
use crate::progress::Progress;

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

/// A held lock; dropping it releases it. The file stays: unlinking it would let two owners in.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    file: File,
    path: PathBuf,
}

impl LockGuard {
    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // Emptied so that the next one to time out does not read of a holder long gone; a failure is harmless.
        let _ = self.file.set_len(0);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the exclusive lock `name` beneath `dir`, waiting at most `timeout`.
///
/// `holder` says who is asking, for the message of whoever waits in vain: `b70-pack prepare`. The file holds
/// `pid <pid>`, `holder <text>` and `since <unix seconds>`, one per line.
///
/// Errors: [`Error::LockTimeout`] naming the holder (exit code 124), [`Error::LockUnsupported`] (go on without),
/// [`Error::Cancelled`].
pub fn lock(dir: &Root, name: &RelPath, holder: &str, timeout: Duration, progress: &Progress<'_>) -> Result<LockGuard> {
    let path = dir.join(name);
    let fd = dir.open_beneath(name, OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK, Mode::from_raw_mode(0o644))?;
    let file = File::from(fd);
    if !file.metadata().map_err(|e| Error::io("stat", &path, e))?.is_file() {
        return Err(Error::Kind { path, found: "special file", expected: "regular file" });
    }
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match try_flock(&file, true).map_err(|e| Error::io("lock", &path, e))? {
            Attempt::Got => break,
            Attempt::Unsupported => return Err(Error::LockUnsupported { path }),
            Attempt::Busy => {}
        }
        progress.check()?;
        let waited = start.elapsed();
        if waited >= timeout {
            let holder = read_holder(&file);
            return Err(Error::LockTimeout { path, holder, waited_seconds: waited.as_secs_f64() });
        }
        std::thread::sleep(pause.min(timeout.saturating_sub(waited)));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let holder: String = holder.chars().filter(|c| !c.is_control()).take(400).collect();
    let text = format!("pid {}\nholder {holder}\nsince {since}\n", std::process::id());
    // The text is for people; a full disk must not keep anybody from locking.
    let _ = file.set_len(0).and_then(|()| (&file).write_all(text.as_bytes()));
    Ok(LockGuard { file, path })
}

/// Takes several locks, in sorted order whatever the order given, so that no two callers can wait for each other;
/// `timeout` is for all of them together.
pub fn lock_all(
    dir: &Root,
    names: &[RelPath],
    holder: &str,
    timeout: Duration,
    progress: &Progress<'_>,
) -> Result<Vec<LockGuard>> {
    let start = Instant::now();
    let mut names: Vec<&RelPath> = names.iter().collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|name| lock(dir, name, holder, timeout.saturating_sub(start.elapsed()), progress)).collect()
}

fn read_holder(file: &File) -> String {
    let mut buffer = [0; 1024];
    let n = file.read_at(&mut buffer, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&buffer[..n]);
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::to_owned);
    match (line("pid "), line("holder "), line("since ")) {
        (Some(pid), Some(holder), since) => {
            let since = since.map_or_else(String::new, |s| format!(", since unix time {s}"));
            format!("{holder} (pid {pid}{since})")
        }
        _ => "an unnamed process".to_owned(),
    }
}
