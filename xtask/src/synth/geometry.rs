//! Which tensors a synthetic model has: a short JSON description, expanded layer by layer.

use std::path::{Path, PathBuf};

use b70_gguf::GgmlType;
use serde::Deserialize;

use crate::failure::Failure;

/// A geometry as it is written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Geometry {
    /// Names the model file and `general.name`.
    pub name: String,
    #[serde(default)]
    before_layers: Vec<GeometryEntry>,
    #[serde(default)]
    layers: u32,
    /// Tensors of every layer L, named `blk.L.NAME`.
    #[serde(default)]
    per_layer: Vec<GeometryEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GeometryEntry {
    name: String,
    /// A type name of ggml: F32, F16, Q4_0 or Q4_1.
    r#type: String,
    /// Fastest axis first, as GGUF has it.
    shape: Vec<u64>,
    /// First and last layer that have it; all of them by default.
    layers: Option<[u32; 2]>,
}

/// One tensor to write.
#[derive(Debug)]
pub(super) struct Tensor {
    pub name: String,
    pub ggml_type: GgmlType,
    pub shape: Vec<u64>,
    pub size_bytes: u64,
}

const QWEN27: &str = include_str!("../../geometries/qwen27.json");
const QUARTER: &str = include_str!("../../geometries/qwen27-quarter.json");
const TINY: &str = include_str!("../../geometries/tiny.json");

impl Geometry {
    /// A built-in geometry, or the file of that name.
    pub(super) fn load(choice: &str) -> Result<Self, Failure> {
        let (source, text) = match choice {
            "qwen27" => (PathBuf::from("qwen27 (built in)"), QWEN27.to_owned()),
            "qwen27-quarter" => (PathBuf::from("qwen27-quarter (built in)"), QUARTER.to_owned()),
            "tiny" => (PathBuf::from("tiny (built in)"), TINY.to_owned()),
            file => (PathBuf::from(file), read(Path::new(file))?),
        };
        let geometry: Self = serde_json::from_str(&text).map_err(|error| refuse(&source, &error.to_string()))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if geometry.name.is_empty() || geometry.name.starts_with('.') || !geometry.name.chars().all(plain) {
            return Err(refuse(&source, "`name` becomes a file name: letters, digits, '-', '_' and '.' only"));
        }
        Ok(geometry)
    }

    pub(super) fn layers(&self) -> u32 {
        self.layers
    }

    /// All tensors in file order.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, Failure> {
        let mut all = Vec::new();
        for entry in &self.before_layers {
            all.push(entry.tensor(entry.name.clone())?);
        }
        for layer in 0..self.layers {
            for entry in &self.per_layer {
                if entry.layers.is_none_or(|[first, last]| (first..=last).contains(&layer)) {
                    all.push(entry.tensor(format!("blk.{layer}.{}", entry.name))?);
                }
            }
        }
        if all.is_empty() {
            return Err(refuse(Path::new(&self.name), "the geometry has no tensor"));
        }
        Ok(all)
    }
}

impl GeometryEntry {
    fn tensor(&self, name: String) -> Result<Tensor, Failure> {
        let found = GgmlType::from_name(&self.r#type).filter(|found| super::bytes::can_fill(*found));
        let Some(ggml_type) = found else {
            return Err(Failure::new(
                format!(
                    "tensor {name}: found type {}, expected one of {}",
                    self.r#type,
                    super::bytes::KINDS.join(", ")
                ),
                "correct the geometry",
            ));
        };
        let Some(size_bytes) = ggml_type.tensor_bytes(&self.shape).filter(|size| *size > 0) else {
            return Err(Failure::new(
                format!("tensor {name}: shape {:?} has no size in {}", self.shape, self.r#type),
                "give 1 to 4 dimensions, the first a multiple of the type's block (32 for Q4_0)",
            ));
        };
        Ok(Tensor { name, ggml_type, shape: self.shape.clone(), size_bytes })
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::new(
            format!("cannot read the geometry {}: {error}", path.display()),
            "give qwen27, qwen27-quarter, tiny, or a JSON file like those under xtask/geometries",
        )
    })
}

fn refuse(source: &Path, why: &str) -> Failure {
    Failure::new(
        format!("the geometry {} is not usable: {why}", source.display()),
        "compare it with the files under xtask/geometries",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qwen27_has_what_its_plan_selects() {
        let tensors = Geometry::load("qwen27").expect("built in").tensors().expect("expands");
        let q4_0: Vec<_> = tensors.iter().filter(|tensor| tensor.ggml_type.name() == "Q4_0").collect();
        assert_eq!(q4_0.len(), 187);
        assert!(q4_0.iter().all(|tensor| tensor.size_bytes == 50_135_040));
        assert_eq!(q4_0.iter().map(|tensor| tensor.size_bytes).sum::<u64>(), 9_375_252_480);
        assert_eq!(tensors.iter().filter(|tensor| tensor.ggml_type.name() == "Q4_1").count(), 8);
    }

    #[test]
    fn unusable_geometries_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("g.json");
        for (text, expected) in [
            ("{", "g.json"),
            (r#"{"name":"../x"}"#, "file name"),
            (r#"{"name":"x","layer":3}"#, "layer"),
            (r#"{"name":"x"}"#, "no tensor"),
            (r#"{"name":"x","before_layers":[{"name":"t","type":"Q4_0","shape":[31,16]}]}"#, "[31, 16]"),
            (r#"{"name":"x","before_layers":[{"name":"t","type":"Q9_9","shape":[32]}]}"#, "Q9_9"),
            (r#"{"name":"x","before_layers":[{"name":"t","type":"F32","shape":[9223372036854775807,4]}]}"#, "shape"),
        ] {
            std::fs::write(&path, text).expect("written");
            let outcome = Geometry::load(path.to_str().expect("UTF-8")).and_then(|geometry| geometry.tensors());
            let message = outcome.expect_err(text).to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
