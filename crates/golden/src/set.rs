//! A set as a folder: publish it, verify it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use b70_manifest::EvidenceClass;
use b70_manifest::document::read_text;
use b70_manifest::golden::{GoldenCase, GoldenGenerator, GoldenRule, GoldenSet, GoldenTensor};
use b70_store::{
    DigestKind, DirOutcome, Error as StoreError, HiddenDir, Job, OnExisting, Progress, RelPath, Root, Sha256, Source,
    hash_many, json_bytes, on_threads, open_or_create, publish_bytes, sweep_orphans,
};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value, json};

use crate::error::GoldenError;
use crate::generate::{PACKED, SetParameters, expected_name, generate, input_name};

/// Folder of the set below the artifact root.
pub const SET_NAME: &str = "mmvq-q4_0-q8_1-v1";
/// Name of the set's manifest.
pub const MANIFEST: &str = "manifest.json";
/// Format of the manifest.
pub(crate) const SET_FORMAT: &str = "qwen27-mmvp-q4_0-q8_1-golden-v1";
/// Name of the C header that travels with every set.
pub const HEADER_NAME: &str = "b70_golden.h";
/// The C header: documents each file and reads it, so that a kernel can be tested from the folder alone.
pub const HEADER: &str = include_str!("../bundle/b70_golden.h");

/// What our manifests name as their generator.
const GENERATOR: &str = env!("CARGO_PKG_NAME");
/// Revision of the manifest that [`prepare`] writes; 1 was the form of kit 0.1, which did not state it.
const REVISION: u64 = 2;
/// What `status` says once every file is there.
const READY: &str = "ready";
/// What every manifest says of itself, as upstream's do.
const NOTE: &str = "Deterministic tensors made from a seed; not captured model activations.";

/// The largest manifest that is read.
const MAX_MANIFEST: u64 = 4 << 20;

/// What else a manifest records, and what may be replaced.
#[derive(Debug, Clone, Copy, Default)]
pub struct FixtureOptions {
    /// SHA-256 of the model whose shapes the set stands for.
    pub source_model_sha256: Option<Sha256>,
    /// Fingerprint of the build the set is made for.
    pub build_fingerprint_sha256: Option<Sha256>,
    /// Replace whatever has the name: a sound set of other parameters, a set of another form or of another tool.
    pub force: bool,
}

/// How a prepare ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PrepareStatus {
    /// The set is new.
    Created,
    /// The set was there, every byte of it, and was kept; also another tool's, if it is of these parameters.
    Kept,
    /// What was there was damaged or another set, and has been replaced.
    Replaced,
}

/// One tensor of a report.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TensorReport {
    /// Name of its file.
    pub name: String,
    /// SHA-256 of its bytes.
    pub sha256: Sha256,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// What `prepare` did.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(title = "Golden prepare")]
pub struct PrepareReport {
    /// Version of this document, 1.
    pub schema_version: u64,
    /// Always `synthetic-kernel-contract-diagnostic-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: bool,
    /// How it ended.
    pub status: PrepareStatus,
    /// Why what was there was replaced.
    pub replaced_because: Option<String>,
    /// What wrote the set that is there now.
    pub written_by: String,
    /// The set's manifest.
    pub manifest: PathBuf,
    /// SHA-256 of the manifest.
    pub manifest_sha256: Sha256,
    /// Every tensor.
    pub tensors: Vec<TensorReport>,
    /// Seconds spent making numbers.
    pub generate_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
}

/// What `verify` found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(title = "Golden verify")]
pub struct SetCheck {
    /// Version of this document, 1.
    pub schema_version: u64,
    /// Always `synthetic-kernel-contract-diagnostic-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: bool,
    /// `valid` or `failed`.
    pub status: String,
    /// What wrote the set, as its manifest states it.
    pub written_by: String,
    /// The set's manifest.
    pub manifest: PathBuf,
    /// SHA-256 of the manifest.
    pub manifest_sha256: Sha256,
    /// Whether the tensors were also made again from the manifest's parameters and compared.
    pub recomputed: bool,
    /// Tensors that are what the manifest says.
    pub tensors: Vec<TensorReport>,
    /// Every fault, each naming its tensor.
    pub failures: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
}

