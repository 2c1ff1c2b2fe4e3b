//! The admission requirements of a model-pack manifest.

use std::path::Path;

use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::PackSet;

use super::outcome::{Depth, FailureDetail, Requirement, RequirementOutcome, Verification, VerifyStatus};

/// Enforces a spec's admission requirements on a verified set, each met, not met, or reported as not checkable; one that is
/// not met fails the verification with the code `spec-requirement:NAME`.
pub(super) fn apply_requirements(verification: &mut Verification, document: &PackSet, spec: &ModelPackManifest) {
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
