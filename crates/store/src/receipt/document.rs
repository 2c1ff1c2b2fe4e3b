//! The receipt as a document: its checksum, and whom a stored one is believed from.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use b70_manifest::artifact;
use rustix::fs::{Mode, OFlags};
use serde::Serialize as _;

use super::{DirectoryHint, LeaseEvidence, RULE, Receipt, ReceiptFile, ReceiptReason};
use crate::digest::{Blake3, Content};
use crate::error::{Error, Result};
use crate::exposure::{Exposure, Owners};
use crate::identity::{FileIdentity, file_system_of, identity_of, this_boot};
use crate::path::{RelPath, Root, read_bounded};
use crate::publish::{Published, replace_bytes};

/// The largest receipt that is read: about 100 000 files.
pub(crate) const MAX_RECEIPT_BYTES: u64 = 64 << 20;

const DOMAIN: &[u8] = b"b70-admission-receipt-v2\0";

impl Receipt {
    /// The checksum that the document should carry.
    pub(crate) fn compute_checksum(&self) -> Blake3 {
        let mut zeroed = self.0.clone();
        zeroed.checksum_blake3 = Blake3([0; 32]);
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        zeroed
            .serialize(&mut serde_json::Serializer::new(std::io::BufWriter::new(&mut hasher)))
            .expect("a receipt has string keys only and a hasher takes every byte");
        Blake3(*hasher.finalize().as_bytes())
    }

    /// What a document that is itself believed states of the subject's files, in the form [`admit`](super::admit) takes:
    /// `contents` stand in the order of the subject. The identities in it hold for no file, so nothing is trusted unread;
    /// but a file whose BLAKE3 is the stated one needs no SHA-256.
    ///
    /// Errors: the boot or the file system cannot be asked for.
    pub fn stated(subject: &super::Subject<'_>, contents: &[Content]) -> Result<Self> {
        let root = identity_of(subject.root, subject.root.path())?;
        let nowhere = FileIdentity { ino: 0, ..root };
        let mut receipt = artifact::Receipt {
            schema_version: 2,
            format: subject.format.to_owned(),
            rule: RULE.to_owned(),
            bindings: subject.bindings.clone(),
            boot: this_boot()?,
            filesystem: file_system_of(subject.root, subject.root.path())?,
            fine_stamps: false,
            directory: DirectoryHint { ino: 0, mtime_ns: 0, ctime_ns: 0 },
            files: Vec::new(),
            validated_bytes: 0,
            checksum_blake3: Blake3([0; 32]),
        };
        for (expected, content) in subject.files.iter().zip(contents) {
            receipt.files.push(ReceiptFile {
                name: expected.name.clone(),
                sha256: content.sha256,
                blake3: content.blake3,
                identity: FileIdentity { size: content.size, ..nowhere },
                evidence: LeaseEvidence::None,
            });
        }
        Ok(Self(receipt))
    }

