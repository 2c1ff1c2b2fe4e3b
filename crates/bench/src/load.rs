//! Result files read back: a file is a claim until its figures and its gates were made again from its raw rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use b70_manifest::calibration::{
    CalibrationResult, CalibrationRow, Claim, EndpointIdentity, LabCalibrationResult, Measured, MetricSummary,
    Settings, SuiteIdentity, SuitePromptIdentity, UNCLASSIFIED, fixed_suite_classes,
};
use b70_manifest::document::{DocumentError, Kind, detect, read_bytes, read_text};
use b70_manifest::gate::{GateOutcome, Judged, PromotionEligible, judge};
use b70_manifest::validate::check_text;
use b70_manifest::workers::Arm;
use b70_manifest::{EvidenceClass, Sha256Hex, UnixTime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::identity::empty;
use crate::metrics::WINDOW_EVENTS;
use crate::row::recompute_row;
use crate::summary::summarise;

/// The largest result file that is read.
const MAX_BYTES: u64 = 512 << 20;
/// Relative difference up to which a figure agrees: far above what writing and reading a number does.
const TOLERANCE: f64 = 1e-9;
/// The same for upstream's files, whose offsets were rounded to microseconds.
const LAB_TOLERANCE: f64 = 1e-4;

/// The code of a problem that is a claim against the gates, and not one of form.
const GATE_PROBLEM: &str = "gate";

/// Figures of a row that are made from its offsets, `usage` and `timings`.
const ROW_FIGURES: [&str; 23] = [
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "draft_n",
    "draft_n_accepted",
    "chunk_count",
    "stream_token_id_count",
    "ttft_s",
    "post_ttft_s",
    "tok_s_1_100_intervals_after_ttft",
    "tok_s_1_100_after_ttft",
    "tok_s_1_100_after_ttft_legacy_inclusive_events",
    "tok_s_wall_full",
    "tok_s_after_ttft_full",
    "burst_gap_s_median",
    "burst_gap_s_mean",
    "burst_count",
    "tokens_per_burst",
    "chunk_count_equals_completion_tokens",
    "metric_chunk_events_at_least_window",
    "metric_token_id_events_at_least_window",
    "token_timing_source",
    "sha256",
];
/// Parts of a summary.
const SUMMARY_FIGURES: [&str; 7] = ["count", "p10", "median", "mean", "min", "max", "stdev"];

/// Who wrote a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ResultSource {
    /// This kit.
    Kit,
    /// Upstream's suite script. It records no identity the kit could check, so it is never promotion-eligible.
    Lab,
}

/// A figure of a file that its raw rows do not give.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// JSON pointer of the figure.
    pub pointer: String,
    /// What the file says.
    pub claimed: Value,
    /// What the rows give; null where they give nothing.
    pub recomputed: Value,
}

/// A result read from a file, every figure made again.
#[derive(Clone, Debug)]
pub struct LoadedResult {
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of its bytes.
    pub sha256: Sha256Hex,
    /// Who wrote it.
    pub source: ResultSource,
    /// The result with its figures from the raw rows, and the gates over it. If a figure disagrees, the gates run over what
    /// the file says, so that they see the false figure.
    pub judged: Judged,
    /// What the file says of itself; upstream's files claim in another form and have none here.
    pub claim: Option<Claim>,
    /// Figures that were compared.
    pub figures_checked: usize,
    /// Those that differ.
    pub disagreements: Vec<Disagreement>,
}

impl LoadedResult {
    /// The proof that the result may support a promotion: its final gate passes on the rows, and no figure of the file
    /// disagrees with them. What the file claims has no influence.
    pub fn promotion(&self) -> Option<PromotionEligible<'_>> {
        if self.disagreements.is_empty() && self.source == ResultSource::Kit { self.judged.promotion() } else { None }
    }

    /// The name of the endpoint.
    pub fn name(&self) -> &str {
        &self.judged.measured().endpoint.name
    }

    /// True unless the run was cut short.
    pub fn is_finished(&self) -> bool {
        self.source == ResultSource::Lab || self.judged.measured().ended_unix.is_some()
    }

    /// What `verify` and `gate` print.
    pub fn verify_report(&self) -> VerifyReport {
        let measured = self.judged.measured();
        let promotion_eligible = self.promotion().is_some();
        let claim_holds = self.claim.as_ref().is_none_or(|claim| {
            claim.evidence_class == self.judged.evidence_class()
                && claim.promotion_eligible == promotion_eligible
                && claim.gates.iter().all(|(name, claimed)| {
                    self.judged
                        .gates()
                        .get(name)
                        .is_some_and(|found| found.codes == claimed.codes && found.passed == claimed.passed)
                })
        });
        VerifyReport {
            schema_version: 1,
            file: self.path.clone(),
            sha256: self.sha256,
            source: self.source,
            verified: self.disagreements.is_empty() && claim_holds,
            finished: self.is_finished(),
            endpoint: measured.endpoint.name.clone(),
            rows: measured.rows.len(),
            figures_checked: self.figures_checked,
            disagreements: self.disagreements.clone(),
            claimed_evidence_class: self.claim.as_ref().map(|claim| claim.evidence_class),
            claimed_promotion_eligible: self.claim.as_ref().map(|claim| claim.promotion_eligible),
            claim_holds,
            evidence_class: self.judged.evidence_class(),
            promotion_eligible,
            gates: self.judged.gates().clone(),
            summary: measured.summary.clone(),
        }
    }
}

