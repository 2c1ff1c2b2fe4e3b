//! What the kernel says of a file: the tuple on which receipts rest, and the file system it lives on.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

/// The identity of a file as `statx` states it; times in nanoseconds since 1970.
///
/// Two tuples are compared for exact equality, never by order: a clock can go back and a stamp can lie in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// Device number (major · 2³² + minor). It may change over a reboot.
    #[schemars(example = 64_769)]
    pub dev: u64,
    /// Inode number.
    #[schemars(example = 131_074)]
    pub ino: u64,
    /// Size in bytes.
    #[schemars(example = 353_211)]
    pub size: u64,
    /// Last change of the data; any program can set it back.
    #[schemars(example = 1_783_870_000_123_456_789_i64)]
    pub mtime_ns: i64,
    /// Last change of data or metadata; no program can set it.
    #[schemars(example = 1_783_870_000_123_456_789_i64)]
    pub ctime_ns: i64,
    /// Creation, where the file system records it.
    #[schemars(example = 1_783_870_000_123_456_789_i64)]
    pub btime_ns: Option<i64>,
    /// Type and permission bits.
    #[schemars(example = 33_060)]
    pub mode: u32,
    /// Owner.
    #[schemars(example = 1000)]
    pub uid: u32,
    /// Group.
    #[schemars(example = 1000)]
    pub gid: u32,
    /// Number of hard links.
    #[schemars(example = 1)]
    pub nlink: u32,
    /// Unique mount id, where the kernel offers it (Linux 6.8). It changes over a reboot and a new mount.
    #[schemars(example = 4_294_968_000_u64)]
    pub mnt_id: Option<u64>,
}

impl FileIdentity {
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
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

words! {
    /// The kind of a file system, from `statfs.f_type` (values: linux/magic.h and the file systems' own headers).
    FsKind {
        /// ext2, ext3 and ext4, which share one number; the ext4 driver serves all three.
        Ext4 = "ext4",
        /// XFS.
        Xfs = "xfs",
        /// btrfs.
        Btrfs = "btrfs",
        /// tmpfs.
        Tmpfs = "tmpfs",
        /// overlayfs.
        Overlay = "overlay",
        /// FUSE.
        Fuse = "fuse",
        /// NFS.
        Nfs = "nfs",
        /// SMB.
        Smb = "smb",
        /// 9p.
        V9fs = "v9fs",
        /// Anything else.
        Other = "other",
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSystem {
    /// Its kind.
    pub kind: FsKind,
    /// `statfs.f_type`.
    #[schemars(example = 61_267)]
    pub f_type: u64,
    /// `statfs.f_fsid` as one number: stable over reboots on disk file systems.
    #[schemars(example = 11_475_104_530_816_663_552_u64)]
    pub fsid: u64,
}

/// The identity of this boot and its clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// The kernel's random id of this boot.
    #[schemars(regex(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), example = &"3d6f1c2e-0b7a-4a57-9a0e-0d2a4a3a9f10")]
    pub boot_id: String,
    /// `uname -r`.
    #[schemars(example = &"6.18.0")]
    pub kernel: String,
    /// Wall clock, nanoseconds since 1970.
    #[schemars(example = 1_783_870_002_000_000_000_i64)]
    pub realtime_ns: i64,
    /// Time since boot, suspend included, in nanoseconds.
    #[schemars(example = 81_000_000_000_i64)]
    pub boottime_ns: i64,
}
