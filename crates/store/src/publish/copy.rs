//! Copying a file into a directory that nobody sees yet, verified on the way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::fsync;
use crate::digest::{BUFFER, Blake3, Hasher, Opened, What};
use crate::error::{Error, Result};
use crate::fault;
use crate::leased::Reader;
use crate::path::Root;
use crate::progress::Progress;
use crate::receipt::Expected;

/// Copies `source` to the new file `expected.name` in `dir`, mode `mode`, and checks what it read on the way: against
/// `blake3` where that is known, else against SHA-256. Space is reserved first.
///
/// Meant for the inside of a [`StagingDir`](super::StagingDir), which is published as a whole: the file is created under
/// its name and a failed copy is the caller's to throw away with the directory. What the *copy* holds is proved by the
/// pass that issues the receipt ([`admit`](crate::admit)), not here.
pub fn copy_verified(
    dir: &Root,
    expected: &Expected,
    blake3: Option<Blake3>,
    source: &File,
    shown: &Path,
    mode: u32,
    progress: &Progress<'_>,
) -> Result<()> {
    let path = dir.join(&expected.name);
    fault::step("copy.create");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = File::from(dir.open_beneath(&expected.name, flags, Mode::from_raw_mode(0o600))?);
    reserve(&file, &path, expected.size)?;
    let what = match (blake3, expected.sha256) {
        (Some(_), _) => What::Blake3,
        (None, Some(_)) => What::Sha256,
        (None, None) => What::Both,
    };
    let mut hasher = Hasher::new(what);
    let mut buffer = vec![0; BUFFER];
    // Advice only.
    let _ = rustix::fs::fadvise(source, 0, None, rustix::fs::Advice::Sequential);
    let mut reader = Reader::whole(Opened::Borrowed(source), expected.size);
    loop {
        progress.check()?;
        let n = reader.advance(&mut buffer).map_err(|e| Error::io("read", shown, e))?;
        if n == 0 {
            break;
        }
        let offset = hasher.size();
        let bytes = reader.bytes(&buffer);
        hasher.update(bytes);
        if hasher.size() > expected.size {
            break;
        }
        write_all(&file, &path, bytes, offset, expected.size)?;
        progress.add(n as u64);
    }
    if hasher.size() != expected.size {
        return Err(Error::Size { path: shown.to_path_buf(), expected: expected.size, found: hasher.size() });
    }
    let digests = hasher.finish();
    if let (Some(found), Some(wanted)) = (digests.blake3, blake3)
        && found != wanted
    {
        let what = format!("its BLAKE3 is {found}, expected {wanted}");
        return Err(Error::Damaged { path: shown.to_path_buf(), what });
    }
    if let (Some(found), Some(wanted)) = (digests.sha256, expected.sha256)
        && found != wanted
    {
        return Err(Error::Sha256 { path: shown.to_path_buf(), expected: wanted, found });
    }
    fault::step("copy.chmod");
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(|e| Error::io("set the mode of", &path, e))?;
    fault::step("copy.fsync");
    fsync(&file, &path)
}

fn reserve(file: &File, path: &Path, len: u64) -> Result<()> {
    fault::step("copy.reserve");
    if len == 0 {
        return Ok(());
    }
    loop {
        return match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            // Without reservations space is checked write by write.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(e) => Err(Error::write("reserve space for", path, len, e)),
        };
    }
}

fn write_all(file: &File, path: &Path, bytes: &[u8], offset: u64, total: u64) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        fault::step("copy.write");
        let rest = &bytes[done..];
        let limit = fault::write_limit(rest.len()).map_err(|e| Error::write("write", path, total, e))?;
        match file.write_at(&rest[..limit], offset + done as u64) {
            Ok(0) => {
                let source = io::Error::new(io::ErrorKind::WriteZero, "the system accepted no byte");
                return Err(Error::io("write", path, source));
            }
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::write("write", path, total, e)),
        }
    }
    Ok(())
}
