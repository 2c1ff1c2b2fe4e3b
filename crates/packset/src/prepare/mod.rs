//! `prepare`: from a model and a plan to a ready set.
//!
//! The model's SHA-256, which every key names, is computed from the very bytes that are packed into unnamed files meanwhile
//! (see the pipeline); nothing gets a name before the hash has been found right. Each payload is then published on its own (data first, sidecar after), the index
//! and checksum list follow, and the manifest comes last: a set without a manifest is not a set, and a run that was killed
//! is continued by the next.

mod pieces;
mod pipeline;
mod publish;
mod run;

use std::path::PathBuf;
use std::time::Instant;

use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex};
use b70_store::{HashOptions, Trust, open_or_create, probe_immutable, sweep_orphans};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::PackError;
use crate::gate::HashGate;
use crate::layout::Layout;
use crate::model::Model;
use crate::plan::TensorPlan;
use crate::set::{MANIFEST_FILE, rel};
use crate::source::{ModelHash, Prover, RECEIPTS_DIR};
use crate::trust::SetSubject;
pub use run::PrepareOptions;
use run::{Account, Run};

/// The outcome of a [`prepare`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreparedSet {
    /// Version of this document's form.
    pub schema_version: u64,
    /// `ready`.
    pub status: String,
    /// Always `development-initialization-cache-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// The set key.
    pub set_key: Sha256Hex,
    /// Path of the set's manifest.
    pub manifest: PathBuf,
    /// The plan's name.
    pub plan: String,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Tensors packed in this run.
    pub packed: u64,
    /// Tensors found ready, their bytes checked.
    pub reused: u64,
    /// Tensors imported from another set.
    pub imported: u64,
    /// Names of the tensors whose payload or sidecar was damaged, or gone, and has been replaced; each counts as packed or
    /// imported too.
    pub repaired: Vec<String>,
    /// The set's own documents that were damaged, or gone, and have been replaced.
    #[serde(default)]
    pub repaired_documents: Vec<String>,
    /// Sum of the payloads' sizes in bytes.
    pub payload_size_bytes: u64,
    /// The model's SHA-256.
    pub source_sha256: Sha256Hex,
    /// Whether the file was proved to have it: by reading it, or by the receipt of an earlier full read.
    pub hash_validated: bool,
    /// Who vouches for it: `spec`, `argument`, `nothing`, or where it was recorded.
    pub vouched_by: String,
    /// What it rests on that the model has its SHA-256; null when nothing was checked (`--skip-source-hash`).
    pub source_trust: Option<Trust>,
    /// Why the model was read although it has a receipt, or why there is no new one.
    pub source_reasons: Vec<String>,
    /// Seconds spent on the model's SHA-256 (overlaps packing).
    pub model_hash_seconds: f64,
    /// Seconds from the first tensor to the last published one.
    pub pack_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// Workers.
    pub jobs: u64,
    /// The layout's kernel.
    pub kernel: String,
    /// Bytes of ready payloads that were read again.
    pub checked_bytes: u64,
    /// Why payloads were read although the set is ready.
    pub payload_reasons: Vec<String>,
    /// What the verdict on the payloads' bytes rests on, the weakest where they differ.
    pub trust: Trust,
}

/// Makes the set of `plan` over `model` ready under the cache root: reuses what is there, imports what another set has,
/// packs the rest.
pub fn prepare(
    model: &Model,
    plan: &TensorPlan,
    layout: &dyn Layout,
    options: &PrepareOptions<'_>,
) -> Result<PreparedSet, PackError> {
    prepare_in(model, plan, layout, options, None)
}

