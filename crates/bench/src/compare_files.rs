//! A comparison of result files as a document.

use std::collections::BTreeMap;

use b70_manifest::calibration::{
    BootstrapInterval, CardEffect, Comparison as ComparisonDocument, ComparisonVerdict, CrossoverGroup, Effect,
    Interval,
};
use b70_manifest::gate::GateOutcome;
use b70_manifest::{EvidenceClass, NeverEligible, UnixTime};
use serde_json::{Map, Value, json};

use crate::compare::{CompareError, CompareOptions, CompareRun, ComparisonReason, CrossoverComparison, compare};
use crate::load::{LoadedResult, ResultSource};

/// Compares loaded results; arm, card and period are those of the files.
///
/// # Errors
/// [`CompareError`] for options out of range. Files that do not make a comparison give the verdict `unqualified`.
pub fn compare_files(results: &[LoadedResult], options: &CompareOptions) -> Result<ComparisonDocument, CompareError> {
    let runs: Vec<CompareRun> = results
        .iter()
        .map(|result| CompareRun::new(result.path.display().to_string(), result.judged.measured().clone()))
        .collect();
    let mut found = compare(&runs, options)?;
    let mut refused = Vec::new();
    for result in results {
        let path = result.path.display();
        let mut refuse = |code: &str, detail: String| refused.push(ComparisonReason { code: code.to_owned(), detail });
        if !result.disagreements.is_empty() {
            let first = &result.disagreements[0];
            refuse(
                "figures_disagree_with_rows",
                format!(
                    "{path}: {} figures are not what the rows give, the first is {}",
                    result.disagreements.len(),
                    first.pointer
                ),
            );
        }
        if !result.is_finished() {
            refuse("run_unfinished", format!("{path}: the run was cut short"));
        }
        if result.source == ResultSource::Lab {
            refuse("identity_absent", format!("{path}: upstream's files record no identity that can be compared"));
        }
    }
    if !refused.is_empty() {
        found.verdict = ComparisonVerdict::Unqualified;
        refused.append(&mut found.reasons);
        found.reasons = refused;
    }
    Ok(document(found, results, &runs))
}

fn document(found: CrossoverComparison, results: &[LoadedResult], runs: &[CompareRun]) -> ComparisonDocument {
    let lowest = [
        EvidenceClass::InvalidOrIncomplete,
        EvidenceClass::FreshResponseScreening,
        EvidenceClass::PromotionGradeFreshResponse,
    ]
    .into_iter()
    .find(|class| results.iter().any(|result| result.judged.evidence_class() == *class))
    .unwrap_or(EvidenceClass::InvalidOrIncomplete);
    let groups = results.iter().filter_map(|result| {
        let measured = result.judged.measured();
        Some(CrossoverGroup {
            file: result.path.display().to_string(),
            sha256: result.sha256,
            arm: measured.arm?,
            card: measured.identity.card.as_ref().map(|card| card.pci).or(measured.endpoint.card)?,
            period: measured.period?,
            extra: Map::from_iter([("evidence_class".to_owned(), json!(result.judged.evidence_class()))]),
        })
    });
    let mut gates = BTreeMap::from([("crossover".to_owned(), found.crossover.clone())]);
    let unscreened: Vec<&CompareRun> = runs.iter().filter(|run| !run.screening.passed).collect();
    let mut screening = GateOutcome { passed: unscreened.is_empty(), ..GateOutcome::default() };
    for run in unscreened {
        for code in
            run.screening.codes.iter().filter(|code| !screening.codes.contains(code)).cloned().collect::<Vec<_>>()
        {
            screening.codes.push(code);
        }
        screening.details.extend(run.screening.details.iter().map(|detail| format!("{}: {detail}", run.name)));
    }
    gates.insert("screening".to_owned(), screening);
    let effect = found.estimate.filter(|_| found.verdict != ComparisonVerdict::Unqualified).map(|estimate| Effect {
        ratio: estimate.ratio,
        t: Interval {
            lower: estimate.ratio_low,
            upper: estimate.ratio_high,
            degrees_of_freedom: estimate.df as u64,
            extra: Map::from_iter([
                ("confidence".to_owned(), json!(estimate.confidence)),
                ("se".to_owned(), json!(estimate.se)),
            ]),
        },
        bootstrap: found.bootstrap.as_ref().map(|bootstrap| BootstrapInterval {
            lower: bootstrap.ratio_low,
            upper: bootstrap.ratio_high,
            draws: bootstrap.draws as u64,
            seed: bootstrap.seed,
            unit: bootstrap.resampled.clone(),
            extra: Map::from_iter([("generator".to_owned(), json!(bootstrap.generator))]),
        }),
        // The estimate states the first period over the second.
        period_ratio: Some(1.0 / estimate.period_ratio),
        extra: Map::new(),
    });
    let codes: Vec<&str> = found.reasons.iter().map(|reason| reason.code.as_str()).collect();
    let extra: Map<String, Value> = [
        ("reason_codes", json!(codes)),
        ("unit", json!(found.unit)),
        ("decided_by", json!(found.decided_by)),
        ("options", json!(found.options)),
        ("threshold_ratio", json!(found.threshold_ratio)),
        ("aa_floor_single_run", json!(found.aa_floor_single_run)),
        ("aa_floor_estimate", json!(found.aa_floor_estimate)),
        ("ratio_candidate_first", json!(found.ratio_candidate_first)),
        ("ratio_control_first", json!(found.ratio_control_first)),
        ("burst_gap_ratio", json!(found.cycle_ratio)),
        ("tokens_per_burst_ratio", json!(found.tokens_per_burst_ratio)),
        ("note", json!(found.note)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    let per_card = found.cards.iter().map(|card| CardEffect {
        card: card.card,
        ratio: card.ratio,
        extra: Map::from_iter([("pairs".to_owned(), json!(card.pairs)), ("prompts".to_owned(), json!(card.prompts))]),
    });
    let now = UnixTime::now();
    ComparisonDocument {
        schema_version: 1,
        format: "b70-comparison-v1".to_owned(),
        evidence_class: lowest,
        promotion_eligible: NeverEligible,
        verdict: found.verdict,
        reasons: found.reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.detail)).collect(),
        metric: found.metric,
        crossover: found.crossover.passed,
        gates,
        groups: groups.collect(),
        effect,
        per_card: per_card.collect(),
        min_effect: found.options.min_effect,
        noise_floor: found.aa_floor_estimate,
        equal_outputs: found.equal_output_share,
        created_unix: now,
        created_utc: Some(now.rfc3339()),
        extra,
    }
}
