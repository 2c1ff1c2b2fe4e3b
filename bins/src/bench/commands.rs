use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_bench::{
    CalibrateOptions, Calibration, CalibrationEvent, CompareOptions, FloorRule, ReportDocument, RunStatus, Submission,
    Suite, SuiteReport, Target, compare_files, error_code, export_localmaxxing, html_report, load_arms, load_folder,
    load_result, targets_of_workers, text_report, write_document,
};
use b70_cli::{CliError, Output, Style, Ui, exit, interrupt_flag, usable_root};
use b70_client::{Api, ApiKey, Deadlines};
use b70_manifest::calibration::{Comparison, ComparisonVerdict};
use b70_manifest::workers::Arm;
use b70_procguard::Host;
use b70_store::json_bytes;
use serde_json::{Map, Value, json};

use crate::bench::{
    ApiName, ArmName, CalibrateArgs, CompareArgs, ExportArgs, ExportFormat, FloorName, GateName, SuiteCommand, text,
};

fn targets(args: &CalibrateArgs, host: &Host) -> Result<Vec<Target>, CliError> {
    let mut targets = match &args.config {
        Some(config) => targets_of_workers(config, &args.workers, host)?,
        None => args.endpoints.clone(),
    };
    let arm = args.arm.map(|arm| match arm {
        ArmName::Control => Arm::Control,
        ArmName::Candidate => Arm::Candidate,
    });
    for target in &mut targets {
        target.arm = target.arm.or(arm);
        target.period = target.period.or(args.period);
        target.inputs.target_model_sha256 = args.model_sha;
        target.inputs.draft_model_sha256 = args.draft_sha;
        target.inputs.build_fingerprint_sha256 = args.build_sha;
        target.inputs.hash_model = args.hash_model;
    }
    Ok(targets)
}

fn request_extra(text: Option<&str>) -> Result<Map<String, Value>, CliError> {
    let Some(text) = text else { return Ok(Map::new()) };
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(CliError::usage("request-extra", "--request-extra is not a JSON object").found(text)),
    }
}

pub(crate) fn calibrate(ui: &Ui, args: CalibrateArgs) -> Result<Output, CliError> {
    let host = Host::real();
    let targets = targets(&args, &host)?;
    let out = usable_root(&args.out, args.allow_in_repo)?;
    let api_key = args
        .api_key
        .as_deref()
        .map(ApiKey::new)
        .transpose()
        .map_err(|error| CliError::usage("api-key", error.to_string()))?;
    let duration = Duration::from_secs_f64;
    let request = duration(args.request_timeout);
    let deadlines = Deadlines {
        connect: Deadlines::default().connect.min(request),
        first_byte: Deadlines::default().first_byte.min(request),
        first_event: Deadlines::default().first_event.min(request),
        idle: duration(args.idle_timeout),
        total: request,
    };
    let calibration = Calibration {
        targets,
        suite: args.suite.as_deref().map_or_else(|| Ok(Suite::builtin()), Suite::read)?,
        options: CalibrateOptions {
            api: match args.api {
                ApiName::Chat => Api::Chat,
                ApiName::Completions => Api::Completions,
                ApiName::Native => Api::Native,
            },
            max_tokens: args.max_tokens,
            seed: args.seed,
            repeats: args.repeats,
            sequential: args.sequential,
            selected: (!args.prompts.is_empty()).then(|| args.prompts.clone()),
            warm_up_requests: args.warm_up,
            ignore_eos: args.ignore_eos,
            request_extra: request_extra(args.request_extra.as_deref())?,
            deadlines,
            total: args.timeout.map(duration),
            wait: duration(args.wait),
            any_server: args.any_server,
            api_key,
            ..CalibrateOptions::default()
        },
        out,
        host,
        lease_root: (!args.no_lease).then_some(args.lease_root),
    };
    let cancel = interrupt_flag()?;
    if args.dry_run {
        let plan = calibration.plan(&cancel)?;
        let code = if plan.allowed { exit::OK } else { exit::CHECK_FAILED };
        return Output::new(&plan, text::plan(ui, &plan), code);
    }
    let mut show = |event: CalibrationEvent<'_>| match event {
        CalibrationEvent::Begins { endpoint, rows } => ui.note(&format!("{endpoint}: {rows} requests")),
        CalibrationEvent::Row { endpoint, taken, rows, row } => {
            ui.note(&text::row(endpoint, taken, rows, row, error_code(row)));
        }
        CalibrationEvent::Ends { endpoint, error: Some(error) } => {
            ui.note(&format!("{endpoint}: {} {}", ui.paint_error(Style::Bad, "ended:"), text::shown(error)));
        }
        _ => {}
    };
    let report = calibration.execute(&cancel, &mut show)?;
    let code = match report.status {
        RunStatus::Passed => exit::OK,
        RunStatus::Failed => exit::CHECK_FAILED,
        RunStatus::Interrupted => exit::INTERRUPTED,
        RunStatus::DeadlinePassed => exit::TIMEOUT,
    };
    let tables = load_folder(&report.out).map(|results| text_report(&results)).unwrap_or_default();
    Output::new(&report, text::calibrated(ui, &report, &tables), code)
}

