//! What a run may be called: plain functions over rows, each failure with a stable code.
//!
//! All gates fail closed: what is missing, of another type or unreadable is a failure, never a pass. The codes of the final
//! gate are those of the lab's suite script where it has one.

use std::collections::{BTreeMap, BTreeSet};

use b70_client::Reported;
use b70_manifest::EvidenceClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::stats::UNCLASSIFIED;

/// Prompts the fixed suite must at least have.
pub const MIN_PROMPTS: usize = 12;
/// Classes they must at least belong to.
pub const MIN_CLASSES: usize = 5;
/// The output limit of a promotion run.
pub const PROMOTION_MAX_TOKENS: u64 = 512;
/// The metric window of a promotion run.
pub const PROMOTION_WINDOW: usize = crate::metrics::WINDOW_EVENTS;

/// The verdict of one gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateReport {
    /// True if there is no code.
    pub passed: bool,
    /// Why not: stable codes, each once, in the order in which they were found.
    pub codes: Vec<String>,
    /// Each finding, for people.
    #[serde(default)]
    pub findings: Vec<GateFinding>,
}

/// One finding of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateFinding {
    /// Its code.
    pub code: String,
    /// The prompt it concerns, if it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<String>,
    /// What was found and what was expected.
    pub detail: String,
}

#[derive(Default)]
struct Findings(Vec<GateFinding>);

impl Findings {
    fn add(&mut self, code: &str, detail: impl Into<String>) {
        self.0.push(GateFinding { code: code.to_owned(), prompt_id: None, detail: detail.into() });
    }

    fn row(&mut self, code: &str, row: &Row, detail: impl Into<String>) {
        let prompt_id = Some(row.prompt_id.clone());
        self.0.push(GateFinding { code: code.to_owned(), prompt_id, detail: detail.into() });
    }

    fn report(self) -> GateReport {
        let mut codes: Vec<String> = Vec::new();
        for finding in &self.0 {
            if !codes.contains(&finding.code) {
                codes.push(finding.code.clone());
            }
        }
        GateReport { passed: codes.is_empty(), codes, findings: self.0 }
    }
}

/// What was asked of a run, as far as gates depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunFacts {
    /// Prompts of the suite.
    pub suite_prompt_count: usize,
    /// Class of every prompt of the suite.
    pub prompt_classes: Vec<String>,
    /// Prompts that were selected from it; empty for the whole suite.
    pub selected_prompt_ids: Vec<String>,
    /// The output limit that was asked for.
    pub max_tokens: u64,
    /// Events of the metric window.
    pub metric_window: usize,
    /// True if the server was told to generate past the end of the text.
    pub ignore_eos: bool,
    /// `cache_prompt` as it was sent.
    pub cache_prompt: Option<bool>,
    /// True if unknown finish reasons fail the screening.
    pub require_natural_eos: bool,
    /// Requests sent to the server before the first row, warm-ups and probes that generated included.
    pub requests_before: u64,
}

impl RunFacts {
    fn expected_rows(&self) -> usize {
        if self.selected_prompt_ids.is_empty() { self.suite_prompt_count } else { self.selected_prompt_ids.len() }
    }
}

/// The cached-zero gate: for every row, at least one of `usage…cached_tokens` and `timings.cache_n` is there, and every one
/// that is there is the JSON integer 0.
pub fn cached_zero(rows: &[Row]) -> GateReport {
    let mut findings = Findings::default();
    check_cached(rows, &mut findings);
    if rows.is_empty() {
        findings.add("no_rows", "no rows to judge");
    }
    findings.report()
}

