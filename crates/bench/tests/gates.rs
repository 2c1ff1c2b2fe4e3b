//! The gates fail closed, each failure under its code.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use b70_bench::{
    GateReport, IdentityFacts, Row, RowFailure, RunFacts, RunSummary, UNCLASSIFIED, cached_zero, evidence_class,
    identity, realistic_final, screening,
};
use b70_manifest::EvidenceClass;
use serde_json::{Value, json};

fn facts() -> RunFacts {
    RunFacts {
        suite_prompt_count: 12,
        prompt_classes: (0..12).map(|prompt| format!("class{}", prompt % 6)).collect(),
        selected_prompt_ids: Vec::new(),
        max_tokens: 512,
        metric_window: 100,
        ignore_eos: false,
        cache_prompt: Some(false),
        require_natural_eos: true,
        requests_before: 0,
    }
}

fn rows() -> Vec<Row> {
    (0..12)
        .map(|prompt| {
            row(
                prompt,
                &json!({"completion_tokens": 130, "prompt_tokens": 80, "prompt_tokens_details": {"cached_tokens": 0}}),
                &json!({"cache_n": 0, "prompt_n": 80}),
            )
        })
        .collect()
}

fn row(prompt: usize, usage: &Value, timings: &Value) -> Row {
    let mut row = Row {
        prompt_index: prompt,
        prompt_id: format!("p{prompt}"),
        prompt_class: format!("class{}", prompt % 6),
        prompt_sha256: format!("{prompt:064}"),
        elapsed_s: Some(4.0),
        chunk_offsets_s: (0..129).map(|event| 1.2 + f64::from(event) * 0.02).collect(),
        finish_reasons: vec!["length".to_owned()],
        usage: Some(usage.clone()).filter(|usage| !usage.is_null()),
        timings: serde_json::from_value(timings.clone()).ok(),
        ..Row::default()
    };
    row.recompute(100);
    row
}

fn codes(report: &GateReport) -> Vec<&str> {
    report.codes.iter().map(String::as_str).collect()
}

fn with(change: impl Fn(&mut Row)) -> Vec<Row> {
    let mut rows = rows();
    change(&mut rows[3]);
    rows[3].recompute(100);
    rows
}

#[test]
fn a_complete_cold_run_passes_everything() {
    let (screened, promoted) = (screening(&facts(), &rows()), realistic_final(&facts(), &rows()));
    assert!(screened.passed && promoted.passed, "{screened:?} {promoted:?}");
    assert!(cached_zero(&rows()).passed);
    assert_eq!(evidence_class(&screened, &promoted), EvidenceClass::PromotionGradeFreshResponse);
    let summary = RunSummary::of(&rows());
    assert!((summary.tok_s_1_100_intervals_after_ttft.median.unwrap() - 50.0).abs() < 1e-9);
    assert_eq!(summary.class_balanced_tok_s_1_100_intervals_after_ttft.class_medians.len(), 6);
}

