//! What can be found wrong before anything is started, all of it at once.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use b70_admission::model_fault;
use b70_manifest::{
    document::{Kind, read_bytes},
    validate::check_files,
    workers::Worker,
};
use b70_procguard::{Host, pin_to_card};
use b70_store::EntryKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::WorkerError,
    flags::ServerFlags,
    lane::{GpuMode, Lane},
    launcher::{self, LauncherScript},
    resolve::{chooses_devices, draft_path, extra_words, is_hidden_setting, own_flags},
};

/// `--help` of a large build on a slow disk.
const HELP_DEADLINE: Duration = Duration::from_secs(20);

/// How much a finding counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Not looked at, by request or because this machine is not the one.
    Skipped,
    /// It works and may surprise.
    Warning,
    /// Nothing is started with this.
    Error,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// How much it counts.
    pub severity: Severity,
    /// A stable word.
    pub code: String,
    /// Worker, profile or file it is about.
    pub subject: String,
    /// The sentence.
    pub message: String,
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The configuration.
    pub config: PathBuf,
    /// Whether there is no error.
    pub valid: bool,
    /// Errors first.
    pub findings: Vec<Finding>,
}

struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, severity: Severity, code: &str, subject: &str, message: impl Into<String>) {
        let finding = Finding { severity, code: code.into(), subject: subject.into(), message: message.into() };
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    fn error(&mut self, code: &str, subject: &str, message: impl Into<String>) {
        self.add(Severity::Error, code, subject, message);
    }
}

/// Validates a configuration file on this machine (or a recorded one: then files and executables are not looked at).
///
/// # Errors
/// The file cannot be read or is not JSON. An invalid document is a list of findings.
pub fn validate(path: &Path, host: &Host, mode: GpuMode, only: &[String]) -> Result<Validation, WorkerError> {
    let mut report = Report(Vec::new());
    let lane = match Lane::load(path) {
        Ok(lane) => lane,
        Err(WorkerError::Document(b70_manifest::document::DocumentError::Invalid { report: file }))
            if file.exit_code() == b70_manifest::exit::CHECK_FAILED =>
        {
            for problem in &file.errors {
                report.error(&problem.code, &file.path, problem.to_string());
            }
            if host.is_real() {
                for (code, subject, message) in missing_files(path) {
                    report.error(code, subject, message);
                }
            }
            return Ok(finish(path, report));
        }
        Err(error) => return Err(error),
    };
    let workers = lane.select(only)?;
    inspect(&lane, host, mode, &workers, host.is_real(), &mut report)?;
    Ok(finish(path, report))
}

/// What validation says against starting these workers, apart from what a plan looks at itself: missing files and cards.
pub(crate) fn obstacles(
    lane: &Lane,
    host: &Host,
    mode: GpuMode,
    workers: &[&Worker],
    local: bool,
) -> Result<Vec<Finding>, WorkerError> {
    let own = ["no-binary", "no-model", "no-draft-model", "no-such-card", "card-unusable", "pinning-variable"];
    let mut report = Report(Vec::new());
    inspect(lane, host, mode, workers, local, &mut report)?;
    report.0.retain(|f| f.severity == Severity::Error && !own.contains(&f.code.as_str()));
    Ok(report.0)
}

fn inspect(
    lane: &Lane,
    host: &Host,
    mode: GpuMode,
    workers: &[&Worker],
    local: bool,
    report: &mut Report,
) -> Result<(), WorkerError> {
    siblings(lane, report);
    cards(lane, host, mode, workers, report)?;
    environment(lane, report);
    if local {
        files(lane, workers, report);
    } else {
        report.add(
            Severity::Skipped,
            "files",
            "files",
            "a recorded host has no files, executables or launchers to look at",
        );
    }
    Ok(())
}

fn finish(path: &Path, report: Report) -> Validation {
    let mut findings = report.0;
    findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    let valid = findings.iter().all(|f| f.severity != Severity::Error);
    Validation { schema_version: 1, config: path.to_owned(), valid, findings }
}

/// The manifests beside the configuration must be about the same models.
fn siblings(lane: &Lane, report: &mut Report) {
    let Some(folder) = lane.config.parent() else { return };
    let names = ["model-pack-manifest.json", "golden-corpus-manifest.json"];
    let mut paths = vec![lane.config.clone()];
    paths.extend(names.iter().map(|name| folder.join(name)).filter(|path| path.is_file()));
    if paths.len() == 1 {
        return;
    }
    for file in check_files(&paths, None::<Kind>).files {
        for problem in file.errors.iter().filter(|p| p.code == "model-identity") {
            report.error("model-identity", &file.path, problem.to_string());
        }
    }
}

fn cards(lane: &Lane, host: &Host, mode: GpuMode, workers: &[&Worker], report: &mut Report) -> Result<(), WorkerError> {
    let map = lane.cards(host, mode)?;
    // A host without any card is a developer's machine: the file can be checked, the cards cannot.
    if mode == GpuMode::Absent || map.cards.cards.is_empty() {
        report.add(
            Severity::Skipped,
            "cards",
            "cards",
            "no cards were looked for: presence and ordinals are unchecked",
        );
        return Ok(());
    }
    let mut taken: BTreeMap<_, &str> = BTreeMap::new();
    for worker in &lane.document.workers {
        match map.resolve(worker.gpu) {
            Ok(pci) => {
                if let Some(other) = taken.insert(pci, &worker.name) {
                    report.error(
                        "unique-card",
                        &worker.name,
                        format!("gpu {} is the card {pci}, which {other} has already", worker.gpu),
                    );
                }
                if workers.iter().any(|w| w.name == worker.name)
                    && let Err(error) = pin_to_card(&map.cards, pci)
                {
                    report.error("card-unusable", &worker.name, error.to_string());
                }
            }
            Err(why) if workers.iter().any(|w| w.name == worker.name) => {
                report.error("no-such-card", &worker.name, why);
            }
            Err(_) => {}
        }
        if matches!(worker.gpu, b70_manifest::GpuRef::Ordinal(_)) && map.cards.cards.len() > 1 {
            report.add(
                Severity::Warning,
                "ordinal",
                &worker.name,
                format!("gpu {} is an ordinal, which may shift; a PCI address does not", worker.gpu),
            );
        }
    }
    Ok(())
}

