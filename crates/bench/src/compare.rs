//! Control against candidate over a card-swap crossover.

use std::collections::{BTreeMap, BTreeSet};

use b70_manifest::calibration::{CalibrationRow, ComparisonVerdict, Measured};
use b70_manifest::gate::{self, GateOutcome};
use b70_manifest::workers::Arm;
use b70_manifest::{PciAddress, Sha256Hex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crossover::{
    BootstrapEstimate, CardUnits, CrossoverEstimate, PairedUnit, crossover_estimate, hierarchical_bootstrap,
};
use crate::identity::recipe_sha256;
use crate::row::burst_gap_mean_s;
use crate::stats::{mean, noise_floor};

/// From this many cards on, the bootstrap has a say beside the t interval.
pub(crate) const BOOTSTRAP_DECIDES_FROM_CARDS: usize = 6;

/// What every comparison and report says about single runs.
pub(crate) const ONE_RUN_NOTE: &str = "One run never ranks cards or configurations: differences between the cards of one run mix \
    the card, the text each card happened to generate, and the order of the runs.";

/// One run of one endpoint, ready to compare.
#[derive(Clone, Debug)]
pub struct CompareRun {
    /// Its name, for messages.
    pub name: String,
    /// What was measured, its rows recomputed.
    pub measured: Measured,
    /// Hash of everything that makes the configuration ([`recipe_sha256`]).
    pub recipe_sha256: Option<Sha256Hex>,
    /// The screening of its rows.
    pub screening: GateOutcome,
}

impl CompareRun {
    /// A run; its screening and its recipe come from what was measured.
    pub fn new(name: impl Into<String>, measured: Measured) -> Self {
        let (recipe_sha256, screening) = (recipe_sha256(&measured), gate::screening(&measured));
        Self { name: name.into(), measured, recipe_sha256, screening }
    }

    /// Its card, the same one by which the gate goes.
    fn card(&self) -> Option<PciAddress> {
        self.measured.identity.card.as_ref().map(|card| card.pci).or(self.measured.endpoint.card)
    }

    fn arm(&self) -> Option<Arm> {
        self.measured.arm
    }

    fn period(&self) -> Option<u64> {
        self.measured.period.filter(|period| *period > 0)
    }
}

/// How the A/A noise enters the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FloorRule {
    /// The floor of single runs divided by √(cards · pairs): what the noise of equal runs would do to this estimate.
    #[default]
    Estimate,
    /// The floor of single runs itself: a difference must be visible between two single runs.
    SingleRun,
}

/// How to decide.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareOptions {
    /// The smallest effect worth having, as a share: 0.01 is 1 %.
    pub min_effect: f64,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Draws of the bootstrap; 0 leaves it out.
    pub bootstrap_draws: usize,
    /// Its seed.
    pub seed: u64,
    /// How the A/A noise enters.
    pub floor_rule: FloorRule,
    /// The noise floor of single runs (|ln ratio|) from an earlier A/A calibration; otherwise the repeated runs of the
    /// comparison itself give it, if there are any.
    pub aa_floor: Option<f64>,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            min_effect: 0.01,
            confidence: 0.95,
            bootstrap_draws: 10_000,
            seed: 1,
            floor_rule: FloorRule::default(),
            aa_floor: None,
        }
    }
}

/// Options that mean nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A number outside its range.
    #[error("{name} is {found}, expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },
}

/// One reason of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonReason {
    /// Stable code.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// One card's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CardComparison {
    /// The card.
    pub card: PciAddress,
    /// Candidate over control on it.
    pub ratio: f64,
    /// Its pairs of periods, repeats within a run counted singly.
    pub pairs: usize,
    /// Prompts paired, over all pairs.
    pub prompts: usize,
}

