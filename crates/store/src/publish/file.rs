//! Publishing one file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::names::{Incumbent, has_name, incumbent, link_unnamed, proc_path, rename_noreplace};
use super::{fsync, temp_name};
use crate::digest::{
    BUFFER, Blake3, Content, DigestKind, Digests, Hasher, Job, LANE_BUFFER, Opened, Reader, Sha256, Source, hash_file,
};
use crate::error::{Error, Result};
use crate::fault;
use crate::immutable::clear;
use crate::lock::{Attempt, try_flock};
use crate::path::{EntryKind, RelPath, Root};
use crate::progress::Progress;
use crate::streams::{Sha256Streams, StreamKernel};

/// What to do when the name to publish is taken. Nothing is ever overwritten in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnExisting {
    /// [`Error::Exists`].
    Fail,
    /// Verify the incumbent byte for byte: return it when good, [`Error::Damaged`] when not.
    KeepIfVerified,
    /// Verify the incumbent: return it when good; replace it by rename when not, and say so ([`PublishOutcome::Repaired`]).
    ReplaceDamaged,
}

/// How a publish ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PublishOutcome {
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
    pub outcome: PublishOutcome,
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
enum Place {
    /// `O_TMPFILE`: no name, gone with the process.
    Unnamed,
    /// A hidden name, locked through the reading handle so that a sweep recognises orphans by a free lock.
    Named(OsString),
}

/// A file on its way to its name: written, closed, proven, durable, named. Dropping it before leaves nothing behind.
///
/// [`commit`](TempFile::commit) goes all the way. For many files at once the steps can be taken one by one, by different
/// threads: [`close`](TempFile::close), [`read_back`], [`sync`](TempFile::sync), and `commit` for the rest.
#[derive(Debug)]
pub struct TempFile {
    dir: Root,
    place: Place,
    mode: u32,
    /// Gone when the file is closed: from then on nobody can write to it.
    writer: Option<File>,
    reader: File,
    /// Hashes what the kernel accepted, as long as it came in order.
    hasher: Option<Hasher>,
    /// What was written, known when the file is closed and was written in order.
    written: Digests,
    /// What the file was found to hold.
    content: Option<Content>,
    durable: bool,
    sequential: u64,
    end: u64,
    reserved: u64,
}

