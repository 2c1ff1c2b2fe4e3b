//! The commands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_admission::{
    Artifact, FingerprintReport, FingerprintRequest, Known, ListedRecords, OutputDocument, RegisterRequest, Registry,
};
use b70_cli::{CliError, Context, Output, Style, bytes_text, default_root, exit, seconds_text, shown, usable_root};
use b70_manifest::document::read;
use b70_manifest::model_pack::{ModelPackManifest, artifact_root_of};
use b70_store::{Error, RootKind, Sha256};

use crate::registry::RootArgs;

/// How long a collection waits for whoever registers: writing a record takes milliseconds.
const GC_WAIT: Duration = Duration::from_secs(60);

fn root_path(args: &RootArgs) -> Result<PathBuf, CliError> {
    let from_environment = std::env::var_os(RootKind::Artifact.variable()).is_some_and(|root| !root.is_empty());
    let path = match (&args.registry_root, &args.spec) {
        // The records' own folder, as upstream's documents name it, or the folder above.
        (Some(path), _) if path.join("packs").is_dir() => Some(path.clone()),
        (Some(path), _) => Some(artifact_root_of(path).to_path_buf()),
        (None, Some(spec)) if !from_environment => {
            read::<ModelPackManifest>(spec)?.pack.artifact_root().map(Path::to_path_buf)
        }
        _ => None,
    };
    let path = if let Some(path) = path {
        path
    } else {
        let root = default_root(RootKind::Artifact)?;
        if root.join("packs").is_dir() { root } else { root.join("registry") }
    };
    usable_root(&path, args.allow_in_repo)
}