fn check_cached(rows: &[Row], findings: &mut Findings) {
    for row in rows.iter().filter(|row| row.failure.is_none()) {
        let counts = [("usage cached_tokens", &row.cached_tokens), ("timings cache_n", &row.cache_n)];
        if counts.iter().all(|(_, count)| count.is_missing()) {
            findings.row("cached_tokens_missing", row, "neither usage cached_tokens nor timings cache_n was reported");
        }
        for (name, count) in counts {
            match count {
                Reported::Missing | Reported::Count(0) => {}
                Reported::Count(reused) => {
                    findings.row("cached_tokens_not_zero", row, format!("{name} is {reused}, expected 0"));
                }
                Reported::NotACount(value) => {
                    findings.row(
                        "cached_tokens_not_an_integer",
                        row,
                        format!("{name} is {value}, expected the integer 0"),
                    );
                }
            }
        }
        let processed = row.timings.as_ref().map_or(&Reported::Missing, |timings| &timings.prompt_n);
        if let (Some(processed), Some(prompt)) = (processed.count(), row.prompt_tokens.count())
            && processed != prompt
        {
            let detail = format!(
                "timings prompt_n is {processed}, usage prompt_tokens is {prompt}: part of the prompt was not processed"
            );
            findings.row("prompt_tokens_not_all_processed", row, detail);
        }
    }
}

/// The screening gate: the rows are complete, distinct, cold first responses that cover the metric.
///
/// `rows` are those of one repetition, recomputed ([`Row::recompute`]).
pub fn screening(facts: &RunFacts, rows: &[Row]) -> GateReport {
    let mut findings = Findings::default();
    let expected = facts.expected_rows();
    if rows.is_empty() {
        findings.add("no_rows", "no rows to judge");
    }
    if rows.len() != expected {
        findings.add("rows_incomplete", format!("{} rows, expected {expected}", rows.len()));
    }
    let window = facts.metric_window;
    let mut prompts = BTreeSet::new();
    for row in rows {
        if let Some(failure) = &row.failure {
            findings.row("row_failed", row, format!("{}: {}", failure.code, failure.message));
            continue;
        }
        if row.prompt_sha256.is_empty() || !prompts.insert(row.prompt_sha256.as_str()) {
            findings.row("prompts_not_unique", row, "the prompt was sent before, or has no hash");
        }
        if row.tok_s_1_100_intervals_after_ttft.is_none() {
            findings.row("window_metric_missing", row, "the metric cannot be computed from the offsets");
        }
        let events = row.offsets().len();
        if events < window {
            findings.row("window_events_too_few", row, format!("{events} events, the window needs {window}"));
        }
        if row.completion_tokens.count().is_none_or(|count| count < window as u64) {
            let detail = format!("completion_tokens is {}, expected at least {window}", shown(&row.completion_tokens));
            findings.row("completion_tokens_below_window", row, detail);
        }
        let known = |reason: &String| matches!(reason.as_str(), "stop" | "length");
        if facts.require_natural_eos && (row.finish_reasons.is_empty() || !row.finish_reasons.iter().all(known)) {
            findings.row("finish_reason_unknown", row, format!("{:?}, expected stop or length", row.finish_reasons));
        }
    }
    check_cached(rows, &mut findings);
    findings.report()
}