impl TempFile {
    /// Starts a file in `dir` that will have the permission bits `mode`, whatever the umask; until it is closed they are 0600.
    pub fn create(dir: &Root, mode: u32) -> Result<Self> {
        fault::step("file.create");
        let dir = dir.try_clone()?;
        let (place, writer, reader) = match Self::create_unnamed(&dir)? {
            Some((writer, reader)) => (Place::Unnamed, writer, reader),
            None => Self::create_named(&dir)?,
        };
        Ok(Self {
            dir,
            place,
            mode,
            writer: Some(writer),
            reader,
            hasher: Some(Hasher::new(DigestKind::Both)),
            written: Digests::default(),
            content: None,
            durable: false,
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
            let name = temp_name()?;
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

    fn shown(&self) -> PathBuf {
        match &self.place {
            Place::Unnamed => self.dir.path().join("(unnamed temporary file)"),
            Place::Named(name) => self.dir.path().join(name),
        }
    }

    fn writer(&self) -> &File {
        self.writer.as_ref().expect("nothing is written to a closed file")
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

    /// Copies `len` bytes of `source` from its start: read, hash, write, 1 MiB at a time.
    /// Fewer bytes, or more, are [`Error::ChangedWhileReading`].
    pub fn copy_from(&mut self, source: &File, shown: &Path, len: u64, progress: &Progress<'_>) -> Result<()> {
        // Advice only.
        let _ = rustix::fs::fadvise(source, 0, None, rustix::fs::Advice::Sequential);
        let mut buffer = vec![0; BUFFER];
        let mut reader = Reader::new(Opened::Borrowed(source));
        loop {
            progress.check()?;
            let n = reader.advance(&mut buffer).map_err(|e| Error::io("read", shown, e))?;
            if n == 0 || reader.done() > len {
                break;
            }
            self.write_all(reader.bytes(&buffer))?;
            progress.add(n as u64);
        }
        let found = reader.done();
        if found == len {
            return Ok(());
        }
        Err(Error::ChangedWhileReading {
            path: shown.to_path_buf(),
            what: format!("expected {len} bytes, read {}{found}", if found > len { "at least " } else { "" }),
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

    /// Digests of what was written in order, known when the file is closed; none after a positioned write.
    pub fn written(&self) -> Digests {
        self.written
    }

    /// Ends the writing for good: exact length, mode, and the writing handle is closed.
    pub fn close(&mut self) -> Result<()> {
        self.close_as(&self.shown())
    }

    /// `path` is the one to name in errors.
    fn close_as(&mut self, path: &Path) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        fault::step("file.truncate");
        if self.reserved > self.end {
            rustix::fs::ftruncate(&writer, self.end).map_err(|e| Error::io("truncate", path, e))?;
        }
        fault::step("file.chmod");
        rustix::fs::fchmod(&writer, Mode::from_raw_mode(self.mode))
            .map_err(|e| Error::io("set the mode of", path, e))?;
        self.written = self.hasher.take().map_or_else(Digests::default, Hasher::finish);
        Ok(())
    }

    /// What the file was found to hold; `None` before it was read back.
    pub fn content(&self) -> Option<Content> {
        self.content
    }

    /// Asks the system to begin writing to the disk, without waiting for it.
    pub fn start_writeback(&self) {
        crate::sys::start_writeback(self.reader.as_fd());
    }

    /// Waits until the bytes of a closed file are on the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.sync_as(&self.shown())
    }

    fn sync_as(&mut self, path: &Path) -> Result<()> {
        if !self.durable {
            fault::step("file.fsync");
            fsync(&self.reader, path)?;
            self.durable = true;
        }
        Ok(())
    }

    /// SHA-256 will come from reading the file back: only BLAKE3 is computed while writing. Call before the first byte.
    pub fn without_sha256(&mut self) {
        if self.end == 0 {
            self.hasher = Some(Hasher::new(DigestKind::Blake3));
        }
    }

    /// Publishes the file as `name` (one component).
    ///
    /// Steps, but for those that were taken already: the file is closed; its bytes are made durable; they are read back through
    /// the reading handle and must have the digest of what was written; the name appears by `linkat`; the folder is fsynced.
    /// `expected`, if given, must be the SHA-256 of the bytes, or nothing is published ([`Error::Sha256`]).
    pub fn commit(
        mut self,
        name: &RelPath,
        on_existing: OnExisting,
        expected: Option<Sha256>,
        progress: &Progress<'_>,
    ) -> Result<Published> {
        let content = self.seal(name, expected, progress)?;
        self.name(name, on_existing, content, progress)
    }

    /// Makes a closed file durable and gives it a name in a folder that nobody sees yet. What it holds is proved, and the folder
    /// made durable, by the caller: see [`stage`](crate::stage()).
    pub(crate) fn place(mut self, name: &OsStr) -> Result<()> {
        self.sync_as(&self.dir.path().join(name))?;
        fault::step("file.link");
        self.link(name)
    }

    /// Everything of a commit before the name.
    fn seal(&mut self, name: &RelPath, expected: Option<Sha256>, progress: &Progress<'_>) -> Result<Content> {
        name.single()?;
        let path = self.dir.join(name);
        self.close_as(&path)?;
        // Refuse wrong content before spending a read-back on it.
        check_expected(&path, expected, self.written.sha256)?;
        progress.check()?;
        self.sync_as(&path)?;
        let content = match self.content {
            Some(content) => content,
            None => self.prove(&path, progress)?,
        };
        check_expected(&path, expected, Some(content.sha256))?;
        Ok(content)
    }

    /// Reads the file back.
    fn prove(&self, path: &Path, progress: &Progress<'_>) -> Result<Content> {
        fault::step("file.read-back");
        let what = if self.written.sha256.is_some() { DigestKind::Blake3 } else { DigestKind::Both };
        let job = Job { source: Source::File(&self.reader, path), size: Some(self.end) };
        let found = hash_file(job, what, &progress.silent())?;
        let blake3 = found.blake3.expect("both passes compute BLAKE3");
        if let Some(expected) = self.written.blake3.filter(|written| *written != blake3) {
            return Err(Error::ReadBack { path: path.to_path_buf(), expected, found: blake3 });
        }
        let sha256 = self.written.sha256.or(found.sha256).expect("what was not hashed while written is hashed now");
        Ok(Content { sha256, blake3, size: found.size })
    }

    /// Gives finished and proven content its name.
    fn name(
        mut self,
        name: &RelPath,
        on_existing: OnExisting,
        content: Content,
        progress: &Progress<'_>,
    ) -> Result<Published> {
        let path = self.dir.join(name);
        fault::step("file.link");
        match self.link(name.single()?) {
            Ok(()) => {
                fault::step("file.linked");
                return self.published(path, PublishOutcome::Created, content);
            }
            Err(Error::Exists { .. }) if on_existing != OnExisting::Fail => {}
            Err(e) => return Err(e),
        }
        match incumbent(&self.dir, name, &content, progress)? {
            Incumbent::Good(file) => {
                // The incumbent may have been linked an instant ago by a process that has not reached its fsync.
                fsync(&file, &path)?;
                self.dir.sync()?;
                Ok(Published { path, outcome: PublishOutcome::Kept, content, file })
            }
            Incumbent::Damaged(what) if on_existing == OnExisting::KeepIfVerified => Err(Error::Damaged { path, what }),
            Incumbent::Damaged(_) | Incumbent::Gone => {
                self.rename_over(name.single()?)?;
                self.published(path, PublishOutcome::Repaired, content)
            }
        }
    }

    fn published(&self, path: PathBuf, outcome: PublishOutcome, content: Content) -> Result<Published> {
        fault::step("file.fsync-dir");
        self.dir.sync()?;
        let file = self.reader.try_clone().map_err(|e| Error::io("duplicate the handle of", &path, e))?;
        // The lock was for the sweep, and the file is no longer temporary.
        if matches!(self.place, Place::Named(_)) {
            let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
        }
        Ok(Published { path, outcome, content, file })
    }

    /// Gives the file its name without ever replacing another.
    fn link(&mut self, name: &OsStr) -> Result<()> {
        let path = self.dir.path().join(name);
        let linked = match &self.place {
            Place::Unnamed => link_unnamed(&self.reader, &self.dir, name),
            Place::Named(temp) => {
                self.check_temp_name(temp)?;
                rename_noreplace(&self.dir, temp, name)
            }
        };
        match linked {
            Ok(()) => {
                if let Place::Named(temp) = &mut self.place {
                    // No longer ours to remove on drop.
                    *temp = OsString::new();
                }
                Ok(())
            }
            Err(Errno::EXIST) => Err(Error::Exists { path }),
            Err(e) => Err(Error::write("publish", path, self.end, e)),
        }
    }

    /// Replaces whatever has this name by rename.
    fn rename_over(&mut self, name: &OsStr) -> Result<()> {
        if matches!(self.place, Place::Unnamed) {
            // A rename needs a name to start from; locked first, so that no sweep takes it for an orphan.
            let _ = try_flock(&self.reader, true).map_err(|e| Error::io("lock", self.shown(), e))?;
            let temp = temp_name()?;
            fault::step("file.link-temp");
            link_unnamed(&self.reader, &self.dir, &temp)
                .map_err(|e| Error::write("name a temporary file in", self.dir.path(), self.end, e))?;
            self.place = Place::Named(temp);
        }
        let Place::Named(temp) = &mut self.place else { unreachable!("named above") };
        let temp = std::mem::take(temp);
        fault::step("file.rename");
        let renamed = if has_name(&self.dir, &temp, &self.reader)? {
            let rename = || rustix::fs::renameat(&self.dir, temp.as_os_str(), &self.dir, name);
            let renamed = match rename() {
                Err(Errno::PERM) => match clear(&self.dir, name, self.dir.path()) {
                    Ok(true) => Ok(rename()),
                    Ok(false) => Ok(Err(Errno::PERM)),
                    Err(refused) => Err(refused),
                },
                other => Ok(other),
            };
            renamed.and_then(|done| done.map_err(|e| Error::write("replace", self.dir.path().join(name), self.end, e)))
        } else {
            Err(Error::TempVanished { path: self.dir.path().join(&temp) })
        };
        if renamed.is_err() {
            self.place = Place::Named(temp);
        }
        fault::step("file.renamed");
        renamed
    }

    /// The hidden name must still be this very file: someone may have removed or replaced it.
    fn check_temp_name(&self, temp: &OsStr) -> Result<()> {
        if has_name(&self.dir, temp, &self.reader)? {
            Ok(())
        } else {
            Err(Error::TempVanished { path: self.dir.path().join(temp) })
        }
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

fn check_expected(path: &Path, expected: Option<Sha256>, found: Option<Sha256>) -> Result<()> {
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
    let mut temp = TempFile::create(dir, mode)?;
    temp.reserve(bytes.len() as u64)?;
    temp.write_all(bytes)?;
    temp.commit(name, on_existing, None, &Progress::NONE)
}

/// Puts `bytes` under `name` by rename, whatever was there: for small documents such as manifests and receipts, which
/// change. A reader sees the old document or the new one, never a mixture.
///
/// [`PublishOutcome::Created`] or [`PublishOutcome::Repaired`] tells whether the name was free.
pub fn replace_bytes(dir: &Root, name: &RelPath, bytes: &[u8], mode: u32) -> Result<Published> {
    let mut temp = TempFile::create(dir, mode)?;
    temp.reserve(bytes.len() as u64)?;
    temp.write_all(bytes)?;
    let path = dir.join(name);
    let content = temp.seal(name, None, &Progress::NONE)?;
    fault::step("file.link");
    match temp.link(name.single()?) {
        Ok(()) => temp.published(path, PublishOutcome::Created, content),
        Err(Error::Exists { .. }) => {
            if let Some(found) = dir.try_stat(name)?.map(|found| EntryKind::from_mode(found.mode))
                && found != EntryKind::File
            {
                return Err(Error::Kind { path, found: found.name(), expected: "regular file" });
            }
            temp.rename_over(name.single()?)?;
            temp.published(path, PublishOutcome::Repaired, content)
        }
        Err(e) => Err(e),
    }
}

/// Reads closed files back, all of them side by side, and proves that each holds what was written to it: its BLAKE3 must be that of
/// the written bytes ([`Error::ReadBack`]). Its SHA-256 is that of the bytes in the file.
///
/// Errors: [`Error::ReadBack`]; [`Error::Size`] for a file that has fewer bytes than it should; [`Error::Io`];
/// [`Error::Cancelled`].
pub fn read_back(files: &mut [&mut TempFile], kernel: StreamKernel, progress: &Progress<'_>) -> Result<()> {
    fault::step("file.read-back");
    let mut lanes = Sha256Streams::new(files.len(), kernel);
    let mut blake3: Vec<_> = files.iter().map(|_| blake3::Hasher::new()).collect();
    let mut readers: Vec<Reader<'_>> = files.iter().map(|file| Reader::new(Opened::Borrowed(&file.reader))).collect();
    let mut buffer = vec![0; readers.len() * LANE_BUFFER];
    loop {
        progress.check()?;
        let mut bytes = 0;
        for (i, (reader, buffer)) in readers.iter_mut().zip(buffer.chunks_exact_mut(LANE_BUFFER)).enumerate() {
            bytes += reader.advance(buffer).map_err(|e| Error::io("read", files[i].shown(), e))?;
            blake3[i].update(reader.bytes(buffer));
        }
        let slices: Vec<&[u8]> =
            readers.iter().zip(buffer.chunks_exact(LANE_BUFFER)).map(|(reader, buffer)| reader.bytes(buffer)).collect();
        if bytes == 0 {
            break;
        }
        lanes.update(&slices);
    }
    let sizes: Vec<u64> = readers.iter().map(Reader::done).collect();
    drop(readers);
    for (i, file) in files.iter_mut().enumerate() {
        let path = file.shown();
        let size = sizes[i];
        if size != file.len() {
            return Err(Error::Size { path, expected: file.len(), found: size });
        }
        let found = Blake3(*blake3[i].finalize().as_bytes());
        if let Some(expected) = file.written.blake3.filter(|written| *written != found) {
            return Err(Error::ReadBack { path, expected, found });
        }
        file.content = Some(Content { sha256: lanes.take(i), blake3: found, size });
    }
    Ok(())
}
