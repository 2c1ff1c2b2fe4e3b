use std::path::{Path, PathBuf};

use b70_cli::{CliError, Context, Output, Style, Ui, bytes_text, exit, seconds_text, shown};
use b70_manifest::Sha256Hex;
use b70_packset::{Depth, Expectation, RequirementOutcome, Verification, VerifyOptions, VerifyStatus};
use b70_xe2pack::Xe2DpasV2;

use crate::pack::context;

pub(crate) fn verify(
    ui: &Ui,
    cache_root: &Path,
    key: Option<Sha256Hex>,
    spec: Option<&Path>,
    deep: bool,
    against: Option<Vec<PathBuf>>,
) -> Result<Output, CliError> {
    let spec = context::spec(spec)?;
    let set = context::set(cache_root, key, spec.as_ref())?;
    let against = against.map(|path| context::model(path.first().map(PathBuf::as_path), spec.as_ref())).transpose()?;
    let expectation = Expectation {
        set_key: key,
        model_sha256: spec.as_ref().map(|spec| spec.source.sha256),
        architecture: spec.as_ref().map(|spec| spec.target_architecture.clone()),
    };
    let work = Context::new(ui)?;
    let bar = ui.progress("checked", 0);
    let count = |bytes| bar.add(bytes);
    let verified = b70_packset::verify(
        &set,
        &Xe2DpasV2::new(),
        &VerifyOptions {
            depth: if deep { Depth::Deep } else { Depth::Shallow },
            expectation: &expectation,
            against: against.as_ref(),
            spec: spec.as_ref(),
            progress: work.progress(&count),
        },
    );
    bar.finish();
    let verification = verified?;
    let code = if verification.status == VerifyStatus::Ready { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&verification, text(ui, &verification), code)
}

fn text(ui: &Ui, verification: &Verification) -> String {
    let word = match verification.status {
        VerifyStatus::Ready => ui.paint(Style::Good, "ready"),
        VerifyStatus::Failed => ui.paint(Style::Bad, "FAILED"),
    };
    let depth = match verification.validation {
        Depth::Shallow => "shallow",
        Depth::Deep => "deep",
    };
    let mut text = format!(
        "{word} ({depth}): {} tensors, {} of payload compared, {}\n  {}\n",
        verification.tensor_count,
        bytes_text(verification.checked_bytes),
        seconds_text(verification.seconds),
        verification.manifest.display()
    );
    for failure in &verification.details {
        text.push_str(&format!("  {} {}\n", ui.paint(Style::Bad, &shown(&failure.code)), shown(&failure.detail)));
    }
    for requirement in &verification.requirements {
        let outcome = match requirement.outcome {
            RequirementOutcome::Met => ui.paint(Style::Good, "met"),
            RequirementOutcome::NotMet => ui.paint(Style::Bad, "NOT MET"),
            RequirementOutcome::NotCheckable => ui.paint(Style::Warn, "not checkable"),
        };
        text.push_str(&format!(
            "  requirement {}: {outcome}; {}\n",
            shown(&requirement.name),
            shown(&requirement.detail)
        ));
    }
    if let Some(receipt) = &verification.receipt {
        text.push_str(&format!("  receipt written: {}\n", receipt.display()));
    }
    for reason in &verification.receipt_reasons {
        text.push_str(&format!("  {} no receipt: {}\n", ui.paint(Style::Warn, "note:"), shown(reason)));
    }
    if let Some(trust) = verification.trust {
        text.push_str(&format!("  trust: {trust}\n"));
    }
    text
}
