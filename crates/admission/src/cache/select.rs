//! Which entries of a cache stand for the models somebody names.

use std::path::PathBuf;

use b70_manifest::model_pack::{ModelFile, ModelPackManifest};
use b70_store::Sha256;

use super::ModelCache;
use crate::error::AdmissionError;

/// A model, as far as it is known before its file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedModel {
    /// `target` or `draft`, where it was selected by that.
    pub role: Option<&'static str>,
    /// Its SHA-256.
    pub key: Option<Sha256>,
    /// Its file, or any of its shards.
    pub path: Option<PathBuf>,
    /// Bytes of its files.
    pub size: Option<u64>,
}

impl SelectedModel {
    /// The target, the draft model, or both of a manifest, as far as it names them.
    pub fn of_spec(spec: &ModelPackManifest, target: bool, draft: bool) -> Vec<Self> {
        let one = |role, file: &ModelFile| Self {
            role: Some(role),
            key: Some(file.sha256),
            path: Some(PathBuf::from(&file.path)),
            size: file.size_bytes,
        };
        let target = target.then(|| one("target", &spec.source));
        target.into_iter().chain(spec.draft_source.as_ref().filter(|_| draft).map(|file| one("draft", file))).collect()
    }
}

impl ModelCache {
    /// The keys of the entries for these models, each with the role it was selected for; of all entries for none.
    ///
    /// Errors: no entry is a copy of a model that is named by its path alone.
    pub fn select(&self, models: &[SelectedModel]) -> Result<Vec<(Option<&'static str>, Sha256)>, AdmissionError> {
        if models.is_empty() {
            return Ok(self.keys()?.into_iter().map(|key| (None, key)).collect());
        }
        let mut found = Vec::new();
        for model in models {
            match (model.key, &model.path) {
                (Some(key), _) => found.push((model.role, key)),
                (None, Some(path)) => {
                    let keys = self.keys_of_source(path)?;
                    if keys.is_empty() {
                        let what = format!("a copy of {}", path.display());
                        return Err(AdmissionError::NotFound { what, root: self.path().to_path_buf() });
                    }
                    found.extend(keys.into_iter().map(|key| (model.role, key)));
                }
                (None, None) => {}
            }
        }
        Ok(found)
    }
}
