//! Reading files where the kernel keeps them, instead of copying them out first.
//!
//! A copy out of the page cache costs half as much as a SHA-256 of the same bytes, and nearly as much as a BLAKE3. A map saves
//! it, but a file that is truncated under a map kills the process with SIGBUS, and one that is written to changes under a
//! slice that Rust takes for constant. A *read lease* (fcntl(2), `F_SETLEASE`) excludes both: the kernel grants it only
//! while nobody has the file open for writing, and whoever opens or truncates it afterwards has to wait until it is given
//! back. Where no lease is to be had (not the owner, a file system without leases, a writer), files are read by copying.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapOptions};
use rustix::fs::{Mode, OFlags};

use crate::digest::{Opened, pread};
use crate::identity::file_system_of;
use crate::sys;

/// Files below this size are read by copying: the lease would cost more than it saves.
const SMALLEST: u64 = 256 << 10;

/// Bytes that a [`Reader`] maps at a time. Each change of a map interrupts the other cores of the process, so that small
/// windows cost more than they are worth; a writer waits until all windows of a file have been worked off.
const WINDOW: u64 = 4 << 20;

/// A file that nobody can write to or truncate for as long as this handle, a clone of it or a [`GuardedWindow`] of it lives.
///
/// A process that opens the file for writing meanwhile waits for the lease to end: look for that with
/// [`is_held`](GuardedFile::is_held), or take [`window`](GuardedFile::window)s, which are refused from then on, and let go of
/// all of them soon. After `/proc/sys/fs/lease-break-time` (45 s as a rule) the kernel lets the writer pass regardless; a
/// process that was stopped for as long and goes on reading a window can be killed by SIGBUS, as it could be by SIGKILL.
#[derive(Debug, Clone)]
pub struct GuardedFile {
    held: Arc<Held>,
    len: u64,
}

/// Gives the lease back when dropped.
#[derive(Debug)]
struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        sys::end_lease(self.0.as_fd());
    }
}

/// Some bytes of a [`GuardedFile`], where the kernel has them. Dereferences to a slice.
#[derive(Debug)]
pub struct GuardedWindow {
    // Before the lease: fields are dropped in their order.
    map: Mmap,
    /// Where the bytes begin: maps begin on page boundaries.
    from: usize,
    _held: Arc<Held>,
}

impl Deref for GuardedWindow {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.from..]
    }
}

impl GuardedFile {
    /// Takes a lease on an open regular file; `None` where that is not possible, whatever the reason: a writer, another
    /// owner, a file system that is not a local one.
    pub fn of(file: &File) -> Option<Self> {
        // A lease belongs to the open file, and a second taker of the same one would give ours back: open it afresh.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Self::take(&Arc::new(File::from(rustix::fs::open(path.as_str(), flags, Mode::empty()).ok()?)))
    }

    /// Takes a lease on a file that was opened for this alone, and read-only.
    fn take(file: &Arc<File>) -> Option<Self> {
        // Others' leases are not known to bind whoever writes from another machine.
        if !file_system_of(file, Path::new("")).ok()?.kind.may_hold_receipts() {
            return None;
        }
        if !file.metadata().ok()?.is_file() || !sys::take_lease(file.as_fd()) {
            return None;
        }
        let held = Arc::new(Held(Arc::clone(file)));
        // Asked for once the size cannot change any more.
        let len = file.metadata().ok()?.len();
        Some(Self { held, len })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the lease stands: false from the moment somebody waits for it.
    pub fn is_held(&self) -> bool {
        sys::has_lease(self.held.0.as_fd())
    }

    /// `len` bytes from `offset`, all of them in memory; `None` when they are not all in the file, cannot be read, or the
    /// lease does not stand any more. Ask for no more than what is worked off in a second or so.
    pub fn window(&self, offset: u64, len: usize) -> Option<GuardedWindow> {
        let end = offset.checked_add(len as u64)?;
        if len == 0 || end > self.len || !self.is_held() {
            return None;
        }
        let from = (offset % rustix::param::page_size() as u64) as usize;
        // On a disk all of it is asked for at once, and what is likely to come next, too; in memory this does nothing.
        let wanted = std::num::NonZeroU64::new((len as u64).saturating_mul(2));
        let _ = rustix::fs::fadvise(&self.held.0, offset, wanted, rustix::fs::Advice::WillNeed);
        let mut options = MmapOptions::new();
        options.offset(offset - from as u64).len(from + len);
        #[expect(unsafe_code, reason = "the one way to read a file without copying it")]
        // SAFETY: the map is read-only and lies within the file. While the lease stands, which it did a moment ago, nobody
        // can write to the file or shorten it: there was no writer when it was granted, and the kernel holds up every new
        // one until `held`, of which the window keeps a share, gives it back. What is left is named in the type's description.
        let map = unsafe { options.map(&*self.held.0) }.ok()?;
        // Fetches the pages and reports what cannot be read as an error, which a first touch would report as a signal.
        map.advise(Advice::PopulateRead).ok()?;
        Some(GuardedWindow { map, from, _held: Arc::clone(&self.held) })
    }
}

/// A part of an open file, to be read from its start to its end.
#[derive(Debug, Clone)]
pub struct Region<'a> {
    /// The file. Its position is neither used nor moved.
    pub file: &'a File,
    /// The path to name in errors.
    pub path: &'a Path,
    /// A lease of the file, where there is one: then it is read in place for as long as the lease stands.
    pub lease: Option<GuardedFile>,
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// Bytes of the part.
    pub len: u64,
}