/// The comparison. Ratios are candidate over control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CrossoverComparison {
    /// What came out.
    pub verdict: ComparisonVerdict,
    /// Why.
    pub reasons: Vec<ComparisonReason>,
    /// Outcome of the crossover-completeness gate.
    pub crossover: GateOutcome,
    /// The unit of the statistics.
    pub unit: String,
    /// Which interval decided: `t`, or `t-and-bootstrap` from six cards on.
    pub decided_by: String,
    /// The metric compared.
    pub metric: String,
    /// The options.
    pub options: CompareOptions,
    /// The estimate with its t interval.
    pub estimate: Option<CrossoverEstimate>,
    /// The bootstrap beside it.
    pub bootstrap: Option<BootstrapEstimate>,
    /// |ln ratio| of equal single runs, 90th percentile.
    pub aa_floor_single_run: Option<f64>,
    /// The same for this estimate.
    pub aa_floor_estimate: Option<f64>,
    /// The ratio a lower bound must exceed for a win.
    pub threshold_ratio: f64,
    /// Ratio over the pairs in which the candidate ran first.
    pub ratio_candidate_first: Option<f64>,
    /// Ratio over the pairs in which the control ran first.
    pub ratio_control_first: Option<f64>,
    /// Ratio of the burst cycles (below 1: the candidate's cycle is shorter), prompts paired.
    pub cycle_ratio: Option<f64>,
    /// Ratio of the tokens per burst, prompts paired.
    pub tokens_per_burst_ratio: Option<f64>,
    /// Share of the paired prompts whose output texts are equal.
    pub equal_output_share: Option<f64>,
    /// The cards.
    pub cards: Vec<CardComparison>,
    /// What is said of single runs.
    pub note: String,
}

/// Compares runs of two arms.
///
/// # Errors
/// [`CompareError`] for options out of range. Runs that do not make a comparison are not errors: the verdict is
/// [`ComparisonVerdict::Unqualified`] with every reason, and what can be computed is still shown.
pub fn compare(runs: &[CompareRun], options: &CompareOptions) -> Result<CrossoverComparison, CompareError> {
    check_options(options)?;
    let (crossover, mut reasons) = disqualify(runs);
    let pairs = pair_up(runs, &mut reasons);
    let cards: Vec<CardUnits> = pairs.iter().map(PairedCard::units).collect();
    let estimate = crossover_estimate(&cards, options.confidence);
    let bootstrap = hierarchical_bootstrap(&cards, options.confidence, options.bootstrap_draws, options.seed);

    let aa_floor_single_run = options.aa_floor.or_else(|| aa_floor(runs));
    let unit_count: usize = cards.iter().map(|card| card.units.len()).sum();
    let aa_floor_estimate = aa_floor_single_run.map(|floor| floor / (unit_count.max(1) as f64).sqrt());
    let floor = match options.floor_rule {
        FloorRule::Estimate => aa_floor_estimate,
        FloorRule::SingleRun => aa_floor_single_run,
    };
    let threshold = options.min_effect.ln_1p().max(floor.unwrap_or(0.0));

    let by_order = |candidate_first: bool| {
        let units = cards.iter().flat_map(|card| &card.units).filter(|unit| unit.candidate_first == candidate_first);
        mean(&units.filter_map(PairedUnit::mean).collect::<Vec<_>>())
    };
    let (candidate_first, control_first) = (by_order(true), by_order(false));
    let with_bootstrap = cards.len() >= BOOTSTRAP_DECIDES_FROM_CARDS && bootstrap.is_some();
    if estimate.is_none() {
        reasons.push(reason("no_estimate", "too few cards, or all in one order: no interval can be given"));
    }
    let verdict = match &estimate {
        Some(estimate) if reasons.is_empty() => {
            let beside = bootstrap.as_ref().filter(|_| with_bootstrap);
            let low = beside.map_or(estimate.ratio_low, |beside| beside.ratio_low.min(estimate.ratio_low)).ln();
            let high = beside.map_or(estimate.ratio_high, |beside| beside.ratio_high.max(estimate.ratio_high)).ln();
            let agree = |positive: bool| {
                [candidate_first, control_first].iter().flatten().all(|effect| (*effect > 0.0) == positive)
            };
            decide(low, high, threshold, &agree, &mut reasons)
        }
        _ => ComparisonVerdict::Unqualified,
    };
    let recipes: BTreeSet<&Option<Sha256Hex>> = runs.iter().map(|run| &run.recipe_sha256).collect();
    if recipes.len() == 1 && verdict != ComparisonVerdict::Unqualified {
        reasons.push(reason(
            "arms_are_equal",
            "control and candidate are the same configuration: this is an A/A comparison",
        ));
    }
    if floor.is_none() && verdict != ComparisonVerdict::Unqualified {
        let detail = "no card ran the same arm twice and no earlier A/A floor was given: the minimum effect alone is the threshold";
        reasons.push(reason("aa_floor_absent", detail));
    }

    let over_prompts = |value: fn(&PairedPrompt) -> Option<f64>| {
        let values: Vec<f64> = pairs.iter().flat_map(PairedCard::prompts).filter_map(value).collect();
        mean(&values)
    };
    Ok(CrossoverComparison {
        verdict,
        reasons,
        crossover,
        unit: "card".to_owned(),
        decided_by: if with_bootstrap { "t-and-bootstrap" } else { "t" }.to_owned(),
        metric: "tok_s_1_100_intervals_after_ttft".to_owned(),
        options: *options,
        estimate,
        bootstrap,
        aa_floor_single_run,
        aa_floor_estimate,
        threshold_ratio: threshold.exp(),
        ratio_candidate_first: candidate_first.map(f64::exp),
        ratio_control_first: control_first.map(f64::exp),
        cycle_ratio: over_prompts(|prompt| prompt.ln_cycle).map(f64::exp),
        tokens_per_burst_ratio: over_prompts(|prompt| prompt.ln_tokens_per_burst).map(f64::exp),
        equal_output_share: over_prompts(|prompt| Some(f64::from(u8::from(prompt.equal_output)))),
        cards: pairs
            .iter()
            .zip(&cards)
            .filter_map(|(pair, card)| {
                let means: Vec<f64> = card.units.iter().filter_map(PairedUnit::mean).collect();
                Some(CardComparison {
                    card: pair.card,
                    ratio: mean(&means)?.exp(),
                    pairs: card.units.len(),
                    prompts: pair.prompts().count(),
                })
            })
            .collect(),
        note: ONE_RUN_NOTE.to_owned(),
    })
}

