//! Asking the kernel who a file is, on what file system, and in which boot.

use std::os::fd::AsFd;
use std::path::Path;

pub use b70_manifest::artifact::{Boot, FieldChange, FileIdentity, FileSystem, FsKind, Scope};
use rustix::fs::{AtFlags, StatxFlags};

use crate::error::{Error, Result};

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): a mount id that is never reused until the next boot.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(MNT_ID_UNIQUE);

/// The identity of an open file (a handle opened with `O_PATH` will do).
pub fn identity_of(fd: impl AsFd, path: &Path) -> Result<FileIdentity> {
    look(fd, c"", AtFlags::EMPTY_PATH, path)
}

/// The identity of what is at a path of the user's own choice; links are followed.
pub fn identity_at(path: &Path) -> Result<FileIdentity> {
    look(rustix::fs::CWD, path, AtFlags::empty(), path)
}

fn look(dir: impl AsFd, name: impl rustix::path::Arg, flags: AtFlags, path: &Path) -> Result<FileIdentity> {
    let stat = rustix::fs::statx(dir, name, flags, WANTED).map_err(|e| Error::io("stat", path, e))?;
    let mask = StatxFlags::from_bits_retain(stat.stx_mask);
    let ns = |t: rustix::fs::StatxTimestamp| {
        // A stamp that does not fit must not be rounded into one that compares equal.
        t.tv_sec.checked_mul(1_000_000_000).and_then(|s| s.checked_add(i64::from(t.tv_nsec))).ok_or_else(|| {
            let source = std::io::Error::other(format!("time stamp {} s is out of range", t.tv_sec));
            Error::io("stat", path, source)
        })
    };
    Ok(FileIdentity {
        dev: u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor),
        ino: stat.stx_ino,
        size: stat.stx_size,
        mtime_ns: ns(stat.stx_mtime)?,
        ctime_ns: ns(stat.stx_ctime)?,
        btime_ns: mask.contains(StatxFlags::BTIME).then(|| ns(stat.stx_btime)).transpose()?,
        mode: u32::from(stat.stx_mode),
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink,
        mnt_id: mask.contains(MNT_ID_UNIQUE).then_some(stat.stx_mnt_id),
    })
}

/// The file system of an open file (a handle opened with `O_PATH` will do).
pub fn file_system_of(fd: impl AsFd, path: &Path) -> Result<FileSystem> {
    let error = |e: rustix::io::Errno| Error::io("stat the file system of", path, e);
    let f_type = rustix::fs::fstatfs(&fd).map_err(error)?.f_type as u64 & 0xffff_ffff;
    let fsid = rustix::fs::fstatvfs(&fd).map_err(error)?.f_fsid;
    Ok(FileSystem { kind: FsKind::from_f_type(f_type), f_type, fsid })
}

/// This boot, now.
pub(crate) fn this_boot() -> Result<Boot> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot_id = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?.trim().to_owned();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    // Read the two clocks next to each other: their difference is the instant of the boot.
    let boottime_ns = clock_ns(rustix::time::ClockId::Boottime);
    let realtime_ns = clock_ns(rustix::time::ClockId::Realtime);
    Ok(Boot { boot_id, kernel, realtime_ns, boottime_ns })
}

pub(crate) fn clock_ns(clock: rustix::time::ClockId) -> i64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
