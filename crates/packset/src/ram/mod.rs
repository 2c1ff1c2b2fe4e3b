//! The RAM stage: a verified, atomic copy of a set in memory, read again at each look unless it is immutable.

mod checks;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use b70_manifest::pack::{PackSet, RamStage};
use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex, UnixTime};
use b70_store::{
    DirOutcome, HashOptions, HiddenDir, LockGuard, Progress, Root, Trust, headroom, json_bytes, lock, open_ram_root,
    probe_immutable, replace_bytes, sweep_orphans,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use checks::{check_deep, check_stage_file, check_stage_index, check_stage_sidecars};

use crate::error::PackError;
use crate::index::{INDEX_FILE, payload_table_sha256};
use crate::layout::Layout;
use crate::set::{LOCKS_DIR, MANIFEST_FILE, SUMS_FILE, SetDir, TENSORS_DIR, prefix_of, rel, sidecar_name};
use crate::trust::{STAGE_FILE, SetSubject, reasons_text};
use crate::verify::{Depth, Expectation, FailureDetail, Failures, VerifyStatus, check_documents, check_files};

const MAX_STAGE_FILE_BYTES: u64 = 1 << 20;

/// Free memory that staging leaves by default.
pub(crate) const DEFAULT_MIN_FREE: u64 = 8 << 30;
/// The same as people write it.
pub const DEFAULT_MIN_FREE_TEXT: &str = "8GiB";

/// Options of [`stage_ram`] and [`stage_validate`].
#[derive(Debug, Clone, Copy)]
pub struct StageOptions<'a> {
    /// Where stages live.
    pub ram_root: &'a Path,
    /// The user's id; the root must belong to it.
    pub uid: u32,
    /// Bytes that must stay free.
    pub min_free: u64,
    /// Whether the payloads of the stage become immutable (chattr(1), `+i`), so that they may rest unread, and whether other users
    /// may read the stage. It needs root, and a file system that knows the flag.
    pub immutable: bool,
    /// How long to wait for another staging of the same set.
    pub lock_timeout: Duration,
    /// Progress and cancellation.
    pub progress: Progress<'a>,
}

impl<'a> StageOptions<'a> {
    /// Under `ram_root`, which must belong to the calling user; leaves 8 GiB free, waits a minute for another staging.
    pub fn new(ram_root: &'a Path) -> Self {
        Self {
            ram_root,
            uid: rustix::process::geteuid().as_raw(),
            min_free: DEFAULT_MIN_FREE,
            immutable: false,
            lock_timeout: Duration::from_secs(60),
            progress: Progress::NONE,
        }
    }
}

/// The outcome of staging, or of validating a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    /// Version of this document's form.
    pub schema_version: u64,
    /// `ready` or `failed`.
    pub status: VerifyStatus,
    /// Always `development-initialization-cache-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// How thorough the check was.
    pub validation: Depth,
    /// Path of the staged manifest.
    pub manifest: PathBuf,
    /// The set key.
    pub set_key: Sha256Hex,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Bytes of all payloads.
    pub payload_size_bytes: u64,
    /// Payload bytes that were read in this call.
    pub checked_bytes: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// Failure codes, all of them.
    pub failures: Vec<String>,
    /// The same with what was found and expected.
    pub details: Vec<FailureDetail>,
    /// The stage's folder.
    pub stage: PathBuf,
    /// What the call did.
    pub outcome: StageOutcome,
    /// Bytes that are available beside the stage, by the least of all limits.
    pub available_bytes: u64,
    /// On what evidence the payloads are admitted; absent when they are not.
    pub trust: Option<Trust>,
    /// Why a receipt did not suffice, or why there is none.
    pub reasons: Vec<String>,
    /// Files in the stage that no document names.
    pub extra: Vec<PathBuf>,
}

/// What staging did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StageOutcome {
    /// A new stage was made.
    Staged,
    /// The stage that was there holds.
    Reused,
    /// The stage that was there was damaged or stale and has been replaced.
    Repaired,
    /// Only validated.
    Validated,
}

