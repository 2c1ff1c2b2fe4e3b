//! Result files: believed only as far as their rows go. Reports and exports of them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; counts are results")]

use std::path::Path;

use b70_bench::{
    CompareOptions, ComparisonVerdict, ExportError, LoadError, Submission, Suite, compare_files, export_localmaxxing,
    html_report, load_folder, load_result, recompute_row, summarise, text_report,
};
use b70_manifest::calibration::{CalibrationRow, Measured};
use b70_manifest::gate::judge;
use b70_manifest::{EvidenceClass, Sha256Hex};
use serde_json::{Value, json};

/// A complete result of a card: 14 prompts, 512 tokens each, `rate` tokens per second, everything on record.
fn measured(card: usize, rate: f64) -> Measured {
    let suite = Suite::builtin();
    let rows: Vec<CalibrationRow> = suite
        .prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            let gap = 1.0 / (rate * (1.0 + 0.01 * (index as f64 * 1.7 + card as f64).sin()));
            let offsets: Vec<f64> = (0..512).map(|event| 0.4 + f64::from(event) * gap).collect();
            let text = format!("answer {index}");
            let mut row: CalibrationRow = serde_json::from_value(json!({
                "prompt_index": index, "prompt_id": prompt.id, "prompt_class": prompt.prompt_class,
                "prompt_sha256": prompt.sha256(), "repeat": 0, "elapsed_s": offsets[511] + 0.001, "chunk_offsets_s": offsets,
                "finish_reasons": ["length"], "text": text, "sha256": Sha256Hex::of(text.as_bytes()),
                "usage": {"prompt_tokens": 80, "completion_tokens": 512, "prompt_tokens_details": {"cached_tokens": 0}},
                "timings": {"cache_n": 0, "prompt_n": 80, "draft_n": 300, "draft_n_accepted": 180},
            }))
            .unwrap();
            recompute_row(&mut row, 100);
            row
        })
        .collect();
    let sha = Sha256Hex::of(b"x");
    let mut measured: Measured = serde_json::from_value(json!({
        "schema_version": 1, "format": "b70-calibration-result-v1",
        "endpoint": {"name": format!("gpu{card}"), "url": "http://127.0.0.1:19720", "card": format!("0000:{card:02x}:00.0")},
        "suite": suite.identity(None),
        "settings": {"api": "chat", "max_tokens": 512, "metric_window": 100, "temperature": 0.0, "top_p": 1.0, "seed": 1,
            "cache_prompt": false, "repeats": 1, "warm_up_requests": 0, "endpoints_at_once": 1, "require_natural_eos": true},
        "identity": {"target_model_sha256": sha, "binary_sha256": sha, "build_fingerprint_sha256": sha,
            "command": ["llama-server", "--cache-ram", "0", "--port", "1"], "environment": {},
            "card": {"pci": format!("0000:{card:02x}:00.0"), "name": "Arc Pro B70"}, "workers_at_once": 1,
            "server": {"build_info": "b11434", "n_ctx": 4096}},
        "rows": [], "started_unix": 1, "ended_unix": 2,
    }))
    .unwrap();
    measured.summary = summarise(&rows);
    measured.rows = rows;
    measured
}

fn write(path: &Path, measured: Measured) {
    std::fs::write(path, serde_json::to_vec_pretty(&judge(measured)).unwrap()).unwrap();
}

fn tamper(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, serde_json::to_vec_pretty(&value).unwrap()).unwrap();
}

fn submission() -> Submission {
    Submission {
        hf_id: "owner/model".to_owned(),
        quantization: "Q4_0".to_owned(),
        backend: "SYCL".to_owned(),
        ..Submission::default()
    }
}