/// What `verify` and `gate` print.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Verified calibration result")]
pub struct VerifyReport {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The file.
    pub file: PathBuf,
    /// SHA-256 of its bytes.
    pub sha256: Sha256Hex,
    /// Who wrote it.
    pub source: ResultSource,
    /// Every figure and every claim of the file is what its rows give.
    pub verified: bool,
    /// False if the run was cut short.
    pub finished: bool,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Its rows.
    pub rows: usize,
    /// Figures that were compared.
    pub figures_checked: usize,
    /// Those that differ.
    pub disagreements: Vec<Disagreement>,
    /// Evidence class the file claims.
    pub claimed_evidence_class: Option<EvidenceClass>,
    /// Eligibility the file claims.
    pub claimed_promotion_eligible: Option<bool>,
    /// Whether the gates, run again, give what the file claims of itself.
    pub claim_holds: bool,
    /// Evidence class the gates give.
    pub evidence_class: EvidenceClass,
    /// Whether the result may support a promotion: by the gates and the recomputation, whatever the file claims.
    pub promotion_eligible: bool,
    /// The gates, run again.
    pub gates: BTreeMap<String, GateOutcome>,
    /// The summaries, made again.
    pub summary: BTreeMap<String, MetricSummary>,
}

/// A result that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file or folder cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Larger than any result.
    #[error("{}: {found} bytes, at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Not JSON.
    #[error("{}: not JSON: {reason}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A result with errors in its form.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Another kind of document.
    #[error("{}: {found}; expected a calibration result of one endpoint, or one that upstream's script wrote", path.display())]
    NotAResult {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
    },
    /// A result was named on the side of the other arm.
    #[error("{} is named as {named}", path.display())]
    OtherArm {
        /// The file.
        path: PathBuf,
        /// The side it was named on.
        named: Arm,
        /// The arm that the file says it ran.
        found: Arm,
    },
    /// No results in the folder.
    #[error("{}: no calibration results in it", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

/// Reads one result file, the kit's or upstream's.
///
/// # Errors
/// [`LoadError`]. A file whose figures are false is not an error: see [`LoadedResult::disagreements`].
pub fn load_result(path: &Path) -> Result<LoadedResult, LoadError> {
    let (bytes, value) = read_json(path)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| LoadError::NotJson { path: path.to_owned(), reason: error.to_string() })?;
    let sha256 = Sha256Hex::of(&bytes);
    let (source, measured, claim) = match kind_of(&value) {
        Some(Kind::CalibrationResult) => {
            let CalibrationResult { claim, measured } = read_claims(path, text)?;
            (ResultSource::Kit, measured, Some(claim))
        }
        Some(Kind::LabCalibrationResult) => (ResultSource::Lab, from_lab(read_text(path, text)?, path, sha256), None),
        other => {
            let found =
                other.map_or_else(|| "an unknown document".to_owned(), |kind| format!("a document of kind {kind}"));
            return Err(LoadError::NotAResult { path: path.to_owned(), found });
        }
    };
    Ok(recomputed(path, sha256, source, measured, claim))
}

/// Reads the results of both arms of a comparison.
///
/// # Errors
/// [`LoadError`]; one is [`LoadError::OtherArm`]: a result says of itself that it ran the other arm.
pub fn load_arms(control: &[PathBuf], candidate: &[PathBuf]) -> Result<Vec<LoadedResult>, LoadError> {
    let mut results = Vec::new();
    for (named, files) in [(Arm::Control, control), (Arm::Candidate, candidate)] {
        for path in files {
            let result = load_result(path)?;
            match result.judged.measured().arm {
                Some(found) if found != named => {
                    return Err(LoadError::OtherArm { path: path.clone(), named, found });
                }
                _ => results.push(result),
            }
        }
    }
    Ok(results)
}

