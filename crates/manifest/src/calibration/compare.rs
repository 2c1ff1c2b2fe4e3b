use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::evidence::{EvidenceClass, NeverEligible};
use crate::gate::GateOutcome;
use crate::hex::Sha256Hex;
use crate::pci::PciAddress;
use crate::time::UnixTime;
use crate::words::words;
use crate::workers::Arm;

/// A candidate against a control over physical cards; one run never ranks cards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Comparison")]
pub struct Comparison {
    /// Version of this document's form, 1.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: u64,
    /// Always `b70-comparison-v1`.
    #[schemars(extend("const" = "b70-comparison-v1"))]
    pub format: String,
    /// The lowest class of the compared results.
    pub evidence_class: EvidenceClass,
    /// Always false: a comparison is read beside the results it names.
    pub promotion_eligible: NeverEligible,
    /// Outcome.
    pub verdict: ComparisonVerdict,
    /// Why the outcome is what it is.
    #[schemars(example = json!(["the lower bound 1.004 does not exceed the minimum effect 1.010"]))]
    pub reasons: Vec<String>,
    /// The compared metric.
    #[schemars(length(min = 1), example = &"tok_s_1_100_intervals_after_ttft")]
    pub metric: String,
    /// Whether both arms ran on every card.
    #[schemars(example = true)]
    pub crossover: bool,
    /// Outcome of each gate, crossover completeness among them.
    #[schemars(example = json!({"crossover": {"passed": true, "codes": []}}))]
    pub gates: BTreeMap<String, GateOutcome>,
    /// The compared results.
    #[schemars(example = json!([{"file": "a/gpu0-baseline.json", "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "arm": "control", "card": "0000:03:00.0", "period": 1}]))]
    pub groups: Vec<CrossoverGroup>,
    /// The estimated effect; absent when the comparison is unqualified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Effect on each card.
    #[serde(default)]
    #[schemars(example = json!([{"card": "0000:03:00.0", "ratio": 1.02}]))]
    pub per_card: Vec<CardEffect>,
    /// Smallest effect that counts, as a fraction.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.01)]
    pub min_effect: f64,
    /// 90th percentile of the absolute log ratios between runs of one recipe.
    #[serde(default)]
    #[schemars(range(min = 0.0), example = 0.006)]
    pub noise_floor: Option<f64>,
    /// Share of paired answers with equal text.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0), example = 0.58)]
    pub equal_outputs: Option<f64>,
    /// When the document was written, unix seconds.
    #[schemars(example = 1_783_870_000_u64)]
    pub created_unix: UnixTime,
    /// The same instant as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"2026-07-12T15:26:40Z")]
    pub created_utc: Option<String>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CrossoverGroup {
    /// The result's file.
    #[schemars(length(min = 1), example = &"a/gpu0-baseline.json")]
    pub file: String,
    /// SHA-256 of that file.
    pub sha256: Sha256Hex,
    /// Side it is on.
    pub arm: Arm,
    /// Card it ran on.
    pub card: PciAddress,
    /// Period it ran in.
    #[schemars(range(min = 1), example = 1)]
    pub period: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Candidate over control, as a ratio of rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effect {
    /// Estimate.
    #[schemars(range(min = 0.0), example = 1.021)]
    pub ratio: f64,
    /// Student's t interval over cards; it decides when there are fewer than six.
    pub t: Interval,
    /// Percentile interval of the hierarchical bootstrap, shown beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapInterval>,
    /// Second period over first, as a ratio of rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), example = 0.998)]
    pub period_ratio: Option<f64>,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A 95 % interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower bound.
    #[schemars(range(min = 0.0), example = 1.004)]
    pub lower: f64,
    /// Upper bound.
    #[schemars(range(min = 0.0), example = 1.038)]
    pub upper: f64,
    /// Degrees of freedom.
    #[schemars(example = 2)]
    pub degrees_of_freedom: u64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A 95 % bootstrap interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BootstrapInterval {
    /// Lower bound.
    #[schemars(range(min = 0.0), example = 1.009)]
    pub lower: f64,
    /// Upper bound.
    #[schemars(range(min = 0.0), example = 1.032)]
    pub upper: f64,
    /// Resamples.
    #[schemars(range(min = 1), example = 10_000)]
    pub draws: u64,
    /// Seed of the resampling.
    #[schemars(example = 1)]
    pub seed: u64,
    /// What was resampled, outermost first.
    #[schemars(length(min = 1), example = &"card, repeat, prompt within class")]
    pub unit: String,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The effect on one card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CardEffect {
    /// The card.
    pub card: PciAddress,
    /// Candidate over control.
    #[schemars(range(min = 0.0), example = 1.02)]
    pub ratio: f64,
    /// Fields of other writers, kept as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

words! {
    /// Outcome of a comparison.
    ComparisonVerdict {
        /// The lower bound exceeds minimum effect and noise floor, and both assignments agree.
        Win = "win",
        /// The upper bound lies below one by as much.
        Loss = "loss",
        /// Neither.
        Inconclusive = "inconclusive",
        /// The compared results do not allow a statement.
        Unqualified = "unqualified",
    }
}