#[test]
fn only_a_result_that_passes_every_gate_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu3.json");
    write(&path, measured(3, 50.0));
    let result = load_result(&path).unwrap();
    let report = result.verify_report();
    assert!(report.verified && report.promotion_eligible, "{:?} {:?}", report.gates, report.disagreements);
    let payload = export_localmaxxing(&result, &submission()).unwrap();
    assert_eq!((payload.prompt_tokens, payload.output_tokens, payload.engine_version.as_str()), (80, 512, "b11434"));
    let interval = payload.suite_pass["summary"]["tok_s_1_100_intervals_after_ttft"]["median"].as_f64().unwrap();
    assert!((payload.tok_s_out / interval - 100.0 / 99.0).abs() < 1e-9, "the queue's metric is the older one");
    assert_eq!(payload.primary_metric_name, "median_tok_s_1_100_after_ttft");
    let missing = export_localmaxxing(&result, &Submission::default());
    assert_eq!(missing, Err(ExportError::Missing { what: "the model's hub id", flag: "--hf-id" }));

    // 128 tokens, as in July 2026: a screening.
    let mut short = measured(3, 50.0);
    short.settings.max_tokens = 128;
    write(&path, short);
    let error = export_localmaxxing(&load_result(&path).unwrap(), &submission()).unwrap_err();
    let ExportError::NotEligible { class, codes } = error else { panic!("{error}") };
    assert_eq!((class.as_str(), codes), ("fresh-response-screening", vec!["max_tokens_must_equal_512".to_owned()]));
}

#[test]
fn a_forged_claim_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu3.json");
    let eligible = |change: &dyn Fn(&mut Value)| {
        write(&path, measured(3, 50.0));
        tamper(&path, change);
        let result = load_result(&path).unwrap();
        assert!(export_localmaxxing(&result, &submission()).is_err() == result.promotion().is_none());
        (result.verify_report(), result.promotion().is_some())
    };
    let (report, promoted) = eligible(&|_| {});
    assert!(report.verified && promoted);
    // A warm row under a claim of promotion.
    let warm = json!(9);
    let (report, promoted) = eligible(&|value| {
        value["rows"][4]["usage"]["prompt_tokens_details"]["cached_tokens"] = warm.clone();
    });
    assert!(!promoted && !report.claim_holds && !report.gates["cached_zero"].passed);
    assert_eq!(report.claimed_promotion_eligible, Some(true));
    assert_eq!(report.disagreements[0].pointer, "/rows/4/cached_tokens");
    // A faster rate than the offsets give, with the summary made to fit.
    let (report, promoted) = eligible(&|value| {
        value["rows"][0]["tok_s_1_100_intervals_after_ttft"] = json!(99.0);
    });
    assert!(!promoted && report.gates["screening"].codes.contains(&"rate_disagrees_with_offsets".to_owned()));
    // The older rate under the name of the primary one is 1 % too high, and found.
    let (report, promoted) = eligible(&|value| {
        for row in value["rows"].as_array_mut().unwrap() {
            row["tok_s_1_100_intervals_after_ttft"] = row["tok_s_1_100_after_ttft"].clone();
        }
    });
    assert!(!promoted && report.disagreements.len() == 14, "{}", report.disagreements.len());
    // A median nobody measured.
    let (report, promoted) = eligible(&|value| value["summary"]["ttft_ms"]["median"] = json!(1.0));
    assert!(!promoted && report.disagreements[0].pointer == "/summary/ttft_ms/median");
    // A text that is not the one its digest names.
    let (_, promoted) = eligible(&|value| value["rows"][0]["text"] = json!("another"));
    assert!(!promoted);
    // A screening that calls itself a promotion.
    let (report, promoted) = eligible(&|value| value["settings"]["max_tokens"] = json!(128));
    assert!(!promoted && !report.claim_holds && report.evidence_class == EvidenceClass::FreshResponseScreening);
    let (_, promoted) = eligible(&|value| value["rows"].as_array_mut().unwrap().truncate(13));
    assert!(!promoted);
}

