//! Honouring: trust where the kernel keeps the bytes still, else BLAKE3, else SHA-256, and which it was.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use super::document::{check_folders, check_identity, check_owner};
use super::prove::{HashFiles, Stamps, assemble, prove};
use super::{Expected, Extras, HashOptions, LeaseEvidence, Receipt, ReceiptFile, ReceiptReason, Subject, Trust};
use crate::digest::{Content, DigestKind};
use crate::error::{Error, Mismatch, Result};
use crate::identity::{Boot, FileIdentity, FileSystem, Scope, file_system_of, this_boot};
use crate::immutable::is_immutable;
use crate::many::hash_many;
use crate::path::{EntryKind, RelPath};

/// A clock that moved by more than this between issue and now was set, not slewed.
const CLOCK_STEP_MS: i64 = 500;

/// Entries beneath a root that are looked at when extra files are asked for.
const WALK_LIMIT: usize = 1_000_000;

/// One file after the look at its inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// As the receipt says, on this rung; none of its bytes need be read.
    Trusted(Trust),
    /// Its bytes must be read.
    Void(Vec<ReceiptReason>),
    /// Certainly not the expected file: missing, another size, no regular file.
    Changed(Mismatch),
}

/// What a look at the inodes alone says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examination {
    /// Why the receipt as a whole is void.
    pub reasons: Vec<ReceiptReason>,
    /// Each file, in the order of the subject.
    pub files: Vec<Standing>,
    /// Files beneath the root that the subject does not name, relative to it.
    pub extra: Vec<PathBuf>,
}

impl Examination {
    /// Whether everything may be trusted without reading a byte of it.
    pub fn is_trusted(&self) -> bool {
        self.reasons.is_empty() && self.files.iter().all(|f| matches!(f, Standing::Trusted(_)))
    }

    /// What that rests on: the weakest rung of all files. None where something must be read, or there are no files.
    pub fn trust(&self) -> Option<Trust> {
        let rungs = self.files.iter().map(|f| if let Standing::Trusted(rung) = f { Some(*rung) } else { None });
        rungs.min().flatten().filter(|_| self.reasons.is_empty())
    }

    /// Whether every file is still the one that was hashed, as far as its inode tells, whether or not that is believed unread.
    pub fn is_unchanged(&self) -> bool {
        self.reasons.is_empty()
            && self.files.iter().all(|f| match f {
                Standing::Trusted(_) => true,
                Standing::Void(reasons) => reasons.iter().all(ReceiptReason::is_want_of_a_rung),
                Standing::Changed(_) => false,
            })
    }

    /// The files that are certainly not the expected ones.
    pub fn changed(&self) -> Vec<Mismatch> {
        self.files.iter().filter_map(|f| if let Standing::Changed(m) = f { Some(m.clone()) } else { None }).collect()
    }

    /// Every reason, those of single files included.
    pub fn all_reasons(&self) -> Vec<ReceiptReason> {
        let single = self.files.iter().filter_map(|f| if let Standing::Void(r) = f { Some(r) } else { None });
        self.reasons.iter().chain(single.flatten()).cloned().collect()
    }
}

/// Outcome of [`admit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// What it rests on, when `changed` is empty: the weakest over all files.
    pub trust: Trust,
    /// Files that are not what was expected. Nothing is admitted when there are any.
    pub changed: Vec<Mismatch>,
    /// Files beneath the root that the subject does not name, relative to it.
    pub extra: Vec<PathBuf>,
    /// Why the receipt did not suffice, and why there is no new one.
    pub reasons: Vec<ReceiptReason>,
    /// Content of every file that was admitted, in the order of the subject.
    pub files: Vec<(RelPath, Content)>,
    /// Payload bytes that were read.
    pub bytes_read: u64,
    /// A new receipt to store, when the old one did not suffice and the rule allows one.
    pub refreshed: Option<Box<Receipt>>,
}

impl Admission {
    /// Whether every file is admitted.
    pub fn is_admitted(&self) -> bool {
        self.changed.is_empty()
    }
}

