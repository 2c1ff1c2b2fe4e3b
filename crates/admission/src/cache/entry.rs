//! Looking at an entry: shallow by record and receipt, deep by rehashing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_store::{
    Error, Expected, Extras, FileIdentity, HashOptions, Mismatch, Receipt, ReceiptReason, ReceiptVerdict, RelPath,
    Result, Root, Scope, Sha256, Subject, Trust, admit, identity_at, issue, json_bytes, replace_bytes,
};
use serde::Serialize;

use super::folder::{ENTRY_FORMAT, ENTRY_NAME, ModelCache, RECEIPT_NAME, constant};
use super::source::model_sha256;
use crate::documents::{CacheCopy, CacheEntry};
use crate::error::AdmissionError;

/// The largest `cache-entry.json` that is read.
const MAX_ENTRY_BYTES: u64 = 4 << 20;

pub(super) const RECEIPT_FORMAT: &str = "b70-ram-cache-receipt";

/// What a look at an entry found.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct CacheStatus {
    /// What the model is for, as the entry says; the role asked for when there is no entry.
    pub role: Option<String>,
    /// Whether the copy is admitted.
    pub valid: bool,
    /// Why, or why not, in one sentence.
    pub reason: String,
    /// SHA-256 of the model.
    pub key: Sha256,
    /// The admitted path: the file, or the first shard. Null unless valid.
    #[serde(serialize_with = "crate::documents::lossy::optional")]
    pub path: Option<PathBuf>,
    /// Every file of the copy.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub files: Vec<PathBuf>,
    /// Bytes of the copy.
    pub size_bytes: u64,
    /// On what evidence it is admitted.
    pub trust: Option<Trust>,
    /// Whether a document outside the cache stated the digest.
    pub vouched: bool,
    /// Files in the entry's folder that do not belong there.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub extra: Vec<PathBuf>,
    /// What stands against trust without rehashing.
    pub receipt_reasons: Vec<ReceiptReason>,
    /// Seconds the check took.
    pub seconds: f64,
    /// The entry's document.
    pub metadata: Option<CacheEntry>,
}

/// An entry that was read and is consistent in itself.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) folder: Root,
    pub(super) entry: CacheEntry,
    pub(super) files: Vec<Expected>,
}

/// A look for a model in the cache, as a worker makes it: the admitted path, or why the source is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheLookup {
    /// Use this file; its admission rests on that.
    Admitted(PathBuf, Trust),
    /// Use the source, for this reason.
    Fallback(String),
}

/// One file of a split model in `extra.files` of [`CacheCopy`].
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ShardRecord {
    pub(super) name: RelPath,
    pub(super) sha256: Sha256,
    pub(super) size_bytes: u64,
}

/// Key of the shard list in [`CacheCopy::extra`].
pub(super) const FILES: &str = "files";
/// Key in [`CacheCopy::extra`] that tells an unvouched digest.
pub(super) const SHA256_STATUS: &str = "sha256_status";
pub(super) const UNVOUCHED: &str = "computed-unvouched";
/// Key in [`CacheCopy::extra`] under which the identity of each source file is kept: whatever path leads to it finds the entry.
pub(super) const IDENTITY: &str = "identity";

/// The recorded identities of the files an entry was copied from; none in entries of other tools.
pub(super) fn recorded_identities(entry: &CacheEntry) -> Vec<FileIdentity> {
    let recorded = entry.source.extra.get(IDENTITY);
    recorded.and_then(|identity| serde_json::from_value(identity.clone()).ok()).unwrap_or_default()
}

fn expected_files(copy: &CacheCopy) -> Result<Vec<Expected>, String> {
    if let Some(files) = copy.extra.get(FILES) {
        let files: Vec<ShardRecord> =
            serde_json::from_value(files.clone()).map_err(|e| format!("its list of files: {e}"))?;
        let mut seen = std::collections::BTreeSet::new();
        if files.is_empty() || !files.iter().all(|f| seen.insert(f.name.clone())) {
            return Err("its list of files is empty or names one twice".to_owned());
        }
        return Ok(files
            .into_iter()
            .map(|f| Expected { name: f.name, size: f.size_bytes, sha256: Some(f.sha256) })
            .collect());
    }
    let name = Path::new(&copy.path).file_name().ok_or("its cached path has no file name")?;
    let name = RelPath::new(name).map_err(|e| e.to_string())?;
    Ok(vec![Expected { name, size: copy.size_bytes, sha256: Some(copy.sha256) }])
}