impl SetCheck {
    /// Whether the set may be used.
    pub fn is_valid(&self) -> bool {
        self.failures.is_empty()
    }
}

fn name(text: &str) -> Result<RelPath, GoldenError> {
    Ok(RelPath::new(text)?)
}

/// Makes a set and publishes it as `<root>/mmvq-q4_0-q8_1-v1`, whole or not at all. A set of the same parameters whose
/// every byte is right is kept, whoever wrote it. A damaged one of ours is replaced. A sound one of other parameters is
/// replaced only if told so, and so is whatever another tool or kit 0.1 wrote.
///
/// # Errors
/// [`GoldenError::Parameter`], [`GoldenError::OtherSet`], [`GoldenError::ForeignSet`], or a refusal of the file system.
pub fn prepare(
    root: &Path,
    parameters: &SetParameters,
    options: &FixtureOptions,
) -> Result<PrepareReport, GoldenError> {
    let started = Instant::now();
    parameters.check()?;
    let root = open_or_create(root, 0o755)?;
    // What an ended run left behind, also where the set itself was complete by then.
    sweep_orphans(&root)?;
    // Looked at first, so that a set that is there costs one reading; asked again at the publish.
    let mut because = match incumbent(&root, parameters, options)? {
        Incumbent::None => None,
        Incumbent::Same(check) => {
            return Ok(PrepareReport {
                schema_version: 1,
                evidence_class: EvidenceClass::SyntheticKernelContractDiagnosticOnly,
                promotion_eligible: false,
                status: PrepareStatus::Kept,
                replaced_because: None,
                written_by: check.written_by,
                manifest: check.manifest,
                manifest_sha256: check.manifest_sha256,
                tensors: check.tensors,
                generate_seconds: 0.0,
                seconds: started.elapsed().as_secs_f64(),
            });
        }
        Incumbent::Replace(why) => Some(why),
    };
    let tensors = generate(parameters)?;
    let generate_seconds = started.elapsed().as_secs_f64();
    let staging = HiddenDir::create(&root)?;
    let published: Vec<Result<TensorReport, GoldenError>> = on_threads(|| {
        tensors
            .par_iter()
            .map(|tensor| {
                let made = publish_bytes(staging.root(), &name(&tensor.name)?, &tensor.bytes, 0o444, OnExisting::Fail)?;
                let size_bytes = made.content.size;
                Ok(TensorReport { name: tensor.name.clone(), sha256: made.content.sha256, size_bytes })
            })
            .collect()
    })?;
    let published = published.into_iter().collect::<Result<Vec<_>, _>>()?;
    publish_bytes(staging.root(), &name(HEADER_NAME)?, HEADER.as_bytes(), 0o444, OnExisting::Fail)?;
    let document = manifest(parameters, options, &published);
    let text = json_bytes(Path::new(MANIFEST), &document)?;
    let manifest_sha256 = Sha256::of(&text);
    publish_bytes(staging.root(), &name(MANIFEST)?, &text, 0o444, OnExisting::Fail)?;
    // The publish holds the final word on what has the name by then.
    let mut refusal = None;
    let outcome = staging.commit(&name(SET_NAME)?, 0o755, |_| match incumbent(&root, parameters, options) {
        Ok(Incumbent::Same(_)) => Ok(None),
        Ok(Incumbent::Replace(why)) => Ok(Some(why)),
        Ok(Incumbent::None) => Ok(Some("it vanished while it was looked at".to_owned())),
        Err(GoldenError::Store(error)) => Err(error),
        Err(other) => {
            refusal = Some(other);
            Err(StoreError::Cancelled)
        }
    });
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    let (status, folder) = match outcome? {
        DirOutcome::Created(folder) => (PrepareStatus::Created, folder),
        DirOutcome::Kept(folder) => (PrepareStatus::Kept, folder),
        DirOutcome::Repaired(folder, why) => {
            because = Some(why);
            (PrepareStatus::Replaced, folder)
        }
    };
    Ok(PrepareReport {
        schema_version: 1,
        evidence_class: EvidenceClass::SyntheticKernelContractDiagnosticOnly,
        promotion_eligible: false,
        status,
        replaced_because: because,
        written_by: writer(document.generator.as_ref(), document.extra.get("header")),
        manifest: folder.join(&name(MANIFEST)?),
        manifest_sha256,
        tensors: published,
        generate_seconds,
        seconds: started.elapsed().as_secs_f64(),
    })
}

