//! Making the copy: one pass that copies and hashes, into a hidden folder that gets its name only when it is proven.

use std::time::Instant;

use b70_store::{
    Content, DigestKind, DirOutcome, Error, Expected, FileIdentity, HashOptions, HiddenDir, Job, Receipt,
    ReceiptReason, ReceiptVerdict, Result, Scope, Sha256, Source, StageFile, Trust, admit, fault_step, hash_many,
    headroom, make_all_immutable, probe_immutable, stage, sweep_orphans,
};
use serde::Serialize;

use super::entry::{
    IDENTITY, Opened, RECEIPT_FORMAT, SHA256_STATUS, UNVOUCHED, bindings, faults, recorded_identities,
    recorded_stat_differs, renew_admission, store_receipt, subject, write_entry,
};
use super::folder::{ModelCache, RECEIPT_NAME, constant};
use super::request::PrepareRequest;
use super::source::{ModelSource, model_sha256};
use super::staging::{self, StagingReport};
use crate::documents::CacheEntry;
use crate::error::AdmissionError;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PrepareAction {
    /// There was no entry; the model was copied.
    Copied,
    /// A valid entry was there; nothing was copied.
    Reused,
    /// The entry was damaged and has been replaced.
    Repaired,
    /// The entry was valid and has been replaced as asked.
    Redone,
}

/// Outcome of [`ModelCache::prepare`].
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct PreparedModel {
    /// Role of the model.
    pub role: String,
    /// What was done.
    pub action: PrepareAction,
    /// What was wrong with the entry that has been replaced.
    pub damage: Option<String>,
    /// SHA-256 of the model.
    pub key: Sha256,
    /// Path of the copy: the file, or the first shard.
    #[serde(serialize_with = "crate::documents::lossy::path")]
    pub path: std::path::PathBuf,
    /// Whether a document or the user stated the digest. If not, the copy is what was read, and nothing more.
    pub vouched: bool,
    /// On what evidence a reused entry was admitted; `sha256` for a fresh copy.
    pub trust: Trust,
    /// What keeps the next look from trusting the copy without reading it; empty when a receipt stands.
    pub receipt_reasons: Vec<ReceiptReason>,
    /// Bytes of the model.
    pub size_bytes: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// What the copy buys.
    pub staging: Option<StagingReport>,
    /// The entry's document.
    pub metadata: CacheEntry,
}

impl ModelCache {
    /// Makes the model's entry ready: reuses a valid one, repairs a damaged one, copies otherwise.
    ///
    /// Errors: [`Error::Headroom`] before a byte is written, [`Error::Sha256`] when the source is not the expected
    /// model, [`Error::ChangedWhileReading`] (a short read among them), [`Error::LockTimeout`], [`Error::Cancelled`].
    /// After any of them the cache is as it was.
    pub fn prepare(
        &self,
        request: &PrepareRequest<'_>,
        how: &HashOptions<'_>,
    ) -> Result<PreparedModel, AdmissionError> {
        let start = Instant::now();
        let lock_name = request.sha256.map_or_else(
            || {
                let first = &request.source.files[0].identity;
                format!("source-{:x}-{:x}", first.dev, first.ino)
            },
            |key| key.to_string(),
        );
        let _lock = self.lock(&lock_name, "b70-cache prepare", request.wait, &how.progress)?;
        if request.immutable {
            probe_immutable(&self.root)?;
        }
        sweep_orphans(&self.root)?;
        let key = match request.sha256 {
            Some(key) => Some(key),
            None => self.unvouched_key(request.source, how)?,
        };
        let mut damage = None;
        if let Some(key) = key {
            match self.existing(&key, how)? {
                Existing::None => {}
                Existing::Damaged(why) => damage = Some(why),
                Existing::Good(..) if request.force => {}
                Existing::Good(opened, trust, _) if request.immutable && trust != Trust::Immutable => {
                    make_all_immutable(&opened.folder, &opened.files)?;
                    // The receipt that says so, and the record of the times that this moved.
                    let Existing::Good(opened, trust, reasons) = self.existing(&key, how)? else {
                        let reason = "it changed while it was made immutable; run again".to_owned();
                        return Err(AdmissionError::NotAdmitted { path: self.entry_path(&key), reason });
                    };
                    self.also_from(request.source, &key)?;
                    return reuse(request, *opened, trust, reasons, start);
                }
                Existing::Good(opened, trust, reasons) => {
                    self.also_from(request.source, &key)?;
                    return reuse(request, *opened, trust, reasons, start);
                }
            }
        }
        let prepared = self.copy(request, damage, how, start)?;
        if prepared.action == PrepareAction::Reused {
            self.also_from(request.source, &prepared.key)?;
        }
        Ok(prepared)
    }