/// The realistic final gate: what a promotion claim needs beyond the screening. It judges the performance workload alone;
/// publication also needs evidence of output quality that is bound to the same hashes.
pub fn realistic_final(facts: &RunFacts, rows: &[Row]) -> GateReport {
    let mut findings = Findings::default();
    let screened = screening(facts, rows);
    if !screened.passed {
        findings.add("fresh_response_screening_failed", screened.codes.join(", "));
    }
    if !facts.selected_prompt_ids.is_empty() {
        findings.add("prompt_subset_selected", format!("{} prompts selected", facts.selected_prompt_ids.len()));
    }
    let complete = rows.iter().filter(|row| row.failure.is_none()).count();
    let suite = facts.suite_prompt_count;
    if complete != suite || rows.len() != suite {
        findings.add("fixed_suite_incomplete", format!("{complete} complete rows of {suite} prompts"));
    }
    if suite < MIN_PROMPTS {
        findings.add("fixed_suite_has_fewer_than_12_prompts", format!("{suite} prompts"));
    }
    if facts.max_tokens != PROMOTION_MAX_TOKENS {
        findings.add("max_tokens_must_equal_512", format!("max_tokens was {}", facts.max_tokens));
    }
    if facts.metric_window != PROMOTION_WINDOW {
        findings.add("metric_window_must_equal_100_events", format!("the window was {}", facts.metric_window));
    }
    let covers = |row: &Row| row.completion_tokens.count().is_some_and(|count| count >= PROMOTION_WINDOW as u64);
    if rows.is_empty() || !rows.iter().all(covers) {
        findings.add(
            "every_completion_must_cover_100_event_metric",
            "a response has fewer than 100 tokens, or none are reported",
        );
    }
    if facts.ignore_eos {
        findings.add("ignore_eos_must_be_disabled", "the request asked to generate past the end of the text");
    }
    let classes: BTreeSet<&str> = facts
        .prompt_classes
        .iter()
        .map(String::as_str)
        .filter(|class| !class.is_empty() && *class != UNCLASSIFIED)
        .collect();
    if facts.prompt_classes.len() != suite || classes.len() < MIN_CLASSES {
        findings.add(
            "fixed_suite_lacks_varied_prompt_classes",
            format!(
                "{} classes over {} prompts, expected at least {MIN_CLASSES}",
                classes.len(),
                facts.prompt_classes.len()
            ),
        );
    }
    if facts.cache_prompt != Some(false) {
        findings.add("prompt_reuse_must_be_disabled", "cache_prompt was not sent as false");
    }
    if facts.requests_before > 0 || rows.iter().any(|row| row.repeat > 0) {
        findings.add("responses_must_be_first", "the server had generated before, or the suite was repeated");
    }
    findings.report()
}

/// What a run may be called after its gates.
pub fn evidence_class(screening: &GateReport, realistic_final: &GateReport) -> EvidenceClass {
    match (screening.passed, realistic_final.passed) {
        (true, true) => EvidenceClass::PromotionGradeFreshResponse,
        (true, false) => EvidenceClass::FreshResponseScreening,
        (false, _) => EvidenceClass::InvalidOrIncomplete,
    }
}

/// What is known of the thing that was measured. `None` is unknown, and unknown fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityFacts {
    /// SHA-256 of the target model.
    pub target_model_sha256: Option<String>,
    /// True if a draft model is in use; unknown otherwise.
    pub uses_draft_model: Option<bool>,
    /// SHA-256 of the draft model.
    pub draft_model_sha256: Option<String>,
    /// SHA-256 of the server's executable.
    pub binary_sha256: Option<String>,
    /// Its command line.
    pub command: Option<Vec<String>>,
    /// The environment that bears on it.
    pub environment: Option<BTreeMap<String, String>>,
    /// PCI address of the card.
    pub card: Option<String>,
    /// How many workers ran requests at the same time, this one included.
    pub concurrent_workers: Option<u32>,
    /// True if the server named itself llama.cpp.
    pub is_llama_server: Option<bool>,
    /// SHA-256 of the suite's content.
    pub suite_sha256: Option<String>,
    /// True if no other process used the card; unknown otherwise.
    pub card_exclusive: Option<bool>,
}

/// The identity gate: everything a reader needs to know what was measured is on record.
pub fn identity(facts: &IdentityFacts) -> GateReport {
    let mut findings = Findings::default();
    let mut need = |known: bool, code: &str, what: &str| {
        if !known {
            findings.add(code, format!("{what} is not on record"));
        }
    };
    need(facts.target_model_sha256.is_some(), "target_model_unknown", "the target model's SHA-256");
    need(facts.uses_draft_model.is_some(), "speculation_unknown", "whether a draft model is in use");
    if facts.uses_draft_model == Some(true) {
        need(facts.draft_model_sha256.is_some(), "draft_model_unknown", "the draft model's SHA-256");
    }
    need(facts.binary_sha256.is_some(), "binary_unknown", "the executable's SHA-256");
    need(
        facts.command.as_ref().is_some_and(|command| !command.is_empty()),
        "command_unknown",
        "the server's command line",
    );
    need(facts.environment.is_some(), "environment_unknown", "the server's environment");
    need(facts.card.is_some(), "card_unknown", "the card's PCI address");
    need(
        facts.concurrent_workers.is_some_and(|workers| workers > 0),
        "concurrency_unknown",
        "how many workers ran at once",
    );
    need(facts.suite_sha256.is_some(), "suite_unknown", "the suite's hash");
    need(facts.is_llama_server.is_some(), "server_unidentified", "who answers at the endpoint");
    need(facts.card_exclusive.is_some(), "card_use_unknown", "whether another process used the card");
    if facts.is_llama_server == Some(false) {
        findings.add("server_is_not_llama_cpp", "the endpoint does not name itself llama.cpp");
    }
    if facts.card_exclusive == Some(false) {
        findings.add("card_was_shared", "another process used the card");
    }
    findings.report()
}

