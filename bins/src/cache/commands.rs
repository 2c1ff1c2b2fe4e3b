//! The commands.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use b70_admission::{
    AdmittedPath, CacheStatus, Entries, FingerprintRequest, ModelSource, OutputDocument, PrepareAction, PrepareRequest,
    PreparedEntries, PreparedModel, Reserve, Warmed, fingerprint, host_facts,
};
use b70_cli::{CliError, Context, Output, Style, bytes_text, exit, seconds_text, shown};
use b70_manifest::pack::ToolRecord;
use b70_procguard::Host;
use b70_store::{HashOptions, Sha256};

use crate::cache::context::{Selection, cache_path, create, keys, missing, open, required, select};
use crate::cache::{BuildArgs, Role, RootArgs, SelectArgs};

/// How long Git and package managers may take for the build's identity.
const DEADLINE: Duration = Duration::from_secs(60);

fn how<'a>(context: &'a Context<'_>) -> HashOptions<'a> {
    HashOptions { progress: context.quietly(), ..HashOptions::default() }
}

fn status_text(context: &Context<'_>, entries: &[CacheStatus]) -> String {
    if entries.is_empty() {
        return "the cache is empty".to_owned();
    }
    let mut text = String::new();
    for entry in entries {
        let verdict = if entry.valid {
            context.ui.paint(Style::Good, "admitted")
        } else {
            context.ui.paint(Style::Bad, "not admitted")
        };
        let role = shown(entry.role.as_deref().unwrap_or("model"));
        text.push_str(&format!("{role} {}: {verdict} ({})\n", entry.key, shown(&entry.reason)));
        if let Some(path) = &entry.path {
            text.push_str(&format!("  {}  {}\n", path.display(), bytes_text(entry.size_bytes)));
        }
        if let Some(trust) = entry.trust {
            text.push_str(&format!("  trust: {trust}\n"));
        }
        if entry.valid && !entry.vouched {
            text.push_str("  nothing vouches for its digest: it is what was read, no more\n");
        }
        for extra in &entry.extra {
            text.push_str(&format!("  does not belong there: {}\n", shown(&extra.display().to_string())));
        }
    }
    text
}

fn statuses(context: &Context<'_>, entries: Vec<CacheStatus>) -> Result<Output, CliError> {
    let code = if entries.iter().all(|entry| entry.valid) { exit::OK } else { exit::CHECK_FAILED };
    let text = status_text(context, &entries);
    Output::new(&OutputDocument::of_cache(Entries { entries }), text, code)
}

pub(crate) fn status(context: &Context<'_>, select_args: &SelectArgs, root: &RootArgs) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    let path = cache_path(root, &selection)?;
    let Some(cache) = open(&path)? else {
        return if selection.targets.is_empty() {
            statuses(context, Vec::new())
        } else {
            Err(missing(&what(&selection), &path))
        };
    };
    let mut entries = Vec::new();
    for (role, key) in keys(&cache, &selection)? {
        let mut status = cache.status(&key, &how(context))?;
        if status.role.is_none() {
            status.role = role.map(str::to_owned);
        }
        entries.push(status);
    }
    statuses(context, entries)
}

fn what(selection: &Selection) -> String {
    let models: Vec<String> = selection
        .targets
        .iter()
        .map(|target| match (&target.path, target.key) {
            (Some(model), _) => format!("a copy of {}", model.display()),
            (None, Some(key)) => format!("the model {key}"),
            (None, None) => "a copy".to_owned(),
        })
        .collect();
    if models.is_empty() { "any model".to_owned() } else { models.join(" and ") }
}

pub(crate) fn verify(
    context: &Context<'_>,
    select_args: &SelectArgs,
    root: &RootArgs,
    wait: u64,
) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    let path = cache_path(root, &selection)?;
    let Some(cache) = open(&path)? else { return Err(missing(&what(&selection), &path)) };
    let mut entries = Vec::new();
    for (_, key) in keys(&cache, &selection)? {
        let bar = context.ui.progress("verify", 0);
        let on_bytes = |bytes| bar.add(bytes);
        let how = HashOptions { progress: context.progress(&on_bytes), ..HashOptions::default() };
        let status = cache.verify(&key, Duration::from_secs(wait), &how);
        bar.finish();
        entries.push(status?);
    }
    statuses(context, entries)
}

