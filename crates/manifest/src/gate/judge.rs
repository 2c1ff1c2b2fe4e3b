use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::code::Findings;
use super::rows::{close, place, screening_findings, timing_offsets};
use super::{
    Code, GateOutcome, PROMOTION_CLASSES, PROMOTION_MAX_TOKENS, PROMOTION_PROMPTS, PROMOTION_WINDOW, cached_zero,
};
use crate::calibration::{CalibrationResult, Claim, Measured, MetricSummary, UNCLASSIFIED};
use crate::evidence::EvidenceClass;
use crate::workers::SpecType;

/// What ran is known: models, executable, build, command, environment, card, and how many workers ran at once.
pub fn identity(measured: &Measured) -> GateOutcome {
    identity_findings(measured).outcome()
}

fn identity_findings(measured: &Measured) -> Findings {
    let identity = &measured.identity;
    let mut findings = Findings::default();
    let mut require = |known: bool, code, what: &str| findings.check(known, code, format!("{what} is not recorded"));
    require(identity.target_model_sha256.is_some(), Code::TargetModelUnidentified, "the model's SHA-256");
    require(identity.binary_sha256.is_some(), Code::BinaryUnidentified, "the executable's SHA-256");
    require(identity.build_fingerprint_sha256.is_some(), Code::BuildUnidentified, "the build's fingerprint");
    require(identity.command.is_some(), Code::CommandUnrecorded, "the command line");
    require(identity.environment.is_some(), Code::EnvironmentUnrecorded, "the environment");
    require(identity.card.is_some(), Code::CardUnidentified, "the card");
    require(identity.workers_at_once.is_some(), Code::WorkersAtOnceUnrecorded, "how many workers ran at once");

    // A separate draft model is part of the recipe; a model's own head is part of the model.
    let command = identity.command.as_deref().unwrap_or_default();
    let names_draft = command.iter().any(|word| {
        let flag = word.split('=').next().unwrap_or_default();
        matches!(flag, "-md" | "--model-draft" | "--spec-draft-model")
            || [SpecType::DraftSimple, SpecType::DraftEagle3, SpecType::DraftDflash, SpecType::DraftDspark]
                .iter()
                .any(|kind| word.split(['=', ',']).any(|part| part == kind.as_str()))
    });
    findings.check(
        !names_draft || identity.draft_model_sha256.is_some(),
        Code::DraftModelUnidentified,
        "a draft model is in use and its SHA-256 is not recorded",
    );
    let environment = identity.environment.iter().flatten();
    for (name, value) in environment.filter(|(name, value)| is_forbidden(name, value)) {
        findings.add(Code::EnvironmentForbidden, format!("{name}={value} is forbidden for evidence"));
    }
    if let (Some(one), Some(two)) = (measured.endpoint.card, identity.card.as_ref()) {
        findings.check(
            one == two.pci,
            Code::CardsDiffer,
            format!("the endpoint's card is {one}, the recorded card {}", two.pci),
        );
    }
    findings
}

/// Whether a variable may not be set for evidence: the persistent kernel cache of SYCL.
pub(crate) fn is_forbidden(name: &str, value: &str) -> bool {
    name == "SYCL_CACHE_PERSISTENT" && !matches!(value.trim(), "" | "0")
}

/// The final gate: screening and identity passed, the whole fixed suite, 512 tokens, 100 events, every prompt once as a
/// first response, nothing warm.
pub fn realistic_final(measured: &Measured) -> GateOutcome {
    final_findings(measured).outcome()
}

