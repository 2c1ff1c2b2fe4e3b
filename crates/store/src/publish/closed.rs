//! Files that are written to the end and wait for their proof and their name.

use std::fs::File;
use std::os::fd::AsFd as _;

use super::file::TempFile;
use super::{OnExisting, Published, fsync};
use crate::digest::{Blake3, Content, LANE_BUFFER, Opened, Sha256, changed};
use crate::error::{Error, Result};
use crate::fault;
use crate::lanes::{LaneKernel, Sha256Lanes};
use crate::leased::{Reader, Region};
use crate::path::RelPath;
use crate::progress::Progress;

/// A file that nobody can write to any more, still without a name. Made by [`TempFile::close`]; dropping it leaves nothing
/// behind.
///
/// The way to its name: [`read_back`] proves what the file holds, [`ClosedFile::sync`] makes it durable,
/// [`ClosedFile::commit`] names it. The steps may be taken by different threads, and for many files at once.
#[derive(Debug)]
pub struct ClosedFile {
    temp: TempFile,
    /// BLAKE3 of what was written, where it came in order.
    written: Option<Blake3>,
    content: Option<Content>,
    durable: bool,
}

impl ClosedFile {
    pub(super) fn new(temp: TempFile, written: Option<Blake3>) -> Self {
        Self { temp, written, content: None, durable: false }
    }

    /// What the file was found to hold; `None` before [`read_back`].
    pub fn content(&self) -> Option<Content> {
        self.content
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.temp.len()
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks the system to begin writing to the disk, without waiting for it.
    pub fn start_writeback(&self) {
        crate::sys::start_writeback(self.file().as_fd());
    }

    /// Waits until the bytes are on the disk.
    pub fn sync(&mut self) -> Result<()> {
        if !self.durable {
            fault::step("file.fsync");
            fsync(self.file(), &self.temp.shown())?;
            self.durable = true;
        }
        Ok(())
    }

    /// Gives the file its name, read back and made durable first where that has not been done yet; see
    /// [`TempFile::commit`] for what happens to a name that is taken.
    pub fn commit(mut self, name: &RelPath, on_existing: OnExisting, progress: &Progress<'_>) -> Result<Published> {
        name.single()?;
        let content = if let Some(content) = self.content {
            content
        } else {
            read_back(&mut [&mut self], &[], LaneKernel::best(), progress)?;
            self.content.ok_or_else(|| Error::io("read", self.temp.shown(), std::io::Error::other("no content")))?
        };
        self.sync()?;
        self.temp.name(name, on_existing, content, progress)
    }

    fn file(&self) -> &File {
        self.temp.reader()
    }
}

/// Reads files back, all of them side by side, and proves that each holds what was written to it: its BLAKE3 must be that of
/// the written bytes ([`Error::ReadBack`]). Its SHA-256 is that of the bytes in the file.
///
/// `beside` are parts of other files that need a SHA-256, hashed in the same lanes; their digests are returned.
///
/// Errors: [`Error::ReadBack`]; [`Error::Size`] for a file, and [`Error::ChangedWhileReading`] for a part, that has fewer bytes
/// than it should; [`Error::Io`]; [`Error::Cancelled`].
pub fn read_back(
    files: &mut [&mut ClosedFile],
    beside: &[Region<'_>],
    kernel: LaneKernel,
    progress: &Progress<'_>,
) -> Result<Vec<Sha256>> {
    fault::step("file.read-back");
    let count = files.len();
    let mut lanes = Sha256Lanes::new(count + beside.len(), kernel);
    let mut blake3: Vec<_> = files.iter().map(|_| blake3::Hasher::new()).collect();
    let whole = files.iter().map(|file| Reader::whole(Opened::Borrowed(file.file()), file.len()));
    let mut readers: Vec<Reader<'_>> = whole.chain(beside.iter().cloned().map(Reader::region)).collect();
    let mut buffer = vec![0; readers.len() * LANE_BUFFER];
    loop {
        progress.check()?;
        let mut bytes = 0;
        for (i, (reader, buffer)) in readers.iter_mut().zip(buffer.chunks_exact_mut(LANE_BUFFER)).enumerate() {
            let path = || files.get(i).map_or_else(|| beside[i - count].path.to_path_buf(), |file| file.temp.shown());
            bytes += reader.advance(buffer).map_err(|e| Error::io("read", path(), e))?;
            if let Some(blake3) = blake3.get_mut(i) {
                blake3.update(reader.bytes(buffer));
            }
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
    for (region, &size) in beside.iter().zip(&sizes[count..]) {
        if size != region.len {
            return Err(changed(region.path, region.len, size));
        }
    }
    for (i, file) in files.iter_mut().enumerate() {
        let path = file.temp.shown();
        let size = sizes[i];
        if size != file.len() {
            return Err(Error::Size { path, expected: file.len(), found: size });
        }
        let found = Blake3(*blake3[i].finalize().as_bytes());
        if let Some(expected) = file.written.filter(|written| *written != found) {
            return Err(Error::ReadBack { path, expected, found });
        }
        file.content = Some(Content { sha256: lanes.take(i), blake3: found, size });
    }
    Ok((count..count + beside.len()).map(|lane| lanes.take(lane)).collect())
}
