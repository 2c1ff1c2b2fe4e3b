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
///
/// Whatever its depth this holds three directories open, and takes no stack for it.
pub(crate) fn remove_tree_at(dir: &Root, name: &OsStr) -> Result<()> {
    let path = dir.path().join(name);
    fault::step("remove.tree");
    match unlink(dir, name, dir.path()) {
        Ok(()) | Err(Unlink::System(Errno::NOENT)) => return Ok(()),
        Err(Unlink::System(Errno::ISDIR | Errno::PERM)) => {}
        Err(e) => return Err(e.error(&path)),
    }
    let (mut current, inode) = open_level(dir, name, &path)?;
    let mut levels = vec![Level { name: name.to_os_string(), inode, folders: empty_of_files(&current)? }];
    while let Some(level) = levels.last_mut() {
        if let Some(folder) = level.folders.pop() {
            let (inner, inode) = open_level(&current, &folder, &path)?;
            current = inner;
            levels.push(Level { name: folder, inode, folders: empty_of_files(&current)? });
            continue;
        }
        let Some(Level { name: emptied, .. }) = levels.pop() else { break };
        let removed = match levels.last() {
            None => rustix::fs::unlinkat(dir, emptied.as_os_str(), AtFlags::REMOVEDIR),
            Some(above) => {
                let (parent, inode) = open_level(&current, OsStr::new(".."), &path)?;
                if inode != above.inode {
                    return Err(Error::ChangedWhileReading { path, what: "a folder in it was moved".to_owned() });
                }
                current = parent;
                rustix::fs::unlinkat(&current, emptied.as_os_str(), AtFlags::REMOVEDIR)
            }
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(Error::io("remove", &path, e)),
        }
    }
    Ok(())
}

/// A folder on the way down, and those in it that are still to be removed.
struct Level {
    name: OsString,
    inode: (u64, u64),
    folders: Vec<OsString>,
}

/// Opens a folder that is to be emptied, and says which one it is. `path` is the one to name in errors.
fn open_level(dir: &Root, name: &OsStr, path: &Path) -> Result<(Root, (u64, u64))> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(dir, name, flags, Mode::empty());
    let error = |e| Error::io("open the directory", path, e);
    let fd = match open() {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty()).map_err(error)?;
            open()
        }
        other => other,
    }
    .map_err(error)?;
    // A published directory may be read-only; failing to change that shows in the removal itself.
    let _ = rustix::fs::fchmod(&fd, Mode::RWXU);
    let stat = rustix::fs::fstat(&fd).map_err(error)?;
    Ok((Root::from_parts(fd, path.to_path_buf()), (stat.st_dev, stat.st_ino)))
}

/// Removes everything in a folder but folders, whose names it returns.
fn empty_of_files(folder: &Root) -> Result<Vec<OsString>> {
    let mut folders = Vec::new();
    for (entry, kind) in folder.raw_entries()? {
        if kind == EntryKind::Directory {
            folders.push(entry);
            continue;
        }
        match unlink(folder, &entry, folder.path()) {
            Ok(()) | Err(Unlink::System(Errno::NOENT)) => {}
            Err(e) => return Err(e.error(&folder.path().join(&entry))),
        }
    }
    Ok(folders)
}