/// Variables by which a configuration would undo the pinning.
fn environment(lane: &Lane, report: &mut Report) {
    let common = lane.document.common.environment.keys().map(|name| ("common".to_owned(), name));
    let own =
        lane.document.profiles.iter().flat_map(|(p, profile)| profile.environment.keys().map(move |n| (p.clone(), n)));
    for (subject, name) in common.chain(own) {
        if chooses_devices(name) {
            report.error(
                "pinning-variable",
                &subject,
                format!("{name} chooses devices; a worker's card comes from its gpu alone"),
            );
        } else if is_hidden_setting(name) {
            report.add(
                Severity::Warning,
                "hidden-setting",
                &subject,
                format!("{name} changes the server behind its command line; write the flag instead"),
            );
        }
    }
}

/// The files that a document names and that are missing, though the document is not valid: what can be read of it.
pub(crate) fn missing_files(config: &Path) -> Vec<(&'static str, &'static str, String)> {
    let Ok(config) = std::path::absolute(config) else { return Vec::new() };
    let document: serde_json::Value =
        read_bytes(&config).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    [
        ("no-binary", "binary"),
        ("no-launcher", "launcher"),
        ("no-model", "target_model"),
        ("no-draft-model", "draft_model"),
    ]
    .into_iter()
    .filter_map(|(code, field)| {
        let path = config.parent().unwrap_or(Path::new("/")).join(document.get(field)?.as_str()?);
        not_a_file(&path).map(|why| (code, field, why))
    })
    .collect()
}

/// What stands where a file was expected; links are followed.
fn not_a_file(path: &Path) -> Option<String> {
    match path.metadata() {
        Ok(meta) if meta.is_file() => None,
        Ok(meta) => Some(format!(
            "{} is a {}, expected a regular file",
            path.display(),
            EntryKind::from_mode(meta.mode()).name()
        )),
        Err(error) => Some(format!("{}: {error}; expected a regular file", path.display())),
    }
}

/// The same where the file must be executable.
fn not_executable(path: &Path) -> Option<String> {
    not_a_file(path).or_else(|| {
        let mode = path.metadata().map_or(0, |meta| meta.mode());
        (mode & 0o111 == 0)
            .then(|| format!("{} has mode {:04o}, expected an executable file", path.display(), mode & 0o7777))
    })
}

fn files(lane: &Lane, workers: &[&Worker], report: &mut Report) {
    let document = &lane.document;
    let binary = lane.path(&document.binary);
    let unusable = not_executable(&binary);
    let has_binary = unusable.is_none();
    if let Some(why) = unusable {
        report.error("no-binary", "binary", why);
    }
    let model = lane.path(&document.target_model);
    if let Some(why) = not_a_file(&model) {
        report.error("no-model", "target_model", why);
    } else if let Some(fault) = model_fault(&model) {
        report.error("not-a-model", "target_model", format!("{}: {fault}", model.display()));
    }
    let script = document.launcher.as_ref().map(|launcher| lane.path(launcher));
    let script = script.and_then(|path| {
        if let Some(why) = not_executable(&path) {
            report.error("no-launcher", "launcher", why);
        }
        launcher::read(&path).ok().map(|bytes| LauncherScript::new(&String::from_utf8_lossy(&bytes)))
    });
    if let Some(script) = &script {
        // The common arguments: what every profile's servers get.
        let extra = document.common.extra_llama_args.words().unwrap_or_default();
        for missing in script.unmarked(document, &extra) {
            report.error("launcher-mark", "launcher", missing);
        }
    }
    if let Some(script) = &script
        && !script.becomes_server()
    {
        report.add(
            Severity::Warning,
            "launcher-stays",
            "launcher",
            "it does not exec the server: the recorded process is the script, and a signal to it does not reach the server",
        );
    }
    let flags = has_binary.then(|| ServerFlags::ask(&binary, HELP_DEADLINE));
    if let Some(Err(error)) = &flags {
        report.add(
            Severity::Warning,
            "help",
            "binary",
            format!("flags are unchecked: {} --help: {error}", binary.display()),
        );
    }
    let mut seen = std::collections::BTreeSet::new();
    for worker in workers.iter().filter(|w| seen.insert(&w.profile)) {
        let Ok(profile) = lane.profile(&worker.profile) else { continue };
        if let Some((draft, _)) = draft_path(lane, profile) {
            let draft = lane.path(&draft);
            if let Some(why) = not_a_file(&draft) {
                report.error("no-draft-model", &worker.profile, why);
            } else if let Some(fault) = model_fault(&draft) {
                report.error("not-a-model", &worker.profile, format!("{}: {fault}", draft.display()));
            }
        }
        let extra = extra_words(lane, profile).unwrap_or_default();
        if let Some(script) = &script {
            for missing in script.unhandled(profile, !extra.is_empty()) {
                report.error("launcher-ignores", &worker.profile, missing);
            }
        }
        if let Some(Ok(flags)) = &flags {
            let mut words = extra;
            if script.is_none() {
                words.extend(own_flags(profile));
            }
            for (flag, why) in flags.refused(&words) {
                report.error(
                    "flag-refused",
                    &worker.profile,
                    format!("the installed llama-server does not accept {flag}: {why}"),
                );
            }
        }
    }
}
