//! The runner against servers that answer out of a script: what is written, what blocks, what is kept when something ends
//! early.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "support/fake.rs"]
mod fake;
#[path = "../../client/tests/support/mod.rs"]
mod fault_server;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use b70_bench::{
    CalibrateError, Calibration, CalibrationEvent, CalibrationReport, RunStatus, error_code, load_folder, load_result,
};
use b70_client::Api;
use b70_manifest::EvidenceClass;
use b70_manifest::calibration::CalibrationRun;
use b70_procguard::{LeaseKind, LeaseOwner, LeaseRoot};
use fake::{answer, calibration, llama, native_answer, target, with_props};
use fault_server::{FaultServer, Step, json_response, loading};

fn run(calibration: &Calibration) -> CalibrationReport {
    calibration.execute(&AtomicBool::new(false), &mut |_| {}).unwrap()
}

#[test]
fn two_endpoints_at_once_and_every_file_can_be_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (llama(|_, _| answer()), llama(|_, _| answer()));
    let mut both =
        calibration(vec![target("one", &one.url(), 3), target("two", &two.url(), 4)], &folder.path().join("made/out"));
    both.options.request_extra.insert("custom".to_owned(), 7.into());
    let plan = both.plan(&AtomicBool::new(false)).unwrap();
    assert!(plan.allowed && !plan.executed, "{plan:?}");
    assert!(!both.out.exists(), "a plan writes nothing");
    assert!(one.requests().iter().all(|request| !request.path().contains("completion")), "a plan generates nothing");

    let mut rows = AtomicUsize::new(0);
    let report = both
        .execute(&AtomicBool::new(false), &mut |event| {
            if let CalibrationEvent::Row { .. } = event {
                rows.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
    assert_eq!((report.status, *rows.get_mut()), (RunStatus::Passed, 28));
    assert_eq!(report.run.evidence_class, EvidenceClass::FreshResponseScreening);
    assert_eq!((report.run.settings.endpoints_at_once, report.run.extra["status"].as_str()), (2, Some("passed")));
    assert_eq!(report.run.extra["output_variants"]["equal"], 14);
    let run: CalibrationRun = b70_manifest::document::read(&both.out.join("result.json")).unwrap();
    assert_eq!(run.endpoints.len(), 2, "the run's document is one of its kind");
    let results = load_folder(&both.out).unwrap();
    assert_eq!(results.len(), 2);
    for (result, endpoint) in results.iter().zip(&report.run.endpoints) {
        let verified = result.verify_report();
        assert!(verified.verified && verified.finished, "{:?}", verified.disagreements);
        assert!(verified.figures_checked > 14 * 15, "{}", verified.figures_checked);
        assert_eq!(Some(result.sha256), endpoint.sha256);
        assert!(verified.gates["screening"].passed && !verified.gates["realistic_final"].passed);
        assert!(!verified.promotion_eligible);
        let identity = &result.judged.measured().identity;
        assert!(identity.command.is_some() && identity.binary_sha256.is_some(), "the listener is this test's process");
        assert!(identity.workers_at_once.is_some_and(|count| count >= 2));
    }
    // One prompt each, in the suite's order, never reusing, on a request id of its own.
    let sent: Vec<_> = one.requests().into_iter().filter(|request| request.path() == "/v1/chat/completions").collect();
    assert_eq!(sent.len(), 14);
    for (request, prompt) in sent.iter().zip(&both.suite.prompts) {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body["messages"][0]["content"], prompt.prompt);
        assert_eq!(
            (&body["cache_prompt"], &body["temperature"], &body["custom"]),
            (&false.into(), &0.into(), &7.into())
        );
        assert!(request.head.contains(&format!("bench-b70-cold-v1-{:02}", 0)) || request.head.contains(&prompt.id));
    }
    // Nothing is ever overwritten.
    let before = std::fs::read(both.out.join("one.json")).unwrap();
    assert!(matches!(both.execute(&AtomicBool::new(false), &mut |_| {}), Err(CalibrateError::Blocked { .. })));
    assert_eq!(std::fs::read(both.out.join("one.json")).unwrap(), before);
    let left: Vec<_> = std::fs::read_dir(&both.out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn a_worker_that_dies_after_row_seven_keeps_its_rows_and_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let dying = llama(|index, _| if index < 7 { answer() } else { answer().into_iter().take(2).collect() });
    let sound = llama(|_, _| answer());
    let out = folder.path().join("out");
    let report = run(&calibration(vec![target("dying", &dying.url(), 3), target("sound", &sound.url(), 4)], &out));
    assert_eq!(report.status, RunStatus::Failed);
    assert!(report.run.endpoints[0].error.as_ref().unwrap().contains("row 8 of 14"), "{:?}", report.run.endpoints[0]);
    assert_eq!(report.run.endpoints[1].error, None);
    let dying = load_result(&out.join("dying.json")).unwrap();
    let rows = &dying.judged.measured().rows;
    assert_eq!((rows.len(), error_code(&rows[6]), error_code(&rows[7])), (8, None, Some("disconnected")));
    assert!(rows[7].chunk_offsets_s.len() >= 10, "what had arrived is kept");
    assert_eq!(dying.judged.evidence_class(), EvidenceClass::InvalidOrIncomplete);
    assert_eq!(dying.judged.measured().extra["status"], "failed");
    assert!(dying.verify_report().verified);
    assert_eq!(load_result(&out.join("sound.json")).unwrap().judged.measured().rows.len(), 14);
}

#[test]
fn an_interruption_leaves_the_rows_taken_in_an_unfinished_document() {
    let folder = tempfile::tempdir().unwrap();
    let server = llama(|index, _| if index < 3 { answer() } else { vec![Step::Hang] });
    let waiting = llama(|_, _| answer());
    let cancel = AtomicBool::new(false);
    let mut both = calibration(
        vec![target("slow", &server.url(), 3), target("later", &waiting.url(), 4)],
        &folder.path().join("out"),
    );
    both.options.sequential = true;
    let report = both
        .execute(&cancel, &mut |event| {
            if let CalibrationEvent::Row { taken: 3, .. } = event {
                cancel.store(true, Ordering::SeqCst);
            }
        })
        .unwrap();
    assert_eq!(report.status, RunStatus::Interrupted);
    assert_eq!((report.run.ended_unix, report.run.settings.endpoints_at_once), (None, 1));
    let slow = load_result(&both.out.join("slow.json")).unwrap();
    let complete = slow.judged.measured().rows.iter().filter(|row| row.error.is_none()).count();
    assert_eq!((complete, slow.is_finished()), (3, false));
    assert_eq!(slow.judged.measured().extra["status"], "interrupted");
    let later = load_result(&both.out.join("later.json")).unwrap();
    assert_eq!((later.judged.measured().rows.len(), later.is_finished()), (0, false));
    assert!(waiting.requests().iter().all(|request| !request.path().contains("completion")));
}

#[test]
fn a_deadline_ends_a_wedged_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = llama(|index, _| if index < 1 { answer() } else { vec![Step::Hang] });
    let mut one = calibration(vec![target("wedged", &server.url(), 3)], &folder.path().join("out"));
    one.options.total = Some(Duration::from_secs(2));
    let report = run(&one);
    assert_eq!(report.status, RunStatus::DeadlinePassed);
    let result = load_result(&one.out.join("wedged.json")).unwrap();
    assert_eq!(result.judged.measured().extra["status"], "deadline-passed");
    assert_eq!(error_code(result.judged.measured().rows.last().unwrap()), Some("cancelled"));
}

#[test]
fn the_three_apis() {
    let folder = tempfile::tempdir().unwrap();
    for (api, path) in [(Api::Completions, "/v1/completions"), (Api::Native, "/completion")] {
        let server = llama(move |_, _| if api == Api::Native { native_answer() } else { answer() });
        let mut one = calibration(vec![target("one", &server.url(), 3)], &folder.path().join(path.replace('/', "_")));
        one.options.api = api;
        one.options.selected = Some(vec![one.suite.prompts[2].id.clone(), one.suite.prompts[1].id.clone()]);
        let report = run(&one);
        let result = load_result(&one.out.join("one.json")).unwrap();
        let rows = &result.judged.measured().rows;
        assert_eq!(rows.len(), 2);
        assert!(server.requests().iter().any(|request| request.path() == path));
        if api == Api::Completions {
            assert_eq!(report.status, RunStatus::Passed);
            assert!(server.requests().iter().any(|request| request.body.contains("\"prompt\":")));
            continue;
        }
        // Native usage has no cached count; the timings do.
        assert_eq!(report.status, RunStatus::Passed, "{:?}", report.run.endpoints[0].gates);
        assert_eq!(rows[0].token_ids.as_ref().unwrap().len(), fake::TOKENS as usize);
        let sent = server.requests();
        assert!(
            sent.iter().filter(|request| request.path() == path).all(|request| request.body.contains("<user>rendered"))
        );
        assert_eq!(sent.iter().filter(|request| request.path() == "/apply-template").count(), 2);
        let gates = result.judged.gates();
        assert!(gates["realistic_final"].codes.iter().any(|code| code == "prompt_subset_selected"));
    }
}

#[test]
fn what_blocks_is_said_before_anything_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = |calibration: &Calibration| {
        let plan = calibration.plan(&AtomicBool::new(false)).unwrap();
        assert!(!plan.allowed && !calibration.out.exists(), "{plan:?}");
        let Err(CalibrateError::Blocked { .. }) = calibration.execute(&AtomicBool::new(false), &mut |_| {}) else {
            panic!("a blocked plan is not carried out")
        };
        format!("{:?} {:?}", plan.reasons, plan.endpoints[0].reasons)
    };
    let out = folder.path().join("out");
    let other = FaultServer::always(vec![Step::Send(
        b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"data\":[]}".to_vec(),
    )]);
    let mut one = calibration(vec![target("one", &other.url(), 3)], &out);
    assert!(blocked(&one).contains("does not name itself llama.cpp"));
    one.options.any_server = true;
    assert!(one.plan(&AtomicBool::new(false)).unwrap().allowed);

    let small =
        with_props(r#"{"model_path":"/m","total_slots":1,"default_generation_settings":{"n_ctx":128}}"#, |_, _| {
            answer()
        });
    assert!(blocked(&calibration(vec![target("one", &small.url(), 3)], &out)).contains("larger -c"));

    let busy = FaultServer::start(|index, request| match (index, request.path()) {
        (0..=5, _) => vec![Step::Send(loading())],
        (_, "/props") => vec![Step::Send(json_response(fake::PROPS))],
        (_, "/v1/models") => vec![Step::Send(json_response(fake::MODELS))],
        _ => vec![Step::Send(json_response("{}"))],
    });
    let mut one = calibration(vec![target("one", &busy.url(), 3)], &out);
    assert!(blocked(&one).contains("still loading"));
    one.options.wait = Duration::from_secs(20);
    assert!(one.plan(&AtomicBool::new(false)).unwrap().allowed, "it is waited for");

    let nobody = calibration(vec![target("one", "http://127.0.0.1:9", 3)], &out);
    assert!(blocked(&nobody).contains("cannot connect"));
}

