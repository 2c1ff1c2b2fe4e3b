//! Focused runs: named backend tests of a build, each in a process of its own, with a key for exact reuse.

mod child;
mod identity;
mod output;
mod receipt;
mod request;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use b70_admission::{FingerprintReport, FingerprintRequest, fingerprint, fingerprint_sha256};
use b70_manifest::golden::{FocusedIdentity, FocusedResult, FocusedStatus, FocusedTest};
use b70_manifest::{EvidenceClass, NeverEligible, UnixTime};
use b70_store::{
    Error as StoreError, OnExisting, Progress, RelPath, Root, Sha256, json_bytes, open_or_create, publish_bytes,
    sha256_file,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use request::{CardChoice, DEFAULT_TESTS, FocusedRequest};

use crate::error::GoldenError;
use crate::set::verify;
use child::{Bounds, Ended};
use receipt::Receipt;
use request::Prepared;

/// Format of the result.
const FORMAT: &str = "b70-focused-result-v1";

/// What a focused run says: the result document, and where it is.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(title = "Focused run")]
pub struct FocusedReport {
    /// The document.
    #[serde(flatten)]
    pub document: FocusedResult,
    /// Where the document is.
    pub result: PathBuf,
    /// Whether this pass may be reused for exactly this key.
    pub reusable: bool,
    /// Why not, each reason.
    pub not_reusable_because: Vec<String>,
}

/// What happens during a run.
#[derive(Debug)]
pub enum FocusedEvent<'a> {
    /// A test begins, its log at this path.
    Begins(&'a str, &'a Path),
    /// A piece of the running test's output.
    Output(&'a [u8]),
    /// A test ended.
    Ended(&'a FocusedTest),
}

/// Runs the tests of a request, or reuses an exactly equal pass if the request says so.
///
/// The golden set below the artifact root is verified first. A test passes only if its process ends by itself with exit
/// code 0, says how many cases it executed, executed at least one, and passed all.
///
/// # Errors
/// What keeps a run from starting: no sound golden set, no build, no binary, a card that is in use. Tests that fail,
/// crash, hang or say nothing are not errors: they are in the report.
pub fn focused(
    request: &FocusedRequest<'_>,
    events: &mut dyn FnMut(FocusedEvent<'_>),
) -> Result<FocusedReport, GoldenError> {
    request.check()?;
    let set = verify(request.artifact_root, false)?;
    if !set.is_valid() {
        return Err(GoldenError::BadSet { path: set.manifest, faults: set.failures });
    }
    let prepared = Prepared::new(request)?;
    let before = build_fingerprint(request, &prepared)?;
    let identity = identity(request, &prepared, &before, set.manifest_sha256)?;
    let key = b70_manifest::canonical_sha256(&identity).map_err(|e| GoldenError::Parameter {
        name: "the run's identity",
        found: e.to_string(),
        expected: "what canonical JSON can hold".to_owned(),
    })?;
    let build = value(&before.fingerprint)?;
    let loaded = before.fingerprint.libraries.keys().map(String::as_str);
    let elsewhere = identity::loaded_from_elsewhere(&identity.environment, loaded, &prepared.build);
    let unfit: Vec<String> = prepared.doubts.iter().chain(&before.reasons).chain(&elsewhere).cloned().collect();
    let mut not_reused_because = Vec::new();
    if request.reuse_pass {
        match receipt::look_up(request.artifact_root, &key, &value(&identity)?, &build)? {
            Ok(receipt) if unfit.is_empty() => return Ok(reused(receipt)),
            Ok(_) => {}
            Err(why) => not_reused_because = why,
        }
        not_reused_because.extend(unfit.iter().map(|why| format!("the build is not fit for reuse: {why}")));
    }
    // From here on the tests run. A lease that a test inherits lasts as long as the test, even if this process is killed.
    let _lease = prepared.lease(request)?;
    let run = RunFolder::create(request.artifact_root)?;
    let started_unix = UnixTime::now();
    let started = Instant::now();
    let bounds = Bounds { timeout: request.timeout, cancel: request.cancel };
    let mut tests = Vec::new();
    for (index, op) in request.tests.iter().enumerate() {
        let (path, file) = run.log(index, op)?;
        events(FocusedEvent::Begins(op, &path));
        let command = command(request, &prepared, op);
        let ended = child::run(command, (&path, file), &mut |bytes| events(FocusedEvent::Output(bytes)), &bounds)?;
        let test = judged(op, &path, ended, request.backend.as_deref())?;
        events(FocusedEvent::Ended(&test));
        tests.push(test);
    }
    let seconds = started.elapsed().as_secs_f64();
    // A build that changed while its tests ran: nobody can say which of the two was tested.
    let after = build_fingerprint(request, &prepared)?;
    // By content: a digest that is withheld equals nothing.
    let changed = fingerprint_sha256(&after.fingerprint)? != fingerprint_sha256(&before.fingerprint)?;
    let passed = !changed && tests.iter().all(|test| test.failed == 0 && !test.extra.contains_key("reason"));
    let mut extra = Map::new();
    if changed {
        let different = identity::differences(&build, &value(&after.fingerprint)?).join("; ");
        extra.insert("reason".to_owned(), json!(format!("the build changed while its tests ran: {different}")));
    }
    let now = UnixTime::now();
    let document = FocusedResult {
        schema_version: 1,
        format: FORMAT.to_owned(),
        evidence_class: EvidenceClass::FocusedDiagnosticOnly,
        promotion_eligible: NeverEligible,
        status: if passed { FocusedStatus::Passed } else { FocusedStatus::Failed },
        run_key: key,
        identity,
        not_reused_because,
        tests,
        started_unix,
        seconds,
        created_utc: Some(now.rfc3339()),
        extra,
    };
    let result = run.publish(&document)?;
    let reusable = passed && unfit.is_empty();
    if reusable {
        let receipt = Receipt { schema_version: 1, result: document.clone(), path: result.clone(), fingerprint: build };
        receipt::record(request.artifact_root, &receipt)?;
    }
    let not_reusable_because = if passed { unfit } else { vec!["it did not pass".to_owned()] };
    Ok(FocusedReport { document, result, reusable, not_reusable_because })
}

fn reused(receipt: Receipt) -> FocusedReport {
    // Why *that* run was not answered by a still earlier one is its own affair.
    let document =
        FocusedResult { status: FocusedStatus::ReusedPass, not_reused_because: Vec::new(), ..receipt.result };
    FocusedReport { document, result: receipt.path, reusable: true, not_reusable_because: Vec::new() }
}

fn value(document: &impl Serialize) -> Result<Value, GoldenError> {
    serde_json::to_value(document).map_err(|e| GoldenError::Io {
        action: "write as JSON",
        path: PathBuf::from("the run's identity"),
        source: e.into(),
    })
}

fn build_fingerprint(request: &FocusedRequest<'_>, prepared: &Prepared) -> Result<FingerprintReport, GoldenError> {
    let mut of_build = FingerprintRequest::new(&prepared.source, request.build);
    of_build.binaries = &prepared.binaries;
    Ok(fingerprint(&of_build, &Progress::NONE.with_cancel(request.cancel))?)
}

fn identity(
    request: &FocusedRequest<'_>,
    prepared: &Prepared,
    build: &FingerprintReport,
    golden_manifest_sha256: Sha256,
) -> Result<FocusedIdentity, GoldenError> {
    let mut extra = Map::new();
    extra.insert("binary_sha256".to_owned(), json!(sha256_file(&prepared.binary)?));
    Ok(FocusedIdentity {
        build_fingerprint_sha256: build.fingerprint.sha256.clone(),
        golden_manifest_sha256,
        card: prepared.card.clone(),
        backend: request.backend.clone(),
        tests: request.tests.clone(),
        environment: identity::relevant(request.inherited.iter().cloned(), &prepared.removed, &prepared.explicit),
        extra,
    })
}

fn command(request: &FocusedRequest<'_>, prepared: &Prepared, op: &str) -> Command {
    let mut command = Command::new(&prepared.binary);
    command.arg("test").arg("-o").arg(op);
    if let Some(backend) = &request.backend {
        command.arg("-b").arg(backend);
    }
    for name in &prepared.removed {
        command.env_remove(name);
    }
    command.envs(prepared.explicit.iter().cloned());
    command
}

/// The verdict over one test.
fn judged(op: &str, log: &Path, ended: Ended, backend: Option<&str>) -> Result<FocusedTest, GoldenError> {
    let Ended { counts, fault, seconds } = ended;
    let failed = counts.executed.saturating_sub(counts.passed);
    let reason = match fault {
        Some(fault) => Some(fault),
        None if !counts.said_something => Some("it printed nothing".to_owned()),
        None if counts.executed == 0 && counts.skipped_devices > 0 => Some(format!(
            "no test was executed: every device was skipped{}",
            backend.map_or_else(String::new, |b| format!("; this build may have no backend {b:?}"))
        )),
        None if !counts.counted => Some("it did not say how many tests it executed".to_owned()),
        None if counts.executed == 0 => Some(format!(
            "no test was executed ({} not supported by the backend); this build may have no test {op:?}: list them with \
             --list-ops",
            counts.not_supported
        )),
        None if failed > 0 => Some(format!("{failed} of {} executed tests failed", counts.executed)),
        None => None,
    };
    let mut extra = Map::new();
    extra.insert("log_sha256".to_owned(), json!(sha256_file(log)?));
    extra.insert("not_supported".to_owned(), json!(counts.not_supported));
    extra.insert("seconds".to_owned(), json!(seconds));
    if let Some(reason) = reason {
        extra.insert("reason".to_owned(), json!(reason));
    }
    Ok(FocusedTest {
        op: op.to_owned(),
        executed: counts.executed,
        passed: counts.passed,
        failed,
        log: log.to_string_lossy().into_owned(),
        extra,
    })
}

/// The folder of one run: logs that can be followed while they grow, and the result at the end.
struct RunFolder(Root);

impl RunFolder {
    fn create(root: &Path) -> Result<Self, GoldenError> {
        let root = std::path::absolute(root).map_err(|source| GoldenError::Io {
            action: "resolve",
            path: root.to_path_buf(),
            source,
        })?;
        let runs = open_or_create(&root.join("focused").join("runs"), 0o755)?;
        for attempt in 0..1000_u32 {
            let name = RelPath::new(format!("{}-{}-{attempt}", UnixTime::now(), std::process::id()))?;
            if runs.try_stat(&name)?.is_none() {
                return Ok(Self(runs.create_dir_durable(&name, 0o755)?));
            }
        }
        Err(StoreError::Exists { path: runs.path().to_path_buf() }.into())
    }

    fn log(&self, index: usize, op: &str) -> Result<(PathBuf, std::fs::File), GoldenError> {
        let safe: String =
            op.chars().take(80).map(|c| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' }).collect();
        let path = self.0.path().join(format!("{:02}-{safe}.log", index + 1));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(|source| GoldenError::Io {
            action: "create the log",
            path: path.clone(),
            source,
        })?;
        Ok((path, file))
    }

    fn publish(&self, document: &FocusedResult) -> Result<PathBuf, GoldenError> {
        let text = json_bytes(self.0.path(), document)?;
        Ok(publish_bytes(&self.0, &RelPath::new("result.json")?, &text, 0o444, OnExisting::Fail)?.path)
    }
}

/// Name and value pairs of this process's environment that are text; others cannot be variables of a backend.
pub fn text_environment(
    environment: impl IntoIterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Vec<(String, String)> {
    let pairs: BTreeMap<String, String> = environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    pairs.into_iter().collect()
}