fn final_findings(measured: &Measured) -> Findings {
    let settings = &measured.settings;
    let suite = &measured.suite;
    let mut findings = Findings::default();
    findings.check(
        screening_findings(measured).is_empty(),
        Code::FreshResponseScreeningFailed,
        "the screening gate did not pass",
    );
    findings.check(identity_findings(measured).is_empty(), Code::IdentityGateFailed, "the identity gate did not pass");
    findings.check(
        suite.selected.is_none(),
        Code::PromptSubsetSelected,
        "only some prompts of the suite were asked for",
    );
    let in_suite: BTreeMap<&str, _> = suite.prompts.iter().map(|prompt| (prompt.id.as_str(), prompt)).collect();
    let complete: BTreeSet<&str> =
        measured.rows.iter().filter(|row| row.error.is_none()).map(|row| row.prompt_id.as_str()).collect();
    for prompt in suite.prompts.iter().filter(|prompt| !complete.contains(prompt.id.as_str())) {
        findings.add(Code::FixedSuiteIncomplete, format!("prompt {:?} has no complete row", prompt.id));
    }
    for (index, row) in measured.rows.iter().enumerate() {
        let known = in_suite.get(row.prompt_id.as_str()).is_some_and(|prompt| prompt.sha256 == row.prompt_sha256);
        let place = place(index, row);
        findings.check(known, Code::FixedSuiteIncomplete, format!("{place}: the suite has no such prompt"));
        findings.check(
            row.repeat.unwrap_or(0) == 0,
            Code::PromptAskedMoreThanOnce,
            format!("{place}: repetition {}", row.repeat.unwrap_or(0)),
        );
        let covered = row.completion_tokens.is_some_and(|tokens| tokens >= PROMOTION_WINDOW)
            && timing_offsets(row).len() as u64 >= PROMOTION_WINDOW;
        findings.check(
            covered,
            Code::EveryCompletionMustCover100EventMetric,
            format!("{place}: the answer does not cover {PROMOTION_WINDOW} events"),
        );
    }
    findings.check(
        in_suite.len() >= PROMOTION_PROMPTS,
        Code::FixedSuiteHasFewerThan12Prompts,
        format!("the suite has {} prompts", in_suite.len()),
    );
    let classes: BTreeSet<&str> = suite
        .prompts
        .iter()
        .map(|prompt| prompt.prompt_class.as_str())
        .filter(|class| *class != UNCLASSIFIED)
        .collect();
    findings.check(
        classes.len() >= PROMOTION_CLASSES,
        Code::FixedSuiteLacksVariedPromptClasses,
        format!("the suite has {} classes of prompts", classes.len()),
    );
    findings.check(
        settings.max_tokens == PROMOTION_MAX_TOKENS,
        Code::MaxTokensMustEqual512,
        format!("max_tokens was {}", settings.max_tokens),
    );
    findings.check(
        settings.metric_window == PROMOTION_WINDOW,
        Code::MetricWindowMustEqual100Events,
        format!("the window was {} events", settings.metric_window),
    );
    findings.check(!settings.ignore_eos, Code::IgnoreEosMustBeDisabled, "the end of text was ignored");
    findings.check(
        settings.cache_prompt == Some(false),
        Code::PromptCacheNotDisabled,
        "the requests did not carry cache_prompt false",
    );
    findings.check(
        settings.warm_up_requests == 0,
        Code::WarmUpWasSent,
        format!("{} requests were sent before the first row", settings.warm_up_requests),
    );
    findings.check(
        settings.repeats == 1,
        Code::PromptAskedMoreThanOnce,
        format!("every prompt was asked {} times", settings.repeats),
    );
    findings.check(
        settings.temperature == 0.0 && close(settings.top_p, 1.0, 1e-9),
        Code::SamplingNotGreedy,
        format!("temperature {}, top_p {}", settings.temperature, settings.top_p),
    );
    check_extra(&mut findings, measured);
    check_summary(&mut findings, measured);
    findings
}

/// Further request fields are merged last, so they can undo any setting.
fn check_extra(findings: &mut Findings, measured: &Measured) {
    let extra = &measured.settings.request_extra;
    if extra.get("cache_prompt").is_some_and(|value| value.as_bool() != Some(false)) {
        findings.add(Code::PromptCacheNotDisabled, "a further request field switches the prompt cache on");
    }
    if extra.get("ignore_eos").is_some_and(|value| value.as_bool() != Some(false)) {
        findings.add(Code::IgnoreEosMustBeDisabled, "a further request field ignores the end of text");
    }
    for name in ["max_tokens", "n_predict", "max_completion_tokens"] {
        if extra.get(name).is_some_and(|value| value.as_u64() != Some(PROMOTION_MAX_TOKENS)) {
            findings.add(Code::MaxTokensMustEqual512, format!("a further request field sets {name}"));
        }
    }
    for name in ["prompt", "messages", "input_prefix"] {
        if extra.contains_key(name) {
            let detail = format!("a further request field sets {name}, so the suite's prompts were not what was asked");
            findings.add(Code::FixedSuiteIncomplete, detail);
        }
    }
    if extra.get("temperature").is_some_and(|value| value.as_f64() != Some(0.0)) {
        findings.add(Code::SamplingNotGreedy, "a further request field sets the temperature");
    }
}