#[test]
fn one_measures_on_a_card_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = llama(|_, _| answer());
    let leases = folder.path().join("leases");
    let root = LeaseRoot::open(&leases).unwrap();
    let owner = LeaseOwner::this_process("another benchmark").unwrap();
    let card: b70_procguard::PciAddress = "0000:03:00.0".parse().unwrap();
    let held = root.acquire(card, LeaseKind::Measuring, &owner, Duration::ZERO).unwrap();
    let mut one = calibration(vec![target("one", &server.url(), 3)], &folder.path().join("out"));
    one.lease_root = Some(leases);
    one.options.selected = Some(vec![one.suite.prompts[0].id.clone()]);
    let plan = one.plan(&AtomicBool::new(false)).unwrap();
    assert!(plan.endpoints[0].reasons[0].contains("another benchmark"), "{plan:?}");
    drop(held);
    assert_eq!(run(&one).status, RunStatus::Passed);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let check = |change: fn(&mut Calibration)| {
        let mut one =
            calibration(vec![target("one", "http://127.0.0.1:9", 3)], std::path::Path::new("/nonexistent/out"));
        change(&mut one);
        assert!(matches!(one.plan(&AtomicBool::new(false)), Err(CalibrateError::Invalid { .. })));
    };
    check(|one| one.targets.clear());
    check(|one| one.targets.push(target("two", "http://127.0.0.1:9", 4)));
    check(|one| one.targets.push(target("one", "http://127.0.0.1:10", 4)));
    check(|one| one.targets.push(target("two", "http://127.0.0.1:10", 3)));
    check(|one| one.targets[0].name = "../x".to_owned());
    check(|one| one.targets[0].name = "result".to_owned());
    check(|one| one.targets[0].url = "ftp://x".to_owned());
    check(|one| one.targets[0].period = Some(0));
    check(|one| one.options.window = 1);
    check(|one| one.options.selected = Some(vec!["nothing".to_owned()]));
    check(|one| one.options.selected = Some(Vec::new()));
}
