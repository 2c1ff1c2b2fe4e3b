//! Issuing: hashing files in such a way that their inodes can vouch for them afterwards.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use b70_manifest::artifact;
use rayon::prelude::*;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::document::{check_folders, check_identity};
use super::{
    DirectoryHint, Expected, HashOptions, LeaseEvidence, QUIET_GUARD, Quiet, RULE, Receipt, ReceiptFile, ReceiptReason,
    ReceiptVerdict, Subject,
};
use crate::digest::{Blake3, Content, DigestKind, Digests, Job, Source, on_threads};
use crate::error::{Error, Mismatch, Result};
use crate::identity::{FileIdentity, FileSystem, Scope, clock_ns, file_system_of, identity_of, this_boot};
use crate::immutable::is_immutable;
use crate::many::hash_many;
use crate::path::Root;
use crate::sys::{LeaseProbe, probe_lease};

/// Files held open at once: well below the usual limit of 1024.
const BATCH: usize = 256;

/// One hashed file and what keeps it from a receipt.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) identity: FileIdentity,
    pub(super) digests: Digests,
    pub(super) evidence: LeaseEvidence,
    pub(super) filesystem: FileSystem,
    pub(super) reasons: Vec<ReceiptReason>,
}

/// What the file system's time stamps can tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamps {
    /// A change after a look always shows.
    pub(super) fine: bool,
    /// The device that was probed.
    dev: Option<u64>,
    /// How far its clock is off ours, when that is too far.
    off_ms: Option<i64>,
}

impl Stamps {
    /// Writes to an unnamed probe file in `dir` and looks at it after each write. Only a file made here and now tells
    /// the file system's time; where none can be made (a read-only folder) the stamps count as coarse.
    pub(super) fn probe(dir: &Root) -> Self {
        Self::try_probe(dir).unwrap_or(Self { fine: false, dev: None, off_ms: None })
    }

    fn try_probe(dir: &Root) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let before = clock_ns(ClockId::Realtime);
        let fd = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR).ok()?;
        let mut stamps = Vec::new();
        let mut dev = 0;
        for i in 0..8_u8 {
            rustix::io::pwrite(&fd, &[i], 0).ok()?;
            let identity = identity_of(&fd, dir.path()).ok()?;
            dev = identity.dev;
            stamps.push(identity.ctime_ns);
        }
        let after = clock_ns(ClockId::Realtime);
        let fine = stamps.windows(2).all(|w| w[0] != w[1]) && stamps.iter().all(|s| s % 1_000_000_000 != 0);
        // A stamp may lag by a tick (10 ms at most) or, where seconds are the unit, by up to one.
        let last = *stamps.last()?;
        let off = if last > after {
            last - after
        } else if last < before - 1_100_000_000 {
            last - before
        } else {
            0
        };
        Some(Self { fine, dev: Some(dev), off_ms: (off != 0).then_some(off / 1_000_000) })
    }

    /// Why a file that has this identity now is too fresh (or from the future).
    fn guard(&self, name: &str, identity: &FileIdentity) -> Option<ReceiptReason> {
        if let Some(off_ms) = self.off_ms {
            return Some(ReceiptReason::ForeignClock { off_ms });
        }
        let age = clock_ns(ClockId::Realtime) - identity.ctime_ns;
        if age < 0 {
            return Some(ReceiptReason::ChangeInTheFuture { name: name.to_owned(), ahead_ms: -age / 1_000_000 });
        }
        // Whole seconds mean that this very file has no room for more, whatever the probe said.
        let fine = self.fine && self.dev == Some(identity.dev) && identity.ctime_ns % 1_000_000_000 != 0;
        if !fine && age < QUIET_GUARD.as_nanos() as i64 {
            return Some(ReceiptReason::NotQuiet { name: name.to_owned(), changed_ms_ago: age / 1_000_000 });
        }
        None
    }
}

