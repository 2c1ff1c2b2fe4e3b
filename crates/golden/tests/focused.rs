//! The focused runner against a small build of its own: a real program with a real shared library, compiled here.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use b70_golden::{
    CardChoice, FixtureOptions, FocusedEvent, FocusedReport, FocusedRequest, GoldenError, SetParameters, focused,
    prepare,
};
use b70_manifest::golden::FocusedStatus;
use b70_testkit::run;

struct Build {
    root: tempfile::TempDir,
}

impl Build {
    fn new() -> Self {
        let build = Self { root: tempfile::tempdir().expect("a scratch folder") };
        fs::create_dir_all(build.path("source/build/bin")).expect("a scratch folder");
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/backend_ops.c");
        fs::copy(program, build.path("source/backend_ops.c")).expect("the source");
        fs::write(build.path("source/cases.c"), "int cases(void) { return 3; }\n").expect("the source");
        let home = build.path("source").canonicalize().expect("the source");
        let cache = format!(
            "CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\nCMAKE_CXX_COMPILER_VERSION:STRING=1.0\n\
             CMAKE_HOME_DIRECTORY:INTERNAL={}\n",
            home.display()
        );
        fs::write(build.path("source/build/CMakeCache.txt"), cache).expect("the cache");
        build.compile();
        let parameters = SetParameters { k: 32, n: 2, widths: vec![1], ..SetParameters::default() };
        prepare(&build.artifacts(), &parameters, &FixtureOptions::default()).expect("a set");
        build
    }

