//! The AB/BA estimate over cards, and the bootstrap beside it.
//!
//! The card is the unit: whatever is measured on one card, in however many prompts and repeats, is one contrast. Let `c` be
//! a card's mean log ratio candidate / control over its pairs of periods, and `m` the mean over those pairs of +1 where the
//! candidate ran first and −1 where it ran second. Least squares fit `c = τ + π·m + e` over the cards: τ is the candidate's
//! effect, π what the first period of a pair has over the second. If every card keeps its order, this is the
//! textbook AB/BA analysis: τ = (mean D of candidate-first − mean D of control-first) / 2 with D = period 1 − period 2,
//! SE = (s/2)·√(1/n₁ + 1/n₂) and n₁ + n₂ − 2 degrees of freedom (Madeyski and Kitchenham, *Effect sizes and their variance
//! for AB/BA crossover design studies*, 2018). If every card ran both orders equally often (ABBA), every `m` is 0, π
//! vanishes, and n − 1 degrees of freedom remain.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{percentile_of_sorted, t_quantile};

/// One pair of periods on one card: the log ratios of its prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedUnit {
    /// True if the candidate ran in the first period of the pair.
    pub candidate_first: bool,
    /// ln(candidate / control) of each prompt, grouped by prompt class; no group is empty.
    pub classes: Vec<Vec<f64>>,
}

impl PairedUnit {
    /// The mean log ratio over all prompts; `None` if there is none.
    pub fn mean(&self) -> Option<f64> {
        crate::stats::mean(&self.classes.concat())
    }

    fn sign(&self) -> f64 {
        if self.candidate_first { 1.0 } else { -1.0 }
    }
}

/// One card with its pairs of periods.
#[derive(Clone, Debug, PartialEq)]
pub struct CardUnits {
    /// The card.
    pub card: String,
    /// Its pairs.
    pub units: Vec<PairedUnit>,
}

/// The estimate of the candidate's effect on the log scale, and as a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CrossoverEstimate {
    /// Effect τ: natural logarithm of the ratio.
    pub tau: f64,
    /// exp(τ): candidate over control.
    pub ratio: f64,
    /// Standard error of τ.
    pub se: f64,
    /// Degrees of freedom.
    pub df: usize,
    /// Confidence of the interval, such as 0.95.
    pub confidence: f64,
    /// Lower end of the t interval of the ratio.
    pub ratio_low: f64,
    /// Upper end of the t interval of the ratio.
    pub ratio_high: f64,
    /// What the first of two periods has over the second, as a ratio of their rates; 1 where the design cancels it.
    pub period_ratio: f64,
}

/// Least squares of card contrasts on their order. `None` without at least one degree of freedom, or if all cards ran in
/// one order only.
pub(crate) fn crossover_estimate(cards: &[CardUnits], confidence: f64) -> Option<CrossoverEstimate> {
    let contrasts: Option<Vec<(f64, f64)>> = cards.iter().map(contrast).collect();
    let contrasts = contrasts?;
    let fit = Fit::of(&contrasts)?;
    let tau: f64 = contrasts.iter().map(|(order, value)| fit.weight(*order) * value).sum();
    let period = fit.period(&contrasts);
    let squares: f64 = contrasts.iter().map(|(order, value)| (value - tau - period * order).powi(2)).sum();
    let df = contrasts.len().checked_sub(fit.parameters).filter(|df| *df > 0)?;
    let variance: f64 =
        squares / df as f64 * contrasts.iter().map(|(order, _)| fit.weight(*order).powi(2)).sum::<f64>();
    let se = variance.sqrt();
    let half = t_quantile(f64::midpoint(1.0, confidence), df)? * se;
    Some(CrossoverEstimate {
        tau,
        ratio: tau.exp(),
        se,
        df,
        confidence,
        ratio_low: (tau - half).exp(),
        ratio_high: (tau + half).exp(),
        period_ratio: period.exp(),
    })
}

/// Order `m` and contrast `c` of a card.
fn contrast(card: &CardUnits) -> Option<(f64, f64)> {
    let means: Option<Vec<f64>> = card.units.iter().map(PairedUnit::mean).collect();
    let orders: Vec<f64> = card.units.iter().map(PairedUnit::sign).collect();
    Some((crate::stats::mean(&orders)?, crate::stats::mean(&means?)?))
}

/// The normal equations of c = τ + π·m.
struct Fit {
    n: f64,
    sum: f64,
    squares: f64,
    parameters: usize,
}