enum Incumbent {
    None,
    Same(SetCheck),
    Replace(String),
}

fn incumbent(root: &Root, parameters: &SetParameters, options: &FixtureOptions) -> Result<Incumbent, GoldenError> {
    let folder = match root.dir(&name(SET_NAME)?) {
        Ok(folder) => folder,
        Err(StoreError::Missing { .. }) => return Ok(Incumbent::None),
        Err(error) => return Err(error.into()),
    };
    let (written_by, is_ours) = writer_of(&folder)?;
    let (found, fault) = match check(&folder, false) {
        Ok((document, check)) if check.is_valid() => (Some((document, check)), None),
        Ok((_, check)) => (None, Some(check.failures.join("; "))),
        Err(GoldenError::Store(StoreError::Missing { path })) => (None, Some(format!("{} is missing", path.display()))),
        Err(error @ (GoldenError::Document(_) | GoldenError::BadSet { .. })) => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    let path = folder.path().to_path_buf();
    let different = found.as_ref().and_then(|(document, _)| difference(document, parameters, options));
    match (found, fault, different) {
        (Some((_, check)), _, None) if is_ours || !options.force => Ok(Incumbent::Same(check)),
        (_, Some(fault), _) if is_ours => Ok(Incumbent::Replace(fault)),
        (_, fault, different) if options.force => {
            let what = different.map(|(what, found, expected)| format!("{what} was {found}, now {expected}"));
            let why = what.or(fault).unwrap_or_else(|| format!("it was written by {written_by}"));
            Ok(Incumbent::Replace(why))
        }
        (_, None, Some((what, found, expected))) if is_ours => {
            Err(GoldenError::OtherSet { path, what, found, expected })
        }
        (_, fault, different) => {
            let what = different.map(|(what, found, expected)| format!("its {what} is {found}, expected {expected}"));
            Err(GoldenError::ForeignSet { path, written_by, why: what.or(fault).unwrap_or_default() })
        }
    }
}

/// The first thing in which a set is not the one that is asked for. A model or a build that nobody named is not compared.
fn difference(
    document: &GoldenSet,
    parameters: &SetParameters,
    options: &FixtureOptions,
) -> Option<(&'static str, String, String)> {
    let found = parameters_of(document);
    let digest = |digest: Option<Sha256>| digest.map_or("none".to_owned(), |d| d.to_string());
    let widths = |widths: &[u64]| widths.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let named = |what, found, asked: Option<Sha256>| asked.map(|asked| (what, digest(found), asked.to_string()));
    [
        Some(("k", found.k.to_string(), parameters.k.to_string())),
        Some(("n", found.n.to_string(), parameters.n.to_string())),
        Some(("seed", found.seed.to_string(), parameters.seed.to_string())),
        Some(("rule", found.rule.to_string(), parameters.rule.to_string())),
        Some(("list of widths", widths(&found.widths), widths(&parameters.widths))),
        Some(("choice of packed weights", found.packed.to_string(), parameters.packed.to_string())),
        named("source model", document.source_model_sha256, options.source_model_sha256),
        named("build fingerprint", document.build_fingerprint_sha256, options.build_fingerprint_sha256),
    ]
    .into_iter()
    .flatten()
    .find(|(_, found, expected)| found != expected)
}

/// What a manifest says of its maker, in words. Kit 0.1 named none, and is known by its header.
fn writer(generator: Option<&GoldenGenerator>, header: Option<&Value>) -> String {
    match (generator, header) {
        (Some(generator), _) => format!("{} revision {}", generator.path, generator.revision),
        (None, Some(header)) if header["file"] == HEADER_NAME => format!("{GENERATOR} of kit 0.1"),
        (None, _) => "a tool that its manifest does not name".to_owned(),
    }
}

/// What wrote the set in `folder`, and whether that is this program in its present form. A manifest that cannot be read
/// says nothing of the kind: then it is not ours to replace.
fn writer_of(folder: &Root) -> Result<(String, bool), GoldenError> {
    let bytes = match folder.read(&name(MANIFEST)?, MAX_MANIFEST) {
        Ok(bytes) => bytes,
        Err(StoreError::Missing { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let manifest: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let generator = manifest.get("generator").and_then(|found| GoldenGenerator::deserialize(found).ok());
    let is_ours = generator.as_ref().is_some_and(|found| found.path == GENERATOR && found.revision == REVISION);
    Ok((writer(generator.as_ref(), manifest.get("header")), is_ours))
}

fn manifest(parameters: &SetParameters, options: &FixtureOptions, published: &[TensorReport]) -> GoldenSet {
    let case = |&m: &u64| GoldenCase { width: m, tensors: [input_name(m), expected_name(m)], extra: Map::new() };
    let tensor =
        |((path, dtype, shape, size_bytes), published): ((_, &str, [u64; 2], _), &TensorReport)| GoldenTensor {
            path,
            sha256: published.sha256,
            size_bytes,
            shape: shape.to_vec(),
            dtype: dtype.to_owned(),
            extra: Map::new(),
        };
    let mut extra = Map::new();
    extra.insert("header".to_owned(), json!({ "file": HEADER_NAME, "sha256": Sha256::of(HEADER.as_bytes()) }));
    GoldenSet {
        schema_version: 1,
        format: SET_FORMAT.to_owned(),
        evidence_class: EvidenceClass::SyntheticKernelContractDiagnosticOnly,
        promotion_eligible: b70_manifest::NeverEligible,
        status: Some(READY.to_owned()),
        generator: Some(GoldenGenerator { path: GENERATOR.to_owned(), revision: REVISION, extra: Map::new() }),
        rule: Some(parameters.rule),
        seed: parameters.seed,
        k: parameters.k,
        n: parameters.n,
        required_widths: parameters.widths.clone(),
        cases: parameters.widths.iter().map(case).collect(),
        tensors: parameters.files().into_iter().zip(published).map(tensor).collect(),
        source_model_sha256: options.source_model_sha256,
        build_fingerprint_sha256: options.build_fingerprint_sha256,
        // No time: the same parameters give the same manifest, byte for byte, on every machine.
        created_unix: None,
        created_utc: None,
        note: Some(NOTE.to_owned()),
        extra,
    }
}

fn parameters_of(document: &GoldenSet) -> SetParameters {
    SetParameters {
        k: document.k,
        n: document.n,
        seed: document.seed,
        widths: document.required_widths.clone(),
        rule: document.rule.unwrap_or(GoldenRule::Contract),
        packed: document.tensor(PACKED).is_some(),
    }
}

/// Verifies the set `<root>/mmvq-q4_0-q8_1-v1`: the manifest's form, that it lists exactly the files its parameters ask
/// for, and the SHA-256 of each. With `recompute` the tensors are also made again and compared, so that a manifest
/// rewritten together with its files is found, too.
///
/// # Errors
/// No set, or a manifest that is not one. Faults of the set are in [`SetCheck::failures`].
pub fn verify(root: &Path, recompute: bool) -> Result<SetCheck, GoldenError> {
    let folder = Root::open(root)?.dir(&name(SET_NAME)?)?;
    check(&folder, recompute).map(|(_, check)| check)
}

/// The C header that travels with a set is named by its manifest, with its digest; upstream's sets have none.
fn check_header(folder: &Root, document: &GoldenSet, failures: &mut Vec<String>) -> Result<(), GoldenError> {
    let named = document.extra.get("header");
    let found = match folder.read(&name(HEADER_NAME)?, MAX_MANIFEST) {
        Ok(bytes) => Ok(json!({ "file": HEADER_NAME, "sha256": Sha256::of(&bytes) })),
        Err(StoreError::Missing { .. }) if named.is_none() => return Ok(()),
        Err(error) => Err(error),
    };
    match (named, found) {
        (_, Err(error)) => failures.push(format!("{HEADER_NAME}: {error}")),
        (Some(named), Ok(found)) if *named == found => {}
        (named, Ok(found)) => {
            let named = named.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            failures.push(format!("{HEADER_NAME}: the manifest says {named}, the file is {found}"));
        }
    }
    Ok(())
}

fn check(folder: &Root, recompute: bool) -> Result<(GoldenSet, SetCheck), GoldenError> {
    let started = Instant::now();
    let manifest_name = name(MANIFEST)?;
    let path = folder.join(&manifest_name);
    let bytes = folder.read(&manifest_name, MAX_MANIFEST)?;
    let document: GoldenSet = read_text(&path, &String::from_utf8_lossy(&bytes))?;
    let parameters = parameters_of(&document);
    let mut failures = Vec::new();
    parameters.check().map_err(|error| GoldenError::BadSet { path: path.clone(), faults: vec![error.to_string()] })?;
    let files = parameters.files();
    let is_listed = |path: &str| files.iter().any(|(name, ..)| name == path);
    for unknown in document.tensors.iter().filter(|tensor| !is_listed(&tensor.path)) {
        failures
            .push(format!("{}: the manifest lists it, but a set of these parameters has no such tensor", unknown.path));
    }
    let cases: Vec<GoldenCase> = manifest(&parameters, &FixtureOptions::default(), &[]).cases;
    let bare = |case: &GoldenCase| GoldenCase { extra: Map::new(), ..case.clone() };
    if document.cases.iter().map(bare).ne(cases) {
        failures.push("cases: the manifest must have one case for each required width, in order".to_owned());
    }
    if let Some(status) = document.status.as_deref().filter(|status| *status != READY) {
        failures.push(format!("status: the manifest says {status:?}, expected {READY:?}"));
    }
    let mut listed = Vec::new();
    for (file, dtype, shape, size) in files {
        match document.tensor(&file) {
            None => failures.push(format!("{file}: missing from the manifest")),
            Some(tensor) if tensor.shape != shape || tensor.dtype != dtype || tensor.size_bytes != size => {
                failures.push(format!(
                    "{file}: the manifest says {} {:?} of {} bytes, expected {dtype} {shape:?} of {size} bytes",
                    tensor.dtype, tensor.shape, tensor.size_bytes
                ));
            }
            Some(tensor) => listed.push((name(&file)?, file, size, tensor.sha256)),
        }
    }
    let jobs: Vec<Job<'_>> = listed
        .iter()
        .map(|(name, _, size, _)| Job { source: Source::Beneath(folder, name), size: Some(*size) })
        .collect();
    let digests = hash_many(&jobs, DigestKind::Sha256, &Progress::NONE);
    let mut tensors = Vec::new();
    for ((_, file, size_bytes, expected), digest) in listed.into_iter().zip(digests) {
        match digest.map(|digest| digest.sha256) {
            Ok(Some(sha256)) if sha256 == expected => tensors.push(TensorReport { name: file, sha256, size_bytes }),
            Ok(found) => {
                let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
                failures.push(format!("{file} has SHA-256 {found}, expected {expected}"));
            }
            Err(error) => failures.push(format!("{file}: {error}")),
        }
    }
    check_header(folder, &document, &mut failures)?;
    if recompute && failures.is_empty() {
        let made = generate(&parameters)?;
        for (tensor, listed) in made.iter().zip(&tensors) {
            let expected = Sha256::of(&tensor.bytes);
            if expected != listed.sha256 {
                let found = listed.sha256;
                failures.push(format!("{}: its parameters give SHA-256 {expected}, the set has {found}", tensor.name));
            }
        }
    }
    let check = SetCheck {
        schema_version: 1,
        evidence_class: EvidenceClass::SyntheticKernelContractDiagnosticOnly,
        promotion_eligible: false,
        status: if failures.is_empty() { "valid" } else { "failed" }.to_owned(),
        written_by: writer(document.generator.as_ref(), document.extra.get("header")),
        manifest: path,
        manifest_sha256: Sha256::of(&bytes),
        recomputed: recompute,
        tensors,
        failures,
        seconds: started.elapsed().as_secs_f64(),
    };
    Ok((document, check))
}