fn check_summary(findings: &mut Findings, measured: &Measured) {
    const METRIC: &str = "tok_s_1_100_intervals_after_ttft";
    let Some(summary) = measured.summary.get(METRIC) else { return };
    let mut rates: Vec<f64> = measured
        .rows
        .iter()
        .filter(|row| row.error.is_none())
        .filter_map(|row| row.tok_s_1_100_intervals_after_ttft)
        .collect();
    rates.sort_by(f64::total_cmp);
    let agrees = |stated: Option<f64>, computed: Option<f64>| match (stated, computed) {
        (Some(stated), Some(computed)) => close(stated, computed, 1e-6),
        (stated, computed) => stated.is_none() && computed.is_none(),
    };
    let mean = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
    let MetricSummary { count, p10, median, mean: stated_mean, .. } = summary;
    findings.check(
        *count == rates.len() as u64
            && agrees(*median, percentile(&rates, 0.5))
            && agrees(*p10, percentile(&rates, 0.1))
            && agrees(*stated_mean, mean),
        Code::SummaryDisagreesWithRows,
        format!("the summary of {METRIC} is not what the rows give"),
    );
}

/// Linear between the order statistics, at `(n - 1) p`.
fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let place = sorted.len().checked_sub(1)? as f64 * p;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor()))
}

/// Runs every gate over what was measured. What the returned value says of itself comes from the gates alone.
pub fn judge(measured: Measured) -> Judged {
    let screening = screening_findings(&measured).outcome();
    let last = realistic_final(&measured);
    let evidence_class = match (screening.passed, last.passed) {
        (true, true) => EvidenceClass::PromotionGradeFreshResponse,
        (true, false) => EvidenceClass::FreshResponseScreening,
        (false, _) => EvidenceClass::InvalidOrIncomplete,
    };
    let gates = BTreeMap::from([
        ("cached_zero".to_owned(), cached_zero(&measured.rows)),
        ("screening".to_owned(), screening),
        ("identity".to_owned(), identity(&measured)),
        ("realistic_final".to_owned(), last),
    ]);
    Judged { measured, evidence_class, gates }
}

/// A calibration result the gates have run on. It is the only one that can be written, and it cannot be changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    measured: Measured,
    evidence_class: EvidenceClass,
    gates: BTreeMap<String, GateOutcome>,
}

impl Judged {
    /// Judges a loaded result again, from its rows; what it claimed has no influence.
    pub fn again(loaded: CalibrationResult) -> (Self, Claim) {
        (judge(loaded.measured), loaded.claim)
    }

    /// What was measured.
    pub fn measured(&self) -> &Measured {
        &self.measured
    }

    /// What was measured, to change it; it must be judged again after that.
    pub fn into_measured(self) -> Measured {
        self.measured
    }

    /// The evidence class the gates give.
    pub fn evidence_class(&self) -> EvidenceClass {
        self.evidence_class
    }

    /// The outcome of each gate by name: `cached_zero`, `screening`, `identity`, `realistic_final`.
    pub fn gates(&self) -> &BTreeMap<String, GateOutcome> {
        &self.gates
    }

    /// The proof that this result may support a promotion, when the final gate passed.
    pub fn promotion(&self) -> Option<PromotionEligible<'_>> {
        (self.evidence_class == EvidenceClass::PromotionGradeFreshResponse)
            .then_some(PromotionEligible { judged: self })
    }
}

impl Serialize for Judged {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            evidence_class: EvidenceClass,
            promotion_eligible: bool,
            gates: &'a BTreeMap<String, GateOutcome>,
            #[serde(flatten)]
            measured: &'a Measured,
        }
        Document {
            evidence_class: self.evidence_class,
            promotion_eligible: self.promotion().is_some(),
            gates: &self.gates,
            measured: &self.measured,
        }
        .serialize(serializer)
    }
}

/// Proof that the final gate passed on the rows of the result it holds. Nothing else makes one.
///
/// ```compile_fail
/// use b70_manifest::gate::{Judged, PromotionEligible};
/// fn forge(judged: &Judged) -> PromotionEligible<'_> {
///     PromotionEligible { judged }
/// }
/// ```
///
/// Nor can it be read from a file:
/// ```compile_fail
/// let forged: b70_manifest::gate::PromotionEligible<'_> = serde_json::from_str("{}").unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromotionEligible<'a> {
    judged: &'a Judged,
}

impl<'a> PromotionEligible<'a> {
    /// The result that was proved eligible.
    pub fn result(self) -> &'a Judged {
        self.judged
    }
}
