//! The real executable against servers that answer out of a script: exit codes, JSON, files, bad input.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::fake::{answer, llama};
use crate::fault_server::Step;
use serde_json::Value;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-bench"));
        command
            .args(arguments)
            .env("B70_LEASE_ROOT", self.path("leases"))
            .env("NO_COLOR", "1")
            .env_remove("B70_API_KEY");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the executable was built")
    }

    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {text}"))
    }
}

#[test]
fn a_calibration_from_plan_to_report() {
    let scratch = Scratch::new();
    let server = llama(|_, _| answer());
    let endpoint = format!("gpu0={},card=0000:03:00.0,arm=control,period=1", server.url());
    let out = scratch.text("out");
    let arguments = ["calibrate", "--endpoint", &endpoint, "--out", &out, "--max-tokens", "110"];
    let plan = scratch.json(&[&arguments[..], &["--dry-run"]].concat(), 0);
    assert_eq!((plan["executed"].as_bool(), plan["allowed"].as_bool()), (Some(false), Some(true)));
    assert_eq!(plan["endpoints"][0]["requests"], 14);
    assert!(!scratch.path("out").exists());
    assert!(server.requests().iter().all(|request| !request.path().contains("completion")));

    let report = scratch.json(&arguments, 0);
    assert_eq!(report["status"], "passed");
    assert_eq!(report["run"]["promotion_eligible"], false);
    // Done once, it is not done over the same files again.
    let again = scratch.json(&arguments, 1);
    assert_eq!(again["error"]["kind"], "blocked");
    assert_eq!(
        scratch.json(&[&arguments[..], &["--dry-run"]].concat(), 1)["allowed"],
        false,
        "a dry run that would be refused ends as the refusal"
    );

    let file = scratch.text("out/gpu0.json");
    let verified = scratch.json(&["verify", &file], 0);
    assert_eq!((verified["verified"].as_bool(), verified["rows"].as_u64()), (Some(true), Some(14)));
    assert_eq!(scratch.json(&["recompute", &file], 0)["file"], file.as_str());
    let gate = scratch.json(&["gate", &file], 1);
    assert!(
        gate["gates"]["realistic_final"]["codes"]
            .as_array()
            .is_some_and(|codes| codes.contains(&"max_tokens_must_equal_512".into()))
    );
    scratch.json(&["gate", &file, "--gate", "screening"], 0);
    scratch.json(&["gate", &file, "--gate", "cached-zero"], 0);

    let html = scratch.text("report.html");
    let shown = scratch.json(&["report", &out, "--html", &html], 0);
    assert_eq!(shown["results"][0]["endpoint"], "gpu0");
    assert!(fs::read_to_string(&html).expect("it was written").contains("<svg"));
    assert_eq!(scratch.json(&["report", &out, "--html", &html], 1)["error"]["kind"], "exists");
    scratch.json(&["report", &out, "--html", &html, "--replace"], 0);
    let text = scratch.run(&["report", &out]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("never ranks"));

    let payload = scratch.text("payload.json");
    let refused = scratch.json(&["export", &file, "--format", "localmaxxing", "--out", &payload, "--hf-id", "a/b"], 1);
    assert_eq!(refused["error"]["kind"], "not-exportable");
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("max_tokens_must_equal_512")));
    assert!(!scratch.path("payload.json").exists());

    // The same file as control and candidate: the arm is read from the file.
    let other = scratch.json(&["compare", "--control", &file, "--candidate", &file], 1);
    assert_eq!(other["error"]["kind"], "other-arm");
}

#[test]
fn one_run_of_two_cards_is_no_comparison() {
    let scratch = Scratch::new();
    let server = llama(|_, _| answer());
    let two = llama(|_, _| answer());
    let out = scratch.text("out");
    let first = format!("a={},card=0000:03:00.0,arm=control,period=1", server.url());
    let second = format!("b={},card=0000:04:00.0,arm=candidate,period=1", two.url());
    let arguments = [
        "calibrate",
        "--endpoint",
        &first,
        "--endpoint",
        &second,
        "--out",
        &out,
        "--max-tokens",
        "110",
        "--model-sha",
        &"ab".repeat(32),
        "--quiet",
    ];
    scratch.json(&arguments, 0);
    let document = scratch.text("comparison.json");
    let compared = scratch.json(
        &[
            "compare",
            "--control",
            &scratch.text("out/a.json"),
            "--candidate",
            &scratch.text("out/b.json"),
            "--out",
            &document,
        ],
        1,
    );
    assert_eq!(compared["verdict"], "unqualified");
    let codes = compared["reason_codes"].to_string();
    for code in ["one_run_never_ranks", "card_lacks_an_arm", "period_missing"] {
        assert!(codes.contains(code), "{codes}");
    }
    assert!(scratch.path("comparison.json").exists());
}