/// The noise of single runs: the 90th percentile of |ln ratio| between the geometric mean rates of all pairs of runs of one
/// arm on one card. `None` unless some card ran an arm twice.
pub fn aa_floor(runs: &[CompareRun]) -> Option<f64> {
    let mut groups: BTreeMap<(PciAddress, Arm), Vec<f64>> = BTreeMap::new();
    for run in runs {
        let (Some(card), Some(arm)) = (run.card(), run.arm()) else { continue };
        let rows = &run.measured.rows;
        let repeats: BTreeSet<u64> = rows.iter().map(repeat_of).collect();
        for repeat in repeats {
            let rates = rows.iter().filter(|row| repeat_of(row) == repeat).filter_map(rate);
            if let Some(level) = mean(&rates.map(f64::ln).collect::<Vec<_>>()) {
                groups.entry((card, arm)).or_default().push(level.exp());
            }
        }
    }
    noise_floor(groups.values().map(Vec::as_slice))
}

fn check_options(options: &CompareOptions) -> Result<(), CompareError> {
    let check = |name, found: f64, fits: bool, expected| {
        if fits { Ok(()) } else { Err(CompareError::Option { name, found, expected }) }
    };
    let effect = options.min_effect;
    check("min_effect", effect, (0.0..10.0).contains(&effect), "a share from 0 to below 10")?;
    let confidence = options.confidence;
    check("confidence", confidence, confidence > 0.5 && confidence < 1.0, "more than 0.5 and less than 1")?;
    let floor = options.aa_floor.unwrap_or(0.0);
    check("aa_floor", floor, floor.is_finite() && floor >= 0.0, "a logarithm ≥ 0")
}

fn decide(
    low: f64,
    high: f64,
    threshold: f64,
    agree: &dyn Fn(bool) -> bool,
    reasons: &mut Vec<ComparisonReason>,
) -> ComparisonVerdict {
    let percent = |bound: f64| format!("{:+.2} %", bound.exp_m1() * 100.0);
    let bounds = format!("interval {} to {}, threshold {}", percent(low), percent(high), percent(threshold));
    match (low > threshold, high < -threshold) {
        (true, _) if agree(true) => {
            reasons.push(reason("lower_bound_above_threshold", &bounds));
            ComparisonVerdict::Win
        }
        (_, true) if agree(false) => {
            reasons.push(reason("upper_bound_below_threshold", &bounds));
            ComparisonVerdict::Loss
        }
        (false, false) => {
            reasons.push(reason("interval_reaches_threshold", &bounds));
            ComparisonVerdict::Inconclusive
        }
        _ => {
            reasons.push(reason("orders_disagree", "the effect has another sign when the order is swapped"));
            ComparisonVerdict::Inconclusive
        }
    }
}

