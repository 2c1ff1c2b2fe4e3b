//! Summaries, quantiles of Student's t, and the noise floor of equal runs.

use std::collections::BTreeMap;

use b70_manifest::calibration::UNCLASSIFIED;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A percentile with linear interpolation at position (n − 1)·p of the sorted values ("type 7" of Hyndman and Fan,
/// *Sample quantiles in statistical packages*, 1996). `None` for no values, or for `p` outside 0 to 1.
pub fn percentile(values: &[f64], p: f64) -> Option<f64> {
    percentile_of_sorted(&sorted(values), p)
}

pub(crate) fn percentile_of_sorted(sorted: &[f64], p: f64) -> Option<f64> {
    if sorted.is_empty() || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let position = (sorted.len() - 1) as f64 * p;
    let low = position.floor() as usize;
    let high = (low + 1).min(sorted.len() - 1);
    let fraction = position - low as f64;
    Some(sorted[low] * (1.0 - fraction) + sorted[high] * fraction)
}

/// The median; the mean of the two middle values for an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 0.5)
}

/// The arithmetic mean.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample standard deviation (divisor n − 1); 0 for one value.
pub fn stdev(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    if values.len() == 1 {
        return Some(0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// The summary of one metric over the prompts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Values.
    pub count: usize,
    /// 10th percentile.
    pub p10: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// Mean.
    pub mean: Option<f64>,
    /// Smallest.
    pub min: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Sample standard deviation.
    pub stdev: Option<f64>,
}

impl Summary {
    /// Summarises; all figures are `None` for no values.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self {
            count: values.len(),
            p10: percentile_of_sorted(&sorted, 0.1),
            median: percentile_of_sorted(&sorted, 0.5),
            mean: mean(&sorted),
            min: sorted.first().copied(),
            max: sorted.last().copied(),
            stdev: stdev(&sorted),
        }
    }
}

/// A summary in which every prompt class weighs the same: the summary of the class medians.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassBalanced {
    /// Over the class medians; its median is the class-balanced median. With six classes it rests on six values: coarse.
    #[serde(flatten)]
    pub summary: Summary,
    /// How it was made.
    pub aggregation: String,
    /// The median of each class.
    pub class_medians: BTreeMap<String, f64>,
    /// Prompts of each class.
    pub class_prompt_counts: BTreeMap<String, usize>,
}

/// The class-balanced summary of (class, value) pairs; [`UNCLASSIFIED`] is left out.
pub fn class_balanced<'a>(values: impl IntoIterator<Item = (&'a str, f64)>) -> ClassBalanced {
    let mut classes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (class, value) in values {
        if class != UNCLASSIFIED && !class.is_empty() {
            classes.entry(class.to_owned()).or_default().push(value);
        }
    }
    let class_medians: BTreeMap<String, f64> = classes
        .iter()
        .map(|(class, values)| (class.clone(), median(values).expect("a class is made by its first value")))
        .collect();
    ClassBalanced {
        summary: Summary::of(&class_medians.values().copied().collect::<Vec<_>>()),
        aggregation: "median-of-prompt-class-medians".to_owned(),
        class_medians,
        class_prompt_counts: classes.into_iter().map(|(class, values)| (class, values.len())).collect(),
    }
}

/// The quantile of Student's t with `df` degrees of freedom; `None` for `df` < 1 or `p` outside (0, 1).
pub(crate) fn t_quantile(p: f64, df: usize) -> Option<f64> {
    if df == 0 || !(p > 0.0 && p < 1.0) {
        return None;
    }
    let quantile = StudentsT::new(0.0, 1.0, df as f64).ok()?.inverse_cdf(p);
    quantile.is_finite().then_some(quantile)
}

/// Noise of runs that should be equal: the 90th percentile of |ln(a/b)| over all pairs of positive summaries within a
/// group (the same recipe on the same card). `None` if no group has two.
pub fn noise_floor<'a>(groups: impl IntoIterator<Item = &'a [f64]>) -> Option<f64> {
    let mut ratios = Vec::new();
    for group in groups {
        let usable: Vec<f64> = group.iter().copied().filter(|value| *value > 0.0 && value.is_finite()).collect();
        for (index, first) in usable.iter().enumerate() {
            ratios.extend(usable[index + 1..].iter().map(|second| (first.ln() - second.ln()).abs()));
        }
    }
    percentile(&ratios, 0.9)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_interpolate_linearly() {
        let values = [40.0, 10.0, 20.0, 30.0];
        assert_eq!(percentile(&values, 0.0), Some(10.0));
        assert_eq!(percentile(&values, 1.0), Some(40.0));
        assert!((percentile(&values, 0.1).unwrap() - 13.0).abs() < 1e-12);
        assert_eq!(median(&values), Some(25.0));
        assert_eq!(median(&values[..3]), Some(20.0));
        assert_eq!((percentile(&[], 0.5), percentile(&values, 1.1), percentile(&values, f64::NAN)), (None, None, None));
    }

    #[test]
    fn summaries() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((summary.count, summary.mean, summary.median), (8, Some(5.0), Some(4.5)));
        assert!((summary.stdev.unwrap() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&[3.0]).stdev, Some(0.0));
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn classes_weigh_the_same() {
        let balanced =
            class_balanced([("code", 10.0), ("code", 20.0), ("code", 30.0), ("prose", 50.0), (UNCLASSIFIED, 999.0)]);
        assert_eq!(balanced.summary.median, Some(35.0));
        assert_eq!(balanced.class_medians.get("code"), Some(&20.0));
        assert_eq!(balanced.class_prompt_counts["code"], 3);
        assert_eq!(balanced.class_medians.len(), 2);
    }

    #[test]
    fn quantiles_of_t_agree_with_the_tables() {
        // Two-sided 95 %: 1, 2, 3, 4, 5, 10, 30 degrees of freedom (Fisher and Yates, table III, with more digits).
        let table = [
            (1, 12.706_204_7),
            (2, 4.302_652_7),
            (3, 3.182_446_3),
            (4, 2.776_445_1),
            (5, 2.570_581_8),
            (10, 2.228_138_9),
            (30, 2.042_272_5),
        ];
        for (df, expected) in table {
            assert!((t_quantile(0.975, df).unwrap() - expected).abs() < 1e-6, "df {df}");
            assert!((t_quantile(0.025, df).unwrap() + expected).abs() < 1e-6, "df {df}");
        }
        assert_eq!((t_quantile(0.975, 0), t_quantile(0.0, 3), t_quantile(1.0, 3)), (None, None, None));
    }

    #[test]
    fn noise_of_equal_runs() {
        let floor = noise_floor([&[100.0, 101.0][..], &[50.0], &[0.0, 7.0]]).unwrap();
        assert!((floor - 1.01f64.ln()).abs() < 1e-12);
        assert_eq!(noise_floor([&[100.0][..], &[99.0]]), None);
    }

    proptest! {
        #[test]
        fn percentiles_are_monotone_and_inside(values in proptest::collection::vec(-1e6f64..1e6, 1..40), a in 0.0f64..1.0, b in 0.0f64..1.0) {
            let (low, high) = (a.min(b), a.max(b));
            let (at_low, at_high) = (percentile(&values, low).unwrap(), percentile(&values, high).unwrap());
            let summary = Summary::of(&values);
            prop_assert!(at_low <= at_high + 1e-6);
            prop_assert!(summary.min.unwrap() <= at_low + 1e-6 && at_high <= summary.max.unwrap() + 1e-6);
        }
    }
}