/// Reasons that concern the receipt as a whole.
fn whole(subject: &Subject<'_>, receipt: &Receipt, how: &HashOptions<'_>) -> Result<Vec<ReceiptReason>> {
    let mut reasons = Vec::new();
    if receipt.format != subject.format {
        let (recorded, expected) = (receipt.format.clone(), subject.format.to_owned());
        reasons.push(ReceiptReason::OtherFormat { recorded, expected });
    }
    let keys: BTreeSet<&String> = receipt.bindings.keys().chain(subject.bindings.keys()).collect();
    for key in keys {
        let (recorded, expected) = (receipt.bindings.get(key), subject.bindings.get(key));
        if recorded != expected {
            let (key, recorded, expected) = (key.clone(), recorded.cloned(), expected.cloned());
            reasons.push(ReceiptReason::BindingChanged { key, recorded, expected });
        }
    }
    let now = this_boot()?;
    let in_memory = receipt.filesystem.kind.in_memory();
    let same_boot = now.boot_id == receipt.boot.boot_id;
    if (in_memory || !receipt.fine_stamps) && !same_boot {
        reasons.push(ReceiptReason::OtherBoot);
    }
    if !receipt.fine_stamps && same_boot {
        let offset = |b: &Boot| b.realtime_ns.saturating_sub(b.boottime_ns);
        let by_ms = offset(&now).saturating_sub(offset(&receipt.boot)) / 1_000_000;
        if by_ms.abs() > CLOCK_STEP_MS {
            reasons.push(ReceiptReason::ClockStepped { by_ms });
        }
    }
    if let Some(limit) = how.max_age {
        let age_seconds = now.realtime_ns.saturating_sub(receipt.boot.realtime_ns) / 1_000_000_000;
        if age_seconds < 0 || age_seconds as u64 > limit.as_secs() {
            reasons.push(ReceiptReason::TooOld { age_seconds });
        }
    }
    Ok(reasons)
}

/// Every file, link or special file beneath the root that is neither expected nor known; also such as have names that
/// no document could carry.
fn extra(subject: &Subject<'_>) -> Result<Vec<PathBuf>> {
    let Extras::Report(known) = subject.extras else { return Ok(Vec::new()) };
    let names: HashSet<&RelPath> = subject.files.iter().map(|f| &f.name).collect();
    let belongs = |path: &PathBuf| RelPath::new(path).is_ok_and(|name| names.contains(&name) || known(&name));
    let entries = subject.root.walk_raw(WALK_LIMIT)?;
    let files = entries.into_iter().filter(|(_, kind)| *kind != EntryKind::Directory).map(|(path, _)| path);
    Ok(files.filter(|path| !belongs(path)).collect())
}