/// Whether the document agrees with itself and with the folder it stands in.
pub(super) fn check_entry(entry: &CacheEntry, key: &Sha256) -> Result<Vec<Expected>, String> {
    let want = |what: &str, found: &dyn std::fmt::Display, expected: &dyn std::fmt::Display| {
        Err(format!("{what} is {found}, expected {expected}"))
    };
    if entry.schema_version != 1 {
        return want("schema_version", &entry.schema_version, &1);
    }
    if entry.format != ENTRY_FORMAT {
        return want("format", &entry.format, &ENTRY_FORMAT);
    }
    for (what, found) in [
        ("source.sha256", entry.source.sha256),
        ("cached.sha256", entry.cached.sha256),
        ("admission.sha256", entry.admission.sha256),
    ] {
        if found != *key {
            return want(what, &found, key);
        }
    }
    for (what, found) in
        [("source.size_bytes", entry.source.size_bytes), ("admission.size_bytes", entry.admission.size_bytes)]
    {
        if found != entry.cached.size_bytes {
            return want(what, &found, &entry.cached.size_bytes);
        }
    }
    let files = expected_files(&entry.cached)?;
    if files.iter().any(|f| [ENTRY_NAME, RECEIPT_NAME].iter().any(|n| f.name.as_bytes() == n.as_bytes())) {
        return Err("it names one of the cache's own documents as the model".to_owned());
    }
    let sum = files.iter().try_fold(0_u64, |sum, f| sum.checked_add(f.size));
    if sum != Some(entry.cached.size_bytes) {
        return Err("the sizes of its files do not add up to cached.size_bytes".to_owned());
    }
    let found = model_sha256(files.iter().map(|f| (&f.name, f.sha256.expect("set above"))));
    if found != *key {
        return want("the digest made of its files", &found, key);
    }
    Ok(files)
}

impl ModelCache {
    /// Reads the entry's document. `Ok(Err(why))`: there is one and it is not sound.
    pub(super) fn open_entry(&self, key: &Sha256) -> Result<Result<Opened, String>, AdmissionError> {
        let folder = self.folder(key)?;
        let bytes = match folder.read(&constant(ENTRY_NAME), MAX_ENTRY_BYTES) {
            Ok(bytes) => bytes,
            Err(Error::Missing { .. }) => return Ok(Err(format!("it has no {ENTRY_NAME}"))),
            Err(e @ Error::NoOpenat2 { .. }) => return Err(e.into()),
            Err(e) => return Ok(Err(e.to_string())),
        };
        let entry: CacheEntry = match serde_json::from_slice(&bytes) {
            Ok(entry) => entry,
            Err(e) => return Ok(Err(format!("its {ENTRY_NAME} is not a cache entry: {e}"))),
        };
        Ok(check_entry(&entry, key)
            .map(|files| Opened { folder, entry, files })
            .map_err(|why| format!("its {ENTRY_NAME}: {why}")))
    }

    /// The keys of the entries that were copied from this very file, under whatever path: any shard, and any link, stands
    /// for the model. Without one, the keys of those that were copied from this path, whatever is there now.
    pub fn keys_of_source(&self, path: &Path) -> Result<Vec<Sha256>, AdmissionError> {
        let absolute = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
        let wanted = absolute.to_string_lossy();
        let there = identity_at(&absolute).ok();
        let (mut found, mut by_name) = (Vec::new(), Vec::new());
        for key in self.keys()? {
            let Ok(opened) = self.open_entry(&key)? else { continue };
            let source = &opened.entry.source;
            let is_it = |there: &FileIdentity| {
                let recorded = recorded_identities(&opened.entry);
                // The whole identity: a number may have gone to another file since.
                // Entries of other tools and of kit 0.1 have none: what stands at their source's place now.
                let now = |name: &RelPath| identity_at(&Path::new(&source.path).with_file_name(name.as_path()));
                recorded.iter().any(|was| was.differences(there, Scope::Disk).is_empty())
                    || recorded.is_empty()
                        && opened.files.iter().any(|file| now(&file.name).is_ok_and(|now| now.same_file(there)))
            };
            if there.as_ref().is_some_and(is_it) {
                found.push(key);
            } else if source.path == wanted {
                by_name.push(key);
            }
        }
        // A file that is there now is that file, whatever was copied from its name before.
        Ok(if found.is_empty() { by_name } else { found })
    }

