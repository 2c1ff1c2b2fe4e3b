//! How a file gets its name, and what to make of one that has it already.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::digest::{Content, DigestKind, Source, hash_file};
use crate::error::{Error, Result};
use crate::fault;
use crate::identity::identity_of;
use crate::path::{RelPath, Root};
use crate::progress::Progress;

pub(super) fn proc_path(fd: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(super) fn link_unnamed(file: &File, dir: &Root, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::linkat(CWD, proc_path(file).as_str(), dir, name, AtFlags::SYMLINK_FOLLOW) {
        // /proc went away since the file was created; newer kernels link an open file directly.
        Err(Errno::NOENT) => rustix::fs::linkat(file, c"", dir, name, AtFlags::EMPTY_PATH),
        other => other,
    }
}

pub(super) fn rename_noreplace(dir: &Root, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, from, dir, to, rustix::fs::RenameFlags::NOREPLACE) {
        // No such rename here: link and unlink never replace either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(dir, from, dir, to, AtFlags::empty())?;
            fault::step("file.unlink-temp");
            rustix::fs::unlinkat(dir, from, AtFlags::empty())
        }
        other => other,
    }
}

/// Whether `name` in `dir` is the very file that `fd` is open on.
pub(crate) fn has_name(dir: &Root, name: &OsStr, fd: impl AsFd) -> Result<bool> {
    let path = dir.path().join(name);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named: OwnedFd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(Error::io("stat", path, e)),
    };
    Ok(identity_of(named, &path)?.same_file(&identity_of(fd, &path)?))
}

pub(super) enum Incumbent {
    Good(File),
    Damaged(String),
    Gone,
}

/// Compares the file that has the name with the content that should have it. Something else than a regular file is an
/// error: it is not ours to replace.
pub(super) fn incumbent(dir: &Root, name: &RelPath, content: &Content, progress: &Progress<'_>) -> Result<Incumbent> {
    fault::step("file.incumbent");
    let path = dir.join(name);
    let file = match dir.open_file(name) {
        Ok(file) => file,
        Err(Error::Missing { .. }) => return Ok(Incumbent::Gone),
        Err(e) => return Err(e),
    };
    let job = crate::digest::Job { source: Source::File(&file, &path), size: Some(content.size) };
    match hash_file(job, DigestKind::Blake3, &progress.silent()) {
        Ok(found) if found.blake3 == Some(content.blake3) => Ok(Incumbent::Good(file)),
        Ok(_) => Ok(Incumbent::Damaged("other bytes of the same length".to_owned())),
        Err(Error::Size { expected, found, .. }) => {
            Ok(Incumbent::Damaged(format!("{found} bytes instead of {expected}")))
        }
        Err(Error::ChangedWhileReading { what, .. }) => Ok(Incumbent::Damaged(what)),
        // A bad sector in the incumbent is damage, too.
        Err(Error::Io { action: "read", source, .. }) => Ok(Incumbent::Damaged(source.to_string())),
        Err(e) => Err(e),
    }
}
