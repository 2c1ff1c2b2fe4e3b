//! Publishing one file.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::names::{has_name, proc_path};
use super::{ClosedFile, fsync, temp_name};
use crate::digest::{BUFFER, Content, Hasher, Sha256, Source, What, hash_file};
use crate::error::{Error, Result};
use crate::fault;
use crate::lock::{Attempt, try_flock};
use crate::path::{RelPath, Root};
use crate::progress::Progress;

/// What to do when the name to publish is taken. Nothing is ever overwritten in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnExisting {
    /// [`Error::Exists`].
    Fail,
    /// Verify the incumbent byte for byte: return it when good, [`Error::Damaged`] when not.
    KeepIfVerified,
    /// Verify the incumbent: return it when good; replace it by rename when not, and say so ([`Outcome::Repaired`]).
    ReplaceDamaged,
}

/// How a publish ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The name is new.
    Created,
    /// The incumbent was verified and kept.
    Kept,
    /// The incumbent was damaged and has been replaced.
    Repaired,
}

/// A published file.
#[derive(Debug)]
pub struct Published {
    /// Its full path.
    pub path: PathBuf,
    /// How the publish ended.
    pub outcome: Outcome,
    /// Its digests and size, proven on the bytes that are in the file.
    pub content: Content,
    /// A read-only handle on it.
    pub file: File,
}

/// Whether [`TempFile::reserve`] got the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reservation {
    /// The blocks are ours.
    Reserved,
    /// The file system cannot reserve; space is checked write by write.
    Unsupported,
}

#[derive(Debug)]
pub(super) enum Place {
    /// `O_TMPFILE`: no name, gone with the process.
    Unnamed,
    /// A hidden name, locked through the reading handle so that a sweep recognises orphans by a free lock.
    Named(OsString),
}

/// A file under construction. Dropping it without [`commit`](TempFile::commit) leaves nothing behind.
#[derive(Debug)]
pub struct TempFile {
    pub(super) dir: Root,
    pub(super) place: Place,
    writer: Option<File>,
    pub(super) reader: File,
    /// Hashes what the kernel accepted, as long as it came in order.
    hasher: Option<Hasher>,
    sequential: u64,
    pub(super) end: u64,
    reserved: u64,
}

impl TempFile {
    /// Starts a file in `dir`, mode 0600 until it is published.
    pub fn create(dir: &Root) -> Result<Self> {
        fault::step("file.create");
        let dir = dir.try_clone()?;
        let (place, writer, reader) = match Self::create_unnamed(&dir)? {
            Some((writer, reader)) => (Place::Unnamed, writer, reader),
            None => Self::create_named(&dir)?,
        };
        Ok(Self {
            dir,
            place,
            writer: Some(writer),
            reader,
            hasher: Some(Hasher::new(What::Both)),
            sequential: 0,
            end: 0,
            reserved: 0,
        })
    }

