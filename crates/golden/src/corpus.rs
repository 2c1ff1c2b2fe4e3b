//! What a corpus manifest requires, and what of it is there.

use std::path::{Path, PathBuf};

use b70_manifest::EvidenceClass;
use b70_manifest::document::read;
use b70_manifest::golden::GoldenCorpusManifest;
use schemars::JsonSchema;
use serde::Serialize;

use crate::capture::{CaptureRole, captures_of};
use crate::error::GoldenError;
use crate::set::{SetCheck, verify};

/// The cases a corpus of this lane requires, when no manifest names others.
pub const REQUIRED_CASES: [&str; 9] = [
    "full_attention_qkv",
    "recurrent_gdn_qkv",
    "gate_up_projection",
    "down_projection",
    "output_projection",
    "lm_head",
    "gdn_state_before_after",
    "kv_slice_before_after",
    "acceptance_commit_and_rollback",
];

/// Whether a case is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CaseState {
    /// Every tensor of every required width was imported, and its bytes are right.
    Present,
    /// Something is missing.
    Outstanding,
}

/// A required case.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CaseStatus {
    /// The case.
    pub case: String,
    /// Whether it is there.
    pub state: CaseState,
    /// What is missing: width and part.
    pub missing: Vec<String>,
    /// Captures that are there.
    pub captures: Vec<PathBuf>,
    /// Captures that do not count, and why.
    pub refused: Vec<String>,
}

/// What `status` says.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(title = "Golden status")]
pub struct CorpusStatus {
    /// Version of this document, 1.
    pub schema_version: u64,
    /// Always `diagnostic-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: bool,
    /// The corpus manifest, if one was given.
    pub corpus: Option<PathBuf>,
    /// The synthetic set: `valid`, `failed`, or `absent`.
    pub synthetic_set: String,
    /// Why the synthetic set failed.
    pub synthetic_failures: Vec<String>,
    /// Widths every case must cover.
    pub required_widths: Vec<u64>,
    /// Every required case.
    pub cases: Vec<CaseStatus>,
    /// How many are present.
    pub present: usize,
    /// How many are outstanding.
    pub outstanding: usize,
    /// Artifacts the manifest claims that are not imported captures here.
    pub unproven_claims: Vec<String>,
    /// What all of this may be used for.
    pub note: String,
}

/// Reads a corpus manifest; one that does not forbid promotion, submission and headline use is invalid.
///
/// # Errors
/// Every fault of the document at once.
pub fn read_corpus(path: &Path) -> Result<GoldenCorpusManifest, GoldenError> {
    Ok(read(path)?)
}

/// Lists every required case of a corpus (by default the lane's nine, at widths 1, 4, 8 and 16) as present or
/// outstanding. Present means imported below `root` and rehashed now; a manifest's own list of artifacts is a claim.
///
/// # Errors
/// The manifest, or a folder that cannot be read.
pub fn status(root: &Path, corpus: Option<&Path>) -> Result<CorpusStatus, GoldenError> {
    let manifest = corpus.map(read_corpus).transpose()?;
    let (cases, widths) = match &manifest {
        Some(manifest) => (manifest.required_cases.clone(), manifest.required_widths.clone()),
        None => (REQUIRED_CASES.map(str::to_owned).to_vec(), vec![1, 4, 8, 16]),
    };
    let cases = cases.iter().map(|case| case_status(root, case, &widths)).collect::<Result<Vec<_>, _>>()?;
    let (synthetic_set, synthetic_failures) = match verify(root, false) {
        Ok(SetCheck { status, failures, .. }) => (status, failures),
        Err(GoldenError::Store(b70_store::Error::Missing { .. })) => ("absent".to_owned(), Vec::new()),
        Err(error) => ("failed".to_owned(), vec![error.to_string()]),
    };
    let claims = manifest.iter().flat_map(|manifest| &manifest.artifacts);
    let unproven_claims = claims
        .map(|artifact| serde_json::to_string(artifact).unwrap_or_default())
        .filter(|claim| !cases.iter().flat_map(|c| &c.captures).any(|path| claims_it(claim, path)))
        .collect();
    let present = cases.iter().filter(|case| case.state == CaseState::Present).count();
    Ok(CorpusStatus {
        schema_version: 1,
        evidence_class: EvidenceClass::DiagnosticOnly,
        promotion_eligible: false,
        corpus: corpus.map(Path::to_path_buf),
        synthetic_set,
        synthetic_failures,
        required_widths: widths,
        outstanding: cases.len() - present,
        present,
        cases,
        unproven_claims,
        note:
            "the synthetic set is a contract of kernel arithmetic, not a capture of a model; neither it nor a capture \
               is ever promotion-eligible"
                .to_owned(),
    })
}

/// A claim names a capture by its id.
fn claims_it(claim: &str, capture: &Path) -> bool {
    capture.file_name().and_then(|id| id.to_str()).is_some_and(|id| claim.contains(id))
}

fn case_status(root: &Path, case: &str, widths: &[u64]) -> Result<CaseStatus, GoldenError> {
    let (mut captures, mut refused, mut there) = (Vec::new(), Vec::new(), Vec::new());
    for found in captures_of(root, case)? {
        match found.capture {
            Ok(capture) => {
                there.push((capture.width, capture.role));
                captures.push(found.path);
            }
            Err(why) => refused.push(format!("{}: {why}", found.path.display())),
        }
    }
    let needed = widths.iter().flat_map(|width| CaptureRole::of_case(case).iter().map(|role| (*width, *role)));
    let missing: Vec<String> =
        needed.filter(|part| !there.contains(part)).map(|(width, role)| format!("m{width} {}", role.word())).collect();
    let state = if missing.is_empty() { CaseState::Present } else { CaseState::Outstanding };
    Ok(CaseStatus { case: case.to_owned(), state, missing, captures, refused })
}