/// Flags of `prepare` that do not select a model.
pub(crate) struct PrepareOptions {
    pub(crate) immutable: bool,
    pub(crate) force: bool,
    pub(crate) min_free: Option<u64>,
    pub(crate) measure: bool,
    pub(crate) wait: u64,
}

pub(crate) fn prepare(
    context: &Context<'_>,
    select_args: &SelectArgs,
    root: &RootArgs,
    build: &BuildArgs,
    options: &PrepareOptions,
) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    required(&selection)?;
    let path = cache_path(root, &selection)?;
    let identity = match (&build.runtime, &build.build) {
        (Some(runtime), Some(build)) => {
            let request = FingerprintRequest { deadline: DEADLINE, ..FingerprintRequest::new(runtime, build) };
            Some(fingerprint(&request, &context.quietly())?)
        }
        _ => None,
    };
    let host = match &identity {
        Some(report) => report.fingerprint.host.clone(),
        None => host_facts(&b70_procguard::Host::real(), DEADLINE),
    };
    let tool = selection.spec.as_ref().map(|spec| ToolRecord {
        path: spec.packing_tool.path.clone(),
        revision: serde_json::to_value(&spec.packing_tool.revision).unwrap_or_default(),
        extra: serde_json::Map::new(),
    });
    let (mut sources, mut remarks) = (Vec::new(), Vec::new());
    for target in &selection.targets {
        let Some(model) = &target.path else { continue };
        let (source, remark) = open_model(model, target.size)?;
        if let Some(remark) = remark {
            context.ui.note(&shown(&remark));
            remarks.push(remark);
        }
        sources.push((target, source));
    }
    let cache = create(root, &path)?;
    let mut entries = Vec::new();
    for (target, source) in &sources {
        let bar = context.ui.progress("copy and hash", source.size());
        let copied = AtomicU64::new(0);
        let on_bytes = |bytes| {
            copied.fetch_add(bytes, Ordering::Relaxed);
            bar.add(bytes);
        };
        let how = HashOptions { progress: context.progress(&on_bytes), ..HashOptions::default() };
        let request = PrepareRequest {
            role: target.role.unwrap_or("target"),
            source,
            sha256: target.key,
            force: options.force,
            immutable: options.immutable,
            reserve: options.min_free.map_or(Reserve::Default, Reserve::Bytes),
            wait: Duration::from_secs(options.wait),
            tool: "b70-cache",
            packing_tool: tool.as_ref(),
            target_architecture: selection.spec.as_ref().map(|spec| spec.target_architecture.as_str()),
            build: identity.as_ref().map(|report| &report.fingerprint),
            host: Some(&host),
            measure: options.measure,
        };
        let prepared = cache.prepare(&request, &how);
        // Finishing fills the bar, and a line about a copy that was reused or refused would be untrue.
        if copied.load(Ordering::Relaxed) == source.size() {
            bar.finish();
        }
        entries.push(prepared?);
    }
    let text = entries.iter().map(|entry| prepared_text(context, entry)).collect::<String>();
    Output::ok(&OutputDocument::of_cache(PreparedEntries { status: "ready", entries, remarks }), text)
}

/// The model, once it is known to be whole, and a remark about it: half a model is not worth its memory.
fn open_model(path: &Path, size: Option<u64>) -> Result<(ModelSource, Option<String>), CliError> {
    let source = ModelSource::open(path)?;
    if let Some(expected) = size
        && expected != source.size()
    {
        return Err(b70_store::Error::Size { path: path.to_path_buf(), expected, found: source.size() }.into());
    }
    let remark = source.inspect()?;
    Ok((source, remark))
}

fn prepared_text(context: &Context<'_>, entry: &PreparedModel) -> String {
    let action = match entry.action {
        PrepareAction::Copied => "copied",
        PrepareAction::Reused => "reused",
        PrepareAction::Repaired => "repaired",
        PrepareAction::Redone => "redone",
    };
    let mut text = format!(
        "{} {}: {} in {}\n  {}  {}\n",
        entry.role,
        entry.key,
        context.ui.paint(Style::Good, action),
        seconds_text(entry.seconds),
        entry.path.display(),
        bytes_text(entry.size_bytes)
    );
    if let Some(damage) = &entry.damage {
        text.push_str(&format!("  replaced a damaged copy: {damage}\n"));
    }
    if !entry.vouched {
        text.push_str("  nothing vouches for its digest: give --sha256 or --spec to hold it against one\n");
    }
    if let Some(staging) = &entry.staging {
        text.push_str(&format!("  {}\n", staging.text));
    }
    for reason in &entry.receipt_reasons {
        text.push_str(&format!("  the next look must read it again: {reason}\n"));
    }
    text.push_str(&format!("  trust: {}\n", entry.trust));
    text
}