    fn create_unnamed(dir: &Root) -> Result<Option<(File, File)>> {
        if fault::no_tmpfile() {
            return Ok(None);
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let writer = match rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => File::from(fd),
            // A file system without it says EOPNOTSUPP, an old kernel EISDIR.
            Err(Errno::NOTSUP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(e) => return Err(Error::write("create a file in", dir.path(), 0, e)),
        };
        // Reopening through /proc is also what linkat needs later: without /proc, take a name at once.
        match rustix::fs::open(proc_path(&writer).as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(reader) => Ok(Some((writer, File::from(reader)))),
            Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
            Err(e) => Err(Error::io("reopen a file in", dir.path(), e)),
        }
    }

    fn create_named(dir: &Root) -> Result<(Place, File, File)> {
        for _ in 0..16 {
            let name = temp_name(dir.path())?;
            let path = dir.path().join(&name);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let writer = match rustix::fs::openat(dir, name.as_os_str(), flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => File::from(fd),
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(Error::write("create", &path, 0, e)),
            };
            fault::step("file.create-named");
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let reader = match rustix::fs::openat(dir, name.as_os_str(), flags, Mode::empty()) {
                Ok(fd) => File::from(fd),
                // A sweep came between creation and lock: take another name.
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(Error::io("reopen", &path, e)),
            };
            match try_flock(&reader, true).map_err(|e| Error::io("lock", &path, e))? {
                Attempt::Busy => continue,
                Attempt::Got | Attempt::Unsupported => {}
            }
            if has_name(dir, &name, &reader)? {
                return Ok((Place::Named(name), writer, reader));
            }
        }
        Err(Error::io("create a temporary file in", dir.path(), io::Error::other("16 names were taken")))
    }

    /// Whether the file has no name yet (`O_TMPFILE`), so that even SIGKILL leaves nothing behind.
    pub fn is_unnamed(&self) -> bool {
        matches!(self.place, Place::Unnamed)
    }

    /// The handle for reading.
    pub(super) fn reader(&self) -> &File {
        &self.reader
    }

    pub(super) fn shown(&self) -> PathBuf {
        match &self.place {
            Place::Unnamed => self.dir.path().join("(unnamed temporary file)"),
            Place::Named(name) => self.dir.path().join(name),
        }
    }

    fn writer(&self) -> &File {
        self.writer.as_ref().expect("the writer lives until commit, which consumes the file")
    }

    /// Reserves `len` bytes, so that a full target is found before anything is copied. On a file system that refuses,
    /// nothing stays allocated.
    pub fn reserve(&mut self, len: u64) -> Result<Reservation> {
        fault::step("file.reserve");
        if len == 0 {
            return Ok(Reservation::Reserved);
        }
        loop {
            return match rustix::fs::fallocate(self.writer(), FallocateFlags::empty(), 0, len) {
                Ok(()) => {
                    self.reserved = len;
                    Ok(Reservation::Reserved)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::NOTSUP | Errno::NOSYS) => Ok(Reservation::Unsupported),
                Err(e) => Err(Error::write("reserve space in", self.dir.path(), len, e)),
            };
        }
    }

    /// Appends `bytes` to what was written in order, hashing exactly what the kernel accepted.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            // A part at a time, so that the digests find in the cache what was just written.
            let n = self.write_once(&rest[..rest.len().min(BUFFER)], self.sequential)?;
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&rest[..n]);
            }
            self.sequential += n as u64;
            rest = &rest[n..];
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`, in any order. The digests are then taken from the file itself at
    /// [`commit`](TempFile::commit), in one pass of both.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.hasher = None;
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_once(&bytes[done..], offset + done as u64)?;
        }
        self.sequential = self.sequential.max(offset + done as u64);
        Ok(())
    }

    fn write_once(&mut self, bytes: &[u8], offset: u64) -> Result<usize> {
        fault::step("file.write");
        let path = || self.shown();
        let limit =
            fault::write_limit(bytes.len()).map_err(|e| Error::write("write", path(), bytes.len() as u64, e))?;
        loop {
            match self.writer().write_at(&bytes[..limit], offset) {
                Ok(0) => {
                    let source = io::Error::new(io::ErrorKind::WriteZero, "the system accepted no byte");
                    return Err(Error::io("write", path(), source));
                }
                Ok(n) => {
                    self.end = self.end.max(offset + n as u64);
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::write("write", path(), bytes.len() as u64, e)),
            }
        }
    }

    /// Copies `len` bytes of `source` from its start: read, hash, write, 1 MiB at a time. Fewer bytes, or more, are
    /// [`Error::ChangedWhileReading`].
    pub fn copy_from(
        &mut self,
        source: &File,
        shown: &std::path::Path,
        len: u64,
        progress: &Progress<'_>,
    ) -> Result<()> {
        // Advice only.
        let _ = rustix::fs::fadvise(source, 0, None, rustix::fs::Advice::Sequential);
        let mut buffer = vec![0; BUFFER];
        let mut offset = 0;
        loop {
            progress.check()?;
            let n = crate::digest::pread(source, &mut buffer, offset).map_err(|e| Error::io("read", shown, e))?;
            if n == 0 {
                break;
            }
            offset += n as u64;
            if offset > len {
                break;
            }
            self.write_all(&buffer[..n])?;
            progress.add(n as u64);
        }
        if offset == len {
            return Ok(());
        }
        Err(Error::ChangedWhileReading {
            path: shown.to_path_buf(),
            what: format!("expected {len} bytes, read {}{offset}", if offset > len { "at least " } else { "" }),
        })
    }

    /// Bytes from the start to the last one written.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// SHA-256 of what was written in order so far; `None` after a positioned write.
    pub fn sha256_so_far(&self) -> Option<Sha256> {
        self.hasher.clone().and_then(|h| h.finish().sha256)
    }

    /// Ends the writing for good: exact length, mode, and the writing handle is closed. What follows, reading back, fsync and
    /// name, is [`ClosedFile`]'s; for many files at once that costs less than [`commit`](TempFile::commit) for each.
    pub fn close(mut self, mode: u32) -> Result<ClosedFile> {
        self.end_writing(&self.shown(), mode)?;
        drop(self.writer.take());
        let written = self.hasher.take().and_then(|h| h.finish().blake3);
        Ok(ClosedFile::new(self, written))
    }

    /// SHA-256 will come from reading the file back: only BLAKE3 is computed while writing. Call before the first byte.
    pub fn without_sha256(&mut self) {
        if self.end == 0 {
            self.hasher = Some(Hasher::new(What::Blake3));
        }
    }

    fn end_writing(&self, path: &std::path::Path, mode: u32) -> Result<()> {
        fault::step("file.truncate");
        if self.reserved > self.end {
            rustix::fs::ftruncate(self.writer(), self.end).map_err(|e| Error::io("truncate", path, e))?;
        }
        fault::step("file.chmod");
        rustix::fs::fchmod(self.writer(), Mode::from_raw_mode(mode)).map_err(|e| Error::io("set the mode of", path, e))
    }

    /// Publishes the file as `name` (one component) with permission bits `mode`, whatever the umask.
    ///
    /// Steps: exact length, mode, fsync; the writing handle is closed; the bytes are read back through the reading
    /// handle and must have the digest of what was written; the name appears by `linkat`; the folder is fsynced.
    /// `expected`, if given, must be the SHA-256 of the bytes, or nothing is published ([`Error::Sha256`]).
    pub fn commit(
        mut self,
        name: &RelPath,
        mode: u32,
        on_existing: OnExisting,
        expected: Option<Sha256>,
        progress: &Progress<'_>,
    ) -> Result<Published> {
        let content = self.seal(name, mode, expected, progress)?;
        self.name(name, on_existing, content, progress)
    }

    /// Everything of a commit before the name: length, mode, fsync, read-back.
    fn seal(
        &mut self,
        name: &RelPath,
        mode: u32,
        expected: Option<Sha256>,
        progress: &Progress<'_>,
    ) -> Result<Content> {
        name.single()?;
        let path = self.dir.join(name);
        let written = self.hasher.take().and_then(|h| h.finish().content());
        // Refuse wrong content before spending a read-back on it.
        check_expected(&path, expected, written.map(|c| c.sha256))?;
        progress.check()?;
        self.end_writing(&path, mode)?;
        fault::step("file.fsync");
        fsync(self.writer(), &path)?;
        // From here on nothing can write: the only writable handle is gone.
        drop(self.writer.take());
        fault::step("file.read-back");
        let what = if written.is_some() { What::Blake3 } else { What::Both };
        let source = crate::digest::Job { source: Source::File(&self.reader, &path), size: Some(self.end) };
        let found = hash_file(source, what, &progress.silent())?;
        let blake3 = found.blake3.expect("both passes compute BLAKE3");
        let content = match (written, found.sha256) {
            (Some(written), _) if written.blake3 == blake3 => written,
            (Some(written), _) => return Err(Error::ReadBack { path, expected: written.blake3, found: blake3 }),
            (None, sha256) => {
                Content { sha256: sha256.expect("a pass of both computes SHA-256"), blake3, size: found.size }
            }
        };
        check_expected(&path, expected, Some(content.sha256))?;
        Ok(content)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Place::Named(temp) = &self.place
            && !temp.is_empty()
            && has_name(&self.dir, temp, &self.reader).unwrap_or(false)
        {
            let _ = rustix::fs::unlinkat(&self.dir, temp.as_os_str(), AtFlags::empty());
        }
    }
}

fn check_expected(path: &std::path::Path, expected: Option<Sha256>, found: Option<Sha256>) -> Result<()> {
    match (expected, found) {
        (Some(expected), Some(found)) if expected != found => {
            Err(Error::Sha256 { path: path.to_path_buf(), expected, found })
        }
        _ => Ok(()),
    }
}

/// Publishes `bytes` as `name` in `dir`. See [`TempFile::commit`].
pub fn publish_bytes(
    dir: &Root,
    name: &RelPath,
    bytes: &[u8],
    mode: u32,
    on_existing: OnExisting,
) -> Result<Published> {
    let mut temp = TempFile::create(dir)?;
    temp.reserve(bytes.len() as u64)?;
    temp.write_all(bytes)?;
    temp.commit(name, mode, on_existing, None, &Progress::NONE)
}

/// Puts `bytes` under `name` by rename, whatever was there: for small documents such as manifests and receipts, which
/// change. A reader sees the old document or the new one, never a mixture.
///
/// [`Outcome::Created`] or [`Outcome::Repaired`] tells whether the name was free.
pub fn replace_bytes(dir: &Root, name: &RelPath, bytes: &[u8], mode: u32) -> Result<Published> {
    let mut temp = TempFile::create(dir)?;
    temp.reserve(bytes.len() as u64)?;
    temp.write_all(bytes)?;
    let path = dir.join(name);
    let content = temp.seal(name, mode, None, &Progress::NONE)?;
    fault::step("file.link");
    match temp.link(name.single()?) {
        Ok(()) => temp.published(path, Outcome::Created, content),
        Err(Error::Exists { .. }) => {
            if let Some(found) = dir.try_stat(name)?
                && found.kind() != crate::path::EntryKind::File
            {
                return Err(Error::Kind { path, found: found.kind().name(), expected: "regular file" });
            }
            temp.rename_over(name.single()?)?;
            temp.published(path, Outcome::Repaired, content)
        }
        Err(e) => Err(e),
    }
}