/// Reads a file, or a region of one, from its start to its end: out of windows while a lease stands, by copying otherwise.
pub(crate) struct Reader<'a> {
    file: Opened<'a>,
    leased: Option<GuardedFile>,
    window: Option<GuardedWindow>,
    /// Where the window begins in the file.
    start: u64,
    /// What the last call gave lies in the window, from here; in the buffer otherwise.
    at: Option<usize>,
    filled: usize,
    next: u64,
    end: u64,
    first: u64,
}

impl<'a> Reader<'a> {
    /// All of a file of about `len` bytes; what it has grown by is read, too.
    pub(crate) fn whole(file: Opened<'a>, len: u64) -> Self {
        let leased = match &file {
            _ if len < SMALLEST => None,
            Opened::Owned(file) => GuardedFile::take(file),
            Opened::Borrowed(file) => GuardedFile::of(file),
        };
        Self::new(file, leased, 0, u64::MAX)
    }

    /// A region of a file.
    pub(crate) fn region(region: Region<'a>) -> Self {
        let Region { file, lease, offset, len, .. } = region;
        Self::new(Opened::Borrowed(file), lease, offset, offset.saturating_add(len))
    }

    fn new(file: Opened<'a>, leased: Option<GuardedFile>, first: u64, end: u64) -> Self {
        Self { file, leased, window: None, start: first, at: None, filled: 0, next: first, end, first }
    }

    /// Goes on to the next bytes, at most as many as fit `buffer`, and says how many; 0 at the end.
    /// [`bytes`](Self::bytes) gives them.
    pub(crate) fn advance(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_in_window() {
            self.open_window(WINDOW);
        }
        (self.at, self.filled) = if let Some(window) = &self.window {
            let at = (self.next - self.start) as usize;
            (Some(at), buffer.len().min(window.len() - at))
        } else {
            let room = usize::try_from(self.end - self.next).map_or(buffer.len(), |left| left.min(buffer.len()));
            (None, pread(self.file.file(), &mut buffer[..room], self.next)?)
        };
        self.next += self.filled as u64;
        Ok(self.filled)
    }

    /// What the last [`advance`](Self::advance) gave; `buffer` is the one it was called with.
    pub(crate) fn bytes<'b>(&'b self, buffer: &'b [u8]) -> &'b [u8] {
        match (self.at, &self.window) {
            (Some(at), Some(window)) => &window[at..][..self.filled],
            _ => &buffer[..self.filled],
        }
    }

    /// The next window of at most `len` bytes, or none; then the rest must be read by copying.
    pub(crate) fn next_window(&mut self, len: u64) -> Option<&[u8]> {
        self.open_window(len);
        let window = self.window.as_deref()?;
        self.next += window.len() as u64;
        Some(window)
    }

    /// The file itself.
    pub(crate) fn file(&self) -> &File {
        self.file.file()
    }

    /// Bytes given so far.
    pub(crate) fn done(&self) -> u64 {
        self.next - self.first
    }

    fn is_in_window(&self) -> bool {
        self.window.as_ref().is_some_and(|window| self.next - self.start < window.len() as u64)
    }

    fn open_window(&mut self, len: u64) {
        self.window = None;
        let Some(leased) = &self.leased else { return };
        let len = len.min(leased.len().min(self.end).saturating_sub(self.next));
        self.start = self.next;
        self.window = leased.window(self.next, len as usize);
        if self.window.is_none() {
            // At the end, or somebody waits for the file: the lease is given back at once.
            self.leased = None;
        }
    }
}
