//! A simulated crossover: cards, periods and prompts with known effects and noise.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;

use b70_bench::CompareRun;
use b70_manifest::Sha256Hex;
use b70_manifest::calibration::{CalibrationRow, Measured};
use b70_manifest::gate::GateOutcome;
use b70_manifest::workers::Arm;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// What is simulated; all as logarithms, so 0.01 is about 1 %.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    pub(crate) cards: usize,
    /// Pairs of periods.
    pub(crate) repeats: usize,
    pub(crate) prompts: usize,
    pub(crate) effect: f64,
    pub(crate) acceptance_sd: f64,
    pub(crate) cycle_sd: f64,
    pub(crate) card_sd: f64,
    /// Added with every period.
    pub(crate) drift: f64,
}

impl World {
    /// Four cards, twelve prompts, 6 % from draft acceptance and 1 % from the cycle per request, 2 % between cards, 0.5 %
    /// drift per period.
    pub(crate) fn lab(repeats: usize, effect: f64) -> Self {
        Self {
            cards: 4,
            repeats,
            prompts: 12,
            effect,
            acceptance_sd: 0.06,
            cycle_sd: 0.01,
            card_sd: 0.02,
            drift: 0.005,
        }
    }

    /// The runs of one experiment. Even cards run the candidate first in the first pair; the order is swapped from pair to
    /// pair, so that two pairs are ABBA on every card.
    pub(crate) fn runs(&self, random: &mut ChaCha8Rng) -> Vec<CompareRun> {
        let texts: Vec<f64> = (0..self.prompts).map(|_| 0.1 * normal(random)).collect();
        let mut runs = Vec::new();
        for card in 0..self.cards {
            let card_effect = self.card_sd * normal(random);
            for pair in 0..self.repeats {
                let candidate_first = (card + pair) % 2 == 0;
                for half in 0..2 {
                    let candidate = candidate_first == (half == 0);
                    let period = pair * 2 + half;
                    let level = 50f64.ln()
                        + card_effect
                        + self.drift * period as f64
                        + if candidate { self.effect } else { 0.0 };
                    let rows = texts.iter().enumerate().map(|(prompt, text)| {
                        let cycle = self.cycle_sd * normal(random);
                        let acceptance = self.acceptance_sd * normal(random);
                        quick_row(prompt, (level + text + cycle + acceptance).exp())
                    });
                    runs.push(run(&format!("card{card}-period{period}"), candidate, card, period + 1, rows.collect()));
                }
            }
        }
        runs
    }
}

/// A row with a rate and nothing else: what the statistics look at.
pub(crate) fn row(prompt: usize, rate: f64) -> CalibrationRow {
    let mut row: CalibrationRow = serde_json::from_value(serde_json::json!({
        "prompt_index": prompt,
        "prompt_id": format!("p{prompt}"),
        "prompt_class": format!("class{}", prompt % 6),
        "prompt_sha256": Sha256Hex::of(&[prompt as u8]),
        "repeat": 0,
    }))
    .unwrap();
    row.tok_s_1_100_intervals_after_ttft = Some(rate);
    row
}

// Rows as templates, so that a simulation does not parse JSON for each.
thread_local! {
    static TEMPLATES: std::cell::RefCell<BTreeMap<usize, CalibrationRow>> = const { std::cell::RefCell::new(BTreeMap::new()) };
    static MEASURED: Measured = measured();
}

fn quick_row(prompt: usize, rate: f64) -> CalibrationRow {
    TEMPLATES.with_borrow_mut(|templates| {
        let mut made = templates.entry(prompt).or_insert_with(|| row(prompt, 1.0)).clone();
        made.tok_s_1_100_intervals_after_ttft = Some(rate);
        made
    })
}

/// A result without rows, made by nobody.
pub(crate) fn measured() -> Measured {
    let sha = Sha256Hex::of(b"suite");
    serde_json::from_value(serde_json::json!({
        "schema_version": 1,
        "format": "b70-calibration-result-v1",
        "endpoint": {"name": "simulated", "url": "http://127.0.0.1:1"},
        "suite": {"suite_id": "simulated", "version": 1, "sha256": sha, "prompts": []},
        "settings": {"api": "chat", "max_tokens": 512, "metric_window": 100, "temperature": 0.0, "top_p": 1.0, "seed": 1,
            "repeats": 1, "warm_up_requests": 0, "endpoints_at_once": 4},
        "identity": {},
        "rows": [],
        "started_unix": 1,
    }))
    .unwrap()
}

pub(crate) fn run(name: &str, candidate: bool, card: usize, period: usize, rows: Vec<CalibrationRow>) -> CompareRun {
    let mut measured = MEASURED.with(Clone::clone);
    measured.arm = Some(if candidate { Arm::Candidate } else { Arm::Control });
    measured.endpoint.card = Some(format!("0000:{card:02x}:00.0").parse().unwrap());
    measured.period = Some(period as u64);
    measured.rows = rows;
    CompareRun {
        name: name.to_owned(),
        measured,
        recipe_sha256: Some(Sha256Hex::of(&[u8::from(candidate)])),
        screening: GateOutcome { passed: true, ..GateOutcome::default() },
    }
}

/// A standard normal draw (Box and Muller, 1958).
pub(crate) fn normal(random: &mut ChaCha8Rng) -> f64 {
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let (radius, angle) = (uniform(), uniform());
    (-2.0 * radius.ln()).sqrt() * (2.0 * std::f64::consts::PI * angle).cos()
}
