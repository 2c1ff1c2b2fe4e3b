//! Verification of a set: shallow (documents, keys, sizes, the index byte for byte), deep (every payload rehashed), and
//! against the model (every payload unpacked and compared with the GGUF's own blocks).

mod outcome;
mod payloads;
mod requirements;

use std::collections::HashSet;
use std::time::Instant;

use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::{LAB_FORMAT_PREFIX, PackSet, TensorPack};
use b70_manifest::{EvidenceClass, Sha256Hex, canonical_sha256};
use b70_store::{HashOptions, Progress, RelPath, Root, Trust};

use crate::error::PackError;
use crate::index::{INDEX_FILE, runtime_index};
use crate::keys::tensor_identity;
use crate::layout::{Layout, MatrixShape};
use crate::model::Model;
use crate::plan::TensorPlan;
use crate::set::{MANIFEST_FILE, SetDir, prefix_of};
pub(crate) use outcome::Failures;
pub use outcome::{Depth, FailureDetail, Requirement, RequirementOutcome, Verification, VerifyStatus};
use payloads::{check_against, check_payload_digests};
use requirements::apply_requirements;

/// What a set must agree with beyond itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The set key.
    pub set_key: Option<Sha256Hex>,
    /// SHA-256 of the model.
    pub model_sha256: Option<Sha256Hex>,
    /// Architecture of the device.
    pub architecture: Option<String>,
}

/// Options of [`verify`].
#[derive(Clone, Copy)]
pub struct VerifyOptions<'a> {
    /// How thorough.
    pub depth: Depth,
    /// What the set must agree with.
    pub expectation: &'a Expectation,
    /// The model to compare every payload with, block by block.
    pub against: Option<&'a Model>,
    /// The model-pack manifest whose admission requirements the set must meet.
    pub spec: Option<&'a ModelPackManifest>,
    /// Progress and cancellation.
    pub progress: Progress<'a>,
}

impl Default for VerifyOptions<'_> {
    /// Shallow, of whatever model, without progress.
    fn default() -> Self {
        const ANY: &Expectation = &Expectation { set_key: None, model_sha256: None, architecture: None };
        Self { depth: Depth::Shallow, expectation: ANY, against: None, spec: None, progress: Progress::NONE }
    }
}

/// Verifies a set. Everything that is wrong with the set is in the result; the error is for what kept it from being checked.
pub fn verify(set: &SetDir, layout: &dyn Layout, options: &VerifyOptions<'_>) -> Result<Verification, PackError> {
    let started = Instant::now();
    let mut failures = Failures::default();
    let (document, manifest) = match set.read_manifest() {
        Ok(read) => read,
        Err(PackError::Document { not_json: false, problem, .. }) => {
            failures.add("set-format", problem);
            return Ok(outcome(set, options.depth, None, 0, started, failures));
        }
        Err(error) => return Err(error),
    };
    check_documents(&document, layout, options.expectation, &mut failures)?;
    if let Some(named) = set.named_key().filter(|_| options.expectation.set_key.is_none()) {
        failures.equal("set-key", "the folder's name", &named, &document.key);
    }
    check_files(set, &document, layout, &mut failures)?;
    let (mut checked_bytes, mut deep) = (0, None);
    let how = HashOptions { progress: options.progress, ..HashOptions::default() };
    if options.depth == Depth::Deep {
        let read = check_payload_digests(set, &document, &manifest, &how, &mut failures)?;
        checked_bytes += read.bytes;
        deep = Some(read);
    }
    if let Some(model) = options.against {
        checked_bytes += check_against(set, &document, layout, model, &how, &mut failures)?;
    }
    let mut verification = outcome(set, options.depth, Some(&document), checked_bytes, started, failures);
    if let Some(read) = deep {
        verification.trust = (verification.status == VerifyStatus::Ready).then_some(Trust::Sha256);
        (verification.receipt, verification.receipt_reasons) = (read.receipt, read.reasons);
    }
    if let Some(spec) = options.spec {
        apply_requirements(&mut verification, &document, spec);
    }
    Ok(verification)
}

fn outcome(
    set: &SetDir,
    validation: Depth,
    document: Option<&PackSet>,
    checked_bytes: u64,
    started: Instant,
    failures: Failures,
) -> Verification {
    Verification {
        schema_version: 1,
        status: if failures.is_empty() { VerifyStatus::Ready } else { VerifyStatus::Failed },
        validation,
        manifest: set.path().join(MANIFEST_FILE),
        set_key: document.map(|document| document.key),
        tensor_count: document.map_or(0, |document| document.tensors.len() as u64),
        checked_bytes,
        seconds: started.elapsed().as_secs_f64(),
        failures: failures.codes(),
        details: failures.into_details(),
        requirements: Vec::new(),
        receipt: None,
        receipt_reasons: Vec::new(),
        trust: None,
    }
}