#[test]
fn a_comparison_of_files_reads_arm_card_and_period_from_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut results = Vec::new();
    for card in 0..4 {
        for period in 1..=2 {
            let candidate = (card % 2 == 0) == (period == 1);
            let mut one = measured(card, if candidate { 55.0 } else { 50.0 });
            one.arm = Some(if candidate {
                b70_manifest::workers::Arm::Candidate
            } else {
                b70_manifest::workers::Arm::Control
            });
            one.period = Some(period);
            one.identity.profile = Some(if candidate { "dflash5" } else { "control" }.to_owned());
            let path = folder.path().join(format!("gpu{card}-{period}.json"));
            write(&path, one);
            results.push(load_result(&path).unwrap());
        }
    }
    let found = compare_files(&results, &CompareOptions::default()).unwrap();
    assert_eq!(found.verdict, ComparisonVerdict::Win, "{:?}", found.reasons);
    assert!(found.crossover && found.groups.len() == 8 && found.per_card.len() == 4);
    let effect = found.effect.as_ref().unwrap();
    assert!((effect.ratio - 1.1).abs() < 1e-6 && effect.t.degrees_of_freedom == 2, "{effect:?}");
    assert_eq!(found.evidence_class, EvidenceClass::PromotionGradeFreshResponse);
    assert!(found.extra["note"].as_str().unwrap().contains("never ranks"));
    // The document is one of its kind, and readable.
    let text = serde_json::to_string(&found).unwrap();
    let read: b70_manifest::calibration::Comparison =
        b70_manifest::document::read_text("comparison.json", &text).unwrap();
    assert_eq!(read.verdict, ComparisonVerdict::Win);
    let html = html_report(&results, Some(&found));
    assert!(html.contains("Comparison: <span class=\"good\">win</span>"));
    // A false figure in one file is enough.
    let path = folder.path().join("gpu0-1.json");
    tamper(&path, |value| value["rows"][0]["ttft_s"] = json!(0.001));
    results[0] = load_result(&path).unwrap();
    let found = compare_files(&results, &CompareOptions::default()).unwrap();
    assert_eq!((found.verdict, found.effect), (ComparisonVerdict::Unqualified, None));
    assert!(found.reasons[0].starts_with("figures_disagree_with_rows"), "{:?}", found.reasons);
}

#[test]
fn a_report_escapes_what_files_and_servers_say_and_loads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut hostile = measured(3, 50.0);
    let attack = "<script>alert(1)</script>\"'&\u{1b}[2J";
    hostile.endpoint.name = attack.to_owned();
    hostile.suite.suite_id = attack.to_owned();
    hostile.identity.command = Some(vec![attack.to_owned()]);
    hostile.rows[0].prompt_id = attack.to_owned();
    hostile.rows[1].finish_reasons = vec![attack.to_owned()];
    hostile.rows[2].error = Some(attack.to_owned());
    write(&folder.path().join("x.json"), hostile);
    std::fs::write(folder.path().join("notes.json"), "{\"mine\": 1}").unwrap();
    let results = load_folder(folder.path()).unwrap();
    let html = html_report(&results, None);
    assert!(!html.contains("<script") && !html.contains('\u{1b}') && html.contains("&lt;script&gt;"));
    for outside in ["http-equiv=\"refresh\"", "src=", "<link", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("prefers-color-scheme:dark") && html.contains("never ranks"));
    assert!(html.matches("<svg").count() >= 4);
    assert!(!html.contains("NaN") && !html.contains("inf"));
    let text = text_report(&results);
    assert!(!text.contains('\u{1b}') && text.contains("never ranks"));
}

/// One row of upstream's calibration of July 2026 in the form of its files.
fn lab_file() -> Value {
    let row: Value = serde_json::from_str(include_str!("data/lab-2026-07-12-card0-row0.json")).unwrap();
    json!({
        "run_identity": {"model": "qwen36-27b", "max_tokens": 128, "seed": 1},
        "realistic_final_gate": {"passed": true},
        "fresh_response_validity": {"valid": true},
        "summary": {"tok_s_1_100_after_ttft": {"count": 1, "median": row["row"]["tok_s_1_100_after_ttft"]}},
        "rows": [row["row"]],
    })
}

