//! What a model-pack manifest (the *spec*) asks for: the model's hash before packing, admission requirements after.

use std::path::Path;

use b70_manifest::Sha256Hex;
use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::{PackSet, ToolRecord};

use crate::error::PackError;
use crate::layout::Layout;
use crate::model::Model;
use crate::prepare::ModelHash;
use crate::set::SetDir;
use crate::verify::{Depth, FailureDetail, Requirement, RequirementOutcome, Verification, VerifyStatus};

/// Changes when the bytes of a payload, or what a set's documents say of them, change. The lab's packer of the same layout
/// has revision 1, and the payloads are the same bytes.
pub const PACKER_REVISION: u64 = 1;

/// The packer as a set's documents name it.
pub fn tool_record(name: &str, version: &str) -> ToolRecord {
    let mut extra = serde_json::Map::new();
    extra.insert("version".to_owned(), version.into());
    ToolRecord { path: name.to_owned(), revision: PACKER_REVISION.into(), extra }
}

/// A spec larger than this is refused unread.
const MAX_SPEC_BYTES: u64 = 4 << 20;

/// Reads a model-pack manifest.
pub fn read_spec(path: &Path) -> Result<ModelPackManifest, PackError> {
    crate::document::parse(path, &crate::document::read_text(path, MAX_SPEC_BYTES)?)
}

/// The layout's plan that a spec's kernel ABI names, by the plan's own name or by that of the ABI of its sets.
pub fn spec_plan(spec: &ModelPackManifest, layout: &dyn Layout) -> Option<&'static str> {
    let abi = spec.kernel_abi.name.as_str();
    layout.plans().iter().find(|plan| plan.name == abi || plan.kernel_abi == Some(abi)).map(|plan| plan.name)
}

/// What is known of a model's hash from a spec or an argument.
///
/// With `skip_source_hash` the model is not read: then some record must name this very path and size with that hash, the
/// spec itself or a set under the cache root; otherwise this is an error.
pub fn model_hash(
    model: &Model,
    spec: Option<&ModelPackManifest>,
    argument: Option<Sha256Hex>,
    skip_source_hash: bool,
    cache_root: &Path,
) -> Result<ModelHash, PackError> {
    let wanted = match (spec, argument) {
        (Some(spec), Some(argument)) if spec.source.sha256 != argument => {
            return Err(PackError::ModelHash {
                path: model.path().to_path_buf(),
                found: argument,
                expected: spec.source.sha256,
            });
        }
        (Some(spec), _) => Some((spec.source.sha256, "spec")),
        (None, Some(argument)) => Some((argument, "argument")),
        (None, None) => None,
    };
    if !skip_source_hash {
        return Ok(
            wanted.map_or(ModelHash::Unknown, |(sha256, by)| ModelHash::Expected { sha256, vouched_by: by.to_owned() })
        );
    }
    if let Some(spec) = spec
        && spec.source.size_bytes == Some(model.size_bytes())
        && same_path(Path::new(&spec.source.path), model.path())
    {
        return Ok(ModelHash::Recorded { sha256: spec.source.sha256, vouched_by: "spec".to_owned() });
    }
    let recorded = recorded_in_sets(model, cache_root)?;
    let problem = match (&recorded[..], wanted) {
        ([], _) => "no set under the cache root, and no spec with a size, records this path and size".to_owned(),
        ([one], None) => return Ok(from_set(*one)),
        (many, Some((sha256, _))) if many.contains(&sha256) => return Ok(from_set(sha256)),
        (_, Some((sha256, _))) => format!("what is recorded for this path and size is not {sha256}"),
        (many, None) => format!("{} different hashes are recorded for this path and size", many.len()),
    };
    Err(PackError::RecordedHash { path: model.path().to_path_buf(), problem })
}

fn from_set(sha256: Sha256Hex) -> ModelHash {
    ModelHash::Recorded { sha256, vouched_by: "a set's manifest".to_owned() }
}