impl Fit {
    fn of(contrasts: &[(f64, f64)]) -> Option<Self> {
        let n = contrasts.len() as f64;
        let sum: f64 = contrasts.iter().map(|(order, _)| order).sum();
        let squares: f64 = contrasts.iter().map(|(order, _)| order * order).sum();
        let spread = squares * n - sum * sum;
        // Orders are means of a few ±1: far from 0, or 0 up to rounding.
        let parameters = match (spread > 1e-9, squares > 1e-9) {
            (true, _) => 2,
            (false, false) => 1,
            // One order only: τ and π cannot be told apart.
            (false, true) => return None,
        };
        (!contrasts.is_empty()).then_some(Self { n, sum, squares, parameters })
    }

    fn determinant(&self) -> f64 {
        self.n * self.squares - self.sum * self.sum
    }

    /// The weight of a contrast in τ.
    fn weight(&self, order: f64) -> f64 {
        if self.parameters == 1 { 1.0 / self.n } else { (self.squares - self.sum * order) / self.determinant() }
    }

    fn period(&self, contrasts: &[(f64, f64)]) -> f64 {
        if self.parameters == 1 {
            return 0.0;
        }
        let products: f64 = contrasts.iter().map(|(order, value)| order * value).sum();
        let values: f64 = contrasts.iter().map(|(_, value)| value).sum();
        (self.n * products - self.sum * values) / self.determinant()
    }
}

/// The hierarchical bootstrap's interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BootstrapEstimate {
    /// Draws.
    pub draws: usize,
    /// Seed of the generator.
    pub seed: u64,
    /// The generator.
    pub generator: String,
    /// What was resampled, outermost first.
    pub resampled: String,
    /// Lower end of the percentile interval of the ratio.
    pub ratio_low: f64,
    /// Upper end of the percentile interval of the ratio.
    pub ratio_high: f64,
}

/// Resamples cards (among those with the same order), then a card's pairs of periods (among those with the same order),
/// then prompts within their class; both arms of a pair move together. The interval is that of the percentiles, which is
/// too narrow for a handful of cards: with one card per order it holds no spread between cards at all.
///
/// `None` if the estimate itself does not exist, or for no draws. The same seed gives the same interval.
pub(crate) fn hierarchical_bootstrap(
    cards: &[CardUnits],
    confidence: f64,
    draws: usize,
    seed: u64,
) -> Option<BootstrapEstimate> {
    let contrasts: Option<Vec<(f64, f64)>> = cards.iter().map(contrast).collect();
    let contrasts = contrasts?;
    let fit = Fit::of(&contrasts)?;
    if draws == 0 {
        return None;
    }
    let same_order: Vec<Vec<usize>> = contrasts
        .iter()
        .map(|(order, _)| (0..cards.len()).filter(|other| (contrasts[*other].0 - order).abs() < 1e-9).collect())
        .collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut estimates: Vec<f64> = (0..draws)
        .map(|_| {
            let drawn = contrasts.iter().zip(&same_order).map(|((order, _), peers)| {
                fit.weight(*order) * draw_card(&cards[peers[index(&mut random, peers.len())]], &mut random)
            });
            drawn.sum()
        })
        .collect();
    estimates.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Some(BootstrapEstimate {
        draws,
        seed,
        generator: "ChaCha8, seed_from_u64".to_owned(),
        resampled: "cards within order, pairs of periods within order, prompts within class".to_owned(),
        ratio_low: percentile_of_sorted(&estimates, tail)?.exp(),
        ratio_high: percentile_of_sorted(&estimates, 1.0 - tail)?.exp(),
    })
}

fn draw_card(card: &CardUnits, random: &mut ChaCha8Rng) -> f64 {
    let mut total = 0.0;
    for unit in &card.units {
        let peers: Vec<&PairedUnit> =
            card.units.iter().filter(|other| other.candidate_first == unit.candidate_first).collect();
        let drawn = peers[index(random, peers.len())];
        let (mut sum, mut count) = (0.0, 0usize);
        for class in &drawn.classes {
            for _ in class {
                sum += class[index(random, class.len())];
            }
            count += class.len();
        }
        total += sum / count as f64;
    }
    total / card.units.len() as f64
}