#[test]
fn an_interrupt_ends_with_130_and_a_deadline_with_124() {
    let scratch = Scratch::new();
    let server = llama(|index, _| if index < 2 { answer() } else { vec![Step::Hang] });
    let endpoint = format!("slow={}", server.url());
    let out = scratch.text("out");
    let child = scratch
        .command(&["calibrate", "--endpoint", &endpoint, "--out", &out, "--max-tokens", "110", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the executable was built");
    let taken = || {
        let text = fs::read_to_string(scratch.path("out/slow.json")).ok()?;
        serde_json::from_str::<Value>(&text).ok()?["rows"].as_array().map(Vec::len)
    };
    let begun = std::time::Instant::now();
    while taken().is_none_or(|rows| rows < 2) {
        assert!(begun.elapsed().as_secs() < 60, "two rows were not taken");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let sent =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is part of the system");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stdout));
    let result: Value =
        serde_json::from_slice(&fs::read(scratch.path("out/slow.json")).expect("rows are kept")).expect("JSON");
    assert_eq!(result["status"], "interrupted");
    assert!(result.get("ended_unix").is_none() && result["promotion_eligible"] == false);

    let wedged = llama(|_, _| vec![Step::Hang]);
    let endpoint = format!("wedged={}", wedged.url());
    let report = scratch
        .json(&["calibrate", "--endpoint", &endpoint, "--out", &scratch.text("two"), "--timeout", "1", "--quiet"], 124);
    assert_eq!(report["status"], "deadline-passed");
}

#[test]
fn suites_are_shown_and_checked() {
    let scratch = Scratch::new();
    let shown = scratch.json(&["suite", "show"], 0);
    assert_eq!(
        (shown["suite"]["suite_id"].as_str(), shown["fit_for_promotion"].as_bool()),
        (Some("b70-cold-v1"), Some(true))
    );
    let check = |text: &str, code: i32| {
        fs::write(scratch.path("my.suite.json"), text).expect("a scratch file");
        scratch.json(&["suite", "validate", &scratch.text("my.suite.json")], code)
    };
    let good = check(
        r#"{"suite_id": "mine", "version": 1, "prompts": ["one", {"prompt": "two", "prompt_class": "code"}]}"#,
        0,
    );
    assert_eq!(good["fit_for_promotion"], false);
    let twin = check(r#"["one", "two", "one "]"#, 1);
    assert!(twin["error"]["message"].as_str().is_some_and(|text| text.contains("same text")), "{twin}");
    let unknown = check(r#"{"suite_id": "mine", "version": 1, "prompts": ["one"], "promts": []}"#, 1);
    assert_eq!(unknown["error"]["kind"], "invalid-document");
    check("{", 2);
    scratch.json(&["suite", "validate", &scratch.text("absent.json")], 2);
}

#[test]
fn bad_command_lines_are_usage_errors() {
    let scratch = Scratch::new();
    let out = scratch.text("out");
    for arguments in [
        &["calibrate", "--out", &out][..],
        &["calibrate", "--endpoint", "http://127.0.0.1:1", "--out", &out],
        &["calibrate", "--endpoint", "a=http://127.0.0.1:1,colour=blue", "--out", &out],
        &["calibrate", "--endpoint", "a=https://127.0.0.1:1", "--out", &out],
        &["calibrate", "--endpoint", "a=http://127.0.0.1:1", "--out", &out, "--prompt", "nothing"],
        &["calibrate", "--endpoint", "a=http://127.0.0.1:1", "--out", &out, "--request-extra", "[1]"],
        &["calibrate", "--endpoint", "a=http://127.0.0.1:1", "--out", &out, "--model-sha", "xyz"],
        &["calibrate", "--config", "/nonexistent/workers.json", "--out", &out],
        &["gate", "/nonexistent/x.json"],
        &["compare", "--control", "/nonexistent/x.json"],
        &["report", "/nonexistent"],
    ] {
        let error = scratch.json(arguments, 2);
        assert!(error["error"]["message"].is_string(), "{arguments:?}: {error}");
    }
    assert!(!scratch.path("out").exists());
    fs::create_dir_all(scratch.path("repo/.git")).expect("a scratch folder");
    let error =
        scratch.json(&["calibrate", "--endpoint", "a=http://127.0.0.1:1", "--out", &scratch.text("repo/out")], 2);
    assert_eq!(error["error"]["kind"], "root-in-git");
}

#[test]
fn workers_are_endpoints() {
    let scratch = Scratch::new();
    let lab = include_str!("../../../fixtures/documents/lab/workers.json");
    fs::write(scratch.path("workers.json"), lab).expect("a scratch file");
    let plan = scratch.json(
        &[
            "calibrate",
            "--config",
            &scratch.text("workers.json"),
            "--worker",
            "gpu0-baseline",
            "--out",
            &scratch.text("out"),
            "--dry-run",
        ],
        1,
    );
    let endpoint = &plan["endpoints"][0];
    assert_eq!(
        (endpoint["name"].as_str(), endpoint["url"].as_str()),
        (Some("gpu0-baseline"), Some("http://127.0.0.1:19720"))
    );
    assert!(endpoint["reasons"][0].as_str().is_some_and(|text| text.contains("cannot connect")), "{plan}");
}