/// Stages a set in RAM, or finds the stage that is there.
///
/// The source's payloads must be admitted (unread, or by reading them); `min_free` bytes must stay free; the
/// copy is built in a hidden folder ([`stage`](b70_store::stage())), and then appears under its name at
/// once. A damaged or stale stage is replaced, never written to.
pub fn stage_ram(set: &SetDir, layout: &dyn Layout, options: &StageOptions<'_>) -> Result<StageReport, PackError> {
    let started = Instant::now();
    let (document, manifest) = set.read_manifest()?;
    let mut failures = Failures::default();
    check_documents(&document, layout, &Expectation::default(), &mut failures)?;
    check_files(set, &document, layout, &mut failures)?;
    if !failures.is_empty() {
        return Err(PackError::NotAdmitted { path: set.path().to_path_buf(), failures: failures.codes() });
    }
    let ram = open_ram_root(options.ram_root, options.uid)?;
    if options.immutable {
        probe_immutable(&ram)?;
        ram.set_mode(0o755)?;
    }
    let _lock = take_lock(&ram, document.key, options)?;
    let subject = SetSubject::new(&document, Sha256Hex::of(&manifest))?;
    let how = how(options);
    let mut repairing = false;
    if ram.try_stat(&rel(&document.key.to_string()))?.is_some() {
        let report = validate(&ram, document.key, Some((set, &manifest)), layout, Depth::Shallow, options, started)?;
        if report.status == VerifyStatus::Ready {
            let mut report = StageReport { outcome: StageOutcome::Reused, ..report };
            if options.immutable && report.trust != Some(Trust::Immutable) {
                let stage = ram.dir(&rel(&document.key.to_string()))?;
                let proof = subject.make_immutable(&stage, &how)?;
                if !proof.is_admitted() {
                    return Err(b70_store::Error::Mismatches(proof.changed).into());
                }
                stage.dir(&rel(TENSORS_DIR))?.set_mode(0o755)?;
                stage.set_mode(0o755)?;
                report.checked_bytes += proof.bytes_read;
                report.trust = Some(proof.trust);
                report.reasons = reasons_text(&proof.reasons);
                report.seconds = started.elapsed().as_secs_f64();
            }
            return Ok(report);
        }
        repairing = true;
    }
    sweep_orphans(&ram)?;
    let source = subject.admit(set.root(), &how)?;
    if !source.is_admitted() {
        let mut codes = vec!["source-deep-trust".to_owned()];
        codes.extend(source.changed.iter().map(ToString::to_string));
        return Err(PackError::NotAdmitted { path: set.path().to_path_buf(), failures: codes });
    }
    let bytes = document.payload_size_bytes.saturating_add(64 << 20);
    let files = 2 * document.tensors.len() as u64 + 16;
    headroom(&ram, Path::new("/"))?.require(ram.path(), bytes, files, options.min_free)?;
    let staging = HiddenDir::create(&ram)?;
    let mode = if options.immutable { 0o755 } else { 0o700 };
    write_documents(set, &document, &manifest, staging.root(), mode)?;
    let proof = subject.stage(set.root(), &staging, options.immutable, &how)?;
    let outcome = staging
        .commit(&rel(&document.key.to_string()), mode, |_| Ok(Some("the stage was damaged or stale".to_owned())))?;
    let outcome = match outcome {
        DirOutcome::Repaired(..) => StageOutcome::Repaired,
        _ if repairing => StageOutcome::Repaired,
        _ => StageOutcome::Staged,
    };
    let mut report = empty_report(&ram, &document, options, Depth::Shallow)?;
    report.outcome = outcome;
    report.checked_bytes = proof.bytes_read + source.bytes_read;
    report.trust = Some(proof.trust);
    report.reasons = reasons_text(&proof.reasons);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// Validates a stage. With the source set at hand (`source`), a stage whose own document is damaged can still be proved.
///
/// [`Depth::Shallow`] reads no payload that is immutable, and the others with BLAKE3; [`Depth::Deep`] reads every payload by SHA-256.
pub fn stage_validate(
    key: Sha256Hex,
    source: Option<&SetDir>,
    layout: &dyn Layout,
    depth: Depth,
    options: &StageOptions<'_>,
) -> Result<StageReport, PackError> {
    let started = Instant::now();
    let no_stage = || PackError::NoSet { what: key.to_string(), root: options.ram_root.to_path_buf() };
    if !options.ram_root.exists() {
        return Err(no_stage());
    }
    let ram = open_ram_root(options.ram_root, options.uid)?;
    if ram.try_stat(&rel(&key.to_string()))?.is_none() {
        return Err(no_stage());
    }
    let manifest = source.and_then(|set| set.read_manifest().ok().map(|(_, bytes)| (set, bytes)));
    let source = manifest.as_ref().map(|(set, bytes)| (*set, &bytes[..]));
    validate(&ram, key, source, layout, depth, options, started)
}

fn how<'a>(options: &StageOptions<'a>) -> HashOptions<'a> {
    HashOptions { progress: options.progress, ..HashOptions::default() }
}

