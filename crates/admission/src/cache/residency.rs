//! How much of a file is in memory: one map that is never dereferenced, and `mincore`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use b70_store::{Error, Progress, Result};
use memmap2::{Advice, MmapOptions, MmapRaw};

/// Pages are brought in and counted this many bytes at a time, so that a signal need not wait for a whole model.
const STEP: usize = 256 << 20;

/// Bytes of a file that are in memory now, in the page cache or because its file system is there. Nothing is read.
pub fn resident_bytes(path: &Path) -> Result<u64> {
    let file = b70_store::open_source(path)?;
    Residency::map(&file, path)?.resident()
}

/// A read-only map of a whole file, used to ask and to bring in, never to read through: what is read through a map
/// that someone truncates kills the process.
#[derive(Debug)]
pub(super) struct Residency<'a> {
    map: Option<MmapRaw>,
    len: usize,
    path: &'a Path,
}

impl<'a> Residency<'a> {
    pub(super) fn map(file: &File, path: &'a Path) -> Result<Self> {
        let error = |e: std::io::Error| Error::io("map", path, e);
        let len = usize::try_from(file.metadata().map_err(error)?.len())
            .map_err(|_| error(std::io::Error::other("it is larger than the address space")))?;
        // An empty file has no pages, and mmap refuses it.
        let map =
            if len == 0 { None } else { Some(MmapOptions::new().len(len).map_raw_read_only(file).map_err(error)?) };
        Ok(Self { map, len, path })
    }

    /// Bytes of the file in memory now, counted in whole pages and at most its length.
    pub(super) fn resident(&self) -> Result<u64> {
        self.resident_range(0, self.len)
    }

    /// The same for a range that starts at a page boundary.
    pub(super) fn resident_range(&self, start: usize, len: usize) -> Result<u64> {
        let Some(map) = &self.map else { return Ok(0) };
        let page = rustix::param::page_size();
        let end = start.saturating_add(len).min(self.len);
        let mut pages = vec![0_u8; STEP / page];
        let (mut at, mut resident) = (start / page * page, 0_u64);
        while at < end {
            let bytes = (end - at).min(STEP);
            mincore(map, at, bytes, &mut pages[..bytes.div_ceil(page)])
                .map_err(|e| Error::io("ask what is in memory of", self.path, e))?;
            // Only the lowest bit has a meaning.
            let count = pages[..bytes.div_ceil(page)].iter().filter(|p| **p & 1 == 1).count();
            resident += (count as u64 * page as u64).min(bytes as u64);
            at += bytes;
        }
        Ok(resident)
    }

    /// Brings every page in and maps it, by `MADV_POPULATE_READ` (Linux 5.14), which reports a file that shrank as an
    /// error; where the kernel lacks it the pages are read with `pread`.
    pub(super) fn touch(&self, file: &File, progress: &Progress<'_>) -> Result<()> {
        let Some(map) = &self.map else { return Ok(()) };
        // Advice only.
        let _ = map.advise(Advice::WillNeed);
        let mut at = 0;
        while at < self.len {
            progress.check()?;
            let bytes = (self.len - at).min(STEP);
            match map.advise_range(Advice::PopulateRead, at, bytes) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                    read_range(file, at as u64, bytes as u64).map_err(|e| Error::io("read", self.path, e))?;
                }
                Err(e) => return Err(Error::io("bring in", self.path, e)),
            }
            progress.add(bytes as u64);
            at += bytes;
        }
        Ok(())
    }
}

/// Reads a range and forgets it. Fewer bytes than asked for are an error.
pub(super) fn read_range(file: &File, offset: u64, len: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    while done < len {
        let want = (len - done).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..want], offset + done) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n as u64,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "neither rustix nor nix offers mincore")]
fn mincore(map: &MmapRaw, offset: usize, len: usize, pages: &mut [u8]) -> std::io::Result<()> {
    let page = rustix::param::page_size();
    assert!(offset.is_multiple_of(page) && offset + len <= map.len() && pages.len() >= len.div_ceil(page));
    // SAFETY: the range lies in the map (asserted), which `map` keeps alive for this call and which nothing unmaps;
    // mincore reads no byte of it and writes one byte for each page of the range into `pages`, which is long enough
    // (asserted) and exclusively ours. The address is page-aligned since the map's start and the offset are.
    let answer = unsafe { libc::mincore(map.as_mut_ptr().add(offset).cast(), len, pages.as_mut_ptr()) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
