//! Making the copy: one pass that copies and hashes, into a hidden folder that gets its name only when it is proven.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use b70_manifest::pack::ToolRecord;
use b70_manifest::{EvidenceClass, NeverEligible, unix_now};
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::entry::{
    FILES, Opened, SHA256_STATUS, ShardRecord, UNVOUCHED, bindings, faults, renew_admission, store_receipt, subject,
    subject_of, write_entry,
};
use super::staging::{self, StagingReport};
use super::{ENTRY_FORMAT, ModelCache, ModelSource, RECEIPT_NAME, constant, model_sha256};
use crate::digest::{Content, Sha256};
use crate::documents::{
    ArtifactError, CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Fingerprint, HostFacts, Known,
};
use crate::error::{Error, Result};
use crate::fault;
use crate::headroom::{HostPaths, headroom};
use crate::identity::{Boot, FileIdentity, FileSystem, Scope};
use crate::path::{RelPath, Root};
use crate::publish::{DirOutcome, OnExisting, StagingDir, TempFile, sweep_orphans};
use crate::receipt::{
    DirectoryHint, Evidence, Expected, How, RULE, Reason, Receipt, ReceiptFile, Trust, Verdict, admit,
};

/// Key in [`CacheCopy::extra`] under which the source's identity is kept when nothing vouches for its digest.
const IDENTITY: &str = "identity";

/// How much space must stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// 64 MiB and 2 % of the file system (of the bytes to be copied, where it states no size).
    Default,
    /// So many bytes.
    Bytes(u64),
}

impl Reserve {
    fn bytes(self, root: &Root, needed: u64) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Default => {
                let stat =
                    rustix::fs::fstatvfs(root).map_err(|e| Error::io("stat the file system of", root.path(), e))?;
                let capacity = stat.f_blocks.saturating_mul(stat.f_frsize);
                let of = if capacity == 0 { needed } else { capacity };
                Ok((64 << 20) + of / 50)
            }
        }
    }
}

/// What to prepare.
#[derive(Debug, Clone, Copy)]
pub struct PrepareRequest<'a> {
    /// What the model is for: `target`, `draft`.
    pub role: &'a str,
    /// The model.
    pub source: &'a ModelSource,
    /// The digest it must have, when a document or the user states one.
    pub sha256: Option<Sha256>,
    /// Copy even if there is a valid entry.
    pub force: bool,
    /// Space that must stay free.
    pub reserve: Reserve,
    /// How long to wait for another prepare of the same model.
    pub wait: Duration,
    /// The packer that the model-pack manifest names.
    pub packing_tool: Option<&'a ToolRecord>,
    /// Architecture of the device, from the model-pack manifest.
    pub target_architecture: Option<&'a str>,
    /// The build beside which the copy is made.
    pub build: Option<&'a Fingerprint>,
    /// Kernel and packages of the host.
    pub host: Option<&'a HostFacts>,
    /// Whether to measure what the copy buys: it reads up to 128 MiB of the source once more.
    pub measure: bool,
}

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
pub struct Prepared {
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
    pub receipt_reasons: Vec<Reason>,
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
    pub fn prepare(&self, request: &PrepareRequest<'_>, how: &How<'_>) -> Result<Prepared, ArtifactError> {
        let start = Instant::now();
        let lock_name = request.sha256.map_or_else(
            || format!("path-{}", Sha256::of(request.source.path().as_os_str().as_encoded_bytes())),
            |key| key.to_string(),
        );
        let _lock = self.lock(&lock_name, "b70-cache prepare", request.wait, &how.progress)?;
        sweep_orphans(&self.root)?;
        let key = match request.sha256 {
            Some(key) => Some(key),
            None => self.unvouched_key(request.source)?,
        };
        let mut damage = None;
        if let Some(key) = key {
            match self.existing(&key, how)? {
                Existing::None => {}
                Existing::Damaged(why) => damage = Some(why),
                Existing::Good(..) if request.force => {}
                Existing::Good(opened, trust, reasons) => {
                    return reuse(request, *opened, trust, reasons, start);
                }
            }
        }
        self.copy(request, damage, how, start)
    }

