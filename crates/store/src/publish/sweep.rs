//! Removing what killed processes left behind.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::names::has_name;
use super::{TEMP_PREFIX, remove_tree_at};
use crate::error::{Error, Result};
use crate::lock::{Attempt, try_flock};
use crate::path::{EntryKind, Root};

/// A hidden temporary of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Its path.
    pub path: PathBuf,
    /// Why it was left in place; `None` when it was removed.
    pub kept_because: Option<&'static str>,
}

/// What a sweep found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Each temporary of ours, removed or kept.
    pub found: Vec<Orphan>,
}

impl Sweep {
    /// How many were removed.
    pub fn removed(&self) -> usize {
        self.found.iter().filter(|o| o.kept_because.is_none()).count()
    }
}

/// Removes the temporaries of ours in `dir` (not below it) whose makers are dead, which is known by their free lock,
/// never by age or process id. Where locks do not exclude or do not exist, nothing is removed and each one is reported.
pub fn sweep_orphans(dir: &Root) -> Result<Sweep> {
    let mut sweep = Sweep::default();
    let candidates: Vec<_> = dir
        .raw_entries()?
        .into_iter()
        .filter(|(name, kind)| {
            name.as_bytes().starts_with(TEMP_PREFIX.as_bytes())
                && matches!(kind, EntryKind::File | EntryKind::Directory)
        })
        .collect();
    if candidates.is_empty() {
        return Ok(sweep);
    }
    let honest = locks_exclude(dir)?;
    for (name, _) in candidates {
        let path = dir.path().join(&name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let kept_because = match rustix::fs::openat(dir, name.as_os_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            Err(_) => Some("it cannot be opened"),
            Ok(_) if !honest => Some("locks do not exclude on this file system"),
            Ok(fd) => match try_flock(&fd, true).map_err(|e| Error::io("lock", &path, e))? {
                Attempt::Busy => Some("its maker is alive"),
                Attempt::Unsupported => Some("this file system has no locks"),
                // Held while it is removed, so that a maker who has not locked yet notices and takes another name.
                Attempt::Got if has_name(dir, &name, &fd)? => match remove_tree_at(dir, &name) {
                    Err(Error::Immutable { .. }) => Some("a file of it is immutable, which only root can change"),
                    removed => removed.map(|()| None)?,
                },
                Attempt::Got => continue,
            },
        };
        sweep.found.push(Orphan { path, kept_because });
    }
    if sweep.removed() > 0 {
        dir.sync()?;
    }
    Ok(sweep)
}

/// Whether a second handle on a locked directory is refused, as it must be.
fn locks_exclude(dir: &Root) -> Result<bool> {
    let reopen = || {
        rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::io("open the directory", dir.path(), e))
    };
    let error = |e| Error::io("lock", dir.path(), e);
    let (first, second) = (reopen()?, reopen()?);
    match try_flock(&first, true).map_err(error)? {
        // Another sweep is at the same probe: that its lock excludes ours is the proof.
        Attempt::Busy => Ok(true),
        Attempt::Unsupported => Ok(false),
        Attempt::Got => Ok(try_flock(&second, true).map_err(error)? == Attempt::Busy),
    }
}