    /// Looks at the entry: the document, the record of its last check, and the receipt. Of the model no byte is read where the
    /// kernel keeps it still ([`Trust`]); what is on no rung, as any copy in memory that is not immutable, is read again
    /// with BLAKE3 over all cores. An entry of upstream's tools has no receipt and is admitted after one [`verify`](ModelCache::verify).
    ///
    /// An entry that is missing or not sound is not an error but a status that is not valid.
    pub fn status(&self, key: &Sha256, how: &HashOptions<'_>) -> Result<CacheStatus, AdmissionError> {
        let start = std::time::Instant::now();
        let mut status = CacheStatus::new(key);
        let opened = match self.open_entry(key) {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return Ok(status.invalid(why, start)),
            Err(AdmissionError::NotFound { .. }) => {
                return Ok(status.invalid("the cache has no copy of it".to_owned(), start));
            }
            Err(e) => return Err(e),
        };
        status.describe(&opened);
        if let Some(why) = recorded_stat_differs(&opened)? {
            return Ok(status.invalid(why, start));
        }
        let bindings = bindings(key);
        let subject = subject(&opened, &bindings);
        let receipt = match Receipt::load(&opened.folder, &constant(RECEIPT_NAME)) {
            Ok(receipt) => receipt,
            Err(reason) => {
                let why = format!("{reason}; run verify");
                status.receipt_reasons.push(reason);
                return Ok(status.invalid(why, start));
            }
        };
        let admission = admit(&subject, Ok(receipt), how)?;
        status.extra = admission.extra;
        status.receipt_reasons = admission.reasons;
        if !admission.changed.is_empty() {
            return Ok(status.invalid(faults(&admission.changed), start));
        }
        let reason = match admission.trust {
            Trust::Blake3 | Trust::Sha256 => "every byte that is not kept still was read, and is as recorded",
            _ => "its receipt holds, and it was not read",
        };
        Ok(status.valid(admission.trust, reason.to_owned(), start))
    }

    /// Rehashes the copy with SHA-256 and renews the record of its last check and the receipt. A copy that is not what
    /// it should be is a status that is not valid, and loses its receipt.
    ///
    /// A missing entry is [`AdmissionError::NotFound`].
    pub fn verify(&self, key: &Sha256, wait: Duration, how: &HashOptions<'_>) -> Result<CacheStatus, AdmissionError> {
        let start = std::time::Instant::now();
        self.folder(key)?;
        let _lock = self.lock(&key.to_string(), "b70-cache verify", wait, &how.progress)?;
        let mut status = CacheStatus::new(key);
        let mut opened = match self.open_entry(key)? {
            Ok(opened) => opened,
            Err(why) => return Ok(status.invalid(why, start)),
        };
        status.describe(&opened);
        let bindings = bindings(key);
        let verdict = match issue(&subject(&opened, &bindings), how) {
            Ok(verdict) => verdict,
            Err(e) if e.is_cancelled() => return Err(e.into()),
            Err(e @ Error::NoOpenat2 { .. }) => return Err(e.into()),
            Err(e) => {
                // A receipt must not outlive the finding that the bytes are wrong.
                opened.folder.remove_file(&constant(RECEIPT_NAME))?;
                return Ok(status.invalid(e.to_string(), start));
            }
        };
        let reason = match &verdict {
            ReceiptVerdict::Trusted(_) => "every byte was rehashed; its receipt is renewed".to_owned(),
            ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
                status.receipt_reasons.clone_from(reasons);
                let why = reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                format!("every byte was rehashed; no receipt can stand for it: {why}")
            }
        };
        renew_admission(&mut opened)?;
        store_receipt(&opened.folder, verdict)?;
        status.metadata = Some(opened.entry);
        Ok(status.valid(Trust::Sha256, reason, start))
    }

    /// The admitted path of a model, or the reason to use its source: [`status`](ModelCache::status) in one word.
    pub fn look(&self, key: &Sha256, how: &HashOptions<'_>) -> CacheLookup {
        match self.status(key, how) {
            Ok(CacheStatus { path: Some(path), trust: Some(trust), .. }) => CacheLookup::Admitted(path, trust),
            Ok(status) => CacheLookup::Fallback(status.reason),
            Err(e) => CacheLookup::Fallback(e.to_string()),
        }
    }
}

