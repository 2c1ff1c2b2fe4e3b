//! What makes a comparison, and what it says when the runs do not make one.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod support;

use b70_bench::{
    CompareError, CompareOptions, CompareRun, ComparisonVerdict, CrossoverComparison, FloorRule, aa_floor, compare,
};
use b70_manifest::Sha256Hex;
use b70_manifest::gate::GateOutcome;
use b70_manifest::workers::Arm;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use support::{World, row, run};

fn world(cards: usize, repeats: usize, effect: f64) -> World {
    World { cards, repeats, prompts: 12, effect, acceptance_sd: 0.002, cycle_sd: 0.002, card_sd: 0.02, drift: 0.005 }
}

fn runs(cards: usize, repeats: usize, effect: f64) -> Vec<CompareRun> {
    world(cards, repeats, effect).runs(&mut ChaCha8Rng::seed_from_u64(5))
}

fn verdict(runs: &[CompareRun]) -> CrossoverComparison {
    compare(runs, &CompareOptions::default()).unwrap()
}

fn has(comparison: &CrossoverComparison, code: &str) -> bool {
    comparison.reasons.iter().any(|reason| reason.code == code)
}

fn assert_unqualified(runs: &[CompareRun], code: &str) {
    let found = verdict(runs);
    assert_eq!(found.verdict, ComparisonVerdict::Unqualified, "{code}");
    assert!(has(&found, code), "{code}: {:?}", found.reasons);
}

#[test]
fn win_loss_and_inconclusive() {
    let win = verdict(&runs(4, 1, 0.05));
    assert_eq!((win.verdict, win.decided_by.as_str(), win.unit.as_str()), (ComparisonVerdict::Win, "t", "card"));
    let estimate = win.estimate.unwrap();
    assert!((estimate.tau - 0.05).abs() < 0.005 && estimate.df == 2, "{estimate:?}");
    assert!((estimate.period_ratio.ln() + 0.005).abs() < 0.002, "the drift is seen as a period effect: {estimate:?}");
    assert_eq!((win.cards.len(), win.cards[0].prompts), (4, 12));
    let bootstrap = win.bootstrap.as_ref().unwrap();
    assert_eq!((bootstrap.draws, bootstrap.seed), (10_000, 1));
    assert!(bootstrap.ratio_low > 1.0);
    assert!(has(&win, "aa_floor_absent") && win.note.contains("never ranks"));
    assert_eq!(verdict(&runs(4, 1, -0.05)).verdict, ComparisonVerdict::Loss);
    let nothing = verdict(&runs(4, 1, 0.0));
    assert_eq!(nothing.verdict, ComparisonVerdict::Inconclusive);
    assert!(has(&nothing, "interval_reaches_threshold"));
    // Real, but below the minimum effect.
    assert_eq!(verdict(&runs(4, 2, 0.005)).verdict, ComparisonVerdict::Inconclusive);
}

#[test]
fn from_six_cards_on_the_bootstrap_has_a_say() {
    let found = verdict(&runs(6, 1, 0.05));
    assert_eq!((found.verdict, found.decided_by.as_str()), (ComparisonVerdict::Win, "t-and-bootstrap"));
    assert_eq!(verdict(&runs(5, 1, 0.05)).decided_by, "t");
}

#[test]
fn a_result_does_not_depend_on_the_order_of_the_files() {
    let mut shuffled = runs(4, 2, 0.03);
    let first = verdict(&shuffled);
    shuffled.reverse();
    assert_eq!(serde_json::to_value(verdict(&shuffled)).unwrap(), serde_json::to_value(first).unwrap());
}

#[test]
fn repeated_runs_give_the_noise_floor() {
    let noisy = World { acceptance_sd: 0.06, ..world(4, 2, 0.02) }.runs(&mut ChaCha8Rng::seed_from_u64(6));
    let found = verdict(&noisy);
    let (single, estimate) = (found.aa_floor_single_run.unwrap(), found.aa_floor_estimate.unwrap());
    assert_eq!(aa_floor(&noisy), Some(single));
    assert!((estimate - single / 8f64.sqrt()).abs() < 1e-12, "four cards with two pairs each");
    assert!((found.threshold_ratio.ln() - estimate.max(0.01f64.ln_1p())).abs() < 1e-12);
    let strict = CompareOptions { floor_rule: FloorRule::SingleRun, ..CompareOptions::default() };
    assert!((compare(&noisy, &strict).unwrap().threshold_ratio.ln() - single.max(0.01f64.ln_1p())).abs() < 1e-12);
    let given = CompareOptions { aa_floor: Some(0.2), floor_rule: FloorRule::SingleRun, ..CompareOptions::default() };
    assert_eq!(compare(&runs(4, 1, 0.05), &given).unwrap().verdict, ComparisonVerdict::Inconclusive);
}

