use std::path::Path;
use std::time::Duration;

use b70_cli::{CliError, Context, Output, Style, Ui, bytes_text, exit, seconds_text, shown, uid};
use b70_manifest::Sha256Hex;
use b70_packset::{Depth, SetDir, StageOptions, StageOutcome, StageReport, VerifyStatus};
use b70_store::Trust;
use b70_xe2pack::{QWEN27_PLAN, Xe2DpasV2};

use crate::pack::context;

/// Where and how to stage.
pub(crate) struct StageArgs<'a> {
    pub(crate) cache_root: &'a Path,
    pub(crate) ram_root: &'a Path,
    pub(crate) key: Option<Sha256Hex>,
    pub(crate) min_free: u64,
    pub(crate) immutable: bool,
    pub(crate) wait: u64,
    pub(crate) print_env: bool,
    pub(crate) variable: Option<&'a str>,
}

pub(crate) fn stage_ram(ui: &Ui, args: &StageArgs<'_>) -> Result<Output, CliError> {
    let set = context::set(args.cache_root, args.key, None)?;
    let variable = if args.print_env { loader_variable(&set, args.variable)? } else { "" };
    let report = with_options(ui, args, |options| b70_packset::stage_ram(&set, &Xe2DpasV2::new(), options))?;
    if !args.print_env {
        return finish(ui, &report);
    }
    // What goes to standard output is evaluated by a shell: the line, or nothing.
    let mut output = finish(ui, &report)?;
    if report.status == VerifyStatus::Ready {
        output.text = format!("{variable}={}", context::shell_word(&report.stage.display().to_string()));
    } else {
        ui.error(&std::mem::take(&mut output.text));
    }
    Ok(output)
}

/// The variable of upstream's loader, which reads sets of one plan alone.
const LAB_VARIABLE: &str = "GGML_SYCL_XE2_Q4_M6_PACK_CACHE";

/// The variable to print for a set; never upstream's for a set that its loader would refuse or misread.
fn loader_variable<'v>(set: &SetDir, asked: Option<&'v str>) -> Result<&'v str, CliError> {
    let (document, _) = set.read_manifest()?;
    let labs = document.identity.format_prefix.is_none();
    match asked {
        Some(name) if labs || name != LAB_VARIABLE => Ok(name),
        None if labs => Ok(LAB_VARIABLE),
        _ => {
            Err(CliError::check("variable", format!("the loader that reads {LAB_VARIABLE} takes sets of another plan"))
                .path(set.path())
                .found(document.plan.as_deref().or(document.identity.format_prefix.as_deref()).unwrap_or_default())
                .expected(QWEN27_PLAN)
                .hint("--variable NAME names the variable of a loader that reads this set"))
        }
    }
}

pub(crate) fn stage_validate(ui: &Ui, args: &StageArgs<'_>, deep: bool) -> Result<Output, CliError> {
    // The source set helps to prove a stage whose own document is damaged; a stage stands without it, too.
    let (key, source) = if let Some(key) = args.key {
        (key, SetDir::open(args.cache_root, key).ok())
    } else {
        let set = SetDir::newest(args.cache_root)?;
        (set.read_manifest()?.0.key, Some(set))
    };
    let depth = if deep { Depth::Deep } else { Depth::Shallow };
    let report = with_options(ui, args, |options| {
        b70_packset::stage_validate(key, source.as_ref(), &Xe2DpasV2::new(), depth, options)
    })?;
    finish(ui, &report)
}

fn with_options(
    ui: &Ui,
    args: &StageArgs<'_>,
    run: impl FnOnce(&StageOptions<'_>) -> Result<StageReport, b70_packset::PackError>,
) -> Result<StageReport, CliError> {
    let work = Context::new(ui)?;
    let bar = ui.progress("staged", 0);
    let count = |bytes| bar.add(bytes);
    let report = run(&StageOptions {
        ram_root: args.ram_root,
        uid: uid(),
        min_free: args.min_free,
        immutable: args.immutable,
        lock_timeout: Duration::from_secs(args.wait),
        progress: work.progress(&count),
    });
    bar.finish();
    Ok(report?)
}

fn finish(ui: &Ui, report: &StageReport) -> Result<Output, CliError> {
    let code = if report.status == VerifyStatus::Ready { exit::OK } else { exit::CHECK_FAILED };
    Output::new(report, text(ui, report), code)
}

fn text(ui: &Ui, report: &StageReport) -> String {
    let word = match report.status {
        VerifyStatus::Ready => ui.paint(Style::Good, "ready"),
        VerifyStatus::Failed => ui.paint(Style::Bad, "FAILED"),
    };
    let outcome = match report.outcome {
        StageOutcome::Staged => "staged",
        StageOutcome::Reused => "found in place",
        StageOutcome::Repaired => "replaced a damaged or stale stage",
        StageOutcome::Validated => "validated",
    };
    let trust = match report.trust {
        Some(Trust::Blake3) => "payloads proved by BLAKE3",
        Some(Trust::Sha256) => "payloads proved by SHA-256",
        Some(_) => "no payload read, its receipt holds",
        None => "not admitted",
    };
    let mut text = format!(
        "{word}: {outcome}; {trust}; {} tensors, {}, {}\n  {}\n  {} available beside the reserve\n",
        report.tensor_count,
        bytes_text(report.payload_size_bytes),
        seconds_text(report.seconds),
        report.stage.display(),
        bytes_text(report.available_bytes)
    );
    for failure in &report.details {
        text.push_str(&format!("  {} {}\n", ui.paint(Style::Bad, &shown(&failure.code)), shown(&failure.detail)));
    }
    for reason in &report.reasons {
        text.push_str(&format!("  {} {reason}\n", ui.paint(Style::Warn, "note:")));
    }
    for extra in &report.extra {
        text.push_str(&format!("  {} {} is named by no document\n", ui.paint(Style::Warn, "extra:"), extra.display()));
    }
    if let Some(trust) = report.trust {
        text.push_str(&format!("  trust: {trust}\n"));
    }
    text
}