    /// Whether the entry is good, by its receipt or else by reading it.
    fn existing(&self, key: &Sha256, how: &How<'_>) -> Result<Existing, ArtifactError> {
        let mut opened = match self.open_entry(key) {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return Ok(Existing::Damaged(why)),
            Err(ArtifactError::NotThere { .. }) => return Ok(Existing::None),
            Err(e) => return Err(e),
        };
        let status = self.status(key, how)?;
        if status.valid {
            return Ok(Existing::Good(Box::new(opened), Trust::Receipt, Vec::new()));
        }
        let bindings = bindings(key);
        let silent = How { progress: how.progress.silent(), ..*how };
        let receipt = Receipt::load(&opened.folder, &constant(RECEIPT_NAME));
        let admission = admit(&subject(&opened, &bindings), receipt, &silent)?;
        if !admission.is_admitted() {
            return Ok(Existing::Damaged(faults(&admission.changed)));
        }
        let reasons = if admission.refreshed.is_some() { Vec::new() } else { admission.reasons };
        renew_admission(&mut opened)?;
        if let Some(receipt) = admission.refreshed {
            store_receipt(&opened.folder, Verdict::Trusted(receipt))?;
        }
        Ok(Existing::Good(Box::new(opened), admission.trust, reasons))
    }

    /// The key that an earlier prepare found for this very source, when its identity is still the same.
    fn unvouched_key(&self, source: &ModelSource) -> Result<Option<Sha256>, ArtifactError> {
        let path = source.path().to_string_lossy();
        for key in self.keys()? {
            let Ok(Ok(opened)) = self.open_entry(&key) else { continue };
            if opened.entry.source.path != path {
                continue;
            }
            let recorded: Option<Vec<FileIdentity>> = opened
                .entry
                .source
                .extra
                .get(IDENTITY)
                .and_then(|identity| serde_json::from_value(identity.clone()).ok());
            let Some(recorded) = recorded else { continue };
            let same = recorded.len() == source.files.len()
                && recorded.iter().zip(&source.files).all(|(r, f)| r.differences(&f.identity, Scope::Disk).is_empty());
            if same {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    fn copy(
        &self,
        request: &PrepareRequest<'_>,
        damage: Option<String>,
        how: &How<'_>,
        start: Instant,
    ) -> Result<Prepared, ArtifactError> {
        let source = request.source;
        let size = source.size();
        let reserve = request.reserve.bytes(&self.root, size)?;
        // Documents and folder need room too: a few pages, which the reserve covers, and inodes.
        headroom(&self.root, &HostPaths::default(), 0)?.require(
            self.path(),
            size,
            source.files.len() as u64 + 3,
            reserve,
        )?;
        let measured = request.measure.then(|| staging::before(source, &how.progress)).transpose()?;
        fault::step("cache.staging");
        let staged = StagingDir::create(&self.root)?;
        let copying = Instant::now();
        let contents = copy_files(request, &staged, how)?;
        let copy_seconds = copying.elapsed().as_secs_f64();
        let key = model_sha256(contents.iter().map(|(name, content)| (name, content.sha256)));
        if let Some(expected) = request.sha256
            && expected != key
        {
            return Err(Error::Sha256 { path: source.path().to_path_buf(), expected, found: key }.into());
        }
        if request.sha256.is_none() {
            unchanged(source)?;
        }
        let entry = self.entry(request, &key, &contents, copy_seconds, staged.root())?;
        let receipt_reasons = prove_copy(staged.root(), &key, &contents, how)?;
        fault::step("cache.entry");
        write_entry(staged.root(), &entry)?;
        fault::step("cache.commit");
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
                Err(ArtifactError::Admission(e)) => Err(e),
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
            Err(reason) => return Err(ArtifactError::NotAdmitted { path: self.entry_path(&key), reason }),
        };
        let staging = match measured {
            Some(before) => Some(before.finish(&opened, &how.progress)?),
            None => None,
        };
        Ok(Prepared {
            role: request.role.to_owned(),
            action,
            damage: if action == PrepareAction::Repaired { why } else { None },
            key,
            path: opened.folder.join(&opened.files[0].name),
            vouched: request.sha256.is_some(),
            trust: Trust::Sha256,
            receipt_reasons,
            size_bytes: size,
            seconds: start.elapsed().as_secs_f64(),
            staging,
            metadata: opened.entry,
        })
    }

    fn entry(
        &self,
        request: &PrepareRequest<'_>,
        key: &Sha256,
        contents: &[(RelPath, Content)],
        copy_seconds: f64,
        staged: &Root,
    ) -> Result<CacheEntry, ArtifactError> {
        let now = unix_now();
        let size = request.source.size();
        let first = &contents[0].0;
        let stat = staged.stat(first)?;
        let (mut source_extra, mut cached_extra) = (Map::new(), Map::new());
        if contents.len() > 1 || first.as_str().is_none() {
            let files: Vec<ShardRecord> = contents
                .iter()
                .map(|(name, c)| ShardRecord { name: name.clone(), sha256: c.sha256, size_bytes: c.size })
                .collect();
            let files = to_value(&files);
            source_extra.insert(FILES.to_owned(), files.clone());
            cached_extra.insert(FILES.to_owned(), files);
        }
        if request.sha256.is_none() {
            let identities: Vec<_> = request.source.files.iter().map(|f| f.identity).collect();
            source_extra.insert(SHA256_STATUS.to_owned(), UNVOUCHED.into());
            source_extra.insert(IDENTITY.to_owned(), to_value(&identities));
        }
        let copy = |path: &std::path::Path, extra| CacheCopy {
            path: path.to_string_lossy().into_owned(),
            sha256: *key,
            size_bytes: size,
            extra,
        };
        let cached_path = self.entry_path(key).join(first.as_path());
        Ok(CacheEntry {
            schema_version: 1,
            format: ENTRY_FORMAT.to_owned(),
            evidence_class: EvidenceClass::DevelopmentInitializationOnly,
            promotion_eligible: NeverEligible,
            role: request.role.to_owned(),
            source: copy(request.source.path(), source_extra),
            cached: copy(&cached_path, cached_extra),
            created_unix: now,
            created_utc: None,
            copy_seconds,
            copy_mib_per_second: size as f64 / f64::from(1 << 20) / copy_seconds.max(1e-9),
            packing_tool: request.packing_tool.cloned(),
            runtime: Some(runtime(request.build)),
            driver: Some(driver(request.host)),
            target_architecture: Some(target(request)),
            kernel_abi: Some("gguf-byte-stream-v1".to_owned()),
            layout: Some("original-gguf-no-offline-reorder".to_owned()),
            admission: CacheAdmission {
                sha256: *key,
                size_bytes: size,
                mtime_ns: stat.mtime_ns,
                ctime_ns: stat.ctime_ns,
                verified_unix: now,
                extra: Map::new(),
            },
            extra: Map::new(),
        })
    }
}

fn reuse(
    request: &PrepareRequest<'_>,
    mut opened: Opened,
    trust: Trust,
    receipt_reasons: Vec<Reason>,
    start: Instant,
) -> Result<Prepared, ArtifactError> {
    let unvouched = opened.entry.source.extra.get(SHA256_STATUS).is_some_and(|s| s == UNVOUCHED);
    if unvouched && request.sha256.is_some() {
        // Somebody vouches now for what was only read before.
        opened.entry.source.extra.remove(SHA256_STATUS);
        opened.entry.source.extra.remove(IDENTITY);
        write_entry(&opened.folder, &opened.entry)?;
    }
    Ok(Prepared {
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
    Good(Box<Opened>, Trust, Vec<Reason>),
}

fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("it has string keys only")
}

fn runtime(build: Option<&Fingerprint>) -> CacheRuntime {
    let absent = CacheRuntime {
        commit: Known::Absent,
        dirty: Known::Absent,
        dirty_patch_sha256: Known::Absent,
        extra: Map::new(),
    };
    build.map_or(absent, |build| CacheRuntime {
        commit: build.runtime.commit.clone(),
        dirty: build.runtime.dirty.clone(),
        dirty_patch_sha256: build.runtime.dirty_patch_sha256.clone(),
        extra: Map::new(),
    })
}

fn driver(host: Option<&HostFacts>) -> Map<String, Value> {
    let (kernel, packages) =
        host.map_or((json!("unknown"), json!("unknown")), |host| (to_value(&host.kernel), to_value(&host.packages)));
    Map::from_iter([("kernel".to_owned(), kernel), ("packages".to_owned(), packages)])
}

fn target(request: &PrepareRequest<'_>) -> String {
    let built = request.build.map(|build| match &build.target_architecture {
        Known::Value(target) => target.as_str(),
        Known::Absent => "absent",
        Known::Unknown => "unknown",
    });
    request.target_architecture.or(built).unwrap_or("absent").to_owned()
}

/// Copies every file, several shards at once over the pool.
fn copy_files(request: &PrepareRequest<'_>, staged: &StagingDir, how: &How<'_>) -> Result<Vec<(RelPath, Content)>> {
    let files = &request.source.files;
    // Of one file the model's digest is the file's own, so that wrong bytes are refused before they are read back.
    let expected = if files.len() == 1 { request.sha256 } else { None };
    how.pool.install(|| {
        files
            .par_iter()
            .map(|file| {
                let mut temp = TempFile::create(staged.root())?;
                temp.reserve(file.identity.size)?;
                temp.copy_from(&file.file, &file.path, file.identity.size, &how.progress)?;
                if let (Some(expected), Some(found)) = (expected, temp.sha256_so_far())
                    && expected != found
                {
                    return Err(Error::Sha256 { path: file.path.clone(), expected, found });
                }
                let published = temp.commit(&file.name, 0o444, OnExisting::Fail, expected, &how.progress)?;
                Ok((file.name.clone(), published.content))
            })
            .collect()
    })
}

/// Without a digest to hold it against, the copy is worth as much as the certainty that nobody wrote meanwhile.
fn unchanged(source: &ModelSource) -> Result<()> {
    for file in &source.files {
        let now = FileIdentity::of(&file.file, &file.path)?;
        if let Some(change) = file.identity.differences(&now, Scope::Disk).first() {
            return Err(Error::ChangedWhileReading { path: file.path.clone(), what: change.to_string() });
        }
    }
    Ok(())
}

/// Issues the receipt of a fresh copy. Its SHA-256 was computed while it was written; what the rule wants besides is
/// one reading between two lease probes, for which BLAKE3 over all cores is enough.
fn prove_copy(
    folder: &Root,
    key: &Sha256,
    contents: &[(RelPath, Content)],
    how: &How<'_>,
) -> Result<Vec<Reason>, ArtifactError> {
    let files: Vec<Expected> = contents
        .iter()
        .map(|(name, c)| Expected { name: name.clone(), size: c.size, sha256: Some(c.sha256) })
        .collect();
    let bindings = bindings(key);
    let subject = subject_of(folder, &files, &bindings);
    let silent = How { progress: how.progress.silent(), ..*how };
    let admission = admit(&subject, Ok(claim(&subject, contents)?), &silent)?;
    if !admission.is_admitted() {
        return Err(Error::Mismatches(admission.changed).into());
    }
    match admission.refreshed {
        Some(receipt) => {
            store_receipt(folder, Verdict::Trusted(receipt))?;
            Ok(Vec::new())
        }
        None => Ok(admission.reasons),
    }
}

/// A receipt that no inode can satisfy: it carries the digests, and every file must be read to be believed.
fn claim(subject: &crate::receipt::Subject<'_>, contents: &[(RelPath, Content)]) -> Result<Receipt> {
    let folder = FileIdentity::of(subject.root, subject.root.path())?;
    let mut listed = Vec::with_capacity(contents.len());
    for (name, content) in contents {
        let mut identity = subject.root.stat(name)?;
        identity.ino = !identity.ino;
        listed.push(ReceiptFile {
            name: name.clone(),
            sha256: content.sha256,
            blake3: content.blake3,
            identity,
            evidence: Evidence::None,
        });
    }
    Ok(Receipt {
        schema_version: 2,
        format: subject.format.to_owned(),
        rule: RULE.to_owned(),
        bindings: BTreeMap::clone(subject.bindings),
        boot: Boot::now()?,
        filesystem: FileSystem::of(subject.root, subject.root.path())?,
        fine_stamps: false,
        directory: DirectoryHint { ino: folder.ino, mtime_ns: folder.mtime_ns, ctime_ns: folder.ctime_ns },
        files: listed,
        validated_bytes: 0,
        checksum_blake3: crate::digest::Blake3([0; 32]),
    })
}