    /// Records another source of the same bytes, so that its path finds the entry, too.
    fn also_from(&self, source: &ModelSource, key: &Sha256) -> Result<(), AdmissionError> {
        if self.keys_of_source(source.path())?.contains(key) {
            return Ok(());
        }
        if let Ok(mut opened) = self.open_entry(key)? {
            let mut identities = recorded_identities(&opened.entry);
            identities.extend(source.files.iter().map(|file| file.identity));
            let identities = serde_json::to_value(&identities).expect("it has string keys only");
            opened.entry.source.extra.insert(IDENTITY.to_owned(), identities);
            write_entry(&opened.folder, &opened.entry)?;
        }
        Ok(())
    }

    /// Whether the entry is good, by its receipt or else by reading it.
    fn existing(&self, key: &Sha256, how: &HashOptions<'_>) -> Result<Existing, AdmissionError> {
        let mut opened = match self.open_entry(key) {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return Ok(Existing::Damaged(why)),
            Err(AdmissionError::NotFound { .. }) => return Ok(Existing::None),
            Err(e) => return Err(e),
        };
        let bindings = bindings(key);
        let silent = HashOptions { progress: how.progress.silent(), ..*how };
        let receipt = Receipt::load(&opened.folder, &constant(RECEIPT_NAME));
        let admission = admit(&subject(&opened, &bindings), receipt, &silent)?;
        if !admission.is_admitted() {
            return Ok(Existing::Damaged(faults(&admission.changed)));
        }
        let reasons = if admission.refreshed.is_some() { Vec::new() } else { admission.reasons };
        if admission.refreshed.is_some() || recorded_stat_differs(&opened)?.is_some() {
            renew_admission(&mut opened)?;
        }
        if let Some(receipt) = admission.refreshed {
            store_receipt(&opened.folder, ReceiptVerdict::Trusted(receipt))?;
        }
        Ok(Existing::Good(Box::new(opened), admission.trust, reasons))
    }

