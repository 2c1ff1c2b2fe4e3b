use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_admission::{FingerprintRequest, fingerprint};
use b70_cli::{CliError, Output, Style, Ui, default_root, exit, interrupt_flag, seconds_text, shown, usable_root};
use b70_golden::{
    CardChoice, FixtureOptions, FocusedEvent, FocusedRequest, REQUIRED_CASES, SetParameters, text_environment,
};
use b70_manifest::document::read;
use b70_manifest::golden::FocusedStatus;
use b70_manifest::model_pack::ModelPackManifest;
use b70_store::{Progress, RootKind, pool};

use crate::golden::{FocusedArgs, PrepareArgs, RootArgs, text};

/// The folder of fixtures and results: the root that is given, else the one that a document names, else the default. Below an
/// artifact root that holds upstream's registry as well, it is `golden`.
fn artifact_root(args: &RootArgs, spec: Option<&ModelPackManifest>) -> Result<PathBuf, CliError> {
    let golden = |root: PathBuf| if root.join("golden").is_dir() { root.join("golden") } else { root };
    let root = match (&args.artifact_root, &args.corpus, spec.and_then(|spec| spec.pack.artifact_root())) {
        (Some(root), ..) => golden(root.clone()),
        (None, Some(corpus), _) => PathBuf::from(b70_golden::read_corpus(corpus)?.storage_root),
        (None, None, Some(root)) => root.join("golden"),
        (None, None, None) => golden(default_root(RootKind::Artifact)?),
    };
    usable_root(&root, args.allow_in_repo)
}

pub(crate) fn prepare(ui: &Ui, args: &PrepareArgs) -> Result<Output, CliError> {
    let parameters = SetParameters {
        k: args.k,
        n: args.n,
        seed: args.seed,
        widths: args.widths.clone(),
        rule: args.rule.into(),
        packed: args.packed,
    };
    // Refused before anything is read or written.
    parameters.check()?;
    let spec: Option<ModelPackManifest> = args.spec.as_deref().map(read).transpose()?;
    let root = artifact_root(&args.root, spec.as_ref())?;
    let build = match (&args.runtime, &args.build) {
        (Some(runtime), Some(build)) => {
            let report = fingerprint(&FingerprintRequest::new(runtime, build), &Progress::NONE)?;
            for reason in &report.reasons {
                ui.note(&format!("{} {}", ui.paint_error(Style::Warn, "warning:"), shown(reason)));
            }
            report.fingerprint.sha256.value().copied()
        }
        _ => None,
    };
    let options = FixtureOptions {
        source_model_sha256: spec.map(|spec| spec.source.sha256),
        build_fingerprint_sha256: build,
        force: args.force,
    };
    let report = pool(args.jobs)?.install(|| b70_golden::prepare(&root, &parameters, &options))?;
    Output::ok(&report, text::prepared(ui, &report))
}

pub(crate) fn verify(ui: &Ui, root: &RootArgs, recompute: bool) -> Result<Output, CliError> {
    let check = b70_golden::verify(&artifact_root(root, None)?, recompute)?;
    let code = if check.is_valid() { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&check, text::verified(ui, &check), code)
}

pub(crate) fn status(ui: &Ui, root: &RootArgs) -> Result<Output, CliError> {
    let status = b70_golden::status(&artifact_root(root, None)?, root.corpus.as_deref())?;
    let damaged = status.synthetic_set == "failed" || status.cases.iter().any(|case| !case.refused.is_empty());
    let code = if damaged { exit::CHECK_FAILED } else { exit::OK };
    Output::new(&status, text::status(ui, &status), code)
}

pub(crate) fn import(ui: &Ui, root: &RootArgs, case: &str, tensor: &Path, meta: &Path) -> Result<Output, CliError> {
    let (root, corpus) = (artifact_root(root, None)?, root.corpus.as_deref());
    let mut cases = REQUIRED_CASES.map(str::to_owned).to_vec();
    if let Some(corpus) = corpus {
        cases.extend(b70_golden::read_corpus(corpus)?.required_cases);
        cases.sort_unstable();
        cases.dedup();
    }
    let report = b70_golden::import(&root, case, &cases, tensor, meta)?;
    Output::ok(&report, text::imported(ui, &report))
}

pub(crate) fn focused(ui: &Ui, args: &FocusedArgs) -> Result<Output, CliError> {
    let root = artifact_root(&args.root, None)?;
    let cancel = interrupt_flag()?;
    let request = FocusedRequest {
        artifact_root: &root,
        build: &args.build,
        runtime: args.runtime.as_deref(),
        binary: args.binary.as_deref(),
        card: args.gpu.map_or(CardChoice::NoGpu, CardChoice::Card),
        backend: args.backend.clone(),
        tests: args.ops.clone(),
        inherited: text_environment(std::env::vars_os()),
        overrides: args.environment.clone(),
        timeout: Duration::from_secs_f64(args.timeout),
        reuse_pass: args.reuse_pass,
        lease_root: &args.lease_root,
        wait: Duration::from_secs_f64(args.wait),
        cancel: &cancel,
    };
    let mut show = |event: FocusedEvent<'_>| match event {
        FocusedEvent::Begins(op, log) => {
            ui.note(&format!("{} {}, log {}", ui.paint_error(Style::Strong, "test"), shown(op), log.display()));
        }
        FocusedEvent::Output(bytes) => {
            if !ui.quiet() {
                // Nobody is left to tell when standard error is closed; the log has it all.
                let _ = std::io::stderr().lock().write_all(bytes);
            }
        }
        FocusedEvent::Ended(test) => ui.note(&format!(
            "{}: {} of {} executed tests passed{}",
            shown(&test.op),
            test.passed,
            test.executed,
            test.extra
                .get("seconds")
                .and_then(serde_json::Value::as_f64)
                .map_or_else(String::new, |s| format!(", {}", seconds_text(s)))
        )),
    };
    let report = b70_golden::focused(&request, &mut show)?;
    let code = if report.document.status == FocusedStatus::Failed { exit::CHECK_FAILED } else { exit::OK };
    Output::new(&report, text::focused(ui, &report), code)
}