#[test]
fn incomplete_crossovers_are_unqualified() {
    assert_unqualified(&[], "no_runs");
    let whole = runs(4, 1, 0.05);
    let without = |keep: fn(&CompareRun) -> bool| whole.iter().filter(|run| keep(run)).cloned().collect::<Vec<_>>();
    let on = |run: &CompareRun, cards: [&str; 2]| {
        run.measured.endpoint.card.is_some_and(|card| cards.contains(&card.to_string().as_str()))
    };
    // One run of four cards: whatever it shows, it ranks nothing.
    let one_run = without(|run| run.measured.period == Some(1));
    assert_unqualified(&one_run, "one_run_never_ranks");
    assert_unqualified(&one_run, "period_missing");
    assert_unqualified(&one_run, "card_lacks_an_arm");
    assert_unqualified(&without(|run| run.measured.arm == Some(Arm::Control)), "one_arm_only");
    assert_unqualified(&without(|run| run.name != "card2-period1"), "period_missing");
    let some = |cards: [&str; 2]| whole.iter().filter(|run| on(run, cards)).cloned().collect::<Vec<_>>();
    assert_unqualified(&some(["0000:00:00.0", "0000:02:00.0"]), "one_sequence_only");
    assert_unqualified(&some(["0000:00:00.0", "0000:01:00.0"]), "no_estimate");
    assert_unqualified(&some(["0000:00:00.0", "0000:00:00.0"]), "fewer_than_two_cards");
    let change = |index: usize, change: fn(&mut CompareRun)| {
        let mut changed = whole.clone();
        change(&mut changed[index]);
        changed
    };
    assert_unqualified(&change(0, |run| run.measured.arm = None), "assignment_missing");
    assert_unqualified(&change(0, |run| run.measured.endpoint.card = None), "assignment_missing");
    assert_unqualified(&change(0, |run| run.measured.period = None), "assignment_missing");
    assert_unqualified(&change(0, |run| run.measured.period = Some(0)), "period_missing");
    assert_unqualified(&change(0, |run| run.measured.period = Some(2)), "period_repeated");
    assert_unqualified(&change(0, |run| run.measured.arm = Some(Arm::Control)), "card_lacks_an_arm");
    assert_unqualified(&change(0, |run| run.measured.suite.sha256 = Sha256Hex::of(b"other")), "suites_differ");
    assert_unqualified(&change(0, |run| run.measured.settings.max_tokens = 128), "settings_differ");
    assert_unqualified(&change(0, |run| run.recipe_sha256 = None), "recipe_unknown");
    assert_unqualified(&change(0, |run| run.recipe_sha256 = Some(Sha256Hex::of(b"x"))), "recipes_differ_within_arm");
    assert_unqualified(&change(0, |run| drop(run.measured.rows.pop())), "prompts_not_paired");
    assert_unqualified(
        &change(0, |run| {
            run.screening = GateOutcome { codes: vec!["cached_count_missing".to_owned()], ..GateOutcome::default() };
        }),
        "run_not_screened",
    );
    let uneven: Vec<CompareRun> = whole.iter().cloned().chain(runs(1, 2, 0.05).into_iter().skip(2)).collect();
    assert_unqualified(&uneven, "cards_differ_in_periods");
}

#[test]
fn an_a_a_comparison_says_so() {
    let mut equal = runs(4, 1, 0.0);
    for run in &mut equal {
        run.recipe_sha256 = Some(Sha256Hex::of(b"one"));
    }
    let found = verdict(&equal);
    assert!(found.verdict == ComparisonVerdict::Inconclusive && has(&found, "arms_are_equal"));
}

#[test]
fn effects_that_change_sign_with_the_order_do_not_win() {
    // A drift of 20 % per period: each order alone shows the drift, not the arm.
    let drifting = World { drift: 0.2, ..world(4, 1, 0.05) }.runs(&mut ChaCha8Rng::seed_from_u64(5));
    let found = verdict(&drifting);
    assert_eq!(found.verdict, ComparisonVerdict::Inconclusive);
    assert!(has(&found, "orders_disagree"), "{:?}", found.reasons);
    assert!(found.ratio_candidate_first.unwrap() < 1.0 && found.ratio_control_first.unwrap() > 1.0);
}

#[test]
fn cycle_and_burst_ratios_stand_beside_the_rate() {
    let make = |candidate: bool, card: usize, period: usize| {
        let rows = (0..12).map(|prompt| {
            let mut row = row(prompt, if candidate { 55.0 } else { 50.0 } + card as f64);
            row.extra.insert("burst_gap_s_mean".to_owned(), 0.06.into());
            row.tokens_per_burst = Some(if candidate { 3.3 } else { 3.0 });
            row.sha256 = Some(Sha256Hex::of(format!("{}", prompt >= 9 && candidate).as_bytes()));
            row
        });
        run("r", candidate, card, period, rows.collect())
    };
    let runs: Vec<CompareRun> =
        (0..4).flat_map(|card| [make(card % 2 == 0, card, 1), make(card % 2 == 1, card, 2)]).collect();
    let found = verdict(&runs);
    assert!((found.cycle_ratio.unwrap() - 1.0).abs() < 1e-12);
    assert!((found.tokens_per_burst_ratio.unwrap() - 1.1).abs() < 1e-12);
    assert_eq!(found.equal_output_share, Some(0.75));
}

#[test]
fn options_out_of_range_are_errors() {
    for options in [
        CompareOptions { min_effect: -0.1, ..CompareOptions::default() },
        CompareOptions { min_effect: f64::NAN, ..CompareOptions::default() },
        CompareOptions { confidence: 1.0, ..CompareOptions::default() },
        CompareOptions { aa_floor: Some(f64::INFINITY), ..CompareOptions::default() },
    ] {
        assert!(matches!(compare(&[], &options), Err(CompareError::Option { .. })), "{options:?}");
    }
}
