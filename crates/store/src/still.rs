//! Maps of bytes that the kernel keeps still: of an immutable file, and of a sealed one.
//!
//! A map of any other file is not sound to read: whoever may write to the file changes bytes under a reference, and who cuts it
//! short ends the reader with SIGBUS. Copy what is in such a file.

use std::fs::File;
use std::io::Write as _;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use memmap2::{Mmap, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::digest::{BUFFER, DigestKind, Job, Sha256, Source, hash_file, pread};
use crate::error::{Error, Result};
use crate::immutable::is_immutable;
use crate::progress::Progress;

/// Bytes of a file where the kernel has them. Dereferences to a slice.
#[derive(Debug)]
pub struct StillMap(Option<Mmap>);

impl Deref for StillMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl StillMap {
    /// Maps a whole file that is immutable.
    ///
    /// Only root can take the flag away, and with it what this rests on; what could write before it was set is for the receipt of
    /// the file to know ([`Trust::Immutable`](crate::Trust::Immutable)).
    ///
    /// Errors: [`Error::NotStill`] for a file that is not immutable.
    pub fn of_immutable(file: &File, path: &Path) -> Result<Self> {
        if !is_immutable(file, path)? {
            let why = "it is not immutable; root makes it so (--immutable), or read a copy of it".to_owned();
            return Err(Error::NotStill { path: path.to_path_buf(), why });
        }
        #[expect(unsafe_code, reason = "the kernel refuses every change of the file")]
        // SAFETY: the file was immutable a moment ago: nobody can open it for writing or cut it short, root included, as long
        // as root does not take the flag away, which is root's to answer for as writing to this process's memory is.
        unsafe {
            Self::of_any(file, path)
        }
    }

    /// Maps a whole file, whoever may change it.
    ///
    /// # Safety
    /// Nobody may write to the file or cut it short while the map lives. Who writes to it changes the bytes of a slice; who cuts it
    /// short ends this process with SIGBUS.
    ///
    /// Errors: the file cannot be mapped.
    #[expect(unsafe_code, reason = "the caller answers for the file")]
    pub unsafe fn of_any(file: &File, path: &Path) -> Result<Self> {
        let error = |e: std::io::Error| Error::io("map", path, e);
        let len = usize::try_from(file.metadata().map_err(error)?.len());
        let len = len.map_err(|_| error(std::io::Error::other("it is larger than the address space")))?;
        // An empty file has no pages, and mmap refuses it.
        if len == 0 {
            return Ok(Self(None));
        }
        // SAFETY: as the caller says.
        unsafe { MmapOptions::new().len(len).map(file) }.map(|map| Self(Some(map))).map_err(error)
    }
}

/// What must be sealed: writing, both changes of the size, and the seals themselves.
const SEALS: [(SealFlags, &str); 4] = [
    (SealFlags::WRITE, "F_SEAL_WRITE"),
    (SealFlags::SHRINK, "F_SEAL_SHRINK"),
    (SealFlags::GROW, "F_SEAL_GROW"),
    (SealFlags::SEAL, "F_SEAL_SEAL"),
];

/// A file in memory, without a name, that no system call can change any more, and whose bytes were found right after that was so
/// ([`Trust::Sealed`](crate::Trust::Sealed)). Handed over as a descriptor, it is what it was for whoever gets it: see
/// [`from_fd`](Self::from_fd). Source: `memfd_create(2)`, fcntl(2).
#[derive(Debug)]
pub struct SealedFile(File);

impl SealedFile {
    /// Copies a file of this size and SHA-256, seals the copy, and hashes it then.
    ///
    /// Errors: [`Error::Size`], [`Error::Sha256`] for other bytes, [`Error::ChangedWhileReading`], [`Error::NoSpace`],
    /// [`Error::Cancelled`].
    pub fn copy_of(source: &File, path: &Path, size: u64, sha256: Sha256, progress: &Progress<'_>) -> Result<Self> {
        let error = |e: std::io::Error| Error::write("copy", path, size, e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut copy = File::from(rustix::fs::memfd_create("b70-sealed", flags).map_err(|e| error(e.into()))?);
        let mut buffer = vec![0; BUFFER];
        let mut done = 0;
        while done < size {
            progress.check()?;
            let want = buffer.len().min((size - done) as usize);
            let found = pread(source, &mut buffer[..want], done).map_err(error)?;
            if found == 0 {
                let what = format!("it had {size} bytes, {done} were read");
                return Err(Error::ChangedWhileReading { path: path.to_path_buf(), what });
            }
            copy.write_all(&buffer[..found]).map_err(error)?;
            done += found as u64;
        }
        let all = SEALS.iter().fold(SealFlags::empty(), |all, (seal, _)| all | *seal);
        rustix::fs::fcntl_add_seals(&copy, all).map_err(|e| Error::io("seal the copy of", path, e))?;
        Self::prove(copy, path, size, sha256, progress)
    }

    /// Takes a descriptor that somebody handed over; `path` is what errors call it.
    ///
    /// Errors: [`Error::NotStill`] for one that is not sealed for good, [`Error::Size`], [`Error::Sha256`].
    pub fn from_fd(fd: OwnedFd, path: &Path, size: u64, sha256: Sha256, progress: &Progress<'_>) -> Result<Self> {
        let not_still = |why: String| Error::NotStill { path: path.to_path_buf(), why };
        let found = rustix::fs::fcntl_get_seals(&fd).map_err(|e| {
            not_still(format!("it has no seals ({}); hand over a sealed memfd", std::io::Error::from(e)))
        })?;
        let lacking: Vec<&str> =
            SEALS.iter().filter(|(seal, _)| !found.contains(*seal)).map(|(_, name)| *name).collect();
        if !lacking.is_empty() {
            return Err(not_still(format!("its seals lack {}; seal it before it is handed over", lacking.join(", "))));
        }
        Self::prove(File::from(fd), path, size, sha256, progress)
    }

    /// Hashes what is sealed by now.
    fn prove(file: File, path: &Path, size: u64, sha256: Sha256, progress: &Progress<'_>) -> Result<Self> {
        let job = Job { source: Source::File(&file, path), size: Some(size) };
        let found = hash_file(job, DigestKind::Sha256, &progress.silent())?.sha256.expect("it was asked for");
        if found != sha256 {
            return Err(Error::Sha256 { path: path.to_path_buf(), expected: sha256, found });
        }
        Ok(Self(file))
    }

    /// Maps it.
    pub fn map(&self) -> Result<StillMap> {
        #[expect(unsafe_code, reason = "the file is sealed")]
        // SAFETY: F_SEAL_WRITE, F_SEAL_SHRINK and F_SEAL_GROW are set, which `copy_of` and `from_fd` saw to, and F_SEAL_SEAL keeps
        // them set: from then on no descriptor can write to the file or change its size, and no writable mapping of it exists,
        // since the kernel refuses F_SEAL_WRITE while there is one.
        unsafe {
            StillMap::of_any(&self.0, Path::new("a sealed file"))
        }
    }

    /// The descriptor, to be handed over.
    pub fn into_fd(self) -> OwnedFd {
        self.0.into()
    }
}

impl AsFd for SealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
