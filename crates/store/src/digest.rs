//! One digest engine: SHA-256 for identity, BLAKE3 for fast re-checks, both from one pass when both are wanted.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::error::{Error, Result};
use crate::path::{RelPath, Root};
use crate::progress::Progress;
use crate::receipt::ReceiptFile;

/// Bytes of one read: large enough to hide the call, small enough to stay in the second-level cache.
pub(crate) const BUFFER: usize = 1 << 20;

/// Bytes of a stream that are taken at a time where several streams share a core: sixteen of them stay in the second-level
/// cache.
pub(crate) const LANE_BUFFER: usize = 64 << 10;

/// A SHA-256 digest (FIPS 180-4): the identity of bytes.
pub use b70_manifest::Sha256Hex as Sha256;

/// A BLAKE3 digest (32 bytes): the fast re-check of bytes whose SHA-256 is already known.
pub use b70_manifest::{Blake3Hex as Blake3, ParseDigestError};

/// Which digests a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DigestKind {
    /// SHA-256 alone.
    Sha256,
    /// BLAKE3 alone.
    Blake3,
    /// Both, from one pass over the bytes.
    Both,
}

impl DigestKind {
    /// Whether SHA-256 is among them.
    pub fn sha256(self) -> bool {
        self != Self::Blake3
    }

    /// Whether BLAKE3 is among them.
    pub fn blake3(self) -> bool {
        self != Self::Sha256
    }
}

/// The outcome of one pass: the digests that were asked for, and how many bytes they cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digests {
    /// SHA-256, when asked for.
    pub sha256: Option<Sha256>,
    /// BLAKE3, when asked for.
    pub blake3: Option<Blake3>,
    /// Bytes covered.
    pub size: u64,
}

/// Both digests and the size of some bytes: what a publish or a receipt knows of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Content {
    /// SHA-256.
    pub sha256: Sha256,
    /// BLAKE3.
    pub blake3: Blake3,
    /// Length in bytes.
    pub size: u64,
}

impl Content {
    /// The content of a slice.
    pub fn of(bytes: &[u8]) -> Self {
        Self { sha256: Sha256::of(bytes), blake3: Blake3(*blake3::hash(bytes).as_bytes()), size: bytes.len() as u64 }
    }
}

impl From<&ReceiptFile> for Content {
    fn from(file: &ReceiptFile) -> Self {
        Self { sha256: file.sha256, blake3: file.blake3, size: file.identity.size }
    }
}

impl Digests {
    /// Both digests, if the pass computed both.
    pub fn content(&self) -> Option<Content> {
        Some(Content { sha256: self.sha256?, blake3: self.blake3?, size: self.size })
    }
}

/// Digests fed by slices, in order.
#[derive(Clone)]
pub struct Hasher {
    sha256: Option<sha2::Sha256>,
    blake3: Option<Box<blake3::Hasher>>,
    size: u64,
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Hasher {
    /// A fresh hasher.
    pub fn new(what: DigestKind) -> Self {
        Self {
            sha256: what.sha256().then(sha2::Sha256::new),
            blake3: what.blake3().then(|| Box::new(blake3::Hasher::new())),
            size: 0,
        }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        // 64 KiB at a time, so that the second digest finds the bytes in the first-level or second-level cache.
        for chunk in bytes.chunks(64 << 10) {
            if let Some(sha256) = &mut self.sha256 {
                sha256.update(chunk);
            }
            if let Some(blake3) = &mut self.blake3 {
                blake3.update(chunk);
            }
        }
        self.size += bytes.len() as u64;
    }

    /// Takes the next bytes, spread over the threads of the current rayon pool: SHA-256 on one, BLAKE3 on the others.
    pub fn update_parallel(&mut self, bytes: &[u8]) {
        let Self { sha256, blake3, size } = self;
        match (sha256, blake3) {
            (Some(sha256), Some(blake3)) => {
                rayon::join(|| sha256.update(bytes), || blake3.update_rayon(bytes));
            }
            (Some(sha256), None) => sha256.update(bytes),
            (None, Some(blake3)) => {
                blake3.update_rayon(bytes);
            }
            (None, None) => {}
        }
        *size += bytes.len() as u64;
    }

    /// Bytes taken so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The digests of all bytes taken.
    pub fn finish(self) -> Digests {
        Digests {
            sha256: self.sha256.map(|h| Sha256(h.finalize().into())),
            blake3: self.blake3.map(|h| Blake3(*h.finalize().as_bytes())),
            size: self.size,
        }
    }
}

/// A file to hash: by path, by a name beneath a root, or one already open.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A path of the caller's own choice; links are followed, anything but a regular file is refused.
    Path(&'a Path),
    /// A name from a document: opened beneath the root without following any link.
    Beneath(&'a Root, &'a RelPath),
    /// An open file and the path to name in errors. Its file position is neither used nor moved.
    File(&'a File, &'a Path),
}

/// A [`Source`] and, where known, the size it must have; another size is refused before a byte is read.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The file.
    pub source: Source<'a>,
    /// Its expected size in bytes.
    pub size: Option<u64>,
}