/// Checks of the manifest alone.
pub(crate) fn check_documents(
    document: &PackSet,
    layout: &dyn Layout,
    expectation: &Expectation,
    failures: &mut Failures,
) -> Result<(), PackError> {
    let descriptor = layout.descriptor();
    let prefix = prefix_of(document);
    failures.equal("set-format", "format", &document.format, &format!("{prefix}-pack-set-v2"));
    failures.equal("set-format", "schema_version", &document.schema_version, &1);
    failures.equal("set-format", "status", &document.status.as_str(), &"ready");
    if document.evidence_class != EvidenceClass::DevelopmentInitializationCacheOnly {
        failures.add("set-format", "evidence_class must be development-initialization-cache-only");
    }
    failures.equal("set-key", "the canonical hash of identity", &canonical_sha256(&document.identity)?, &document.key);
    if let Some(expected) = expectation.set_key {
        failures.equal("set-key", "key", &document.key, &expected);
    }
    let identity = &document.identity;
    failures.equal(
        "target-model-sha256",
        "identity.target_model_sha256",
        &identity.target_model_sha256,
        &document.source_model.sha256,
    );
    // Any other set than upstream's names its layout, and upstream's prefix is never written out.
    let named = identity.format_prefix.is_some();
    if identity.format_prefix.as_deref() == Some(LAB_FORMAT_PREFIX) {
        failures.add(
            "set-format",
            format!("identity.format_prefix is {LAB_FORMAT_PREFIX:?}, which is implied by its absence"),
        );
    }
    let layout_name = named.then_some(descriptor.name);
    if identity.layout_name.as_deref() != layout_name {
        failures.add(
            "layout-contract",
            format!("identity.layout_name is {:?}, expected {layout_name:?}", identity.layout_name),
        );
    }
    if let Some(expected) = expectation.model_sha256 {
        failures.equal("target-model-sha256", "the model's SHA-256", &identity.target_model_sha256, &expected);
    }
    failures.equal(
        "target-architecture",
        "identity.target_architecture",
        &identity.target_architecture.as_str(),
        &expectation.architecture.as_deref().unwrap_or(descriptor.architecture),
    );
    failures.equal(
        "pack-layout-version",
        "identity.pack_layout_version",
        &identity.pack_layout_version,
        &descriptor.version,
    );
    let mut found = document.layout.clone();
    found.extra.clear();
    let expected = layout.record();
    if found != expected {
        failures.add("layout-contract", format!("layout is {found:?}, expected {expected:?}"));
    }
    check_tensors(document, layout, prefix, failures)?;
    let index = &document.runtime_index;
    failures.equal("runtime-index-contract", "runtime_index.path", &index.path.as_str(), &INDEX_FILE);
    let index_format = format!("{prefix}-runtime-index-v1");
    failures.equal("runtime-index-contract", "runtime_index.format", &index.format, &index_format);
    Ok(())
}

/// The index that a manifest implies, byte for byte.
pub(crate) fn implied_index(document: &PackSet, layout: &dyn Layout) -> Result<String, PackError> {
    Ok(runtime_index(
        prefix_of(document),
        document.key,
        document.source_model.sha256,
        layout.descriptor(),
        layout.source_type().id(),
        &document.tensors,
    )?)
}

fn check_tensors(
    document: &PackSet,
    layout: &dyn Layout,
    prefix: &str,
    failures: &mut Failures,
) -> Result<(), PackError> {
    let count = document.tensors.len() as u64;
    failures.equal("tensor-count", "tensor_count", &document.tensor_count, &count);
    let bytes: u128 = document.tensors.iter().map(|tensor| u128::from(tensor.payload.size_bytes)).sum();
    failures.equal("tensor-count", "payload_size_bytes", &u128::from(document.payload_size_bytes), &bytes);
    let keys: Vec<_> = document.tensors.iter().map(|tensor| tensor.key).collect();
    if keys != document.identity.tensor_keys {
        failures.add("tensor-key-table", "identity.tensor_keys are not the keys of tensors, in order");
    }
    for tensor in &document.tensors {
        check_tensor(tensor, document, layout, prefix, failures)?;
    }
    check_slots(document, layout, prefix, failures);
    Ok(())
}