/// Sleeps until every file has been quiet for long enough, if that is within what the caller allows.
fn wait_for_quiet(root: &Root, files: &[&Expected], stamps: &Stamps, how: &HashOptions<'_>) -> Result<()> {
    let Quiet::Wait(most) = how.quiet else { return Ok(()) };
    let mut wait = Duration::ZERO;
    for file in files {
        let Ok(identity) = root.stat(&file.name) else { continue };
        if let Some(ReceiptReason::NotQuiet { changed_ms_ago, .. }) = stamps.guard("", &identity) {
            // 20 ms more than the guard, for the tick by which stamps lag.
            let guard = QUIET_GUARD + Duration::from_millis(20);
            wait = wait.max(guard.saturating_sub(Duration::from_millis(changed_ms_ago as u64)));
        }
    }
    if wait > most {
        return Ok(());
    }
    while !wait.is_zero() {
        how.progress.check()?;
        let nap = wait.min(Duration::from_millis(100));
        std::thread::sleep(nap);
        wait -= nap;
    }
    Ok(())
}

/// A file between the looks before and after the hashing.
struct Begun {
    file: File,
    path: PathBuf,
    identity: FileIdentity,
    filesystem: FileSystem,
    evidence: LeaseEvidence,
    reasons: Vec<ReceiptReason>,
}