pub(crate) fn gate(ui: &Ui, file: &Path, gate: GateName) -> Result<Output, CliError> {
    let result = load_result(file)?;
    let report = result.verify_report();
    let passed = report.disagreements.is_empty() && report.gates.get(gate.word()).is_some_and(|outcome| outcome.passed);
    let code = if passed { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&report, text::gates(ui, &report, gate.word(), passed), code)
}

pub(crate) fn verify(ui: &Ui, files: &[PathBuf]) -> Result<Output, CliError> {
    let mut reports = Vec::new();
    for file in files {
        reports.push(load_result(file)?.verify_report());
    }
    let code = if reports.iter().all(|report| report.verified) { exit::OK } else { exit::CHECK_FAILED };
    let text = reports.iter().map(|report| text::verified(ui, report)).collect::<String>();
    match reports.as_slice() {
        [only] => Output::new(only, text, code),
        several => Output::new(&json!({"schema_version": 1, "files": several}), text, code),
    }
}

pub(crate) fn compare(ui: &Ui, args: &CompareArgs) -> Result<Output, CliError> {
    let results = load_arms(&args.control, &args.candidate)?;
    let options = CompareOptions {
        min_effect: args.min_effect,
        confidence: args.confidence,
        bootstrap_draws: args.draws,
        seed: args.seed,
        floor_rule: match args.floor_rule {
            FloorName::Estimate => FloorRule::Estimate,
            FloorName::SingleRun => FloorRule::SingleRun,
        },
        aa_floor: args.aa_floor,
    };
    let comparison = compare_files(&results, &options)?;
    if let Some(out) = &args.out {
        write_document(out, &json_bytes(out, &comparison)?, false)?;
    }
    let code = if comparison.verdict == ComparisonVerdict::Win { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&comparison, text::compared(ui, &comparison), code)
}

pub(crate) fn report(
    paths: &[PathBuf],
    html: Option<&Path>,
    comparison: Option<&Path>,
    replace: bool,
) -> Result<Output, CliError> {
    let mut results = Vec::new();
    for path in paths {
        if path.is_dir() {
            results.extend(load_folder(path)?);
        } else {
            results.push(load_result(path)?);
        }
    }
    let comparison: Option<Comparison> = comparison.map(b70_manifest::document::read).transpose()?;
    let mut text = text_report(&results);
    if let Some(html) = html {
        write_document(html, html_report(&results, comparison.as_ref()).as_bytes(), replace)?;
        text.push_str(&format!("HTML: {}\n", html.display()));
    }
    Output::ok(&ReportDocument::of(&results, html.map(Path::to_owned)), text)
}

pub(crate) fn export(ui: &Ui, args: ExportArgs) -> Result<Output, CliError> {
    let ExportFormat::Localmaxxing = args.format;
    let result = load_result(&args.file)?;
    let submission = Submission {
        hf_id: args.hf_id,
        model_revision: args.model_revision,
        quantization: args.quantization,
        backend: args.backend,
        vram_gb: args.vram_gb,
        cpu: args.cpu,
        ram_gb: args.ram_gb,
        os: args.os,
        notes: args.notes,
    };
    let payload = export_localmaxxing(&result, &submission)?;
    write_document(&args.out, &json_bytes(&args.out, &payload)?, false)?;
    Output::ok(&payload, format!("{}: {}; nothing was posted\n", ui.paint(Style::Good, "written"), args.out.display()))
}

pub(crate) fn suite(ui: &Ui, command: SuiteCommand) -> Result<Output, CliError> {
    let suite = match &command {
        SuiteCommand::Show { file: None } => Suite::builtin(),
        SuiteCommand::Show { file: Some(file) } | SuiteCommand::Validate { file } => Suite::read(file)?,
    };
    let report = SuiteReport::of(&suite);
    Output::ok(&report, text::suite(ui, &report, matches!(command, SuiteCommand::Show { .. })))
}