fn reason(code: &str, detail: &str) -> ComparisonReason {
    ComparisonReason { code: code.to_owned(), detail: detail.to_owned() }
}

/// The gate's outcome, and everything that makes the runs no comparison.
fn disqualify(runs: &[CompareRun]) -> (GateOutcome, Vec<ComparisonReason>) {
    let mut reasons = Vec::new();
    if runs.is_empty() {
        reasons.push(reason("no_runs", "nothing to compare"));
    }
    let arms: BTreeSet<Arm> = runs.iter().filter_map(CompareRun::arm).collect();
    if arms.len() < 2 {
        reasons.push(reason("one_arm_only", "a comparison needs runs of control and candidate"));
    }
    let periods: BTreeSet<u64> = runs.iter().filter_map(CompareRun::period).collect();
    if periods.len() < 2 {
        reasons.push(reason("one_run_never_ranks", ONE_RUN_NOTE));
    }
    let measured: Vec<&Measured> = runs.iter().map(|run| &run.measured).collect();
    let crossover = gate::crossover(&measured);
    let details = crossover.details.join("; ");
    reasons.extend(crossover.codes.iter().map(|code| reason(code, &details)));
    reasons.extend(unpaired(runs));
    for run in runs.iter().filter(|run| !run.screening.passed) {
        let detail = format!("{}: {}", run.name, run.screening.codes.join(", "));
        reasons.push(reason("run_not_screened", &detail));
    }
    for arm in arms {
        let recipes: Vec<&Option<Sha256Hex>> =
            runs.iter().filter(|run| run.arm() == Some(arm)).map(|run| &run.recipe_sha256).collect();
        if recipes.iter().any(|recipe| recipe.is_none()) {
            let detail = format!("a run of the {arm} does not have model, executable and command line on record");
            reasons.push(reason("recipe_unknown", &detail));
        } else if recipes.iter().collect::<BTreeSet<_>>().len() > 1 {
            let detail = format!("the runs of the {arm} did not all use one configuration");
            reasons.push(reason("recipes_differ_within_arm", &detail));
        }
    }
    (crossover, reasons)
}

/// What the design of pairs asks beyond the gate: periods 1 and 2 are a pair, 3 and 4 the next; in each pair a card ran both
/// arms, and all cards ran as many pairs.
fn unpaired(runs: &[CompareRun]) -> Vec<ComparisonReason> {
    let mut reasons = Vec::new();
    let mut cells: BTreeMap<(PciAddress, u64), Vec<(Arm, u64)>> = BTreeMap::new();
    for run in runs {
        if let (Some(card), Some(arm), Some(period)) = (run.card(), run.arm(), run.period()) {
            cells.entry((card, (period - 1) / 2)).or_default().push((arm, period));
        }
    }
    let mut pairs_of: BTreeMap<PciAddress, usize> = BTreeMap::new();
    for ((card, pair), cell) in &cells {
        *pairs_of.entry(*card).or_default() += 1;
        let (first, second) = (pair * 2 + 1, pair * 2 + 2);
        let periods: BTreeSet<u64> = cell.iter().map(|(_, period)| *period).collect();
        let arms: BTreeSet<Arm> = cell.iter().map(|(arm, _)| *arm).collect();
        if periods.len() < 2 {
            let detail = format!(
                "card {card}: of periods {first} and {second} only one was run; swap the arms and run the other"
            );
            reasons.push(reason("period_missing", &detail));
        } else if arms.len() < 2 {
            let detail = format!("card {card}: periods {first} and {second} ran the same arm; swap the arms");
            reasons.push(reason("pair_lacks_an_arm", &detail));
        }
    }
    if pairs_of.values().collect::<BTreeSet<_>>().len() > 1 {
        reasons.push(reason("cards_differ_in_periods", "the cards did not run the same number of periods"));
    }
    reasons
}