fn lease(file: &File, name: &str, reasons: &mut Vec<ReceiptReason>) -> LeaseEvidence {
    // Between fork and exec a child of any thread holds copies of all handles, also of one that was just closed: a
    // refusal counts only if it lasts. A later success is as good a proof, since the looks come after it.
    let mut probe = probe_lease(file.as_fd());
    for _ in 0..3 {
        if probe != LeaseProbe::Writers {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        probe = probe_lease(file.as_fd());
    }
    match probe {
        LeaseProbe::NoWriters => return LeaseEvidence::Lease,
        LeaseProbe::Writers => reasons.push(ReceiptReason::OpenForWriting { name: name.to_owned() }),
        LeaseProbe::NoAnswer(e) => {
            let why = std::io::Error::from(e).to_string();
            reasons.push(ReceiptReason::NoLeaseEvidence { name: name.to_owned(), why });
        }
    }
    LeaseEvidence::None
}

fn begin(root: &Root, expected: &Expected, stamps: &Stamps) -> Result<Begun> {
    let path = root.join(&expected.name);
    let name = expected.name.to_string();
    let file = root.open_file(&expected.name)?;
    let first = identity_of(&file, &path)?;
    if first.size != expected.size {
        return Err(Error::Size { path, expected: expected.size, found: first.size });
    }
    let filesystem = file_system_of(&file, &path)?;
    let mut reasons = Vec::new();
    if !filesystem.kind.may_hold_receipts() {
        // Nothing below could change the verdict.
        let FileSystem { kind, f_type, .. } = filesystem;
        reasons.push(ReceiptReason::FileSystemDenied { name, kind, f_type });
        return Ok(Begun { file, path, identity: first, filesystem, evidence: LeaseEvidence::None, reasons });
    }
    if filesystem.kind.in_memory() && first.mnt_id.is_none() {
        // Two tmpfs mounts can give different files the same device and inode numbers.
        reasons.push(ReceiptReason::NoMountId { name: name.clone() });
    }
    // Before the probe: whoever could write already when the flag was set still can, and only the probe sees that.
    let immutable = is_immutable(&file, &path)?;
    if !immutable {
        reasons.extend(check_identity(&first, path.clone(), false).err());
    }
    let evidence = match lease(&file, &name, &mut reasons) {
        LeaseEvidence::Lease if immutable => LeaseEvidence::Immutable,
        evidence => evidence,
    };
    // This look is what makes the next change visible on file systems with fine stamps, and what must be old enough
    // on the others; only then comes the fsync. The other way round a writer's mapping could store once in between,
    // make its page writable again, and be invisible from then on.
    let before = identity_of(&file, &path)?;
    reasons.extend(stamps.guard(&name, &before));
    if !filesystem.kind.in_memory() {
        match rustix::fs::fsync(&file) {
            // Read-only file systems have nothing to write.
            Ok(()) | Err(Errno::ROFS) => {}
            Err(e) => {
                let why = std::io::Error::from(e).to_string();
                reasons.push(ReceiptReason::FsyncFailed { name: name.clone(), why });
            }
        }
    }
    let identity = identity_of(&file, &path)?;
    let changes = before.differences(&identity, Scope::Memory);
    if !changes.is_empty() {
        reasons.push(ReceiptReason::ChangedMeanwhile { name, changes });
    }
    Ok(Begun { file, path, identity, filesystem, evidence, reasons })
}

fn end(root: &Root, expected: &Expected, begun: Begun, digests: Digests) -> Result<Proof> {
    let Begun { file, path, identity, filesystem, mut evidence, mut reasons } = begun;
    let name = expected.name.to_string();
    if filesystem.kind.may_hold_receipts() {
        if lease(&file, &name, &mut reasons) == LeaseEvidence::None {
            evidence = LeaseEvidence::None;
        }
        let changes = identity.differences(&identity_of(&file, &path)?, Scope::Memory);
        if !changes.is_empty() {
            reasons.push(ReceiptReason::ChangedMeanwhile { name: name.clone(), changes });
        }
        // A rename over the name during the hashing leaves our handle on the old file.
        match root.stat(&expected.name) {
            Ok(found) if found.differences(&identity, Scope::Memory).is_empty() => {}
            _ => reasons.push(ReceiptReason::NameMoved { name }),
        }
    }
    Ok(Proof { identity, digests, evidence, filesystem, reasons })
}

/// Computes digests of that kind of open files, one result for each, in order.
pub(super) type HashFiles<'h> = &'h mut dyn FnMut(&[Job<'_>], DigestKind) -> Vec<Result<Digests>>;

/// Hashes the files by the rule; the results stand in the order of `files`.
pub(super) fn prove(
    root: &Root,
    files: &[&Expected],
    what: DigestKind,
    stamps: &Stamps,
    how: &HashOptions<'_>,
    hash: HashFiles<'_>,
) -> Result<Vec<Result<Proof>>> {
    wait_for_quiet(root, files, stamps, how)?;
    let mut proofs = Vec::with_capacity(files.len());
    for batch in files.chunks(BATCH) {
        how.progress.check()?;
        // In parallel, since the fsync of a file that was just written may take long.
        let begun: Vec<Result<Begun>> =
            on_threads(|| batch.par_iter().map(|expected| begin(root, expected, stamps)).collect())?;
        let jobs: Vec<Job<'_>> = begun
            .iter()
            .flatten()
            .map(|b| Job { source: Source::File(&b.file, &b.path), size: Some(b.identity.size) })
            .collect();
        let mut hashed = hash(&jobs, what).into_iter();
        for (expected, begun) in batch.iter().zip(begun) {
            proofs.push(begun.and_then(|begun| {
                let digests = hashed.next().expect("one result for each file that was opened")?;
                end(root, expected, begun, digests)
            }));
        }
    }
    how.progress.check()?;
    Ok(proofs)
}

/// One error as it is, several as [`Error::Mismatches`] that names all; cancellation before everything.
fn combine(root: &Root, mut errors: Vec<(&Expected, Error)>) -> Result<()> {
    if let Some(i) = errors.iter().position(|(_, e)| e.is_cancelled()) {
        return Err(errors.swap_remove(i).1);
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0).1),
        _ => Err(Error::Mismatches(
            errors.into_iter().map(|(x, e)| Mismatch { path: root.join(&x.name), what: e.to_string() }).collect(),
        )),
    }
}

/// Hashes every file of the subject with both digests, compares with the expected ones, and issues a receipt if the
/// rule allows. The caller stores it ([`Receipt::store`]).
///
/// Errors: a file that is missing, has another size or digest, changed or cannot be read ([`Error::Mismatches`] when
/// there are several), [`Error::Cancelled`]. Whatever merely stands against a receipt is not an error.
pub fn issue(subject: &Subject<'_>, how: &HashOptions<'_>) -> Result<ReceiptVerdict> {
    let stamps = Stamps::probe(subject.root);
    let files: Vec<&Expected> = subject.files.iter().collect();
    let hash: HashFiles<'_> = &mut |jobs, kind| hash_many(jobs, kind, &how.progress);
    let proofs = prove(subject.root, &files, DigestKind::Both, &stamps, how, hash)?;
    let (mut listed, mut reasons, mut errors, mut systems) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (expected, proof) in files.iter().zip(proofs) {
        match proof {
            Ok(proof) => {
                let content = proof.digests.content().ok_or_else(|| {
                    Error::io("hash", subject.root.join(&expected.name), std::io::Error::other("a digest is missing"))
                })?;
                match expected.sha256 {
                    Some(wanted) if wanted != content.sha256 => {
                        let path = subject.root.join(&expected.name);
                        errors.push((*expected, Error::Sha256 { path, expected: wanted, found: content.sha256 }));
                    }
                    _ => {
                        systems.push((proof.filesystem, proof.identity.dev));
                        reasons.extend(proof.reasons);
                        listed.push(ReceiptFile {
                            name: expected.name.clone(),
                            sha256: content.sha256,
                            blake3: content.blake3,
                            identity: proof.identity,
                            evidence: proof.evidence,
                        });
                    }
                }
            }
            Err(e) => errors.push((*expected, e)),
        }
    }
    combine(subject.root, errors)?;
    let contents =
        |listed: &[ReceiptFile]| listed.iter().map(|f| (f.name.clone(), f.into())).collect::<Vec<(_, Content)>>();
    match assemble(subject, &stamps, listed.clone(), &systems)? {
        Ok(receipt) if reasons.is_empty() => Ok(ReceiptVerdict::Trusted(Box::new(receipt))),
        Ok(_) => Ok(ReceiptVerdict::VerifiedUntrusted { files: contents(&listed), reasons }),
        Err(reason) => {
            reasons.push(reason);
            Ok(ReceiptVerdict::VerifiedUntrusted { files: contents(&listed), reasons })
        }
    }
}

/// Makes the document, or says why these files cannot share one.
pub(super) fn assemble(
    subject: &Subject<'_>,
    stamps: &Stamps,
    mut files: Vec<ReceiptFile>,
    systems: &[(FileSystem, u64)],
) -> Result<Result<Receipt, ReceiptReason>> {
    if let Err(reason) = check_folders(subject.root) {
        return Ok(Err(reason));
    }
    let directory = identity_of(subject.root, subject.root.path())?;
    let first = match systems.first() {
        Some(first) => *first,
        None => (file_system_of(subject.root, subject.root.path())?, directory.dev),
    };
    if let Some(i) = systems.iter().position(|s| *s != first) {
        return Ok(Err(ReceiptReason::SeveralFileSystems { name: files[i].name.to_string() }));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let validated_bytes = files.iter().fold(0_u64, |sum, f| sum.saturating_add(f.identity.size));
    let fine_stamps = stamps.fine && files.iter().all(|f| f.identity.ctime_ns % 1_000_000_000 != 0);
    let mut receipt = Receipt(artifact::Receipt {
        schema_version: 2,
        format: subject.format.to_owned(),
        rule: RULE.to_owned(),
        bindings: subject.bindings.clone(),
        boot: this_boot()?,
        filesystem: first.0,
        fine_stamps,
        directory: DirectoryHint { ino: directory.ino, mtime_ns: directory.mtime_ns, ctime_ns: directory.ctime_ns },
        files,
        validated_bytes,
        checksum_blake3: Blake3([0; 32]),
    });
    receipt.0.checksum_blake3 = receipt.compute_checksum();
    Ok(Ok(receipt))
}
