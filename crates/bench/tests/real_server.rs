//! Two real llama-servers on loopback with a real model: calibration, gates, HTML, an A/A comparison, a spoiling proxy, a
//! prompt cache left on, a context too small.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-bench --test real_server -- --include-ignored`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; a skip is said")]

#[path = "support/fake.rs"]
mod fake;
#[path = "../../client/tests/support/mod.rs"]
mod fault_server;
#[path = "support/proxy.rs"]
mod proxy;

use std::time::Duration;

use std::sync::atomic::AtomicBool;

use b70_bench::{
    CompareOptions, ComparisonVerdict, RunStatus, Target, compare_files, error_code, html_report, load_folder,
    load_result, recipe_sha256, text_report,
};
use b70_client::Deadlines;
use b70_manifest::EvidenceClass;
use b70_manifest::workers::Arm;
use b70_testkit::LlamaServer;
use fake::{calibration, target};

/// Tokens of an answer: enough for the window.
const TOKENS: u32 = 101;

fn patient(calibration: &mut b70_bench::Calibration, prompts: &[usize]) {
    calibration.options.max_tokens = TOKENS;
    calibration.options.deadlines = Deadlines::within(Duration::from_secs(300));
    calibration.options.selected =
        Some(prompts.iter().map(|index| calibration.suite.prompts[*index].id.clone()).collect());
    for target in &mut calibration.targets {
        target.inputs.hash_model = true;
    }
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn two_real_endpoints_and_an_a_a_comparison() {
    let one_server = LlamaServer::start(1024);
    let first = &one_server.url;
    let two_server = LlamaServer::start(1024);
    let second = &two_server.url;
    let folder = tempfile::tempdir().unwrap();
    let mut results = Vec::new();
    // ABBA on one card, BAAB on the other, with one and the same configuration.
    for period in 1..=4 {
        let arm = |card: usize| {
            let early = matches!(period, 1 | 4);
            Some(if early == (card == 3) { Arm::Control } else { Arm::Candidate })
        };
        let targets = [("one", &first, 3), ("two", &second, 4)].map(|(name, url, card)| Target {
            arm: arm(card),
            period: Some(period),
            ..target(name, url, card)
        });
        let mut both = calibration(targets.to_vec(), &folder.path().join(format!("period{period}")));
        patient(&mut both, &[2, 5]);
        let report = both.execute(&AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(report.status, RunStatus::Passed, "{:?}", report.run.endpoints);
        for endpoint in &report.run.endpoints {
            assert_eq!(endpoint.evidence_class, EvidenceClass::FreshResponseScreening);
            let last = &endpoint.gates["realistic_final"].codes;
            for code in ["prompt_subset_selected", "max_tokens_must_equal_512", "identity_gate_failed"] {
                assert!(last.iter().any(|found| found == code), "{last:?}");
            }
        }
        results.extend(load_folder(&both.out).unwrap());
    }
    println!("{}", text_report(&results[..2]));
    for result in &results {
        assert!(result.verify_report().verified, "{:?}", result.disagreements);
        let identity = &result.judged.measured().identity;
        let command = identity.command.as_ref().unwrap();
        assert!(command.iter().any(|word| word == "--cache-ram") && identity.target_model_sha256.is_some());
        assert_eq!(result.judged.gates()["identity"].codes, ["build_unidentified", "card_unidentified"]);
    }
    let recipes: std::collections::BTreeSet<_> =
        results.iter().map(|result| recipe_sha256(result.judged.measured()).unwrap()).collect();
    assert_eq!(recipes.len(), 1, "port and name make no other recipe");
    let compared = compare_files(&results, &CompareOptions::default()).unwrap();
    println!("A/A: {} because {:?}", compared.verdict, compared.reasons);
    assert_ne!(compared.verdict, ComparisonVerdict::Win, "{:?}", compared.reasons);
    assert_ne!(compared.verdict, ComparisonVerdict::Unqualified, "{:?}", compared.reasons);
    assert!(compared.reasons.iter().any(|reason| reason.starts_with("arms_are_equal")));
    let html = html_report(&results, Some(&compared));
    assert!(html.matches("<svg").count() >= 5 && html.contains("Comparison: "));
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn a_prompt_cache_left_on_is_caught() {
    let server = LlamaServer::start(1024);
    let url = &server.url;
    let folder = tempfile::tempdir().unwrap();
    let mut one = calibration(vec![target("warm", url, 3)], &folder.path().join("out"));
    patient(&mut one, &[0, 1]);
    // Every prompt begins with the same words of the chat's template and of the system message.
    one.suite.system_prompt = Some("You answer in plain words, at length, and without lists.".to_owned());
    one.options.request_extra.insert("cache_prompt".to_owned(), true.into());
    let report = one.execute(&AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(report.status, RunStatus::Failed);
    let result = load_result(&one.out.join("warm.json")).unwrap();
    let gates = result.judged.gates();
    assert!(gates["cached_zero"].codes.iter().any(|code| code == "cached_count_not_zero"), "{gates:?}");
    assert!(gates["realistic_final"].codes.iter().any(|code| code == "prompt_cache_not_disabled"));
    println!("reused on the second prompt: {:?}", result.judged.measured().rows[1].cached_tokens);
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn a_context_too_small_is_caught_before_and_during() {
    let server = LlamaServer::start(256);
    let url = &server.url;
    let folder = tempfile::tempdir().unwrap();
    let mut one = calibration(vec![target("small", url, 3)], &folder.path().join("out"));
    patient(&mut one, &[2]);
    one.options.max_tokens = 512;
    let plan = one.plan(&AtomicBool::new(false)).unwrap();
    assert!(!plan.allowed && plan.endpoints[0].reasons[0].contains("larger -c"), "{plan:?}");
    // A prompt that fits by the estimate and not in truth.
    let words = "seven ".repeat(240);
    one.suite = b70_bench::Suite::from_json(serde_json::json!([words]).to_string().as_bytes(), "long").unwrap();
    one.options.selected = None;
    one.options.max_tokens = 60;
    let report = one.execute(&AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(report.status, RunStatus::Failed);
    let result = load_result(&one.out.join("small.json")).unwrap();
    let code = error_code(&result.judged.measured().rows[0]);
    assert!(
        matches!(code, Some("context_exceeded" | "context_too_small")),
        "{:?}",
        result.judged.measured().rows[0].error
    );
}

#[test]
#[ignore = "needs a llama-server and a model: cargo xtask test --all"]
fn the_proxy_before_a_real_server() {
    let server = LlamaServer::start(1024);
    let url = &server.url;
    let count = proxy::classify_all(url, TOKENS);
    println!(
        "{count} of {} faults and controls classified as expected, before a real llama-server",
        proxy::FAULTS.len()
    );
}
