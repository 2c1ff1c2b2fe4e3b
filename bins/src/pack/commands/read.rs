use std::path::Path;

use b70_cli::{CliError, Context, Output, Style, Ui, bytes_text, exit, shown};
use b70_manifest::Sha256Hex;
use b70_packset::{InspectStatus, Inspection};
use b70_xe2pack::Xe2DpasV2;

use crate::pack::{ModelArgs, PlanArgs, context};

pub(crate) fn inspect(ui: &Ui, model: &ModelArgs, plan: &PlanArgs) -> Result<Output, CliError> {
    let layout = Xe2DpasV2::new();
    let spec = context::spec(model.spec.as_deref())?;
    let plan = context::plan(plan, spec.as_ref(), layout)?;
    let model = context::model(model.model.as_deref(), spec.as_ref())?;
    let inspection = b70_packset::inspect(&model, &plan, &layout)?;
    let code = match inspection.status {
        InspectStatus::PlanMismatch => exit::CHECK_FAILED,
        InspectStatus::Ready | InspectStatus::NothingToPack => exit::OK,
    };
    Output::new(&inspection, inspection_text(ui, &inspection), code)
}

fn inspection_text(ui: &Ui, inspection: &Inspection) -> String {
    let gguf = &inspection.gguf;
    let mut text = format!(
        "{}\n  GGUF version {}, {} tensors, {} metadata entries, alignment {}, data at {}, {}\n",
        ui.paint(Style::Strong, &shown(&inspection.model.display().to_string())),
        gguf.version,
        gguf.tensor_count,
        gguf.metadata_count,
        gguf.alignment,
        gguf.data_offset,
        bytes_text(gguf.file_size),
    );
    text.push_str(&format!(
        "plan {}: {} of {} tensors, payloads {}\n",
        inspection.plan,
        inspection.selected_tensor_count,
        inspection.expected_tensor_count,
        bytes_text(inspection.expected_pack_size_bytes)
    ));
    for tensor in &inspection.tensors {
        text.push_str(&format!(
            "  slot {:>4}  {}  {:?}  at {}, {} bytes\n",
            tensor.slot,
            shown(&tensor.name),
            tensor.shape,
            tensor.offset,
            tensor.size_bytes
        ));
    }
    for tensor in &inspection.skipped {
        let line = format!("  left out   {}  {:?}: {}", shown(&tensor.name), tensor.shape, shown(&tensor.reason));
        text.push_str(&ui.paint(Style::Dim, &line));
        text.push('\n');
    }
    for remark in &inspection.remarks {
        text.push_str(&format!("  remark: {}\n", shown(remark)));
    }
    for problem in &inspection.problems {
        text.push_str(&format!("  {} {}\n", ui.paint(Style::Bad, "problem:"), shown(problem)));
    }
    text
}

pub(crate) fn keys(plan: &PlanArgs, sha256: Sha256Hex) -> Result<Output, CliError> {
    let layout = Xe2DpasV2::new();
    let table = b70_packset::plan_keys(&context::plan(plan, None, layout)?, &layout, sha256)?;
    let mut text = format!("set key {}\n", table.set_key);
    for row in &table.tensors {
        text.push_str(&format!("  slot {:>4}  {}  {:?}  {}\n", row.slot, row.key, row.shape, row.name));
    }
    Output::ok(&table, text)
}

pub(crate) fn self_test(ui: &Ui, kernel: Option<&str>) -> Result<Output, CliError> {
    let result = b70_xe2pack::self_test(context::kernel_named(kernel)?);
    let mut text = String::new();
    for report in &result.kernels {
        let word = if report.passed() { ui.paint(Style::Good, "passed") } else { ui.paint(Style::Bad, "FAILED") };
        text.push_str(&format!(
            "{word} {}: {} of {} cases, {}\n",
            report.kernel,
            report.passed,
            report.cases,
            bytes_text(report.bytes)
        ));
        if let Some(failure) = &report.first_failure {
            text.push_str(&format!("  first failure: {failure:?}\n"));
        }
    }
    for skipped in &result.skipped {
        text.push_str(&format!("skipped {}: this CPU lacks {}\n", skipped.kernel, skipped.needs));
    }
    let code = if result.passed() { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&result, text, code)
}

pub(crate) fn unpack(
    ui: &Ui,
    cache_root: &Path,
    key: Option<Sha256Hex>,
    tensor: &str,
    out: &Path,
) -> Result<Output, CliError> {
    let set = context::set(cache_root, key, None)?;
    let work = Context::new(ui)?;
    let unpacked = b70_packset::unpack(&set, tensor, &Xe2DpasV2::new(), out, &work.quietly())?;
    let text = format!(
        "{} {} bytes of {} to {}\n  SHA-256 {} (that of the source tensor)",
        ui.paint(Style::Good, "wrote"),
        unpacked.size_bytes,
        shown(&unpacked.tensor),
        unpacked.path.display(),
        unpacked.sha256
    );
    Output::ok(&unpacked, text)
}