#[test]
fn cached_counts_that_are_not_the_integer_zero() {
    let usage = |cached: &str| -> Value {
        serde_json::from_str(&format!(r#"{{"completion_tokens": 130, "prompt_tokens": 80, "prompt_tokens_details": {{"cached_tokens": {cached}}}}}"#)).unwrap()
    };
    let bare = json!({"completion_tokens": 130, "prompt_tokens": 80});
    let cold = json!({"cache_n": 0, "prompt_n": 80});
    for (usage, timings, expected) in [
        (usage("0"), Value::Null, vec![]),
        (bare.clone(), cold.clone(), vec![]),
        (json!({"completion_tokens": 130, "prompt_tokens_details": null}), json!({"cache_n": 0}), vec![]),
        (bare.clone(), Value::Null, vec!["cached_tokens_missing"]),
        (bare.clone(), json!({"prompt_n": 80}), vec!["cached_tokens_missing"]),
        (Value::Null, Value::Null, vec!["cached_tokens_missing"]),
        (usage("3"), cold.clone(), vec!["cached_tokens_not_zero"]),
        (usage("0"), json!({"cache_n": 3, "prompt_n": 80}), vec!["cached_tokens_not_zero"]),
        (usage("false"), cold.clone(), vec!["cached_tokens_not_an_integer"]),
        (usage("null"), cold.clone(), vec!["cached_tokens_not_an_integer"]),
        (usage("0.0"), cold.clone(), vec!["cached_tokens_not_an_integer"]),
        (usage("\"0\""), cold.clone(), vec!["cached_tokens_not_an_integer"]),
        (
            json!({"completion_tokens": 130, "prompt_tokens_details": 0}),
            cold.clone(),
            vec!["cached_tokens_not_an_integer"],
        ),
        (usage("0"), json!({"cache_n": 0, "prompt_n": 50}), vec!["prompt_tokens_not_all_processed"]),
    ] {
        let mut rows = rows();
        rows[3] = row(3, &usage, &timings);
        assert_eq!(codes(&cached_zero(&rows)), expected, "{usage} {timings}");
        if !expected.is_empty() {
            let report = screening(&facts(), &rows);
            assert!(expected.iter().all(|code| codes(&report).contains(code)), "{report:?}");
            assert_eq!(
                report.findings.iter().filter(|finding| finding.prompt_id.as_deref() == Some("p3")).count(),
                report.findings.len()
            );
        }
    }
}

#[test]
fn screening_codes() {
    let check = |rows: &[Row], expected: &[&str]| {
        let report = screening(&facts(), rows);
        assert_eq!(codes(&report), expected, "{report:?}");
        assert_eq!(codes(&realistic_final(&facts(), rows))[0], "fresh_response_screening_failed");
        assert_eq!(evidence_class(&report, &realistic_final(&facts(), rows)), EvidenceClass::InvalidOrIncomplete);
    };
    check(&[], &["no_rows", "rows_incomplete"]);
    check(&rows()[..7], &["rows_incomplete"]);
    check(
        &with(|row| row.failure = Some(RowFailure { code: "disconnected".to_owned(), message: "m".to_owned() })),
        &["row_failed"],
    );
    check(&with(|row| row.prompt_sha256 = format!("{:064}", 0)), &["prompts_not_unique"]);
    check(&with(|row| row.chunk_offsets_s.truncate(60)), &["window_metric_missing", "window_events_too_few"]);
    check(&with(|row| row.chunk_offsets_s = vec![1.0; 120]), &["window_metric_missing"]);
    check(&with(|row| row.finish_reasons.clear()), &["finish_reason_unknown"]);
    check(&with(|row| row.finish_reasons = vec!["tool_calls".to_owned()]), &["finish_reason_unknown"]);
    let usage = |count: Value| json!({"completion_tokens": count, "prompt_tokens": 80, "prompt_tokens_details": {"cached_tokens": 0}});
    for count in [json!(99), json!(130.0), json!(null), json!("130")] {
        check(&with(|row| row.usage = Some(usage(count.clone()))), &["completion_tokens_below_window"]);
    }
}

#[test]
fn final_gate_codes() {
    let check = |change: fn(&mut RunFacts), expected: &[&str]| {
        let mut facts = facts();
        change(&mut facts);
        let report = realistic_final(&facts, &rows());
        assert_eq!(codes(&report), expected);
    };
    check(|facts| facts.max_tokens = 128, &["max_tokens_must_equal_512"]);
    check(|facts| facts.ignore_eos = true, &["ignore_eos_must_be_disabled"]);
    check(|facts| facts.metric_window = 99, &["metric_window_must_equal_100_events"]);
    check(|facts| facts.cache_prompt = None, &["prompt_reuse_must_be_disabled"]);
    check(|facts| facts.requests_before = 1, &["responses_must_be_first"]);
    check(
        |facts| facts.prompt_classes = vec![UNCLASSIFIED.to_owned(); 12],
        &["fixed_suite_lacks_varied_prompt_classes"],
    );
    check(|facts| drop(facts.prompt_classes.pop()), &["fixed_suite_lacks_varied_prompt_classes"]);
    check(
        |facts| facts.suite_prompt_count = 13,
        &["fresh_response_screening_failed", "fixed_suite_incomplete", "fixed_suite_lacks_varied_prompt_classes"],
    );

    let mut small = facts();
    small.suite_prompt_count = 7;
    small.prompt_classes.truncate(7);
    let report = realistic_final(&small, &rows()[..7]);
    assert_eq!(codes(&report), ["fixed_suite_has_fewer_than_12_prompts"]);
    let screened = screening(&small, &rows()[..7]);
    assert_eq!(evidence_class(&screened, &report), EvidenceClass::FreshResponseScreening);

    let mut subset = facts();
    subset.selected_prompt_ids = vec!["p0".to_owned()];
    let report = realistic_final(&subset, &rows()[..1]);
    assert_eq!(codes(&report), ["prompt_subset_selected", "fixed_suite_incomplete"]);

    assert_eq!(codes(&realistic_final(&facts(), &with(|row| row.repeat = 1))), ["responses_must_be_first"]);
    let short =
        with(|row| row.usage = Some(json!({"completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}})));
    assert!(codes(&realistic_final(&facts(), &short)).contains(&"every_completion_must_cover_100_event_metric"));
}

#[test]
fn an_unknown_identity_fails() {
    let known = IdentityFacts {
        target_model_sha256: Some("a".to_owned()),
        uses_draft_model: Some(false),
        draft_model_sha256: None,
        binary_sha256: Some("b".to_owned()),
        command: Some(vec!["llama-server".to_owned()]),
        environment: Some([("ZE_AFFINITY_MASK".to_owned(), "0".to_owned())].into()),
        card: Some("0000:03:00.0".to_owned()),
        concurrent_workers: Some(4),
        is_llama_server: Some(true),
        suite_sha256: Some("s".to_owned()),
        card_exclusive: Some(true),
    };
    assert!(identity(&known).passed);
    assert_eq!(identity(&IdentityFacts::default()).codes.len(), 10);
    let check = |change: fn(&mut IdentityFacts), code: &str| {
        let mut facts = known.clone();
        change(&mut facts);
        assert_eq!(codes(&identity(&facts)), [code]);
    };
    check(|facts| facts.uses_draft_model = Some(true), "draft_model_unknown");
    check(|facts| facts.command = Some(Vec::new()), "command_unknown");
    check(|facts| facts.concurrent_workers = Some(0), "concurrency_unknown");
    check(|facts| facts.is_llama_server = Some(false), "server_is_not_llama_cpp");
    check(|facts| facts.card_exclusive = Some(false), "card_was_shared");
    check(|facts| facts.card = None, "card_unknown");
}