    /// The document's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a receipt has string keys only");
        bytes.push(b'\n');
        bytes
    }

    /// Reads a document's bytes and checks its checksum and rule; `path` is for the reason given.
    pub fn from_bytes(bytes: &[u8], path: PathBuf) -> Result<Self, ReceiptReason> {
        // An older or foreign document is told apart from a damaged one, for the message only.
        #[derive(serde::Deserialize)]
        struct Head {
            rule: Option<String>,
            format: Option<String>,
        }
        let receipt: Self = match serde_json::from_slice(bytes) {
            Ok(receipt) => receipt,
            Err(e) => {
                return Err(match serde_json::from_slice::<Head>(bytes) {
                    Ok(Head { rule: Some(found), .. }) if found != RULE => ReceiptReason::OtherRule { found },
                    Ok(Head { rule: None, format: Some(found) }) => ReceiptReason::OtherRule { found },
                    _ => ReceiptReason::ReceiptDamaged { path, why: e.to_string() },
                });
            }
        };
        if receipt.rule != RULE || receipt.schema_version != 2 {
            return Err(ReceiptReason::OtherRule { found: receipt.rule.clone() });
        }
        let found = receipt.compute_checksum();
        if found != receipt.checksum_blake3 {
            let why = format!("its checksum is {}, its content has {found}", receipt.checksum_blake3);
            return Err(ReceiptReason::ReceiptDamaged { path, why });
        }
        Ok(receipt)
    }

    /// Stores the receipt as `name` in `dir`, mode 0644, replacing an older one atomically and durably.
    ///
    /// Keep it beside what it vouches for: a receipt for files in memory then dies with them.
    pub fn store(&self, dir: &Root, name: &RelPath) -> Result<Published> {
        replace_bytes(dir, name, &self.to_bytes(), 0o644)
    }

    /// Loads a receipt. It is believed only from a file, a folder and folders above it that belong to this user or
    /// root and that nobody else can write to. What keeps it from being believed is the reason returned; it never
    /// stands in the way of hashing the files instead.
    pub fn load(dir: &Root, name: &RelPath) -> Result<Self, ReceiptReason> {
        let path = dir.join(name);
        let unreadable = |e: &Error| ReceiptReason::ReceiptUnreadable { path: path.clone(), why: e.to_string() };
        let file = match dir.open_file(name) {
            Ok(file) => file,
            Err(Error::Missing { .. }) => return Err(ReceiptReason::ReceiptMissing { path }),
            Err(e) => return Err(unreadable(&e)),
        };
        check_owner(&file, path.clone(), false)?;
        // The name may have folders in it: start from the folder the file is in.
        let folder = match name.parent() {
            Some(parent) => dir.dir(&parent).map_err(|e| unreadable(&e))?,
            None => dir.try_clone().map_err(|e| unreadable(&e))?,
        };
        check_folders(&folder)?;
        let bytes = read_bounded(&file, &path, MAX_RECEIPT_BYTES).map_err(|e| unreadable(&e))?;
        Self::from_bytes(&bytes, path)
    }
}

/// `sticky_ok`: others may write to a folder above when its sticky bit keeps them from touching what is not theirs.
pub(super) fn check_owner(fd: impl AsFd, path: PathBuf, sticky_ok: bool) -> Result<FileIdentity, ReceiptReason> {
    let identity = identity_of(fd, &path)
        .map_err(|e| ReceiptReason::ReceiptUnreadable { path: path.clone(), why: e.to_string() })?;
    check_identity(&identity, path, sticky_ok)?;
    Ok(identity)
}

/// Whether what has this identity belongs to this user or root and nobody else can write to it.
pub(super) fn check_identity(identity: &FileIdentity, path: PathBuf, sticky_ok: bool) -> Result<(), ReceiptReason> {
    let me = rustix::process::geteuid().as_raw();
    let why = match Owners::only(me).or_root(true).or_sticky(sticky_ok).exposure(identity) {
        None => return Ok(()),
        Some(Exposure::Owner(uid)) => format!("belongs to user {uid}, neither {me} nor root"),
        Some(Exposure::Writers(mode)) => format!("can be written by others (mode {mode:04o}; chmod go-w it)"),
    };
    Err(ReceiptReason::ReceiptUnsafe { path, why })
}

pub(super) fn check_folders(folder: &Root) -> Result<(), ReceiptReason> {
    let mut path = folder.path().to_path_buf();
    let mut below = check_owner(folder, path.clone(), false)?;
    let mut current: Option<OwnedFd> = None;
    // A path has at most 4096 bytes, so at most 2048 folders.
    for _ in 0..2048 {
        path.push("..");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = current.as_ref().map_or_else(|| folder.as_fd(), AsFd::as_fd);
        let parent = rustix::fs::openat(from, c"..", flags, Mode::empty())
            .map_err(|e| ReceiptReason::ReceiptUnreadable { path: path.clone(), why: e.to_string() })?;
        let identity = check_owner(&parent, path.clone(), true)?;
        if (identity.dev, identity.ino) == (below.dev, below.ino) && identity.mnt_id == below.mnt_id {
            return Ok(());
        }
        below = identity;
        current = Some(parent);
    }
    Err(ReceiptReason::ReceiptUnsafe { path, why: "has no end of folders above it".to_owned() })
}
