//! The evidence boundary.

use b70_manifest::EvidenceClass;
use b70_manifest::calibration::{CalibrationResult, Measured};
use b70_manifest::gate::{self, Judged};
use serde_json::{Value, json};

/// A calibration that deserves promotion: 12 prompts of 6 classes, 512 tokens each, nothing reused.
fn measured() -> Value {
    let digest = |index: usize| format!("{index:064x}");
    let classes = ["operations", "code", "prose", "analysis", "documentation", "structured-writing"];
    let prompts: Vec<Value> =
        (0..12).map(|i| json!({"id": format!("p{i}"), "prompt_class": classes[i % 6], "sha256": digest(i)})).collect();
    let offsets: Vec<f64> = (0..512).map(|event| 1.0 + f64::from(event) * 0.02).collect();
    let rate = 99.0 / (offsets[99] - offsets[0]);
    let rows: Vec<Value> = (0..12)
        .map(|i| {
            json!({
                "prompt_index": i, "prompt_id": format!("p{i}"), "prompt_class": classes[i % 6],
                "prompt_sha256": digest(i), "chunk_offsets_s": offsets, "finish_reasons": ["length"],
                "usage": {"prompt_tokens_details": {"cached_tokens": 0}}, "timings": {"cache_n": 0},
                "cached_tokens": 0, "completion_tokens": 512, "tok_s_1_100_intervals_after_ttft": rate,
            })
        })
        .collect();
    json!({
        "schema_version": 1, "format": "b70-calibration-result-v1",
        "endpoint": {"name": "gpu0", "url": "http://127.0.0.1:19720", "card": "0000:03:00.0"},
        "arm": "control", "period": 1,
        "suite": {"suite_id": "s", "version": 1, "sha256": digest(99), "prompts": prompts},
        "settings": {"api": "chat", "max_tokens": 512, "metric_window": 100, "temperature": 0.0, "top_p": 1.0,
            "seed": 1, "cache_prompt": false, "repeats": 1, "warm_up_requests": 0, "endpoints_at_once": 1},
        "identity": {"target_model_sha256": digest(1), "binary_sha256": digest(2),
            "build_fingerprint_sha256": digest(3), "command": ["llama-server", "--cache-ram", "0"],
            "environment": {}, "card": {"pci": "0000:03:00.0"}, "workers_at_once": 4},
        "rows": rows, "started_unix": 1,
    })
}

fn judge(document: &Value) -> Judged {
    gate::judge(serde_json::from_value::<Measured>(document.clone()).expect("a measured calibration"))
}

#[test]
fn a_cold_complete_calibration_is_promotion_eligible() {
    let judged = judge(&measured());
    assert!(judged.promotion().is_some(), "{:#?}", judged.gates());
    assert_eq!(judged.evidence_class(), EvidenceClass::PromotionGradeFreshResponse);
    let written = serde_json::to_string(&judged).unwrap();
    let report = b70_manifest::validate::check_text("r.json".as_ref(), &written, None);
    assert!(report.valid, "{:#?}", report.errors);
}