/// Looks at every inode, compares it with the receipt, and asks what keeps the bytes still; reads no byte of the files.
///
/// A file is believed unread on two rungs: immutable since before it was hashed ([`Trust::Immutable`]); or an ordinary file on
/// a disk that belongs to this user or root, that nobody else can write to, nor to the folders it is in, and that was hashed
/// between two granted lease probes ([`Trust::QuietFile`]). On tmpfs only the first counts.
///
/// Errors: only what keeps the looks themselves from being made (no `openat2`, no `/proc`).
pub fn examine(subject: &Subject<'_>, receipt: &Receipt, how: &HashOptions<'_>) -> Result<Examination> {
    let mut reasons = whole(subject, receipt, how)?;
    let listed: HashMap<&RelPath, &ReceiptFile> = receipt.files.iter().map(|f| (&f.name, f)).collect();
    let in_memory = receipt.filesystem.kind.in_memory();
    let scope = if in_memory { Scope::Memory } else { Scope::Disk };
    // The file system is the same for all files of a device and mount: ask once for each.
    let mut systems: HashMap<(u64, Option<u64>), FileSystem> = HashMap::new();
    let mut files = Vec::with_capacity(subject.files.len());
    let mut rungs = Rungs { subject, in_memory, read_only: how.read_only, folders: None, parents: HashMap::new() };
    for expected in subject.files {
        let path = subject.root.join(&expected.name);
        let (handle, identity) = match subject.root.stat_handle(&expected.name) {
            Ok(found) => found,
            Err(e @ Error::NoOpenat2 { .. }) => return Err(e),
            Err(e) => {
                files.push(Standing::Changed(Mismatch { path, what: e.to_string() }));
                continue;
            }
        };
        if let Some(changed) = wrong_kind_or_size(expected, &identity, &path) {
            files.push(Standing::Changed(changed));
            continue;
        }
        let mut void = Vec::new();
        let name = expected.name.to_string();
        match listed.get(&expected.name) {
            None => void.push(ReceiptReason::NotListed { name }),
            Some(listed)
                if listed.identity.size != expected.size || expected.sha256.is_some_and(|s| s != listed.sha256) =>
            {
                void.push(ReceiptReason::OtherDigestListed { name });
            }
            Some(listed) => {
                let filesystem = match systems.entry((identity.dev, identity.mnt_id)) {
                    std::collections::hash_map::Entry::Occupied(known) => *known.get(),
                    std::collections::hash_map::Entry::Vacant(new) => *new.insert(file_system_of(&handle, &path)?),
                };
                if !filesystem.kind.may_hold_receipts() {
                    let FileSystem { kind, f_type, .. } = filesystem;
                    void.push(ReceiptReason::FileSystemDenied { name: name.clone(), kind, f_type });
                } else if filesystem != receipt.filesystem {
                    void.push(ReceiptReason::OtherFileSystem { recorded: receipt.filesystem, found: filesystem });
                }
                if in_memory && identity.mnt_id.is_none() {
                    void.push(ReceiptReason::NoMountId { name: name.clone() });
                }
                let changes = listed.identity.differences(&identity, scope);
                if !changes.is_empty() {
                    void.push(ReceiptReason::IdentityChanged { name, changes });
                }
            }
        }
        let rung = match listed.get(&expected.name).filter(|_| void.is_empty()) {
            Some(listed) => rungs.of(listed, &handle, path)?,
            None => Err(void),
        };
        files.push(rung.map_or_else(Standing::Void, Standing::Trusted));
    }
    reasons.extend(rungs.folders.take().and_then(Result::err));
    if listed.len() > subject.files.len() {
        let names: HashSet<&RelPath> = subject.files.iter().map(|f| &f.name).collect();
        let unexpected = receipt.files.iter().filter(|f| !names.contains(&f.name));
        reasons.extend(unexpected.map(|f| ReceiptReason::ListedButNotExpected { name: f.name.to_string() }));
    }
    let extra = extra(subject)?;
    Ok(Examination { reasons, files, extra })
}

/// Finds out on which rung an unchanged file may be believed unread.
struct Rungs<'a> {
    subject: &'a Subject<'a>,
    in_memory: bool,
    read_only: bool,
    /// The root and the folders above it; looked at when the first file rests on them.
    folders: Option<Result<(), ReceiptReason>>,
    /// The folders between the root and the files.
    parents: HashMap<RelPath, Option<ReceiptReason>>,
}

impl Rungs<'_> {
    fn of(
        &mut self,
        listed: &ReceiptFile,
        handle: &std::os::fd::OwnedFd,
        path: PathBuf,
    ) -> Result<Result<Trust, Vec<ReceiptReason>>> {
        let name = || listed.name.to_string();
        if listed.evidence == LeaseEvidence::Immutable && is_immutable(handle, &path)? {
            return Ok(Ok(Trust::Immutable));
        }
        if self.in_memory {
            return Ok(Err(vec![ReceiptReason::MutableInMemory { name: name() }]));
        }
        let mut against = Vec::new();
        if listed.evidence == LeaseEvidence::None {
            let why = "no lease was granted while it was hashed".to_owned();
            against.push(ReceiptReason::NoLeaseEvidence { name: name(), why });
        }
        match check_identity(&listed.identity, path, false) {
            Err(reason) => against.push(reason),
            Ok(()) if self.read_only && listed.identity.mode & 0o222 != 0 => {
                against.push(ReceiptReason::Writable { name: name(), mode: listed.identity.mode & 0o7777 });
            }
            Ok(()) => {}
        }
        self.folders.get_or_insert_with(|| check_folders(self.subject.root));
        if let Some(parent) = listed.name.parent() {
            let found = if let Some(found) = self.parents.get(&parent) {
                found.clone()
            } else {
                let folder = self.subject.root.dir(&parent)?;
                let found = check_owner(&folder, folder.path().to_path_buf(), false).err();
                self.parents.insert(parent, found.clone());
                found
            };
            against.extend(found);
        }
        Ok(if against.is_empty() { Ok(Trust::QuietFile) } else { Err(against) })
    }
}

