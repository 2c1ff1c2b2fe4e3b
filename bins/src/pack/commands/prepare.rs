use std::path::Path;
use std::time::Duration;

use b70_cli::{CliError, Output, Style, Ui, bytes_text, interrupt_flag, seconds_text, shown};
use b70_manifest::Sha256Hex;
use b70_packset::{ModelHash, PrepareOptions, PreparedSet};
use b70_store::{Progress, Trust};

use crate::pack::{ModelArgs, PlanArgs, context};

/// The command's arguments.
pub(crate) struct PrepareArgs<'a> {
    pub(crate) model: &'a ModelArgs,
    pub(crate) plan: &'a PlanArgs,
    pub(crate) cache_root: &'a Path,
    pub(crate) kernel: Option<&'a str>,
    pub(crate) sha256: Option<Sha256Hex>,
    pub(crate) skip_source_hash: bool,
    pub(crate) rehash: bool,
    pub(crate) force: bool,
    pub(crate) immutable: bool,
    pub(crate) jobs: usize,
    pub(crate) wait: u64,
}

pub(crate) fn prepare(ui: &Ui, args: &PrepareArgs<'_>) -> Result<Output, CliError> {
    let layout = context::layout(args.kernel)?;
    let spec = context::spec(args.model.spec.as_deref())?;
    let plan = context::plan(args.plan, spec.as_ref(), layout)?;
    let model = context::model(args.model.model.as_deref(), spec.as_ref())?;
    let model_hash =
        b70_packset::model_hash(&model, spec.as_ref(), args.sha256, args.skip_source_hash, args.cache_root)?;
    let cancel = interrupt_flag()?;
    let packing = b70_packset::inspect(&model, &plan, &layout)?.expected_pack_size_bytes;
    // Without a known digest the model is hashed first, and that counts as well.
    let hashing = if model_hash == ModelHash::Unknown { model.size_bytes() } else { 0 };
    let total = packing.saturating_add(hashing);
    let bar = ui.progress("packed", total);
    let count = |bytes| bar.add(bytes);
    let prepared = b70_packset::prepare(
        &model,
        &plan,
        &layout,
        &PrepareOptions {
            cache_root: args.cache_root,
            model_hash: &model_hash,
            rehash: args.rehash,
            force: args.force,
            immutable: args.immutable,
            jobs: args.jobs,
            lock_timeout: Duration::from_secs(args.wait),
            tool: Some(&b70_packset::tool_record("b70-pack", env!("CARGO_PKG_VERSION"))),
            progress: Progress::new(&count).with_cancel(&cancel),
        },
    );
    bar.finish();
    let prepared = prepared?;
    Output::ok(&prepared, text(ui, &prepared))
}

fn text(ui: &Ui, prepared: &PreparedSet) -> String {
    let mut text = format!(
        "{} set {}\n  {} tensors of plan {}: {} packed, {} reused, {} imported; payloads {}\n",
        ui.paint(Style::Good, "ready:"),
        prepared.set_key,
        prepared.tensor_count,
        prepared.plan,
        prepared.packed,
        prepared.reused,
        prepared.imported,
        bytes_text(prepared.payload_size_bytes),
    );
    text.push_str(&format!(
        "  model hash {}, packing {}, in all {} ({} workers, kernel {})\n",
        seconds_text(prepared.model_hash_seconds),
        seconds_text(prepared.pack_seconds),
        seconds_text(prepared.seconds),
        prepared.jobs,
        prepared.kernel
    ));
    if !prepared.repaired.is_empty() || !prepared.repaired_documents.is_empty() {
        let names: Vec<&str> =
            prepared.repaired.iter().chain(&prepared.repaired_documents).map(String::as_str).collect();
        text.push_str(&format!("  repaired: {}\n", names.join(", ")));
    }
    let how = match prepared.source_trust {
        Some(Trust::Sha256) => "computed from the file",
        Some(Trust::Blake3) => "the file has the BLAKE3 of the full read its receipt records",
        Some(_) => "not read again: unchanged since the full read its receipt records",
        None => "NOT checked: trusted as recorded",
    };
    let source_trust = prepared.source_trust.map_or_else(String::new, |trust| format!("; trust: {trust}"));
    let vouched = match prepared.vouched_by.as_str() {
        "nothing" => "nothing vouches for it".to_owned(),
        by => format!("vouched for by {by}"),
    };
    text.push_str(&format!(
        "  model SHA-256 {}: {how}; {vouched}{source_trust}\n  {}\n",
        prepared.source_sha256,
        prepared.manifest.display()
    ));
    for reason in &prepared.payload_reasons {
        text.push_str(&format!("  ready payloads were read again: {}\n", shown(reason)));
    }
    let rests_on = match prepared.trust {
        Trust::Blake3 | Trust::Sha256 => "every payload was read, or made in this run",
        _ => "no payload was read: unchanged since the deep validation its receipt records",
    };
    text.push_str(&format!("  trust: {} ({rests_on})", prepared.trust));
    text
}
