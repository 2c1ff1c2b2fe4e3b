//! The comparison against a world whose truth is known: how often it sees an effect that is not there, and one that is.
//!
//! The short form runs always. The long one (2,000 experiments per cell) prints the table:
//! `cargo test -p b70-bench --test simulation -- --include-ignored --nocapture`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; the table is the result")]

mod support;

use b70_bench::{CompareOptions, ComparisonVerdict, FloorRule, compare};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use support::World;

/// Per cell of the table.
const EXPERIMENTS: usize = 2000;

#[derive(Default, Debug)]
struct Tally {
    wins: usize,
    losses: usize,
    inconclusive: usize,
    /// Intervals that hold the true effect.
    covered: usize,
    experiments: usize,
}

impl Tally {
    fn percent(&self, count: usize) -> f64 {
        100.0 * count as f64 / self.experiments as f64
    }
}

fn simulate(world: World, experiments: usize, seed: u64, options: &CompareOptions) -> Tally {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut tally = Tally { experiments, ..Tally::default() };
    for _ in 0..experiments {
        let found = compare(&world.runs(&mut random), options).unwrap();
        match found.verdict {
            ComparisonVerdict::Win => tally.wins += 1,
            ComparisonVerdict::Loss => tally.losses += 1,
            ComparisonVerdict::Inconclusive => tally.inconclusive += 1,
            ComparisonVerdict::Unqualified => panic!("a complete crossover is qualified: {:?}", found.reasons),
        }
        let estimate = found.estimate.unwrap();
        let truth = world.effect.exp();
        tally.covered += usize::from(estimate.ratio_low <= truth && truth <= estimate.ratio_high);
    }
    tally
}

/// With fewer than six cards the t interval decides; leaving the bootstrap out changes no verdict.
fn options(floor_rule: FloorRule) -> CompareOptions {
    CompareOptions { bootstrap_draws: 0, floor_rule, ..CompareOptions::default() }
}

#[test]
fn an_effect_that_is_not_there_is_rarely_seen() {
    for repeats in [1, 2, 4] {
        let tally = simulate(World::lab(repeats, 0.0), 200, 11, &options(FloorRule::Estimate));
        assert!(tally.percent(tally.wins) <= 5.0 && tally.percent(tally.losses) <= 5.0, "{repeats} repeats: {tally:?}");
        // 95 % intervals: of 200, fewer than 179 would be one case in ten thousand.
        assert!(tally.covered >= 179, "{repeats} repeats: {tally:?}");
    }
}

#[test]
fn a_large_effect_is_seen() {
    let win = simulate(World::lab(4, 0.15), 50, 12, &options(FloorRule::Estimate));
    let loss = simulate(World::lab(4, -0.15), 50, 12, &options(FloorRule::Estimate));
    assert!(win.wins >= 45 && win.losses == 0, "{win:?}");
    assert!(loss.losses >= 45 && loss.wins == 0, "{loss:?}");
}

#[test]
#[ignore = "2,000 experiments a cell: cargo xtask test --all"]
fn the_whole_table() {
    for rule in [FloorRule::Estimate, FloorRule::SingleRun] {
        println!(
            "{EXPERIMENTS} experiments per cell, four cards, twelve prompts, minimum effect 1 %, A/A floor rule {rule:?}"
        );
        for repeats in [1, 2, 4] {
            for effect in [0.0, 0.01, 0.03, 0.05] {
                let world = World::lab(repeats, f64::ln_1p(effect));
                let tally = simulate(world, EXPERIMENTS, 2026, &options(rule));
                println!(
                    "  repeats {repeats}  true effect {:>3.0} %:  win {:>5.2} %  loss {:>5.2} %  inconclusive {:>6.2} %  interval covers {:>5.2} %",
                    effect * 100.0,
                    tally.percent(tally.wins),
                    tally.percent(tally.losses),
                    tally.percent(tally.inconclusive),
                    tally.percent(tally.covered),
                );
                if effect == 0.0 {
                    assert!(tally.percent(tally.wins) <= 5.0, "{tally:?}");
                }
            }
        }
    }
}