/// Reads every result of a folder, by file name; other documents in it are left out.
///
/// # Errors
/// [`LoadError`]; a result that cannot be read is an error, a file that is not a result is not.
pub fn load_folder(path: &Path) -> Result<Vec<LoadedResult>, LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "json") && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    let mut results = Vec::new();
    for file in files {
        let (_, value) = read_json(&file)?;
        if matches!(kind_of(&value), Some(Kind::CalibrationResult | Kind::LabCalibrationResult)) {
            results.push(load_result(&file)?);
        }
    }
    if results.is_empty() { Err(LoadError::Empty { path: path.to_owned() }) } else { Ok(results) }
}

/// Reads a result whose form is right. That its claims do not hold is no reason not to read it: that is found and said.
fn read_claims(path: &Path, text: &str) -> Result<CalibrationResult, LoadError> {
    let report = check_text(path, text, Some(Kind::CalibrationResult));
    if report.errors.iter().all(|problem| problem.code == GATE_PROBLEM) {
        return serde_json::from_str(text)
            .map_err(|error| LoadError::NotJson { path: path.to_owned(), reason: error.to_string() });
    }
    Ok(read_text(path, text)?)
}

/// Upstream's files carry no format; two fields of theirs occur in no other document.
fn kind_of(value: &Value) -> Option<Kind> {
    let is_lab = ["run_identity", "fresh_response_validity", "rows"].iter().all(|field| value.get(field).is_some());
    if is_lab && value.get("format").is_none() { Some(Kind::LabCalibrationResult) } else { detect(value, None) }
}