/// [`prepare`] with another working set per worker, in bytes: for tests of the path that packs a tensor in bands.
#[doc(hidden)]
pub fn prepare_in(
    model: &Model,
    plan: &TensorPlan,
    layout: &dyn Layout,
    options: &PrepareOptions<'_>,
    worker_set_bytes: Option<u64>,
) -> Result<PreparedSet, PackError> {
    let started = Instant::now();
    let selection = plan.select(model, layout)?;
    if selection.tensors.is_empty() {
        return Err(PackError::NothingSelected { plan: plan.name().to_owned(), path: model.path().to_path_buf() });
    }
    let gate = HashGate::new();
    let mut prover = Prover::new(model, options.cache_root, options.rehash, &options.progress)?;
    let (sha256, vouched_by) = match options.model_hash {
        ModelHash::Expected { sha256, vouched_by } => (*sha256, vouched_by.clone()),
        ModelHash::Recorded { sha256, vouched_by } => {
            gate.trust();
            (*sha256, vouched_by.clone())
        }
        // Without a digest there is no key, so nothing can overlap.
        ModelHash::Unknown => {
            let proof = prover.prove(None)?;
            let sha256 = proof.sha256;
            // What was read may change before it is packed: then the pass over it is held against this proof.
            match proof.trust {
                Trust::Blake3 | Trust::Sha256 => prover.expect(proof),
                _ => drop(gate.compute(model, None, || Ok(proof))?),
            }
            (sha256, "nothing".to_owned())
        }
    };
    let cache = open_or_create(options.cache_root, 0o755)?;
    if options.immutable {
        probe_immutable(&cache)?;
    }
    if let Ok(receipts) = cache.dir(&rel(RECEIPTS_DIR)) {
        sweep_orphans(&receipts)?;
    }
    let mut run = Run::new(model, plan, layout, options, &selection, &cache, sha256, &gate)?;
    run.prover = Some(&prover);
    run.worker_set = worker_set_bytes;
    let payload_reasons = run.rest_on_receipt()?;
    let result = run.execute();
    if result.is_err() {
        run.leave_no_empty_folders();
    }
    let (entries, counts, pack_seconds) = result?;
    let proof = gate.take_proof();
    if let Some(receipt) = proof.as_ref().and_then(|proof| proof.receipt.as_deref()) {
        prover.store(&cache, receipt)?;
    }
    let hash_validated = proof.is_some();
    let model_hash_seconds = proof.as_ref().map_or(0.0, |proof| proof.seconds);
    let source_trust = proof.as_ref().map(|proof| proof.trust);
    let repaired_documents = run.publish_set(
        &entries,
        &counts,
        &Account { hash_validated, vouched_by: &vouched_by, model_hash_seconds, pack_seconds },
    )?;
    if options.immutable {
        let (document, manifest) = run.set.read_manifest()?;
        let how = HashOptions { progress: options.progress.silent(), ..HashOptions::default() };
        let proof = SetSubject::new(&document, Sha256Hex::of(&manifest))?.make_immutable(run.set.root(), &how)?;
        if !proof.is_admitted() {
            return Err(b70_store::Error::Mismatches(proof.changed).into());
        }
    }
    Ok(PreparedSet {
        schema_version: 1,
        status: "ready".to_owned(),
        evidence_class: EvidenceClass::DevelopmentInitializationCacheOnly,
        promotion_eligible: NeverEligible,
        set_key: run.set_key,
        manifest: run.set.path().join(MANIFEST_FILE),
        plan: plan.name().to_owned(),
        tensor_count: entries.len() as u64,
        packed: counts.packed,
        reused: counts.reused,
        imported: counts.imported,
        repaired: counts.repaired,
        repaired_documents,
        payload_size_bytes: entries.iter().map(|entry| entry.payload.size_bytes).sum(),
        source_sha256: sha256,
        hash_validated,
        vouched_by,
        source_trust,
        source_reasons: proof.map(|proof| proof.reasons).unwrap_or_default(),
        model_hash_seconds,
        pack_seconds,
        seconds: started.elapsed().as_secs_f64(),
        jobs: run.jobs as u64,
        kernel: layout.kernel().to_owned(),
        checked_bytes: counts.checked_bytes,
        // Where nothing was ready, no receipt was to be expected.
        payload_reasons: if counts.checked_bytes > 0 { payload_reasons } else { Vec::new() },
        trust: counts.trust.unwrap_or(Trust::Sha256),
    })
}