#[test]
fn each_fault_fails_with_its_code() {
    let faults: &[(&str, Value, &str, &str)] = &[
        ("/rows/3/usage/prompt_tokens_details/cached_tokens", json!(3), "cached_zero", "cached_count_not_zero"),
        ("/rows/3/timings/cache_n", json!(1), "cached_zero", "cached_count_not_zero"),
        ("/rows/3/cached_tokens", json!(false), "cached_zero", "cached_count_not_an_integer"),
        ("/rows/3/cached_tokens", json!(0.0), "cached_zero", "cached_count_not_an_integer"),
        ("/rows/3/error", json!("closed"), "screening", "selected_prompt_did_not_run"),
        ("/rows/3/error", json!("closed"), "screening", "row_failed"),
        ("/rows/3/completion_tokens", json!(99), "screening", "completion_tokens_below_window"),
        ("/rows/3/chunk_offsets_s", json!([1.0, 1.1]), "screening", "events_below_window"),
        ("/rows/3/chunk_offsets_s", json!([]), "screening", "offsets_unusable"),
        ("/rows/3/tok_s_1_100_intervals_after_ttft", json!(50.5), "screening", "rate_disagrees_with_offsets"),
        ("/rows/3/tok_s_1_100_intervals_after_ttft", json!(null), "screening", "window_metric_missing"),
        // Events that all came at once, and a window without an interval, give no rate to agree with.
        ("/rows/3/chunk_offsets_s", json!(vec![1.0; 512]), "screening", "rate_disagrees_with_offsets"),
        ("/settings/metric_window", json!(1), "screening", "rate_disagrees_with_offsets"),
        ("/rows/3/prompt_sha256", json!("0".repeat(64)), "screening", "prompt_hashes_not_distinct"),
        ("/suite/selected", json!(["p0"]), "realistic_final", "prompt_subset_selected"),
        ("/settings/max_tokens", json!(128), "realistic_final", "max_tokens_must_equal_512"),
        ("/settings/metric_window", json!(50), "realistic_final", "metric_window_must_equal_100_events"),
        ("/settings/ignore_eos", json!(true), "realistic_final", "ignore_eos_must_be_disabled"),
        ("/settings/request_extra", json!({"cache_prompt": true}), "realistic_final", "prompt_cache_not_disabled"),
        ("/settings/request_extra", json!({"prompt": "x"}), "realistic_final", "fixed_suite_incomplete"),
        ("/settings/request_extra", json!({"messages": []}), "realistic_final", "fixed_suite_incomplete"),
        ("/settings/cache_prompt", json!(null), "realistic_final", "prompt_cache_not_disabled"),
        ("/settings/warm_up_requests", json!(1), "realistic_final", "warm_up_was_sent"),
        ("/settings/repeats", json!(2), "realistic_final", "prompt_asked_more_than_once"),
        ("/settings/temperature", json!(0.7), "realistic_final", "sampling_not_greedy"),
        ("/suite/prompts", json!([]), "realistic_final", "fixed_suite_has_fewer_than_12_prompts"),
        ("/suite/prompts", json!([]), "realistic_final", "fixed_suite_lacks_varied_prompt_classes"),
        ("/suite/prompts/0/id", json!("other"), "realistic_final", "fixed_suite_incomplete"),
        ("/rows", json!([]), "realistic_final", "fresh_response_screening_failed"),
        ("/identity/binary_sha256", json!(null), "identity", "binary_unidentified"),
        ("/identity/command", json!(null), "realistic_final", "identity_gate_failed"),
        ("/identity/command", json!(["s", "--spec-type", "draft-simple"]), "identity", "draft_model_unidentified"),
        ("/identity/environment", json!({"SYCL_CACHE_PERSISTENT": "1"}), "identity", "environment_forbidden"),
        ("/endpoint/card", json!("0000:04:00.0"), "identity", "cards_differ"),
    ];
    for (pointer, value, name, code) in faults {
        let mut document = measured();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[key] = value.clone();
        let judged = judge(&document);
        let codes = &judged.gates()[*name].codes;
        assert!(codes.iter().any(|found| found == code), "{pointer} = {value}: {name} gave {codes:?}");
        assert!(judged.promotion().is_none(), "{pointer} = {value} must not be promotion-eligible");
    }
}

#[test]
fn a_count_no_response_reports_fails() {
    let mut document = measured();
    let row = document["rows"][5].as_object_mut().unwrap();
    for field in ["usage", "timings", "cached_tokens"] {
        row.shift_remove(field);
    }
    assert_eq!(judge(&document).gates()["cached_zero"].codes, ["cached_count_missing"]);
}

#[test]
fn a_claim_in_a_file_means_nothing() {
    let mut document = measured();
    document["rows"][0]["cached_tokens"] = json!(7);
    document["promotion_eligible"] = json!(true);
    document["evidence_class"] = json!("promotion-grade-fresh-response");
    document["gates"] = json!({"screening": {"passed": true, "codes": []}});
    let report = b70_manifest::validate::check_text("r.json".as_ref(), &document.to_string(), None);
    assert!(report.errors.iter().any(|e| e.code == "gate" && e.pointer == "/promotion_eligible"), "{report:#?}");
    let loaded: CalibrationResult = serde_json::from_value(document.clone()).unwrap();
    let (judged, claim) = Judged::again(loaded);
    assert!(claim.promotion_eligible);
    assert_eq!(serde_json::to_value(&judged).unwrap()["promotion_eligible"], json!(false));

    // Nor can the fields be smuggled in as unknown ones.
    let smuggled: Measured = serde_json::from_value(document).unwrap();
    assert!(smuggled.extra.contains_key("promotion_eligible"));
    let written = serde_json::to_string(&gate::judge(smuggled)).unwrap();
    assert_eq!(written.matches("promotion_eligible").count(), 1);
    assert!(written.contains("\"promotion_eligible\":false"));
}

#[test]
fn a_crossover_needs_both_arms_on_every_card_in_both_orders() {
    let with = |card: &str, arm: &str, period: u64| {
        let mut document = measured();
        document["endpoint"]["card"] = json!(card);
        document["identity"]["card"]["pci"] = json!(card);
        document["arm"] = json!(arm);
        document["period"] = json!(period);
        serde_json::from_value::<Measured>(document).unwrap()
    };
    let (a, b) = ("0000:03:00.0", "0000:04:00.0");
    let whole = [with(a, "control", 1), with(a, "candidate", 2), with(b, "candidate", 1), with(b, "control", 2)];
    let all: Vec<&Measured> = whole.iter().collect();
    assert_eq!(gate::crossover(&all).codes, Vec::<String>::new());
    assert_eq!(gate::crossover(&all[..3]).codes, ["card_lacks_an_arm"]);
    assert_eq!(gate::crossover(&all[..2]).codes, ["fewer_than_two_cards", "one_sequence_only"]);
    let twice = with(a, "control", 2);
    assert!(gate::crossover(&[all[0], all[1], &twice]).codes.contains(&"period_repeated".to_owned()));
}