pub(crate) fn warm(context: &Context<'_>, select_args: &SelectArgs, root: &RootArgs) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    required(&selection)?;
    let path = cache_path(root, &selection)?;
    let Some(cache) = open(&path)? else { return Err(missing(&what(&selection), &path)) };
    let mut entries: Vec<Warmed> = Vec::new();
    for (_, key) in keys(&cache, &selection)? {
        entries.push(cache.warm(&key, &how(context))?);
    }
    let text = entries
        .iter()
        .map(|entry| {
            format!(
                "{} {}: {} of {} resident after {} ({} before)\n",
                entry.role.as_deref().unwrap_or("model"),
                entry.key,
                bytes_text(entry.resident_bytes),
                bytes_text(entry.size_bytes),
                seconds_text(entry.seconds),
                bytes_text(entry.resident_before_bytes)
            )
        })
        .collect::<Vec<_>>()
        .concat();
    Output::ok(&OutputDocument::of_cache(Entries { entries }), text)
}

pub(crate) fn path(context: &Context<'_>, select_args: &SelectArgs, root: &RootArgs) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    required(&selection)?;
    let path = cache_path(root, &selection)?;
    let Some(cache) = open(&path)? else { return Err(missing(&what(&selection), &path)) };
    let mut entries = Vec::new();
    for (_, key) in keys(&cache, &selection)? {
        let status = cache.status(&key, &how(context))?;
        let Some(path) = status.path else {
            let path = cache.entry_path(&key);
            return Err(CliError::from(b70_admission::AdmissionError::NotAdmitted { path, reason: status.reason })
                .hint("use the source file, or run b70-cache verify or prepare"));
        };
        // A script could not open what is printed in its place.
        let Ok(path) = path.into_os_string().into_string() else {
            return Err(CliError::usage("path", "the name of the copy is not UTF-8 and cannot be printed exactly")
                .hint("give the model a name that is"));
        };
        entries.push(AdmittedPath { role: status.role, key, path });
    }
    let text = entries.iter().map(|entry| format!("{}\n", entry.path)).collect::<Vec<_>>().concat();
    Output::ok(&OutputDocument::of_cache(Entries { entries }), text)
}

pub(crate) fn drop(
    context: &Context<'_>,
    select_args: &SelectArgs,
    root: &RootArgs,
    execute: bool,
    wait: u64,
) -> Result<Output, CliError> {
    let selection = select(select_args, Role::All)?;
    let path = cache_path(root, &selection)?;
    let Some(cache) = open(&path)? else { return Err(missing(&what(&selection), &path)) };
    let keys: Vec<Sha256> = keys(&cache, &selection)?.into_iter().map(|(_, key)| key).collect();
    let host = Host::real();
    let mut plan = cache.plan_drop(&keys, &host)?;
    if execute {
        plan = cache.drop_planned(&plan, &host, Duration::from_secs(wait), &context.quietly())?;
    }
    let mut text = String::new();
    for action in &plan.plan {
        let verb = match (plan.executed, action.allowed) {
            (true, _) => "removed",
            (false, true) => "would remove",
            (false, false) => "refused",
        };
        text.push_str(&format!("{verb} {}  {}\n", action.path.display(), bytes_text(action.size_bytes)));
        for reason in &action.reasons {
            text.push_str(&format!("  {}\n", context.ui.paint(Style::Bad, reason)));
        }
        if !action.unreadable.is_empty() {
            text.push_str(&format!("  {} process(es) could not be looked at\n", action.unreadable.len()));
        }
    }
    if plan.plan.is_empty() {
        text.push_str("the cache is empty\n");
    } else if !plan.executed && plan.is_allowed() {
        text.push_str("nothing was removed: add --execute\n");
    }
    let code = if plan.is_allowed() { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&OutputDocument::of_cache(plan), text, code)
}
