//! What the kernel says of a file: the tuple on which receipts rest, and the file system it lives on.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::path::EntryKind;

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): a mount id that is never reused until the next boot.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(MNT_ID_UNIQUE);

/// The identity of a file as `statx` states it; times in nanoseconds since 1970.
///
/// Two tuples are compared for exact equality, never by order: a clock can go back and a stamp can lie in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// Device number (major · 2³² + minor). It may change over a reboot.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data; any program can set it back.
    pub mtime_ns: i64,
    /// Last change of data or metadata; no program can set it.
    pub ctime_ns: i64,
    /// Creation, where the file system records it.
    pub btime_ns: Option<i64>,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Unique mount id, where the kernel offers it (Linux 6.8). It changes over a reboot and a new mount.
    pub mnt_id: Option<u64>,
}

impl FileIdentity {
    /// The identity of an open file (a handle opened with `O_PATH` will do).
    pub fn of(fd: impl AsFd, path: &Path) -> Result<Self> {
        Self::look(fd, c"", AtFlags::EMPTY_PATH, path)
    }

    /// The identity of what is at a path of the user's own choice; links are followed.
    pub fn at(path: &Path) -> Result<Self> {
        Self::look(rustix::fs::CWD, path, AtFlags::empty(), path)
    }

    fn look(dir: impl AsFd, name: impl rustix::path::Arg, flags: AtFlags, path: &Path) -> Result<Self> {
        let stat = rustix::fs::statx(dir, name, flags, WANTED).map_err(|e| Error::io("stat", path, e))?;
        let mask = StatxFlags::from_bits_retain(stat.stx_mask);
        let ns = |t: rustix::fs::StatxTimestamp| {
            // A stamp that does not fit must not be rounded into one that compares equal.
            t.tv_sec.checked_mul(1_000_000_000).and_then(|s| s.checked_add(i64::from(t.tv_nsec))).ok_or_else(|| {
                let source = std::io::Error::other(format!("time stamp {} s is out of range", t.tv_sec));
                Error::io("stat", path, source)
            })
        };
        Ok(Self {
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

    /// What kind of file it is.
    pub fn kind(&self) -> EntryKind {
        EntryKind::from_mode(self.mode)
    }

    /// Whether two handles are on the same file, whatever happened to its content.
    pub fn same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.btime_ns) == (other.dev, other.ino, other.btime_ns)
    }

    /// The names of the fields that differ, with both values. `Scope::Disk` leaves out device number and mount id,
    /// which a reboot changes.
    pub fn differences(&self, found: &Self, scope: Scope) -> Vec<FieldChange> {
        let mut changes = Vec::new();
        let mut field = |field: &'static str, recorded: &dyn fmt::Debug, seen: &dyn fmt::Debug, equal: bool| {
            if !equal {
                changes.push(FieldChange { field, recorded: format!("{recorded:?}"), found: format!("{seen:?}") });
            }
        };
        field("ino", &self.ino, &found.ino, self.ino == found.ino);
        field("size", &self.size, &found.size, self.size == found.size);
        field("mtime_ns", &self.mtime_ns, &found.mtime_ns, self.mtime_ns == found.mtime_ns);
        field("ctime_ns", &self.ctime_ns, &found.ctime_ns, self.ctime_ns == found.ctime_ns);
        field("btime_ns", &self.btime_ns, &found.btime_ns, self.btime_ns == found.btime_ns);
        field("mode", &self.mode, &found.mode, self.mode == found.mode);
        field("uid", &self.uid, &found.uid, self.uid == found.uid);
        field("gid", &self.gid, &found.gid, self.gid == found.gid);
        field("nlink", &self.nlink, &found.nlink, self.nlink == found.nlink);
        if scope == Scope::Memory {
            field("dev", &self.dev, &found.dev, self.dev == found.dev);
            field("mnt_id", &self.mnt_id, &found.mnt_id, self.mnt_id == found.mnt_id);
        }
        changes
    }
}

/// How much of an identity must be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// A file on disk: everything but device number and mount id, which may change over a reboot.
    Disk,
    /// A file in memory (tmpfs), or two looks at one open file: everything.
    Memory,
}

/// One field of an identity that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FieldChange {
    /// Name of the field.
    pub field: &'static str,
    /// The recorded value.
    pub recorded: String,
    /// The value found.
    pub found: String,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}, is {}", self.field, self.recorded, self.found)
    }
}

/// The kind of a file system, from `statfs.f_type` (values: linux/magic.h and the file systems' own headers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FsKind {
    /// ext2, ext3 and ext4, which share one number; the ext4 driver serves all three.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// tmpfs.
    Tmpfs,
    /// overlayfs.
    Overlay,
    /// FUSE.
    Fuse,
    /// NFS.
    Nfs,
    /// SMB.
    Smb,
    /// 9p.
    V9fs,
    /// Anything else.
    Other,
}

impl FsKind {
    /// The kind of a `statfs.f_type`.
    pub fn from_f_type(f_type: u64) -> Self {
        match f_type & 0xffff_ffff {
            0xef53 => Self::Ext4,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x0102_1994 => Self::Tmpfs,
            0x794c_7630 => Self::Overlay,
            0x6573_5546 => Self::Fuse,
            0x6969 => Self::Nfs,
            0x517b | 0xff53_4d42 | 0xfe53_4d42 => Self::Smb,
            0x0102_1997 => Self::V9fs,
            _ => Self::Other,
        }
    }

    /// Whether the receipt rule was established for it; everything else is denied.
    pub fn may_hold_receipts(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs | Self::Btrfs | Self::Tmpfs)
    }

    /// Whether its files live in memory and die with the mount.
    pub fn in_memory(self) -> bool {
        self == Self::Tmpfs
    }
}

/// The file system of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSystem {
    /// Its kind.
    pub kind: FsKind,
    /// `statfs.f_type`.
    pub f_type: u64,
    /// `statfs.f_fsid` as one number: stable over reboots on disk file systems.
    pub fsid: u64,
}

impl FileSystem {
    /// The file system of an open file (a handle opened with `O_PATH` will do).
    pub fn of(fd: impl AsFd, path: &Path) -> Result<Self> {
        let error = |e: rustix::io::Errno| Error::io("stat the file system of", path, e);
        let f_type = rustix::fs::fstatfs(&fd).map_err(error)?.f_type as u64 & 0xffff_ffff;
        let fsid = rustix::fs::fstatvfs(&fd).map_err(error)?.f_fsid;
        Ok(Self { kind: FsKind::from_f_type(f_type), f_type, fsid })
    }
}

/// The identity of this boot and its clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// The kernel's random id of this boot.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// Wall clock, nanoseconds since 1970.
    pub realtime_ns: i64,
    /// Time since boot, suspend included, in nanoseconds.
    pub boottime_ns: i64,
}

impl Boot {
    /// This boot, now.
    pub fn now() -> Result<Self> {
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let boot_id = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?.trim().to_owned();
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        // Read the two clocks next to each other: their difference is the instant of the boot.
        let boottime_ns = clock_ns(rustix::time::ClockId::Boottime);
        let realtime_ns = clock_ns(rustix::time::ClockId::Realtime);
        Ok(Self { boot_id, kernel, realtime_ns, boottime_ns })
    }
}

pub(crate) fn clock_ns(clock: rustix::time::ClockId) -> i64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