    /// The key that an earlier prepare found for these very files, when their identity is still the same, and their bytes:
    /// those are read, since nobody vouches for the key and an identity alone does not keep them.
    fn unvouched_key(&self, source: &ModelSource, how: &HashOptions<'_>) -> Result<Option<Sha256>, AdmissionError> {
        for key in self.keys()? {
            let Ok(Ok(opened)) = self.open_entry(&key) else { continue };
            let recorded = recorded_identities(&opened.entry);
            // The names of shards are part of the digest.
            let names = opened.files.iter().map(|file| &file.name).eq(source.files.iter().map(|file| &file.name));
            let known =
                |identity: &FileIdentity| recorded.iter().any(|was| was.differences(identity, Scope::Disk).is_empty());
            if !(names || source.files.len() == 1) || !source.files.iter().all(|file| known(&file.identity)) {
                continue;
            }
            let Ok(receipt) = Receipt::load(&opened.folder, &constant(RECEIPT_NAME)) else { continue };
            let stated = opened.files.iter().map(|file| receipt.files.iter().find(|listed| listed.name == file.name));
            let stated: Vec<_> = stated.map(|listed| listed.map(|listed| listed.blake3)).collect();
            let files = source.files.iter();
            let jobs: Vec<Job<'_>> = files.map(|file| Source::File(&file.file, &file.path).into()).collect();
            let found = hash_many(&jobs, DigestKind::Blake3, &how.progress.silent()).into_iter();
            let found = found.map(|digests| Ok(digests?.blake3)).collect::<Result<Vec<_>>>()?;
            if found == stated && !found.contains(&None) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    fn copy(
        &self,
        request: &PrepareRequest<'_>,
        damage: Option<String>,
        how: &HashOptions<'_>,
        start: Instant,
    ) -> Result<PreparedModel, AdmissionError> {
        let source = request.source;
        let size = source.size();
        let reserve = request.reserve.bytes(&self.root, size)?;
        // Documents and folder need room too: a few pages, which the reserve covers, and inodes.
        headroom(&self.root, std::path::Path::new("/"))?.require(
            self.path(),
            size,
            source.files.len() as u64 + 3,
            reserve,
        )?;
        let measured = request.measure.then(|| staging::before(source, &how.progress)).transpose()?;
        fault_step("cache.staging");
        let staged = HiddenDir::create(&self.root)?;
        let copying = Instant::now();
        // Of one file the model's digest is the file's own, so that wrong bytes are refused before they are read back.
        let sha256 = request.sha256.filter(|_| source.files.len() == 1);
        let files = source.files.iter().map(|file| StageFile {
            source: Source::File(&file.file, &file.path),
            expected: Expected { name: file.name.clone(), size: file.identity.size, sha256 },
            blake3: None,
            identity: request.sha256.is_none().then_some(file.identity),
        });
        let files: Vec<StageFile<'_>> = files.collect();
        let (mut key, mut copy_seconds) = (Sha256::EMPTY, 0.0);
        let bindings = |contents: &[Content]| {
            copy_seconds = copying.elapsed().as_secs_f64();
            key = model_sha256(source.files.iter().zip(contents).map(|(file, content)| (&file.name, content.sha256)));
            match request.sha256.filter(|expected| *expected != key) {
                Some(expected) => Err(Error::Sha256 { path: source.path().to_path_buf(), expected, found: key }),
                None => Ok(bindings(&key)),
            }
        };
        let copy = stage(&staged, &files, RECEIPT_FORMAT, bindings, request.immutable, how)?;
        let entry = self.entry(request, &key, &copy.files, copy_seconds, staged.root())?;
        if let Some(receipt) = copy.refreshed {
            store_receipt(staged.root(), ReceiptVerdict::Trusted(receipt))?;
        }
        fault_step("cache.entry");
        write_entry(staged.root(), &entry)?;
        fault_step("cache.commit");
        let mut why = damage.clone();
        let mut raced_good = false;
        let outcome = staged.commit(&constant(&key.to_string()), 0o755, |_| {
            if why.is_some() {
                return Ok(why.clone());
            }
            if request.force {
                return Ok(Some("redone as asked".to_owned()));
            }
            // Another process, or an unvouched copy of the same bytes from another path.
            match self.existing(&key, how) {
                Ok(Existing::Good(..)) => {
                    raced_good = true;
                    Ok(None)
                }
                Ok(Existing::Damaged(found)) => {
                    why = Some(found);
                    Ok(why.clone())
                }
                Ok(Existing::None) => Ok(Some("it vanished".to_owned())),
                Err(AdmissionError::Store(e)) => Err(e),
                Err(e) => Err(Error::io("judge", self.entry_path(&key), std::io::Error::other(e.to_string()))),
            }
        })?;
        let action = match &outcome {
            DirOutcome::Created(_) => PrepareAction::Copied,
            DirOutcome::Kept(_) => PrepareAction::Reused,
            DirOutcome::Repaired(..) if why.is_some() => PrepareAction::Repaired,
            DirOutcome::Repaired(..) => PrepareAction::Redone,
        };
        let opened = match self.open_entry(&key)? {
            Ok(opened) => opened,
            Err(reason) => return Err(AdmissionError::NotAdmitted { path: self.entry_path(&key), reason }),
        };
        let staging = match measured {
            Some(before) => Some(before.finish(&opened, &how.progress)?),
            None => None,
        };
        Ok(PreparedModel {
            role: request.role.to_owned(),
            action,
            damage: if action == PrepareAction::Repaired { why } else { None },
            key,
            path: opened.folder.join(&opened.files[0].name),
            vouched: request.sha256.is_some(),
            trust: copy.trust,
            receipt_reasons: copy.reasons,
            size_bytes: size,
            seconds: start.elapsed().as_secs_f64(),
            staging,
            metadata: opened.entry,
        })
    }
}

fn reuse(
    request: &PrepareRequest<'_>,
    mut opened: Opened,
    trust: Trust,
    receipt_reasons: Vec<ReceiptReason>,
    start: Instant,
) -> Result<PreparedModel, AdmissionError> {
    let unvouched = opened.entry.source.extra.get(SHA256_STATUS).is_some_and(|s| s == UNVOUCHED);
    if unvouched && request.sha256.is_some() {
        // Somebody vouches now for what was only read before.
        opened.entry.source.extra.remove(SHA256_STATUS);
        write_entry(&opened.folder, &opened.entry)?;
    }
    Ok(PreparedModel {
        role: request.role.to_owned(),
        action: PrepareAction::Reused,
        damage: None,
        key: opened.entry.cached.sha256,
        path: opened.folder.join(&opened.files[0].name),
        vouched: request.sha256.is_some() || !unvouched,
        trust,
        receipt_reasons,
        size_bytes: opened.entry.cached.size_bytes,
        seconds: start.elapsed().as_secs_f64(),
        staging: None,
        metadata: opened.entry,
    })
}

enum Existing {
    None,
    Damaged(String),
    Good(Box<Opened>, Trust, Vec<ReceiptReason>),
}