/// The two sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// What is in use.
    Control,
    /// What might replace it.
    Candidate,
}

/// Where a run stands in a crossover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Name of the run, for findings.
    pub name: String,
    /// Its arm.
    pub arm: Option<Arm>,
    /// Its card.
    pub card: Option<String>,
    /// Its period, from 1; periods 1 and 2 are the first pair, 3 and 4 the second.
    pub period: Option<u32>,
}

/// The crossover-completeness gate: every card ran both arms in each of its pairs of periods, and both orders occur.
pub fn crossover_completeness(placements: &[Placement]) -> GateReport {
    let mut findings = Findings::default();
    // Arm and period of each run, by card and pair of periods.
    let mut cells: BTreeMap<(&str, u32), Vec<(Arm, u32)>> = BTreeMap::new();
    if placements.is_empty() {
        findings.add("no_runs", "nothing to compare");
    }
    for placement in placements {
        let (arm, card, period) =
            (placement.arm, placement.card.as_deref(), placement.period.filter(|period| *period > 0));
        if arm.is_none() {
            findings.add("arm_unknown", format!("{}: no arm on record", placement.name));
        }
        if card.is_none() {
            findings.add("card_unknown", format!("{}: no card on record", placement.name));
        }
        if period.is_none() {
            findings.add("period_unknown", format!("{}: no period on record", placement.name));
        }
        if let (Some(arm), Some(card), Some(period)) = (arm, card, period) {
            cells.entry((card, (period - 1) / 2)).or_default().push((arm, period));
        }
    }
    let mut orders = BTreeSet::new();
    let mut pairs_of: BTreeMap<&str, usize> = BTreeMap::new();
    for ((card, pair), runs) in &cells {
        *pairs_of.entry(card).or_default() += 1;
        let (first, second) = (pair * 2 + 1, pair * 2 + 2);
        let in_period = |period: u32| runs.iter().filter(|run| run.1 == period).collect::<Vec<_>>();
        let (one, two) = (in_period(first), in_period(second));
        if one.len() > 1 || two.len() > 1 {
            findings.add(
                "period_ran_twice",
                format!("card {card}: a period of {first} and {second} has more than one run"),
            );
        } else if one.is_empty() || two.is_empty() {
            findings.add(
                "period_missing",
                format!(
                    "card {card}: of periods {first} and {second} only one was run; swap the arms and run the other"
                ),
            );
        } else if one[0].0 == two[0].0 {
            findings.add(
                "card_lacks_an_arm",
                format!("card {card}: periods {first} and {second} ran the same arm; swap the arms"),
            );
        } else {
            orders.insert(one[0].0);
        }
    }
    let counts: BTreeSet<usize> = pairs_of.values().copied().collect();
    if counts.len() > 1 {
        findings.add("cards_differ_in_periods", "the cards did not run the same number of periods");
    }
    if orders.len() == 1 {
        let first = if orders.contains(&Arm::Control) { "control" } else { "candidate" };
        let detail = format!("every card ran the {first} first: a drift between periods cannot be told from the arms");
        findings.add("one_order_only", detail);
    }
    findings.report()
}

fn shown(count: &Reported) -> String {
    match count {
        Reported::Missing => "missing".to_owned(),
        Reported::Count(count) => count.to_string(),
        Reported::NotACount(value) => value.to_string(),
    }
}