fn wrong_kind_or_size(expected: &Expected, found: &FileIdentity, path: &std::path::Path) -> Option<Mismatch> {
    let kind = EntryKind::from_mode(found.mode);
    let what = if kind == EntryKind::File {
        if found.size == expected.size {
            return None;
        }
        format!("it has {} bytes, expected {}", found.size, expected.size)
    } else {
        format!("it is a {}, expected a regular file", kind.name())
    };
    Some(Mismatch { path: path.to_path_buf(), what })
}

/// Decides whether the files are the expected ones, reading as little as the receipt allows.
///
/// `receipt` is the outcome of [`Receipt::load`]. Files that stand on a rung ([`examine`]) are trusted. Of the others the
/// bytes are read: against the receipt's BLAKE3 where the receipt lists the digest that is expected, else (or when that
/// disagrees) against SHA-256. If the rule allows, the outcome carries a new receipt for the caller to store.
///
/// A changed, missing or unreadable file is not an error but in [`Admission::changed`], all of them at once.
pub fn admit(
    subject: &Subject<'_>,
    receipt: Result<Receipt, ReceiptReason>,
    how: &HashOptions<'_>,
) -> Result<Admission> {
    admit_with(subject, receipt, how, &mut |jobs, kind| hash_many(jobs, kind, &how.progress))
}

/// [`admit`] for a caller that reads the files for a purpose of its own and hashes them on the way: `hash` is given open
/// files and returns the digests of that kind of each, in their order, computed from every byte read after the call began. It
/// is called once for every 256 files, and again for those whose BLAKE3 is not the receipt's.
pub fn admit_with(
    subject: &Subject<'_>,
    receipt: Result<Receipt, ReceiptReason>,
    how: &HashOptions<'_>,
    hash: HashFiles<'_>,
) -> Result<Admission> {
    let mut outcome = Admission {
        trust: Trust::Sha256,
        changed: Vec::new(),
        extra: Vec::new(),
        reasons: Vec::new(),
        files: Vec::new(),
        bytes_read: 0,
        refreshed: None,
    };
    let receipt = match receipt {
        Ok(receipt) => {
            let examination = examine(subject, &receipt, how)?;
            outcome.reasons = examination.all_reasons();
            outcome.extra.clone_from(&examination.extra);
            outcome.changed = examination.changed();
            Some((receipt, examination))
        }
        Err(reason) => {
            outcome.reasons.push(reason);
            outcome.extra = extra(subject)?;
            None
        }
    };
    let listed: HashMap<&RelPath, &ReceiptFile> =
        receipt.iter().flat_map(|(r, _)| &r.files).map(|f| (&f.name, f)).collect();
    let mut run = Run {
        subject,
        how,
        stamps: None,
        listed,
        proved: vec![None; subject.files.len()],
        systems: vec![None; subject.files.len()],
        blocked: false,
        rungs: Vec::new(),
        outcome,
    };
    let (mut by_blake3, mut by_sha256) = (Vec::new(), Vec::new());
    for (i, expected) in subject.files.iter().enumerate() {
        let entry = run.listed.get(&expected.name).copied();
        let standing = receipt.as_ref().map(|(_, x)| (&x.files[i], x.reasons.is_empty()));
        match (standing, entry) {
            (Some((Standing::Changed(_), _)), _) => {}
            (Some((Standing::Trusted(rung), true)), Some(entry)) => {
                run.rungs.push(*rung);
                run.proved[i] = Some(entry.clone());
                run.systems[i] = receipt.as_ref().map(|(r, _)| (r.filesystem, entry.identity.dev));
            }
            (_, Some(entry))
                if entry.identity.size == expected.size && expected.sha256.is_none_or(|s| s == entry.sha256) =>
            {
                by_blake3.push(i);
            }
            _ => by_sha256.push(i),
        }
    }
    by_sha256.extend(run.pass(&by_blake3, DigestKind::Blake3, hash)?);
    by_sha256.sort_unstable();
    run.pass(&by_sha256, DigestKind::Both, hash)?;
    run.finish(receipt.as_ref().map(|(receipt, examination)| (receipt, examination.reasons.is_empty())))
}