fn check_tensor(
    tensor: &TensorPack,
    document: &PackSet,
    layout: &dyn Layout,
    prefix: &str,
    failures: &mut Failures,
) -> Result<(), PackError> {
    let name = &tensor.identity.tensor_name;
    let key = canonical_sha256(&tensor.identity)?;
    failures.equal(&format!("tensor-key:{name}"), "the canonical hash of identity", &key, &tensor.key);
    let code = format!("tensor-contract:{name}");
    failures.equal(&code, "schema_version", &tensor.schema_version, &1);
    failures.equal(&code, "format", &tensor.format, &format!("{prefix}-tensor-pack-v2"));
    failures.equal(&code, "status", &tensor.status.as_str(), &"ready");
    failures.equal(&code, "payload.path", &tensor.payload.path, &format!("tensors/{}.bin", tensor.key));
    let [k, n] = tensor.identity.tensor_shape;
    let shape = MatrixShape { k, n };
    let expected = tensor_identity(layout, document.source_model.sha256, name, shape);
    if tensor.identity != expected {
        failures.add(&code, format!("identity is {:?}, expected {expected:?}", tensor.identity));
    }
    if name.chars().any(char::is_control) {
        failures.add(&code, "the name has a control character");
    }
    match (layout.source_len(shape), layout.payload_len(shape)) {
        (Ok(source), Ok(payload)) => {
            failures.equal(&code, "source_tensor.size_bytes", &tensor.source_tensor.size_bytes, &source);
            failures.equal(&code, "payload.size_bytes", &tensor.payload.size_bytes, &payload);
        }
        (Err(error), _) | (_, Err(error)) => failures.add(&code, error.to_string()),
    }
    Ok(())
}

fn check_slots(document: &PackSet, layout: &dyn Layout, prefix: &str, failures: &mut Failures) {
    const CODE: &str = "tensor-slot-table";
    let mut names = HashSet::new();
    for tensor in &document.tensors {
        if !names.insert(tensor.identity.tensor_name.as_str()) {
            failures.add(CODE, format!("{} has two slots", tensor.identity.tensor_name));
        }
    }
    // What has the prefix of a plan with exact shapes has that plan's slots.
    let plan = TensorPlan::of_layout(layout, |plan| plan.format_prefix == prefix);
    let Some(Ok(slots)) = plan.map(|plan| plan.exact_slots()) else { return };
    failures.equal("tensor-count", "tensor_count", &(document.tensors.len() as u64), &(slots.len() as u64));
    for ((slot, name, shape), tensor) in slots.iter().zip(&document.tensors) {
        if tensor.identity.tensor_name != *name || tensor.identity.tensor_shape != [shape.k, shape.n] {
            failures.add(CODE, format!("slot {slot} holds {}, expected {name}", tensor.identity.tensor_name));
        }
    }
}

/// Checks of the files beside the manifest: sidecars, payload sizes, the index.
pub(crate) fn check_files(
    set: &SetDir,
    document: &PackSet,
    layout: &dyn Layout,
    failures: &mut Failures,
) -> Result<(), PackError> {
    for tensor in &document.tensors {
        let name = &tensor.identity.tensor_name;
        match payload_size(set.root(), tensor) {
            Ok(size) => {
                failures.equal(&format!("payload-size:{name}"), "the file's size", &size, &tensor.payload.size_bytes);
            }
            Err(error) => failures.add(format!("payload-size:{name}"), error.to_string()),
        }
        match set.read_sidecar(tensor.key) {
            Ok(sidecar) if same_tensor(&sidecar, tensor) => {}
            Ok(_) => failures.add(format!("tensor-contract:{name}"), "the sidecar describes another payload"),
            Err(error) => failures.add(format!("tensor-contract:{name}"), error.to_string()),
        }
    }
    check_index(set, document, layout, failures)
}

fn payload_size(root: &Root, tensor: &TensorPack) -> Result<u64, PackError> {
    let path = RelPath::new(&tensor.payload.path)?;
    let file = root.open_file(&path)?;
    Ok(file.metadata().map_err(PackError::io("stat", &root.join(&path)))?.len())
}

/// Whether two entries describe the same payload; times and counters may differ.
pub(crate) fn same_tensor(a: &TensorPack, b: &TensorPack) -> bool {
    a.schema_version == b.schema_version
        && a.format == b.format
        && a.status == b.status
        && a.key == b.key
        && a.identity == b.identity
        && a.source_tensor == b.source_tensor
        && a.payload == b.payload
}

fn check_index(
    set: &SetDir,
    document: &PackSet,
    layout: &dyn Layout,
    failures: &mut Failures,
) -> Result<(), PackError> {
    const IDENTITY: &str = "runtime-index-identity";
    let bytes = match set.read_index() {
        Ok(bytes) => bytes,
        Err(error) => {
            failures.add("runtime-index-size", error.to_string());
            failures.add(IDENTITY, "the index cannot be read");
            return Ok(());
        }
    };
    let record = &document.runtime_index;
    failures.equal("runtime-index-size", "the index's size", &(bytes.len() as u64), &record.size_bytes);
    failures.equal(IDENTITY, "the index's SHA-256", &Sha256Hex::of(&bytes), &record.sha256);
    let expected = implied_index(document, layout)?;
    if bytes != expected.as_bytes() {
        let line = bytes
            .split(|byte| *byte == b'\n')
            .zip(expected.as_bytes().split(|byte| *byte == b'\n'))
            .position(|(found, expected)| found != expected)
            .map_or_else(|| "their lengths".to_owned(), |line| format!("line {}", line + 1));
        failures.add(IDENTITY, format!("the index differs from the one the manifest implies, first in {line}"));
    }
    Ok(())
}
