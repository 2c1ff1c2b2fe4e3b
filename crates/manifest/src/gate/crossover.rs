use std::collections::{BTreeMap, BTreeSet};

use super::code::Findings;
use super::{Code, GateOutcome};
use crate::calibration::Measured;
use crate::workers::Arm;

/// The results form a crossover: each names arm, card and period; every card ran both arms; both sequences occur; all
/// were made with one suite and one way of asking; each arm is one recipe.
pub fn crossover(results: &[&Measured]) -> GateOutcome {
    let mut findings = Findings::default();
    let mut cards: BTreeMap<_, BTreeMap<u64, Arm>> = BTreeMap::new();
    for (index, result) in results.iter().enumerate() {
        let card = result.identity.card.as_ref().map(|card| card.pci).or(result.endpoint.card);
        let (Some(card), Some(arm), Some(period)) = (card, result.arm, result.period) else {
            findings.add(
                Code::AssignmentMissing,
                format!("result {index} ({}) lacks its arm, card or period", result.endpoint.name),
            );
            continue;
        };
        if cards.entry(card).or_default().insert(period, arm).is_some() {
            findings.add(Code::PeriodRepeated, format!("card {card} has two results of period {period}"));
        }
    }
    findings.check(cards.len() >= 2, Code::FewerThanTwoCards, format!("there are {} cards", cards.len()));
    let mut first_arms: BTreeSet<Arm> = BTreeSet::new();
    for (card, periods) in &cards {
        let arms: BTreeSet<Arm> = periods.values().copied().collect();
        for arm in Arm::ALL.iter().filter(|arm| !arms.contains(arm)) {
            findings.add(Code::CardLacksAnArm, format!("card {card} never ran the {arm}"));
        }
        first_arms.extend(periods.values().next());
    }
    findings.check(
        first_arms.len() == Arm::ALL.len(),
        Code::OneSequenceOnly,
        "no two cards ran the arms in opposite order",
    );
    check_recipes(&mut findings, results);
    findings.outcome()
}

fn check_recipes(findings: &mut Findings, results: &[&Measured]) {
    if let Some((first, others)) = results.split_first() {
        for other in others {
            findings.check(
                other.suite.sha256 == first.suite.sha256,
                Code::SuitesDiffer,
                format!("{} and {} are of different suites", first.endpoint.name, other.endpoint.name),
            );
            findings.check(
                other.settings == first.settings,
                Code::SettingsDiffer,
                format!("{} and {} were asked in different ways", first.endpoint.name, other.endpoint.name),
            );
        }
    }
    for arm in Arm::ALL {
        let mut of_arm = results.iter().filter(|result| result.arm == Some(*arm)).map(|result| {
            let identity = &result.identity;
            (
                identity.target_model_sha256,
                identity.draft_model_sha256,
                identity.binary_sha256,
                identity.build_fingerprint_sha256,
                identity.profile.as_deref(),
                identity.pack_set_key,
            )
        });
        if let Some(first) = of_arm.next() {
            findings.check(
                of_arm.all(|recipe| recipe == first),
                Code::ArmNotHomogeneous,
                format!("the results of the {arm} are of different recipes"),
            );
        }
    }
}