/// A prompt measured under both arms on one card.
struct PairedPrompt {
    class: String,
    ln_rate: f64,
    ln_cycle: Option<f64>,
    ln_tokens_per_burst: Option<f64>,
    equal_output: bool,
}

/// A card's pairs: whether the candidate ran first, and the prompts.
struct PairedCard {
    card: PciAddress,
    pairs: Vec<(bool, Vec<PairedPrompt>)>,
}

impl PairedCard {
    fn units(&self) -> CardUnits {
        let units = self.pairs.iter().map(|(candidate_first, prompts)| {
            let mut classes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for prompt in prompts {
                classes.entry(&prompt.class).or_default().push(prompt.ln_rate);
            }
            PairedUnit { candidate_first: *candidate_first, classes: classes.into_values().collect() }
        });
        CardUnits { card: self.card.to_string(), units: units.collect() }
    }

    fn prompts(&self) -> impl Iterator<Item = &PairedPrompt> {
        self.pairs.iter().flat_map(|(_, prompts)| prompts)
    }
}

fn repeat_of(row: &CalibrationRow) -> u64 {
    row.repeat.unwrap_or(0)
}

fn rate(row: &CalibrationRow) -> Option<f64> {
    let usable = row.error.is_none();
    row.tok_s_1_100_intervals_after_ttft.filter(|rate| usable && rate.is_finite() && *rate > 0.0)
}

/// Pairs by card, pair of periods, repetition and prompt.
fn pair_up(runs: &[CompareRun], reasons: &mut Vec<ComparisonReason>) -> Vec<PairedCard> {
    let mut cells: BTreeMap<PciAddress, BTreeMap<u64, BTreeMap<Arm, &CompareRun>>> = BTreeMap::new();
    for run in runs {
        if let (Some(card), Some(arm), Some(period)) = (run.card(), run.arm(), run.period()) {
            cells.entry(card).or_default().entry((period - 1) / 2).or_default().entry(arm).or_insert(run);
        }
    }
    let mut cards = Vec::new();
    for (card, card_pairs) in cells {
        let mut pairs = Vec::new();
        for arms in card_pairs.values() {
            let (Some(control), Some(candidate)) = (arms.get(&Arm::Control), arms.get(&Arm::Candidate)) else {
                continue;
            };
            let (control_rows, candidate_rows) = (by_prompt(control), by_prompt(candidate));
            if control_rows.keys().ne(candidate_rows.keys()) {
                let detail =
                    format!("{} and {} did not measure the same prompts equally often", control.name, candidate.name);
                reasons.push(reason("prompts_not_paired", &detail));
            }
            let mut repeats: BTreeMap<u64, Vec<PairedPrompt>> = BTreeMap::new();
            for (key, control_row) in &control_rows {
                let Some(candidate_row) = candidate_rows.get(key) else { continue };
                if let Some(prompt) = paired(control_row, candidate_row) {
                    repeats.entry(key.0).or_default().push(prompt);
                }
            }
            let candidate_first = candidate.period() < control.period();
            pairs.extend(repeats.into_values().map(|prompts| (candidate_first, prompts)));
        }
        if !pairs.is_empty() {
            cards.push(PairedCard { card, pairs });
        }
    }
    cards
}

fn by_prompt(run: &CompareRun) -> BTreeMap<(u64, Sha256Hex), &CalibrationRow> {
    run.measured.rows.iter().map(|row| ((repeat_of(row), row.prompt_sha256), row)).collect()
}

fn paired(control: &CalibrationRow, candidate: &CalibrationRow) -> Option<PairedPrompt> {
    let ln = |value: fn(&CalibrationRow) -> Option<f64>| {
        let (control, candidate) = (value(control)?, value(candidate)?);
        (control > 0.0 && candidate > 0.0).then(|| (candidate / control).ln())
    };
    Some(PairedPrompt {
        class: control.prompt_class.clone().unwrap_or_default(),
        ln_rate: ln(rate)?,
        ln_cycle: ln(burst_gap_mean_s),
        ln_tokens_per_burst: ln(|row| row.tokens_per_burst),
        equal_output: control.sha256.is_some() && control.sha256 == candidate.sha256,
    })
}
