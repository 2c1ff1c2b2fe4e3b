//! Figures of one response, from the arrival offsets of its events.
//!
//! Offsets are seconds since the request was sent, one per event (a non-empty text delta, or one generated token id where
//! the stream carries ids). A figure that cannot be computed is `None`, never zero.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Events in the metric window: tokens 1 to 100 after the first.
pub(crate) const WINDOW_EVENTS: usize = 100;

/// A pause longer than this separates two bursts, in seconds: tokens of one verification arrive together.
pub(crate) const BURST_GAP_S: f64 = 0.020;

/// The two rates of a window of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowRates {
    /// Primary: (window − 1) intervals over the time from the first event to the last, per second.
    pub interval: Option<f64>,
    /// The older figure: window events over the same time, too high by window / (window − 1). Only to compare with
    /// results that were published so.
    pub legacy: Option<f64>,
}

/// The rates of the first `window` events.
pub(crate) fn window_rates(offsets: &[f64], window: usize) -> WindowRates {
    if window < 2 || offsets.len() < window || !is_ordered(&offsets[..window]) {
        return WindowRates::default();
    }
    let duration = offsets[window - 1] - offsets[0];
    if duration <= 0.0 {
        return WindowRates::default();
    }
    let window = window as f64;
    WindowRates { interval: Some((window - 1.0) / duration), legacy: Some(window / duration) }
}

/// How the events of a window came in bursts.
///
/// With speculation the tokens of one verification arrive together: the time from burst to burst is the cycle of the
/// card, the tokens per burst are the luck of the drafts. Their quotient is the rate the user sees, so that a difference
/// between two cards can be told from a difference between two texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bursts {
    /// Number of bursts, the last one included, which the window may cut.
    pub count: usize,
    /// Median time from one burst's first event to the next one's, in seconds.
    pub median_cycle_s: Option<f64>,
    /// Mean of the same; `tokens_per_burst / mean_cycle_s` is the rate over the complete bursts.
    pub mean_cycle_s: Option<f64>,
    /// Events per complete burst.
    pub tokens_per_burst: Option<f64>,
}

/// Splits the first `window` events (all, if there are fewer) into bursts at pauses longer than `gap_s`.
pub fn bursts(offsets: &[f64], window: usize, gap_s: f64) -> Bursts {
    let offsets = &offsets[..offsets.len().min(window)];
    if offsets.is_empty() || !is_ordered(offsets) {
        return Bursts::default();
    }
    let later =
        offsets.windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] > gap_s).map(|(index, _)| index + 1);
    let starts: Vec<usize> = std::iter::once(0).chain(later).collect();
    let mut cycles: Vec<f64> = starts.windows(2).map(|pair| offsets[pair[1]] - offsets[pair[0]]).collect();
    cycles.sort_by(f64::total_cmp);
    let complete = cycles.len() as f64;
    let last = *starts.last().expect("the first burst starts at 0");
    Bursts {
        count: starts.len(),
        median_cycle_s: crate::stats::percentile_of_sorted(&cycles, 0.5),
        mean_cycle_s: (!cycles.is_empty()).then(|| (offsets[last] - offsets[0]) / complete),
        tokens_per_burst: (!cycles.is_empty()).then(|| last as f64 / complete),
    }
}

/// Finite and never decreasing: what a monotonic clock gives and a damaged file may not.
fn is_ordered(offsets: &[f64]) -> bool {
    offsets.iter().all(|offset| offset.is_finite()) && offsets.windows(2).all(|pair| pair[0] <= pair[1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn not_computable_is_none() {
        assert_eq!(window_rates(&[1.0; 100], 100), WindowRates::default());
        assert_eq!(window_rates(&[], 0), WindowRates::default());
        assert_eq!(window_rates(&[1.0], 1), WindowRates::default());
        assert_eq!(window_rates(&[0.0, f64::NAN], 2), WindowRates::default());
        assert_eq!(window_rates(&[0.0, 2.0, 1.0], 3), WindowRates::default());
        assert_eq!(bursts(&[], 100, BURST_GAP_S), Bursts::default());
        assert_eq!(bursts(&[2.0, 1.0], 100, BURST_GAP_S), Bursts::default());
        let one = bursts(&[1.0, 1.001], 100, BURST_GAP_S);
        assert_eq!((one.count, one.median_cycle_s, one.tokens_per_burst), (1, None, None));
    }

    #[test]
    fn bursts_of_a_speculating_server() {
        // Cycles of 60 ms that bring 4, 1, 3 and 2 tokens, then one that the window cuts.
        let mut offsets = Vec::new();
        for (cycle, tokens) in [4, 1, 3, 2, 4].into_iter().enumerate() {
            offsets.extend((0..tokens).map(|token| 1.0 + cycle as f64 * 0.06 + f64::from(token) * 0.0005));
        }
        let found = bursts(&offsets, 12, BURST_GAP_S);
        assert_eq!(found.count, 5);
        assert!((found.median_cycle_s.unwrap() - 0.06).abs() < 1e-9);
        assert!((found.tokens_per_burst.unwrap() - 2.5).abs() < 1e-9, "the cut burst does not count");
        let rate = found.tokens_per_burst.unwrap() / found.mean_cycle_s.unwrap();
        assert!((rate - 10.0 / 0.24).abs() < 1e-6);
    }

    #[test]
    fn the_published_calibration_of_july_2026() {
        // Median rates of four cards as upstream published them (100 events) and over the same time in intervals.
        for (legacy, interval) in [(49.7084, 49.2113), (48.2959, 47.8130), (48.2051, 47.7231), (47.9756, 47.4958)] {
            let duration = 100.0 / legacy;
            let offsets: Vec<f64> = (0..100).map(|event| 1.17 + duration * f64::from(event) / 99.0).collect();
            let rates = window_rates(&offsets, WINDOW_EVENTS);
            assert!((rates.legacy.unwrap() - legacy).abs() < 1e-6);
            assert!((rates.interval.unwrap() - interval).abs() < 6e-5, "{rates:?}");
        }
    }

    proptest! {
        #[test]
        fn the_legacy_rate_is_the_interval_rate_times_100_over_99(gaps in proptest::collection::vec(1e-4f64..0.2, 99)) {
            let mut at = 0.7;
            let offsets: Vec<f64> = std::iter::once(at).chain(gaps.iter().map(|gap| { at += gap; at })).collect();
            let rates = window_rates(&offsets, 100);
            prop_assert!((rates.legacy.unwrap() / rates.interval.unwrap() - 100.0 / 99.0).abs() < 1e-12);
        }

        #[test]
        fn bursts_never_panic_and_cover_the_window(offsets in proptest::collection::vec(proptest::num::f64::ANY, 0..60), window in 0usize..70) {
            let mut offsets = offsets;
            bursts(&offsets, window, BURST_GAP_S);
            window_rates(&offsets, window);
            offsets.retain(|offset| offset.is_finite());
            offsets.sort_by(f64::total_cmp);
            let found = bursts(&offsets, window, BURST_GAP_S);
            prop_assert!(found.count <= offsets.len().min(window));
        }
    }
}
