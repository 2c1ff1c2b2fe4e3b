//! The immutable flag (chattr(1), `+i`): while it is set the kernel refuses every change of a file, root's too.
//!
//! Setting and clearing it needs `CAP_LINUX_IMMUTABLE` (root as a rule) and a file system that knows it: ext4, XFS, btrfs, and
//! tmpfs of newer kernels. Both are found out by trying, never assumed.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, IFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::path::Root;

/// Whether the kernel keeps an open file as it is, by `statx` (`STATX_ATTR_IMMUTABLE`). A handle opened with `O_PATH` will do.
pub fn is_immutable(fd: impl AsFd, path: &Path) -> Result<bool> {
    let stat =
        rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).map_err(|e| Error::io("stat", path, e))?;
    Ok(stat.stx_attributes.contains(StatxAttributes::IMMUTABLE))
}

/// Makes an open file immutable, and looks that it is. A file that is so already needs no right.
///
/// Errors: [`Error::Immutable`] where this process may not, or the file system does not know the flag.
pub fn make_immutable(fd: impl AsFd, path: &Path) -> Result<()> {
    if is_immutable(&fd, path)? {
        return Ok(());
    }
    let refused = |source: Errno| Error::Immutable { action: "make", path: path.to_path_buf(), source: source.into() };
    let flags = rustix::fs::ioctl_getflags(&fd).map_err(refused)?;
    rustix::fs::ioctl_setflags(&fd, flags | IFlags::IMMUTABLE).map_err(refused)?;
    if is_immutable(&fd, path)? { Ok(()) } else { Err(refused(Errno::NOTSUP)) }
}

/// Finds out whether files beneath `dir` can be made immutable by this process, on an unnamed file of its own.
///
/// Errors: [`Error::Immutable`] where they cannot.
pub fn probe_immutable(dir: &Root) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| Error::write("create a file in", dir.path(), 0, e))?;
    make_immutable(&file, dir.path())
}

/// Removes the file `name`, also one that is immutable, where this process may clear the flag.
pub(crate) fn unlink(dir: impl AsFd, name: &OsStr, folder: &Path) -> Result<(), Unlink> {
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Err(Errno::PERM) if clear(&dir, name, folder).map_err(Unlink::Immutable)? => {
            rustix::fs::unlinkat(&dir, name, AtFlags::empty()).map_err(Unlink::System)
        }
        other => other.map_err(Unlink::System),
    }
}

/// Why a file was not removed.
pub(crate) enum Unlink {
    /// It is immutable, and this process may not change that.
    Immutable(Error),
    /// Anything else.
    System(Errno),
}

impl Unlink {
    pub(crate) fn error(self, path: &Path) -> Error {
        match self {
            Self::Immutable(error) => error,
            Self::System(e) => Error::io("remove", path, e),
        }
    }
}

/// Clears the flag of the regular file `name`; false when it is not set, or `name` is something else.
pub(crate) fn clear(dir: impl AsFd, name: &OsStr, folder: &Path) -> Result<bool> {
    let path = folder.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(&dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let Ok(handle) = handle else { return Ok(false) };
    if !is_immutable(handle, &path)? {
        return Ok(false);
    }
    let refused = |source: Errno| Error::Immutable { action: "change", path: path.clone(), source: source.into() };
    let file = rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(refused)?;
    let flags = rustix::fs::ioctl_getflags(&file).map_err(refused)?;
    rustix::fs::ioctl_setflags(&file, flags - IFlags::IMMUTABLE).map_err(refused)?;
    Ok(true)
}