    fn compile(&self) {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        assert!(
            Command::new(&compiler).arg("--version").output().is_ok(),
            "this test needs a C compiler: install one (Debian, Ubuntu: apt-get install gcc) or name it in CC"
        );
        let bin = self.path("source/build/bin");
        let library = bin.join("libggml-cases.so");
        run(Command::new(&compiler)
            .args(["-shared", "-fPIC"])
            .arg(self.path("source/cases.c"))
            .arg("-o")
            .arg(&library));
        run(Command::new(&compiler)
            .arg(self.path("source/backend_ops.c"))
            .arg(&library)
            .arg("-Wl,-rpath,$ORIGIN")
            .arg("-o")
            .arg(bin.join("test-backend-ops")));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn artifacts(&self) -> PathBuf {
        self.path("artifacts")
    }

    fn request<'a>(ops: &[&str], paths: &'a (PathBuf, PathBuf), cancel: &'a AtomicBool) -> FocusedRequest<'a> {
        FocusedRequest {
            artifact_root: &paths.0,
            build: &paths.1,
            runtime: None,
            binary: None,
            card: CardChoice::NoGpu,
            backend: Some("CPU".to_owned()),
            tests: ops.iter().map(|op| (*op).to_owned()).collect(),
            inherited: Vec::new(),
            overrides: Vec::new(),
            timeout: Duration::from_secs(60),
            reuse_pass: false,
            lease_root: Path::new("/nonexistent"),
            wait: Duration::ZERO,
            cancel,
        }
    }

    fn run_with(
        &self,
        ops: &[&str],
        change: impl FnOnce(&mut FocusedRequest<'_>),
    ) -> Result<FocusedReport, GoldenError> {
        let paths = (self.artifacts(), self.path("source/build"));
        let cancel = AtomicBool::new(false);
        let mut request = Self::request(ops, &paths, &cancel);
        change(&mut request);
        focused(&request, &mut |_| {})
    }

    fn run(&self, ops: &[&str]) -> FocusedReport {
        self.run_with(ops, |_| {}).expect("the run can start")
    }

    fn reuse(&self, ops: &[&str]) -> FocusedReport {
        self.run_with(ops, |request| request.reuse_pass = true).expect("the run can start")
    }
}

fn reason(report: &FocusedReport) -> String {
    let reason = report.document.tests[0].extra.get("reason").and_then(|r| r.as_str());
    reason.unwrap_or_default().to_owned()
}

/// Whether a process of that number runs (a zombie does not).
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

fn helper_of(report: &FocusedReport) -> String {
    let log = fs::read_to_string(&report.document.tests[0].log).expect("a log");
    log.lines().find_map(|line| line.strip_prefix("helper ")).expect("its helper").to_owned()
}

#[test]
fn a_pass_is_counted_streamed_and_logged() {
    let build = Build::new();
    let mut streamed = Vec::new();
    let mut events = Vec::new();
    let paths = (build.artifacts(), build.path("source/build"));
    let cancel = AtomicBool::new(false);
    let request = Build::request(&["ONE", "TWO"], &paths, &cancel);
    let report = focused(&request, &mut |event| match event {
        FocusedEvent::Begins(op, _) => events.push(format!("begin {op}")),
        FocusedEvent::Output(bytes) => streamed.extend_from_slice(bytes),
        FocusedEvent::Ended(test) => events.push(format!("end {} {}/{}", test.op, test.passed, test.executed)),
    })
    .expect("the run can start");
    assert_eq!(report.document.status, FocusedStatus::Passed, "{report:?}");
    assert_eq!(report.not_reusable_because, Vec::<String>::new());
    assert_eq!(events, ["begin ONE", "end ONE 3/3", "begin TWO", "end TWO 3/3"]);
    let logs: Vec<u8> = report.document.tests.iter().flat_map(|t| fs::read(&t.log).expect("a log")).collect();
    assert_eq!(logs, streamed);
    assert!(String::from_utf8_lossy(&logs).contains("a line of the other stream"));
    assert_eq!(report.document.tests[0].extra["not_supported"], 1);
    let text = fs::read_to_string(&report.result).expect("the published result");
    let checked = b70_manifest::document::read_text::<b70_manifest::golden::FocusedResult>("result.json", &text);
    assert_eq!(checked.expect("a valid document"), report.document);
}

#[test]
fn every_way_not_to_pass_says_why() {
    let build = Build::new();
    for (op, why) in [
        ("FAILS", "it ended with exit code 1"),
        ("LIES", "1 of 3 executed tests failed"),
        ("CODE", "it ended with exit code 3"),
        ("CRASH", "it crashed: signal 11"),
        ("SILENT", "it printed nothing"),
        ("NOCOUNT", "it did not say how many tests"),
        ("NONE", "no test was executed (1 not supported by the backend); this build may have no test \"NONE\""),
        ("SKIPPED", "no test was executed: every device was skipped; this build may have no backend \"CPU\""),
    ] {
        let report = build.run(&[op]);
        assert_eq!(report.document.status, FocusedStatus::Failed, "{op}");
        assert!(reason(&report).starts_with(why), "{op}: {}", reason(&report));
        assert!(!report.reusable);
        let reused = build.reuse(&[op]);
        assert_eq!(reused.document.status, FocusedStatus::Failed, "{op} is never reused");
    }
    // One bad test of two fails the run, and the good one is still run.
    let report = build.run(&["NONE", "GOOD"]);
    assert_eq!((report.document.status, report.document.tests[1].passed), (FocusedStatus::Failed, 3));
}

#[test]
fn a_hanging_test_ends_with_all_that_it_started() {
    let build = Build::new();
    let report =
        build.run_with(&["HANG"], |request| request.timeout = Duration::from_millis(300)).expect("the run can start");
    assert_eq!(report.document.status, FocusedStatus::Failed);
    assert_eq!(reason(&report), "it did not end within 0.3 s and was killed");
    assert!(!runs(&helper_of(&report)));
}

#[test]
fn what_a_test_leaves_behind_is_ended() {
    let build = Build::new();
    let report = build.run(&["LEAVES"]);
    assert_eq!(report.document.status, FocusedStatus::Passed, "{report:?}");
    assert!(!runs(&helper_of(&report)));
}

#[test]
fn an_interrupt_ends_the_run() {
    let build = Build::new();
    let paths = (build.artifacts(), build.path("source/build"));
    let cancel = AtomicBool::new(false);
    let request = Build::request(&["HANG"], &paths, &cancel);
    let mut helper = String::new();
    let error = focused(&request, &mut |event| {
        if let FocusedEvent::Output(bytes) = event {
            helper.push_str(&String::from_utf8_lossy(bytes));
            if helper.contains("helper") && helper.ends_with('\n') {
                cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
    })
    .expect_err("interrupted");
    assert!(matches!(error, GoldenError::Interrupted), "{error}");
    let pid = helper.lines().find_map(|line| line.strip_prefix("helper ")).expect("its helper");
    assert!(!runs(pid));
}

#[test]
fn a_pass_is_reused_for_exactly_its_key() {
    let build = Build::new();
    let first = build.reuse(&["ONE"]);
    assert_eq!(first.document.status, FocusedStatus::Passed, "{first:?}");
    assert!(first.document.not_reused_because[0].starts_with("no pass is recorded"), "{first:?}");
    let again = build.reuse(&["ONE"]);
    assert_eq!(again.document.status, FocusedStatus::ReusedPass);
    assert!(again.document.not_reused_because.is_empty(), "{again:?}");
    assert_eq!((again.document.run_key, &again.result), (first.document.run_key, &first.result));
    // An ordinary call always executes.
    let ordinary = build.run(&["ONE"]);
    assert_eq!(ordinary.document.status, FocusedStatus::Passed);
    assert_ne!(ordinary.result, first.result);

    let refused = |report: &FocusedReport, part: &str| {
        assert_eq!(report.document.status, FocusedStatus::Passed, "it ran instead: {report:?}");
        let why = &report.document.not_reused_because;
        assert!(why.iter().any(|w| w.contains(part)), "{part}: {why:?}");
    };
    refused(&build.reuse(&["ONE", "TWO"]), "/run/tests");
    let variable = ("GGML_TEST".to_owned(), "1".to_owned());
    let with = build.run_with(&["ONE"], |request| {
        request.reuse_pass = true;
        request.inherited = vec![variable.clone(), ("HOME".to_owned(), "/elsewhere".to_owned())];
    });
    refused(&with.expect("the run can start"), "/run/environment/GGML_TEST was not there, now it is 1");
    let irrelevant = build.run_with(&["ONE"], |request| {
        request.reuse_pass = true;
        request.inherited = vec![("HOME".to_owned(), "/elsewhere".to_owned())];
    });
    assert_eq!(irrelevant.expect("the run can start").document.status, FocusedStatus::ReusedPass);
    let explicit = build.run_with(&["ENV"], |request| request.overrides = vec![variable]).expect("the run can start");
    assert!(fs::read_to_string(&explicit.document.tests[0].log).expect("a log").contains("env 1"));
    let backend = build.run_with(&["ONE"], |request| {
        request.reuse_pass = true;
        request.backend = None;
    });
    refused(&backend.expect("the run can start"), "/run/backend");
}

#[test]
fn one_byte_of_a_library_or_of_a_source_file_ends_reuse() {
    let build = Build::new();
    assert!(build.run(&["ONE"]).reusable);
    assert_eq!(build.reuse(&["ONE"]).document.status, FocusedStatus::ReusedPass);
    let library = build.path("source/build/bin/libggml-cases.so");
    let original = fs::read(&library).expect("the library");
    let changed = [&original[..], b"x"].concat();
    fs::write(&library, changed).expect("it is ours");
    let report = build.reuse(&["ONE"]);
    assert_eq!(report.document.status, FocusedStatus::Passed);
    let why = report.document.not_reused_because.join("\n");
    assert!(why.contains("/build/libraries/bin~1libggml-cases.so was"), "{why}");
    fs::write(&library, original).expect("it is ours");
    assert_eq!(build.reuse(&["ONE"]).document.status, FocusedStatus::ReusedPass);

    // The clock of a file system ticks in milliseconds: what was built must be older for certain.
    let past = std::time::SystemTime::now() - Duration::from_secs(10);
    for built in ["libggml-cases.so", "test-backend-ops"] {
        let file =
            fs::File::options().append(true).open(build.path("source/build/bin").join(built)).expect("it is ours");
        file.set_modified(past).expect("it is ours");
    }
    fs::write(build.path("source/cases.c"), "int cases(void) { return 4; }\n").expect("it is ours");
    let report = build.reuse(&["ONE"]);
    assert_eq!(report.document.status, FocusedStatus::Passed);
    let why = report.document.not_reused_because.join("\n");
    assert!(why.contains("/build/runtime/tree_sha256 was"), "{why}");
    // The old binaries do not come from the new source: their pass vouches for nothing.
    assert!(why.contains("newer than the binaries"), "{why}");
    assert!(!report.reusable);
    build.compile();
    let report = build.run(&["ONE"]);
    assert!(report.reusable && report.document.tests[0].executed == 4, "{report:?}");
}

#[test]
fn libraries_from_elsewhere_end_reuse() {
    let build = Build::new();
    let other = build.path("other");
    fs::create_dir(&other).expect("a scratch folder");
    fs::copy(build.path("source/build/bin/libggml-cases.so"), other.join("libggml-cases.so")).expect("a copy");
    for (name, value) in [("LD_LIBRARY_PATH", other.clone()), ("LD_PRELOAD", other.join("libggml-cases.so"))] {
        let report = build.run_with(&["ONE"], |request| {
            request.overrides = vec![(name.to_owned(), value.to_string_lossy().into_owned())];
        });
        let report = report.expect("the run can start");
        assert_eq!((report.document.status, report.reusable), (FocusedStatus::Passed, false));
        assert!(report.not_reusable_because[0].starts_with(name), "{report:?}");
    }
}

#[test]
fn a_receipt_is_a_claim() {
    let build = Build::new();
    let first = build.run(&["ONE"]);
    let log = PathBuf::from(&first.document.tests[0].log);
    let text = fs::read_to_string(&log).expect("a log");
    fs::write(&log, text.replace("3/3", "9/9")).expect("it is ours");
    let report = build.reuse(&["ONE"]);
    assert_eq!(report.document.status, FocusedStatus::Passed);
    assert!(report.document.not_reused_because[0].contains("is not the log of that run"), "{report:?}");
    // The new pass took the receipt's place; now another key is written into it.
    let receipt = build.artifacts().join(format!("focused/passes/{}.json", report.document.run_key));
    let text = fs::read_to_string(&receipt).expect("the receipt");
    fs::write(&receipt, text.replace("\"CPU\"", "\"SYCL0\"")).expect("it is ours");
    let report = build.reuse(&["ONE"]);
    assert_eq!(report.document.status, FocusedStatus::Passed);
    assert!(report.document.not_reused_because[0].contains("its identity has the key"), "{report:?}");
}

#[test]
fn upstreams_result_is_never_a_pass_to_reuse() {
    let build = Build::new();
    let first = build.run(&["ONE"]);
    let key = first.document.run_key.to_string();
    let theirs =
        include_str!("../../../fixtures/documents/samples/lab-focused-result.json").replace(&"a".repeat(64), &key);
    let receipt = build.artifacts().join(format!("focused/passes/{key}.json"));
    fs::write(receipt, theirs).expect("it is ours");
    let report = build.reuse(&["ONE"]);
    assert_eq!(report.document.status, FocusedStatus::Passed, "it ran instead: {report:?}");
    let why = &report.document.not_reused_because[0];
    assert!(why.contains("it is a focused result of upstream's script"), "{why}");
}

#[test]
fn what_keeps_a_run_from_starting() {
    let build = Build::new();
    let error = |ops: &[&str], change: &dyn Fn(&mut FocusedRequest<'_>)| {
        build.run_with(ops, |request| change(request)).expect_err("it must not start").to_string()
    };
    assert!(error(&[], &|_| {}).starts_with("op is none"));
    assert!(error(&["A", "A"], &|_| {}).starts_with("op is A, expected each test once"));
    assert!(error(&["A"], &|r| r.timeout = Duration::ZERO).starts_with("timeout is 0"));
    assert!(error(&["A"], &|r| r.overrides = vec![("A=B".into(), "1".into())]).starts_with("env is A=B"));
    assert!(error(&["A"], &|r| r.build = Path::new("/nonexistent")).contains("/nonexistent"));
    assert!(error(&["A"], &|r| r.binary = Some(Path::new("/nonexistent/ops"))).contains("/nonexistent/ops"));
    assert!(error(&["A"], &|r| r.artifact_root = Path::new("/nonexistent")).contains("/nonexistent"));
    let card = CardChoice::Card("ffff:ff:1f.7".parse().expect("an address"));
    assert!(error(&["A"], &|r| r.card = card).contains("ffff:ff:1f.7"));
    let not_executable: &'static Path = Box::leak(build.path("source/cases.c").into_boxed_path());
    let refused = error(&["A"], &|r| r.binary = Some(not_executable));
    assert!(refused.contains("cannot be started"), "{refused}");
    // A damaged golden set: no test is run on top of it.
    let weights = build.artifacts().join("mmvq-q4_0-q8_1-v1/weights.q4_0.bin");
    fs::remove_file(&weights).expect("it is ours");
    assert!(error(&["A"], &|_| {}).contains("weights.q4_0.bin"));
}