/// An index below `len`, by multiplication: the bias of at most len / 2⁶⁴ is no concern, and unlike a library's range
/// sampling it stays the same, so that a recorded seed keeps its meaning.
fn index(random: &mut ChaCha8Rng, len: usize) -> usize {
    ((u128::from(random.next_u64()) * len as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str, units: &[(bool, &[f64])]) -> CardUnits {
        let units = units.iter().map(|(candidate_first, values)| PairedUnit {
            candidate_first: *candidate_first,
            classes: vec![values.to_vec()],
        });
        CardUnits { card: name.to_owned(), units: units.collect() }
    }

    #[test]
    fn the_textbook_crossover() {
        // Candidate-first cards: D = c; control-first cards: D = −c.
        let cards = [
            card("a", &[(true, &[0.05])]),
            card("b", &[(false, &[0.02])]),
            card("c", &[(true, &[0.07])]),
            card("d", &[(false, &[0.01])]),
        ];
        let found = crossover_estimate(&cards, 0.95).unwrap();
        let (first, second) = (f64::midpoint(0.05, 0.07), f64::midpoint(-0.02, -0.01));
        let tau = (first - second) / 2.0;
        // Pooled variance of D within the orders.
        let pooled = (0.01f64.powi(2) + 0.005f64.powi(2)).sqrt();
        let se = pooled / 2.0 * (1.0f64 / 2.0 + 1.0 / 2.0).sqrt();
        assert!((found.tau - tau).abs() < 1e-12 && (found.se - se).abs() < 1e-12, "{found:?}");
        assert_eq!(found.df, 2);
        assert!((found.ratio_high.ln() - tau - 4.302_652_7 * se).abs() < 1e-8);
        assert!((found.period_ratio.ln() - f64::midpoint(first, second)).abs() < 1e-12);
    }

    #[test]
    fn four_cards_with_one_percent_have_a_half_width_of_2_15() {
        // D differs by ±s/√2·… so that the pooled s is exactly 1 %.
        let d = 0.01 / 2.0f64.sqrt();
        let cards = [
            card("a", &[(true, &[d])]),
            card("c", &[(true, &[-d])]),
            card("b", &[(false, &[d])]),
            card("d", &[(false, &[-d])]),
        ];
        let found = crossover_estimate(&cards, 0.95).unwrap();
        assert!((found.ratio_high.ln() - 0.0215).abs() < 2e-5, "{found:?}");
    }

    #[test]
    fn both_orders_on_every_card_cancel_a_drift() {
        let drift = 0.03;
        let abba = |name, tau: f64| card(name, &[(true, &[tau - drift]), (false, &[tau + drift])]);
        let found = crossover_estimate(&[abba("a", 0.02), abba("b", 0.021), abba("c", 0.019)], 0.95).unwrap();
        assert!((found.tau - 0.02).abs() < 1e-12);
        assert_eq!((found.df, found.period_ratio), (2, 1.0));
    }

    #[test]
    fn designs_without_an_estimate() {
        let one_order = [card("a", &[(true, &[0.05])]), card("b", &[(true, &[0.05])])];
        assert_eq!(crossover_estimate(&one_order, 0.95), None);
        assert_eq!(hierarchical_bootstrap(&one_order, 0.95, 100, 1), None);
        let no_freedom = [card("a", &[(true, &[0.05])]), card("b", &[(false, &[0.05])])];
        assert_eq!(crossover_estimate(&no_freedom, 0.95), None);
        assert_eq!(crossover_estimate(&[], 0.95), None);
        assert_eq!(crossover_estimate(&[card("a", &[])], 0.95), None);
    }

    #[test]
    fn the_bootstrap_can_be_repeated_and_covers_its_data() {
        let values: Vec<f64> = (0..12).map(|prompt| 0.03 + 0.01 * f64::from(prompt % 5 - 2)).collect();
        let cards: Vec<CardUnits> =
            (0..6).map(|index| card(&index.to_string(), &[(index % 2 == 0, &values)])).collect();
        let first = hierarchical_bootstrap(&cards, 0.95, 2000, 7).unwrap();
        assert_eq!(first, hierarchical_bootstrap(&cards, 0.95, 2000, 7).unwrap());
        let other = hierarchical_bootstrap(&cards, 0.95, 2000, 8).unwrap();
        assert_ne!(first.ratio_low.to_bits(), other.ratio_low.to_bits());
        let estimate = crossover_estimate(&cards, 0.95).unwrap();
        assert!(first.ratio_low < estimate.ratio && estimate.ratio < first.ratio_high);
        // The standard error over prompts alone: sd/√(12·6).
        let width = (first.ratio_high / first.ratio_low).ln();
        let sd = crate::stats::stdev(&values).unwrap() * (11.0f64 / 12.0).sqrt();
        let expected = 2.0 * 1.96 * sd / 72.0f64.sqrt();
        assert!((width / expected - 1.0).abs() < 0.1, "{width} against {expected}");
    }

    #[test]
    fn the_generator_is_the_recorded_one() {
        let mut random = ChaCha8Rng::seed_from_u64(270_036);
        let drawn: Vec<usize> = (0..8).map(|_| index(&mut random, 1000)).collect();
        assert_eq!(drawn, EXPECTED_DRAWS, "a recorded seed must keep its meaning");
    }

    const EXPECTED_DRAWS: [usize; 8] = [799, 935, 26, 734, 934, 180, 951, 982];
}