fn take_lock(ram: &Root, key: Sha256Hex, options: &StageOptions<'_>) -> Result<Option<LockGuard>, PackError> {
    let locks = ram.create_dir_durable(&rel(LOCKS_DIR), 0o700)?;
    let name = rel(&format!("{key}.lock"));
    Ok(lock(&locks, &name, "b70-pack stage-ram", options.lock_timeout, &options.progress)?)
}

/// Writes everything of the set but its payloads into the hidden folder.
fn write_documents(set: &SetDir, document: &PackSet, manifest: &[u8], to: &Root, mode: u32) -> Result<(), PackError> {
    let tensors = to.create_dir_durable(&rel(TENSORS_DIR), mode)?;
    for tensor in &document.tensors {
        let name = sidecar_name(tensor.key);
        let file_name = name.rsplit('/').next().unwrap_or_default();
        replace_bytes(&tensors, &rel(file_name), &set.root().read(&rel(&name), MAX_STAGE_FILE_BYTES)?, 0o444)?;
    }
    replace_bytes(to, &rel(INDEX_FILE), &set.read_index()?, 0o444)?;
    if let Ok(sums) = set.root().read(&rel(SUMS_FILE), crate::sums::MAX_SUMS_BYTES) {
        replace_bytes(to, &rel(SUMS_FILE), &sums, 0o444)?;
    }
    replace_bytes(to, &rel(MANIFEST_FILE), manifest, 0o444)?;
    write_stage_file(to, set.path(), document, manifest)
}

fn write_stage_file(to: &Root, source: &Path, document: &PackSet, manifest: &[u8]) -> Result<(), PackError> {
    let stage = RamStage {
        schema_version: 1,
        format: stage_format(document),
        status: "ready".to_owned(),
        evidence_class: Some(EvidenceClass::DevelopmentInitializationCacheOnly),
        promotion_eligible: NeverEligible,
        set_key: document.key,
        source_manifest: source.join(MANIFEST_FILE).display().to_string(),
        source_manifest_sha256: Sha256Hex::of(manifest),
        payload_table_sha256: payload_table_sha256(&document.tensors)?,
        payload_size_bytes: document.payload_size_bytes,
        tensor_count: document.tensor_count,
        created_unix: UnixTime::now(),
        extra: serde_json::Map::default(),
    };
    replace_bytes(to, &rel(STAGE_FILE), &json_bytes(to.path(), &stage)?, 0o444)?;
    Ok(())
}

fn stage_format(document: &PackSet) -> String {
    format!("{}-ram-stage-v1", prefix_of(document))
}

fn empty_report(
    ram: &Root,
    document: &PackSet,
    options: &StageOptions<'_>,
    validation: Depth,
) -> Result<StageReport, PackError> {
    let stage = ram.path().join(document.key.to_string());
    let available = headroom(ram, Path::new("/"))?.available_bytes();
    Ok(StageReport {
        schema_version: 1,
        status: VerifyStatus::Ready,
        evidence_class: EvidenceClass::DevelopmentInitializationCacheOnly,
        promotion_eligible: NeverEligible,
        validation,
        manifest: stage.join(MANIFEST_FILE),
        set_key: document.key,
        tensor_count: document.tensor_count,
        payload_size_bytes: document.payload_size_bytes,
        checked_bytes: 0,
        seconds: 0.0,
        failures: Vec::new(),
        details: Vec::new(),
        stage,
        outcome: StageOutcome::Validated,
        available_bytes: available.saturating_sub(options.min_free),
        trust: None,
        reasons: Vec::new(),
        extra: Vec::new(),
    })
}