fn same_path(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// The distinct hashes that validated sets record for this path and size.
fn recorded_in_sets(model: &Model, cache_root: &Path) -> Result<Vec<Sha256Hex>, PackError> {
    let mut found = Vec::new();
    for row in crate::manage::list(cache_root)?.sets {
        let Ok((document, _)) = SetDir::open(cache_root, row.set_key).and_then(|set| set.read_manifest()) else {
            continue;
        };
        let source = &document.source_model;
        if source.hash_validated
            && source.size_bytes == model.size_bytes()
            && same_path(Path::new(&source.path), model.path())
            && !found.contains(&source.sha256)
        {
            found.push(source.sha256);
        }
    }
    Ok(found)
}

/// Enforces a spec's admission requirements on a verified set, each met, not met, or reported as not checkable; one that is
/// not met fails the verification with the code `spec-requirement:NAME`.
pub(crate) fn apply_requirements(verification: &mut Verification, document: &PackSet, spec: &ModelPackManifest) {
    for name in &spec.admission_requirements {
        let requirement = check(name, verification, document, spec);
        if requirement.outcome == RequirementOutcome::NotMet {
            let code = format!("spec-requirement:{name}");
            verification.failures.push(code.clone());
            verification.details.push(FailureDetail { code, detail: requirement.detail.clone() });
            verification.status = VerifyStatus::Failed;
        }
        verification.requirements.push(requirement);
    }
}

fn check(name: &str, verification: &Verification, document: &PackSet, spec: &ModelPackManifest) -> Requirement {
    let requirement = |outcome, detail: String| Requirement { name: name.to_owned(), outcome, detail };
    let compared = |what: &str, found: String, expected: String| {
        let outcome = if found == expected { RequirementOutcome::Met } else { RequirementOutcome::NotMet };
        requirement(outcome, format!("{what} is {found}, the spec says {expected}"))
    };
    if let Some(architecture) = name.strip_prefix("target_architecture_is_") {
        return compared("the set's architecture", document.layout.architecture.clone(), architecture.to_owned());
    }
    match name {
        "source_sha256_matches" => {
            compared("the set's model", document.source_model.sha256.to_string(), spec.source.sha256.to_string())
        }
        // Payloads are the same bytes whoever packed them, so another packer is worth a remark and no refusal.
        "packing_tool_revision_matches" => {
            let found = match &document.tool.revision {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let (tool, named) = (&document.tool.path, &spec.packing_tool);
            if Path::new(tool).file_name() == Path::new(&named.path).file_name() {
                return compared("the packer's revision", found, named.revision.to_string());
            }
            let detail = format!(
                "the set was made by {tool} revision {found}, the spec names {} revision {}; revisions of different programs are not compared",
                named.path, named.revision
            );
            requirement(RequirementOutcome::NotCheckable, detail)
        }
        "kernel_abi_layout_matches" if spec.kernel_abi.name == document.layout.name => compared(
            "the layout's version",
            document.layout.version.to_string(),
            spec.kernel_abi.layout_version.to_string(),
        ),
        "kernel_abi_layout_matches" => requirement(
            RequirementOutcome::NotCheckable,
            format!(
                "the set records layout {} version {}; it states nothing of the ABI {}",
                document.layout.name, document.layout.version, spec.kernel_abi.name
            ),
        ),
        "all_tensor_checksums_pass" if verification.validation == Depth::Shallow => {
            requirement(RequirementOutcome::NotCheckable, "payloads were not rehashed; use --deep".to_owned())
        }
        "all_tensor_checksums_pass" => {
            let bad = verification.failures.iter().filter(|code| code.starts_with("payload-")).count();
            let outcome = if bad == 0 { RequirementOutcome::Met } else { RequirementOutcome::NotMet };
            requirement(outcome, format!("{bad} of {} payloads failed", document.tensors.len()))
        }
        _ => requirement(RequirementOutcome::NotCheckable, "not a requirement this version knows".to_owned()),
    }
}