/// The files of one admission on their way from doubt to proof.
struct Run<'a> {
    subject: &'a Subject<'a>,
    how: &'a HashOptions<'a>,
    stamps: Option<Stamps>,
    listed: HashMap<&'a RelPath, &'a ReceiptFile>,
    /// Per file of the subject: trusted as listed, or proved anew.
    proved: Vec<Option<ReceiptFile>>,
    systems: Vec<Option<(FileSystem, u64)>>,
    /// Something stands against a new receipt.
    blocked: bool,
    /// What the files that are admitted rest on.
    rungs: Vec<Trust>,
    outcome: Admission,
}

impl Run<'_> {
    /// Reads the files with these indices; those whose BLAKE3 disagrees are returned for the stronger pass.
    fn pass(&mut self, indices: &[usize], what: DigestKind, hash: HashFiles<'_>) -> Result<Vec<usize>> {
        if indices.is_empty() {
            return Ok(Vec::new());
        }
        let root = self.subject.root;
        let stamps = *self.stamps.get_or_insert_with(|| Stamps::probe(root));
        let files: Vec<&Expected> = indices.iter().map(|&i| &self.subject.files[i]).collect();
        let mut failed = Vec::new();
        for (&i, proof) in indices.iter().zip(prove(root, &files, what, &stamps, self.how, hash)?) {
            let expected = &self.subject.files[i];
            let path = root.join(&expected.name);
            let proof = match proof {
                Ok(proof) => proof,
                Err(e) if e.is_cancelled() => return Err(e),
                Err(e) => {
                    self.outcome.changed.push(Mismatch { path, what: e.to_string() });
                    continue;
                }
            };
            self.outcome.bytes_read += proof.digests.size;
            let entry = self.listed.get(&expected.name).copied();
            let content = match (what, entry) {
                (DigestKind::Blake3, Some(entry)) if proof.digests.blake3 == Some(entry.blake3) => entry.into(),
                (DigestKind::Blake3, _) => {
                    failed.push(i);
                    continue;
                }
                _ => proof.digests.content().expect("a pass of both computes both"),
            };
            match expected.sha256.or(entry.map(|e| e.sha256)) {
                Some(wanted) if wanted != content.sha256 => {
                    let what = format!("it has SHA-256 {}, expected {wanted}", content.sha256);
                    self.outcome.changed.push(Mismatch { path, what });
                    continue;
                }
                Some(_) => {}
                None => self.outcome.reasons.push(ReceiptReason::Unvouched { name: expected.name.to_string() }),
            }
            self.rungs.push(if what == DigestKind::Blake3 { Trust::Blake3 } else { Trust::Sha256 });
            // What stands against a new receipt does not stand against the bytes.
            self.blocked |= !proof.reasons.is_empty();
            self.outcome.reasons.extend(proof.reasons);
            self.systems[i] = Some((proof.filesystem, proof.identity.dev));
            self.proved[i] = Some(ReceiptFile {
                name: expected.name.clone(),
                sha256: content.sha256,
                blake3: content.blake3,
                identity: proof.identity,
                evidence: proof.evidence,
            });
        }
        Ok(failed)
    }

    /// `receipt`: the one there was, and whether it holds as a whole.
    fn finish(mut self, receipt: Option<(&Receipt, bool)>) -> Result<Admission> {
        let proved: Vec<ReceiptFile> = self.proved.iter().flatten().cloned().collect();
        self.outcome.files = proved.iter().map(|f| (f.name.clone(), f.into())).collect();
        self.outcome.trust = self.rungs.iter().copied().min().unwrap_or(Trust::Sha256);
        let complete = self.outcome.changed.is_empty() && proved.len() == self.subject.files.len();
        // What is on no rung is read each time, and its receipt goes on saying the same.
        let same = |(receipt, holds): (&Receipt, bool)| {
            let proved: HashSet<&ReceiptFile> = proved.iter().collect();
            holds && receipt.files.len() == proved.len() && receipt.files.iter().all(|f| proved.contains(f))
        };
        if complete && !self.blocked && !receipt.is_some_and(same) {
            let systems: Vec<_> = self.systems.iter().flatten().copied().collect();
            // Every file that was proved anew had its own probe; without one there is nothing but trusted files.
            let root = self.subject.root;
            let stamps = *self.stamps.get_or_insert_with(|| Stamps::probe(root));
            match assemble(self.subject, &stamps, proved, &systems)? {
                Ok(receipt) => self.outcome.refreshed = Some(Box::new(receipt)),
                Err(reason) => self.outcome.reasons.push(reason),
            }
        }
        Ok(self.outcome)
    }
}