impl<'a> From<Source<'a>> for Job<'a> {
    fn from(source: Source<'a>) -> Self {
        Self { source, size: None }
    }
}

impl<'a> From<&'a Path> for Job<'a> {
    fn from(path: &'a Path) -> Self {
        Source::Path(path).into()
    }
}

pub(crate) enum Opened<'a> {
    /// Opened for this alone.
    Owned(File),
    Borrowed(&'a File),
}

impl Opened<'_> {
    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Owned(file) => file,
            Self::Borrowed(file) => file,
        }
    }
}

impl<'a> Job<'a> {
    pub(crate) fn path(&self) -> PathBuf {
        match self.source {
            Source::Path(path) | Source::File(_, path) => path.to_path_buf(),
            Source::Beneath(root, name) => root.join(name),
        }
    }

    pub(crate) fn open(&self) -> Result<(Opened<'a>, PathBuf, u64)> {
        let path = self.path();
        let opened = match self.source {
            Source::Path(p) => Opened::Owned(crate::path::open_regular(p)?),
            Source::Beneath(root, name) => Opened::Owned(root.open_file(name)?),
            Source::File(file, _) => Opened::Borrowed(file),
        };
        let found = opened.file().metadata().map_err(|e| Error::io("stat", &path, e))?.len();
        if let Some(expected) = self.size
            && expected != found
        {
            return Err(Error::Size { path, expected, found });
        }
        // Advice only: a file system that ignores it costs time, not correctness.
        let _ = rustix::fs::fadvise(opened.file(), 0, None, rustix::fs::Advice::Sequential);
        Ok((opened, path, found))
    }

    /// The file's size, as far as it can be told without opening it.
    pub(crate) fn size_hint(&self) -> u64 {
        let found = || match self.source {
            Source::Path(path) => path.metadata().ok().map(|metadata| metadata.len()),
            Source::Beneath(root, name) => root.stat(name).ok().map(|identity| identity.size),
            Source::File(file, _) => file.metadata().ok().map(|metadata| metadata.len()),
        };
        self.size.or_else(found).unwrap_or(0)
    }
}

/// One `pread`, repeated when a signal interrupted it.
pub(crate) fn pread(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Reads until `buffer` is full or the file ends.
pub(crate) fn pread_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(file, &mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// Reads a file from its start to its end, into a buffer of the caller's that is used again and again.
pub(crate) struct Reader<'a> {
    file: Opened<'a>,
    filled: usize,
    done: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: Opened<'a>) -> Self {
        Self { file, filled: 0, done: 0 }
    }

    /// Fills `buffer` with the next bytes, and says how many; 0 at the end.
    pub(crate) fn advance(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.filled = pread(self.file.file(), buffer, self.done)?;
        self.done += self.filled as u64;
        Ok(self.filled)
    }

    /// What the last [`advance`](Self::advance) gave; `buffer` is the one it was called with.
    pub(crate) fn bytes<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        &buffer[..self.filled]
    }

    /// Bytes given so far.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }
}

pub(crate) fn changed(path: &Path, expected: u64, found: u64) -> Error {
    Error::ChangedWhileReading {
        path: path.to_path_buf(),
        what: format!("it had {expected} bytes when opened, {found} were read"),
    }
}

