//! What a model-pack manifest (the *spec*) asks for: the plan, and the model's hash before packing.

use std::path::Path;

use b70_manifest::Sha256Hex;
use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::pack::ToolRecord;

use crate::error::PackError;
use crate::layout::Layout;
use crate::model::Model;
use crate::set::SetDir;
use crate::source::ModelHash;

/// Changes when the bytes of a payload, or what a set's documents say of them, change. Upstream's packer of the same layout
/// has revision 1, and the payloads are the same bytes.
pub(crate) const PACKER_REVISION: u64 = 1;

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