fn validate(
    ram: &Root,
    key: Sha256Hex,
    source: Option<(&SetDir, &[u8])>,
    layout: &dyn Layout,
    depth: Depth,
    options: &StageOptions<'_>,
    started: Instant,
) -> Result<StageReport, PackError> {
    let stage = SetDir::from_root(ram.dir(&rel(&key.to_string()))?);
    let mut failures = Failures::default();
    let (document, manifest) = match stage.read_manifest() {
        Ok(read) => read,
        Err(PackError::Cancelled) => return Err(PackError::Cancelled),
        Err(error) => {
            failures.add("ram-manifest", error.to_string());
            return Ok(unreadable(ram, key, depth, failures, started));
        }
    };
    let mut report = empty_report(ram, &document, options, depth)?;
    let expectation = Expectation { set_key: Some(key), ..Expectation::default() };
    let mut of_documents = Failures::default();
    check_documents(&document, layout, &expectation, &mut of_documents)?;
    for detail in of_documents.into_details() {
        failures.add("ram-manifest", format!("{}: {}", detail.code, detail.detail));
    }
    check_stage_file(&stage, &document, &manifest, source, &mut report, &mut failures)?;
    check_stage_index(&stage, &document, layout, &mut failures)?;
    check_stage_sidecars(&stage, &document, &mut failures);
    let subject = SetSubject::new(&document, Sha256Hex::of(&manifest))?;
    if depth == Depth::Deep {
        report.checked_bytes = check_deep(&stage, &document, options, &mut failures)?;
        report.trust = failures.is_empty().then_some(Trust::Sha256);
    } else {
        let admission = subject.admit(stage.root(), &how(options))?;
        report.checked_bytes = admission.bytes_read;
        report.reasons.extend(reasons_text(&admission.reasons));
        report.extra.clone_from(&admission.extra);
        if admission.is_admitted() {
            report.trust = Some(admission.trust);
        } else {
            failures
                .add("ram-deep-trust", format!("{} payloads are not what the manifest says", admission.changed.len()));
            for (tensor, expected) in document.tensors.iter().zip(subject.files()) {
                let path = stage.root().join(&expected.name);
                let Some(changed) = admission.changed.iter().find(|changed| changed.path == path) else { continue };
                let name = &tensor.identity.tensor_name;
                let size = stage.root().stat(&expected.name).map(|identity| identity.size);
                let code = if size.is_ok_and(|size| size == expected.size) {
                    "ram-payload-sha256"
                } else {
                    "ram-payload-size"
                };
                failures.add(format!("{code}:{name}"), changed.what.clone());
            }
        }
    }
    if !failures.is_empty() {
        report.status = VerifyStatus::Failed;
        report.trust = None;
    }
    report.failures = failures.codes();
    report.details = failures.into_details();
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn unreadable(ram: &Root, key: Sha256Hex, validation: Depth, failures: Failures, started: Instant) -> StageReport {
    let stage = ram.path().join(key.to_string());
    StageReport {
        schema_version: 1,
        status: VerifyStatus::Failed,
        evidence_class: EvidenceClass::DevelopmentInitializationCacheOnly,
        promotion_eligible: NeverEligible,
        validation,
        manifest: stage.join(MANIFEST_FILE),
        set_key: key,
        tensor_count: 0,
        payload_size_bytes: 0,
        checked_bytes: 0,
        seconds: started.elapsed().as_secs_f64(),
        failures: failures.codes(),
        details: failures.into_details(),
        stage,
        outcome: StageOutcome::Validated,
        available_bytes: 0,
        trust: None,
        reasons: Vec::new(),
        extra: Vec::new(),
    }
}
