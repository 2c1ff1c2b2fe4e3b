//! Atomic publish: a name either has all of its proven bytes or does not exist.
//!
//! Files are built unnamed (`O_TMPFILE`) or, where that is missing, under a hidden locked name; their bytes are read
//! back and compared; then the name appears by `linkat`, which never overwrites, and the folder is made durable.

mod dir;
mod file;
mod names;
mod sweep;

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

pub use dir::{DirOutcome, HiddenDir};
pub use file::{OnExisting, PublishOutcome, Published, Reservation, TempFile, publish_bytes, read_back, replace_bytes};
pub(crate) use names::has_name;
pub use sweep::{Orphan, Sweep, sweep_orphans};

use crate::error::{Error, Result};
use crate::fault;
use crate::immutable::{Unlink, unlink};
use crate::path::{EntryKind, Root};
use crate::text::random_token;

/// Every temporary name of ours begins with this.
pub(crate) const TEMP_PREFIX: &str = ".b70-tmp-";

/// A fresh hidden name: 64 random bits.
pub(crate) fn temp_name() -> Result<OsString> {
    Ok(format!("{TEMP_PREFIX}{}", &random_token()?[..16]).into())
}

/// `fsync` whose failure is final: a second attempt after a failed one may succeed without having written anything.
pub(crate) fn fsync(fd: impl AsFd, path: &Path) -> Result<()> {
    fault::fsync_fault().map_err(|e| Error::io("fsync", path, e))?;
    loop {
        return match rustix::fs::fsync(&fd) {
            // Some file systems have no fsync for directories; there is nothing more to ask of them.
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(e) => Err(Error::write("fsync", path, 0, e)),
        };
    }
}

/// Removes `name` in `dir` with all that is in it; links are removed, not followed. Missing is fine.
pub(crate) fn remove_tree_at(dir: &Root, name: &OsStr) -> Result<()> {
    let path = dir.path().join(name);
    fault::step("remove.tree");
    match unlink(dir, name, dir.path()) {
        Ok(()) | Err(Unlink::System(Errno::NOENT)) => return Ok(()),
        Err(Unlink::System(Errno::ISDIR | Errno::PERM)) => {}
        Err(e) => return Err(e.error(&path)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(dir, name, flags, Mode::empty());
    let fd = match open() {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())
                .map_err(|e| Error::io("open the directory", &path, e))?;
            open()
        }
        other => other,
    }
    .map_err(|e| Error::io("open the directory", &path, e))?;
    // A published directory may be read-only; failing to change that shows in the removal itself.
    let _ = rustix::fs::fchmod(&fd, Mode::RWXU);
    let inner = Root::from_parts(fd, path.clone());
    for (entry, kind) in inner.raw_entries()? {
        if kind == EntryKind::Directory {
            remove_tree_at(&inner, &entry)?;
        } else {
            match unlink(&inner, &entry, &path) {
                Ok(()) | Err(Unlink::System(Errno::NOENT)) => {}
                Err(e) => return Err(e.error(&path.join(&entry))),
            }
        }
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(Error::io("remove", &path, e)),
    }
}