#[test]
fn the_labs_older_files_are_read_and_never_promoted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu0-mtp3.json");
    std::fs::write(&path, lab_file().to_string()).unwrap();
    let result = load_result(&path).unwrap();
    assert_eq!(result.name(), "gpu0-mtp3");
    assert!(result.disagreements.is_empty(), "{:?}", result.disagreements);
    assert!(result.promotion().is_none() && result.figures_checked > 5);
    let summary = &result.judged.measured().summary;
    let (interval, legacy) = (
        summary["tok_s_1_100_intervals_after_ttft"].median.unwrap(),
        summary["tok_s_1_100_after_ttft_legacy_inclusive_events"].median.unwrap(),
    );
    assert!((legacy - 54.2390).abs() < 1e-3 && (interval - legacy * 0.99).abs() < 1e-9);
    let text = text_report(std::slice::from_ref(&result));
    assert!(text.contains("gpu0-mtp3") && text.contains("54.24"), "{text}");
    assert!(html_report(&[result], None).contains("a file of upstream's script"));
}

/// Upstream's fixed suite names no classes; by its twelve ids its results have six.
#[test]
fn the_fixed_suites_results_reach_the_class_balanced_rate() {
    let ids = "incident-retrospective release-plan bug-report-synthesis code-review sql-debugging customer-email \
               decision-memo benchmark-analysis architecture-tradeoff performance-hypotheses technical-guide risk-register";
    let balanced = |ids: &str| {
        let mut file = lab_file();
        let row = file["rows"][0].clone();
        let rows: Vec<Value> = ids
            .split_whitespace()
            .enumerate()
            .map(|(index, id)| {
                let mut row = row.clone();
                row.as_object_mut().unwrap().remove("prompt_class");
                (row["prompt_id"], row["prompt_index"]) = (json!(id), json!(index));
                row
            })
            .collect();
        (file["rows"], file["summary"]) = (json!(rows), json!({}));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu0.json");
        std::fs::write(&path, file.to_string()).unwrap();
        let result = load_result(&path).unwrap();
        let measured = result.judged.measured();
        let classes: std::collections::BTreeSet<String> =
            measured.suite.prompts.iter().map(|prompt| prompt.prompt_class.clone()).collect();
        let summary = measured.summary.iter().find(|(name, _)| name.starts_with("class_balanced"));
        (classes.len(), summary.and_then(|(_, summary)| summary.median).is_some())
    };
    assert_eq!(balanced(ids), (6, true));
    // One prompt fewer is another suite, of which nothing is known.
    assert_eq!(balanced(&ids.replace(" risk-register", "")), (1, false));
}

#[test]
fn what_is_no_result_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        load_result(&path).unwrap_err()
    };
    assert!(matches!(load("{"), LoadError::NotJson { .. }));
    assert!(matches!(load("\u{0}\u{1}"), LoadError::NotJson { .. }));
    assert!(matches!(load(r#"{"format": "b70-comparison-v1"}"#), LoadError::NotAResult { .. }));
    assert!(matches!(load(r#"["a prompt"]"#), LoadError::NotAResult { .. }));
    assert!(matches!(load(r#"{"format": "b70-calibration-result-v1"}"#), LoadError::Document(_)));
    assert!(matches!(load_folder(folder.path()), Err(LoadError::Document(_))));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load_folder(folder.path()), Err(LoadError::Empty { .. })));
    assert!(matches!(load_result(&path), Err(LoadError::Io { .. })));
}

/// The independent recomputation: `fixtures/python/bench_referee.py` must agree on every figure, and must see a false one.
#[test]
fn an_independent_script_recomputes_every_figure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu3.json");
    write(&path, measured(3, 50.0));
    let script = b70_testkit::fixture("python/bench_referee.py");
    let judge = || {
        let output = b70_testkit::python().arg(&script).arg(&path).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report["files"][0].clone())
    };
    let (code, report) = judge();
    assert_eq!(code, Some(0), "{report}");
    assert!(report["compared"].as_u64().unwrap() > 14 * 18);
    println!("the independent script agrees on {} figures", report["compared"]);
    tamper(&path, |value| value["rows"][3]["tokens_per_burst"] = json!(7.0));
    let (code, report) = judge();
    assert_eq!((code, &report["disagreements"][0]["pointer"]), (Some(1), &json!("/rows/3/tokens_per_burst")));
}