fn read_json(path: &Path) -> Result<(Vec<u8>, Value), LoadError> {
    let io = |source| LoadError::Io { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(io)?.len();
    if found > MAX_BYTES {
        return Err(LoadError::TooLarge { path: path.to_owned(), found, limit: MAX_BYTES });
    }
    let bytes = read_bytes(path).map_err(io)?;
    let value = serde_json::from_slice(&bytes)
        .map_err(|error| LoadError::NotJson { path: path.to_owned(), reason: error.to_string() })?;
    Ok((bytes, value))
}

fn recomputed(
    path: &Path,
    sha256: Sha256Hex,
    source: ResultSource,
    claimed: Measured,
    claim: Option<Claim>,
) -> LoadedResult {
    let window = usize::try_from(claimed.settings.metric_window).unwrap_or(WINDOW_EVENTS);
    let tolerance = if source == ResultSource::Lab { LAB_TOLERANCE } else { TOLERANCE };
    let mut found = claimed.clone();
    let mut check = Check { tolerance, checked: 0, disagreements: Vec::new() };
    for (index, (row, said)) in found.rows.iter_mut().zip(&claimed.rows).enumerate() {
        recompute_row(row, window);
        if let Some(text) = &row.text {
            row.sha256 = Some(Sha256Hex::of(text.as_bytes()));
        }
        if source == ResultSource::Lab {
            keep_counts(row, said);
        }
        check.compare(&format!("/rows/{index}"), &json!(said), &json!(row), &ROW_FIGURES);
    }
    found.summary = summarise(&found.rows);
    for (metric, said) in &claimed.summary {
        if let Some(summary) = found.summary.get(metric) {
            check.compare(&format!("/summary/{metric}"), &json!(said), &json!(summary), &SUMMARY_FIGURES);
        }
    }
    let judged = judge(if check.disagreements.is_empty() { found } else { claimed });
    LoadedResult {
        path: path.to_owned(),
        sha256,
        source,
        judged,
        claim,
        figures_checked: check.checked,
        disagreements: check.disagreements,
    }
}

/// Upstream's rows of other APIs carry their counts beside `usage`: those stay as they are claimed.
fn keep_counts(row: &mut CalibrationRow, said: &CalibrationRow) {
    if row.usage.is_none() {
        row.prompt_tokens = said.prompt_tokens;
        row.completion_tokens = said.completion_tokens;
        row.cached_tokens.clone_from(&said.cached_tokens);
        row.tok_s_wall_full = said.tok_s_wall_full;
        row.tok_s_after_ttft_full = said.tok_s_after_ttft_full;
        row.chunk_count_equals_completion_tokens = said.chunk_count_equals_completion_tokens;
    }
    // Upstream names its sources in its own words.
    row.token_timing_source.clone_from(&said.token_timing_source);
}

struct Check {
    tolerance: f64,
    checked: usize,
    disagreements: Vec<Disagreement>,
}

impl Check {
    fn compare(&mut self, place: &str, claimed: &Value, found: &Value, figures: &[&str]) {
        for figure in figures {
            // A figure the file does not state is not a claim.
            let Some(said) = claimed.get(figure).filter(|said| !said.is_null()) else { continue };
            self.checked += 1;
            let is = found.get(figure).unwrap_or(&Value::Null);
            if !self.agrees(said, is) {
                self.disagreements.push(Disagreement {
                    pointer: format!("{place}/{figure}"),
                    claimed: said.clone(),
                    recomputed: is.clone(),
                });
            }
        }
    }

    fn agrees(&self, said: &Value, is: &Value) -> bool {
        match (said.as_f64(), is.as_f64()) {
            (Some(said), Some(is)) => (said - is).abs() <= self.tolerance * said.abs().max(is.abs()),
            _ => said == is,
        }
    }
}

/// A result of upstream's script in the kit's form. Nothing is added that the file does not say, but for the classes of its
/// fixed suite, which the script knows by the prompts' ids.
fn from_lab(mut lab: LabCalibrationResult, path: &Path, sha256: Sha256Hex) -> Measured {
    if lab.rows.iter().all(|row| row.prompt_class.as_deref().is_none_or(|class| class == UNCLASSIFIED))
        && let Some(classes) = fixed_suite_classes(lab.rows.iter().map(|row| row.prompt_id.as_str()))
    {
        for (row, class) in lab.rows.iter_mut().zip(classes) {
            row.prompt_class = Some(class.to_owned());
        }
    }
    let said = &lab.run_identity;
    let text = |names: &[&str]| names.iter().find_map(|name| said.get(name)?.as_str()).map(str::to_owned);
    let number = |names: &[&str]| names.iter().find_map(|name| said.get(name)?.as_u64());
    let api = text(&["api_mode", "api"]).unwrap_or_default();
    let api = if api.starts_with("native") {
        "native"
    } else if api == "completions" {
        "completions"
    } else {
        "chat"
    };
    let longest = lab.rows.iter().filter_map(|row| row.completion_tokens).max();
    let prompts = lab.rows.iter().map(|row| SuitePromptIdentity {
        id: row.prompt_id.clone(),
        prompt_class: row.prompt_class.clone().unwrap_or_else(|| UNCLASSIFIED.to_owned()),
        sha256: row.prompt_sha256,
        extra: Map::new(),
    });
    let summary = lab
        .summary
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), serde_json::from_value(value.clone()).ok()?)));
    let stem = path.file_stem().map_or_else(|| "lab".into(), |stem| stem.to_string_lossy());
    let started = lab.rows.first().and_then(|row| row.request_started_epoch_s).unwrap_or(0.0);
    Measured {
        schema_version: 1,
        format: "b70-calibration-result-v1".to_owned(),
        endpoint: EndpointIdentity {
            name: stem.into_owned(),
            url: text(&["base_url", "url"]).unwrap_or_else(|| "unknown".to_owned()),
            card: None,
            extra: Map::new(),
        },
        arm: None,
        period: None,
        suite: SuiteIdentity {
            suite_id: text(&["suite_id", "suite"]).unwrap_or_else(|| "unknown".to_owned()),
            version: json!("unknown"),
            sha256: text(&["suite_sha256", "prompt_suite_sha256"]).and_then(|hex| hex.parse().ok()).unwrap_or(sha256),
            prompts: prompts.collect(),
            selected: None,
            extra: Map::new(),
        },
        settings: Settings {
            api: api.to_owned(),
            max_tokens: number(&["max_tokens"]).or(longest).unwrap_or(1),
            metric_window: number(&["metric_window", "metric_window_events"]).unwrap_or(WINDOW_EVENTS as u64),
            temperature: 0.0,
            top_p: 1.0,
            seed: said.get("seed").and_then(Value::as_i64).unwrap_or(1),
            cache_prompt: said.pointer("/request_extra/cache_prompt").and_then(Value::as_bool),
            ignore_eos: false,
            repeats: 1,
            warm_up_requests: 0,
            endpoints_at_once: 1,
            require_natural_eos: false,
            request_extra: Map::new(),
            extra: Map::new(),
        },
        identity: empty(),
        rows: lab.rows,
        summary: summary.collect(),
        started_unix: UnixTime::from_seconds(started as u64),
        ended_unix: None,
        created_utc: None,
        extra: Map::new(),
    }
}