pub(crate) fn hash_serial(
    file: Opened<'_>,
    path: &Path,
    len: u64,
    what: DigestKind,
    buffer: &mut [u8],
    progress: &Progress<'_>,
) -> Result<Digests> {
    let mut hasher = Hasher::new(what);
    let mut reader = Reader::new(file);
    loop {
        progress.check()?;
        let n = reader.advance(buffer).map_err(|e| Error::io("read", path, e))?;
        if n == 0 {
            break;
        }
        hasher.update(reader.bytes(buffer));
        progress.add(n as u64);
        if hasher.size() > len {
            return Err(changed(path, len, hasher.size()));
        }
    }
    if hasher.size() == len { Ok(hasher.finish()) } else { Err(changed(path, len, hasher.size())) }
}

/// Bytes of a file that are spread over the pool at a time.
const SPREAD: usize = 4 * BUFFER;

/// One file over the pool: SHA-256 on one thread, BLAKE3 on all, and the next buffer is read while the current one is hashed.
pub(crate) fn hash_pipelined(
    file: Opened<'_>,
    path: &Path,
    len: u64,
    what: DigestKind,
    progress: &Progress<'_>,
) -> Result<Digests> {
    let mut hasher = Hasher::new(what);
    let file = file.file();
    let read = |buffer: &mut [u8], offset| pread_full(file, buffer, offset).map_err(|e| Error::io("read", path, e));
    let size = usize::try_from(len).unwrap_or(SPREAD).clamp(4096, SPREAD);
    let (mut current, mut next) = (vec![0; size], vec![0; size]);
    let mut filled = read(&mut current, 0)?;
    while filled > 0 {
        progress.check()?;
        let offset = hasher.size() + filled as u64;
        let ((), ahead) = rayon::join(|| hasher.update_parallel(&current[..filled]), || read(&mut next, offset));
        progress.add(filled as u64);
        filled = ahead?;
        std::mem::swap(&mut current, &mut next);
        if hasher.size() > len {
            return Err(changed(path, len, hasher.size()));
        }
    }
    if hasher.size() == len { Ok(hasher.finish()) } else { Err(changed(path, len, hasher.size())) }
}

/// Hashes one file on the calling thread.
///
/// Errors: [`Error::Missing`], [`Error::Kind`], [`Error::Size`] before a byte is read, [`Error::ChangedWhileReading`]
/// when the file grows or shrinks meanwhile, [`Error::Cancelled`], [`Error::Io`].
pub fn hash_file<'a>(job: impl Into<Job<'a>>, what: DigestKind, progress: &Progress<'_>) -> Result<Digests> {
    let (opened, path, len) = job.into().open()?;
    let mut buffer = vec![0; BUFFER.min(usize::try_from(len).unwrap_or(BUFFER).max(4096))];
    hash_serial(opened, &path, len, what, &mut buffer, progress)
}

/// SHA-256 of a whole file.
pub fn sha256_file(path: &Path) -> Result<Sha256> {
    let digests = hash_file(path, DigestKind::Sha256, &Progress::NONE)?;
    digests.sha256.ok_or_else(|| Error::io("hash", path, io::Error::other("no digest was made")))
}

/// Runs `work` on the rayon pool the caller is in, or else on the process's own, started at its first use with one thread
/// for each core this process may use. To have other threads do it, call from inside [`rayon::ThreadPool::install`].
///
/// Errors: the system refuses the threads.
pub fn on_threads<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    static POOL: OnceLock<rayon::ThreadPool> = OnceLock::new();
    if rayon::current_thread_index().is_some() {
        return Ok(work());
    }
    let pool = if let Some(pool) = POOL.get() {
        pool
    } else {
        let started = pool(0)?;
        POOL.get_or_init(|| started)
    };
    Ok(pool.install(work))
}

/// A pool of `threads` workers (0: one for each core this process may use), for a caller who wants other than the
/// process's own.
///
/// Errors: the system refuses the threads.
pub fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("b70-work-{i}"))
        .build()
        .map_err(|e| Error::Thread { what: "hashing", source: io::Error::other(e) })
}

/// Starts a thread of a scope; std's own way panics where the system refuses one.
///
/// Errors: [`Error::Thread`], with `what` the thread is for.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new().spawn_scoped(scope, work).map_err(|source| Error::Thread { what, source })
}