fn open(args: &RootArgs) -> Result<Option<Registry>, CliError> {
    match Registry::open(&root_path(args)?) {
        Ok(registry) => Ok(Some(registry)),
        Err(Error::Missing { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn open_for(args: &RootArgs, key: &Sha256) -> Result<Registry, CliError> {
    if let Some(registry) = open(args)? {
        return Ok(registry);
    }
    let (what, root) = (format!("the key {key}"), root_path(args)?);
    Err(b70_admission::AdmissionError::NotFound { what, root }.into())
}

fn known<T: std::fmt::Display>(known: &Known<T>) -> String {
    match known {
        Known::Value(value) => value.to_string(),
        Known::Absent => "absent".to_owned(),
        Known::Unknown => "unknown".to_owned(),
    }
}

pub(crate) fn fingerprint(
    context: &Context<'_>,
    runtime: &Path,
    build: &Path,
    binaries: &[String],
    require_fit: bool,
) -> Result<Output, CliError> {
    let report = take(context, runtime, build, binaries)?;
    let text = fingerprint_text(context, &report);
    let code = if require_fit && !report.fit_for_pass_reuse { exit::CHECK_FAILED } else { exit::OK };
    Output::new(&report, text, code)
}

fn take(
    context: &Context<'_>,
    runtime: &Path,
    build: &Path,
    binaries: &[String],
) -> Result<FingerprintReport, CliError> {
    let request = FingerprintRequest { binaries, ..FingerprintRequest::new(runtime, build) };
    Ok(b70_admission::fingerprint(&request, &context.quietly())?)
}

fn fingerprint_text(context: &Context<'_>, report: &FingerprintReport) -> String {
    let f = &report.fingerprint;
    let mut text = format!("{}\n", known(&f.sha256));
    let dirty = match &f.runtime.dirty {
        Known::Value(true) => format!(", with changes {}", known(&f.runtime.dirty_patch_sha256)),
        Known::Value(false) => ", unchanged".to_owned(),
        other => format!(", changes {}", known(other)),
    };
    match f.runtime.tree_sha256 {
        Some(tree) => text.push_str(&format!("source    files {tree} (no Git)\n")),
        None => text.push_str(&format!("source    commit {}{dirty}\n", known(&f.runtime.commit))),
    }
    text.push_str(&format!("compiler  {} ({})\n", known(&f.compiler.version), known(&f.compiler.path)));
    for (name, digest) in f.binaries.iter().chain(&f.libraries) {
        text.push_str(&format!("{}  {name}\n", known(digest)));
    }
    let list = |list: &Known<Vec<String>>| list.value().map_or_else(|| known(&list_text(list)), |v| v.join(" "));
    text.push_str(&format!("kernel    {}\ncards     {}\n", known(&f.host.kernel), list(&f.host.pci_ids)));
    text.push_str(&if report.fit_for_pass_reuse {
        format!("{}\n", context.ui.paint(Style::Good, "a recorded pass may stand for this build"))
    } else {
        let reasons = report.reasons.iter().map(|reason| format!("  {reason}\n")).collect::<Vec<_>>().concat();
        format!("{}\n{reasons}", context.ui.paint(Style::Warn, "no recorded pass may stand for this build:"))
    });
    text
}

fn list_text(list: &Known<Vec<String>>) -> Known<String> {
    match list {
        Known::Value(values) => Known::Value(values.join(" ")),
        Known::Absent => Known::Absent,
        Known::Unknown => Known::Unknown,
    }
}

/// What is registered.
pub(crate) struct RegisterArgs<'a> {
    pub(crate) artifact: &'a Path,
    pub(crate) packer_revision: &'a str,
    pub(crate) layout: &'a str,
    pub(crate) kernel_abi: &'a str,
    pub(crate) sha256: Option<Sha256>,
    pub(crate) build: Option<(&'a Path, &'a Path)>,
    pub(crate) wait: u64,
}

pub(crate) fn register(context: &Context<'_>, root: &RootArgs, args: &RegisterArgs<'_>) -> Result<Output, CliError> {
    let source_model_sha256 = match (args.sha256, &root.spec) {
        (Some(sha256), _) => sha256,
        (None, Some(spec)) => read::<ModelPackManifest>(spec)?.source.sha256,
        (None, None) => return Err(CliError::usage("usage", "give --spec FILE or --sha256 HEX")),
    };
    let path = root_path(root)?;
    let build = args.build.map(|(runtime, build)| take(context, runtime, build, &[])).transpose()?;
    let bar = context.ui.progress("hash", 0);
    let on_bytes = |bytes| bar.add(bytes);
    let progress = context.progress(&on_bytes);
    let artifact = Artifact::read(args.artifact, &progress);
    bar.finish();
    let artifact = artifact?;
    let registry = Registry::create(&path)?;
    let registered = registry.register(
        &RegisterRequest {
            artifact: &artifact,
            source_model_sha256,
            packer_revision: args.packer_revision,
            layout: args.layout,
            kernel_abi: args.kernel_abi,
            build_fingerprint_sha256: build.and_then(|report| report.fingerprint.sha256.value().copied()),
        },
        Duration::from_secs(args.wait),
    )?;
    let text = format!(
        "{} {}\n  {}\n  {} file(s), {}; no loader is bound by this\n",
        registered.key,
        context.ui.paint(Style::Good, "admitted"),
        registered.manifest.display(),
        artifact.files.len(),
        bytes_text(artifact.size_bytes)
    );
    Output::ok(&OutputDocument::of_registry(registered), text)
}

pub(crate) fn verify(context: &Context<'_>, root: &RootArgs, key: &Sha256) -> Result<Output, CliError> {
    let registry = open_for(root, key)?;
    let verdict = registry.verify(key, &context.quietly())?;
    let admitted = verdict.status == "admitted";
    let style = if admitted { Style::Good } else { Style::Bad };
    let mut text = format!(
        "{key} {}: {} file(s), {} in {}\n",
        context.ui.paint(style, verdict.status),
        verdict.checked_files,
        bytes_text(verdict.checked_bytes),
        seconds_text(verdict.seconds)
    );
    for (what, names) in [("changed", &verdict.changed), ("missing", &verdict.missing), ("added", &verdict.added)] {
        for name in names {
            text.push_str(&format!("  {what}: {}\n", shown(&name.display().to_string())));
        }
    }
    for fault in &verdict.record_faults {
        text.push_str(&format!("  the record: {}\n", shown(fault)));
    }
    if let Some(trust) = verdict.trust {
        text.push_str(&format!("  trust: {trust}\n"));
    }
    Output::new(&OutputDocument::of_registry(verdict), text, if admitted { exit::OK } else { exit::CHECK_FAILED })
}

pub(crate) fn list(context: &Context<'_>, root: &RootArgs) -> Result<Output, CliError> {
    let records = match open(root)? {
        Some(registry) => registry.list()?,
        None => Vec::new(),
    };
    let mut text = String::new();
    for listed in &records {
        let Some(record) = &listed.record else {
            text.push_str(&format!("{}  {}\n", listed.key, shown(listed.fault.as_deref().unwrap_or("no record"))));
            continue;
        };
        let state = match (&listed.fault, listed.artifact_present) {
            (Some(fault), _) => context.ui.paint(Style::Bad, &shown(fault)),
            (None, false) => context.ui.paint(Style::Warn, "artifact gone"),
            (None, true) => "present, not verified here".to_owned(),
        };
        text.push_str(&format!(
            "{}  {}  {}  {}  {state}\n",
            listed.key,
            shown(&record.layout),
            bytes_text(record.artifact.size_bytes),
            shown(&record.artifact.path)
        ));
    }
    if records.is_empty() {
        text.push_str("the registry is empty\n");
    }
    Output::ok(&OutputDocument::of_registry(ListedRecords { records }), text)
}

pub(crate) fn show(root: &RootArgs, key: &Sha256) -> Result<Output, CliError> {
    let record = open_for(root, key)?.show(key)?;
    let text = serde_json::to_string_pretty(&record)
        .map_err(|e| CliError::usage("internal", format!("the record cannot be written: {e}")))?;
    Output::ok(&record, text)
}

pub(crate) fn gc(root: &RootArgs, execute: bool) -> Result<Output, CliError> {
    let Some(registry) = open(root)? else {
        let plan = b70_admission::GcPlan { plan: Vec::new(), kept: 0, executed: execute };
        return Output::ok(&OutputDocument::of_registry(plan), "the registry is empty\n");
    };
    let plan = if execute { registry.gc(GC_WAIT)? } else { registry.plan_gc()? };
    let verb = if plan.executed { "removed" } else { "would remove" };
    let mut text = plan
        .plan
        .iter()
        .map(|r| format!("{verb} {}: {}\n", r.path.display(), shown(&r.reason)))
        .collect::<Vec<_>>()
        .concat();
    text.push_str(&format!("{} record(s) stay\n", plan.kept));
    if !plan.executed && !plan.plan.is_empty() {
        text.push_str("nothing was removed: add --execute\n");
    }
    Output::ok(&OutputDocument::of_registry(plan), text)
}