/// Stores the new receipt, or removes the old one where none can stand.
pub(super) fn store_receipt(folder: &Root, verdict: ReceiptVerdict) -> Result<()> {
    match verdict {
        ReceiptVerdict::Trusted(receipt) => receipt.store(folder, &constant(RECEIPT_NAME)).map(|_| ()),
        ReceiptVerdict::VerifiedUntrusted { .. } => folder.remove_file(&constant(RECEIPT_NAME)).map(|_| ()),
    }
}

pub(super) fn renew_admission(opened: &mut Opened) -> Result<()> {
    let stat = first_identity(opened)?;
    let admission = &mut opened.entry.admission;
    (admission.mtime_ns, admission.ctime_ns) = (stat.mtime_ns, stat.ctime_ns);
    admission.verified_unix = b70_manifest::UnixTime::now();
    write_entry(&opened.folder, &opened.entry)
}

pub(super) fn write_entry(folder: &Root, entry: &CacheEntry) -> Result<()> {
    replace_bytes(folder, &constant(ENTRY_NAME), &json_bytes(folder.path(), entry)?, 0o644).map(drop)
}

fn first_identity(opened: &Opened) -> Result<FileIdentity> {
    opened.folder.stat(&opened.files[0].name)
}

/// The record in the document is weaker than the receipt, but what it contradicts is not admitted either way.
pub(super) fn recorded_stat_differs(opened: &Opened) -> Result<Option<String>, AdmissionError> {
    let stat = match first_identity(opened) {
        Ok(stat) => stat,
        Err(e @ Error::NoOpenat2 { .. }) => return Err(e.into()),
        Err(e) => return Ok(Some(e.to_string())),
    };
    let admission = &opened.entry.admission;
    let size = opened.files[0].size;
    let differs = |what: &str, recorded: i128, found: i128| {
        (recorded != found)
            .then(|| format!("{what} of its file was {recorded} at the last check and is {found}; run verify"))
    };
    Ok(differs("the size", size.into(), stat.size.into())
        .or_else(|| differs("mtime_ns", admission.mtime_ns.into(), stat.mtime_ns.into()))
        .or_else(|| differs("ctime_ns", admission.ctime_ns.into(), stat.ctime_ns.into())))
}

pub(super) type Bindings = std::collections::BTreeMap<String, String>;

pub(super) fn bindings(key: &Sha256) -> Bindings {
    Bindings::from([("model_sha256".to_owned(), key.to_string())])
}

pub(super) fn subject<'a>(opened: &'a Opened, bindings: &'a Bindings) -> Subject<'a> {
    Subject {
        root: &opened.folder,
        files: &opened.files,
        format: RECEIPT_FORMAT,
        bindings,
        extras: Extras::Report(&|name| [ENTRY_NAME, RECEIPT_NAME].iter().any(|n| name.as_bytes() == n.as_bytes())),
    }
}

impl CacheStatus {
    fn new(key: &Sha256) -> Self {
        Self {
            role: None,
            valid: false,
            reason: String::new(),
            key: *key,
            path: None,
            files: Vec::new(),
            size_bytes: 0,
            trust: None,
            vouched: false,
            extra: Vec::new(),
            receipt_reasons: Vec::new(),
            seconds: 0.0,
            metadata: None,
        }
    }

    fn describe(&mut self, opened: &Opened) {
        self.role = Some(opened.entry.role.clone());
        self.files = opened.files.iter().map(|f| opened.folder.join(&f.name)).collect();
        self.size_bytes = opened.entry.cached.size_bytes;
        self.vouched = opened.entry.source.extra.get(SHA256_STATUS).is_none_or(|s| s != UNVOUCHED);
        self.metadata = Some(opened.entry.clone());
    }

    fn valid(mut self, trust: Trust, reason: String, start: std::time::Instant) -> Self {
        (self.valid, self.trust, self.reason) = (true, Some(trust), reason);
        self.path = self.files.first().cloned();
        self.seconds = start.elapsed().as_secs_f64();
        self
    }

    fn invalid(mut self, reason: String, start: std::time::Instant) -> Self {
        self.reason = reason;
        self.seconds = start.elapsed().as_secs_f64();
        self
    }
}

/// The faults of several files as one text.
pub(super) fn faults(changed: &[Mismatch]) -> String {
    changed.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
