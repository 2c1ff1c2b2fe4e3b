//! A model, its set and the layout, for tests through the library.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part of this module")]

pub mod files;
pub mod mini;
pub mod models;

use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::Sha256Hex;
use b70_manifest::pack::ToolRecord;
use b70_packset::{Layout, Model, ModelHash, PrepareOptions, PreparedSet, TensorPlan, prepare_in};
use b70_store::Progress;
use b70_xe2pack::Xe2DpasV2;
use tempfile::TempDir;

/// A folder with a model.
pub struct Lab {
    pub folder: TempDir,
    pub path: PathBuf,
    pub layout: Xe2DpasV2,
}

impl Lab {
    pub fn with(tensors: &[models::Tensor<'_>]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        models::write_model(&path, tensors);
        Self { folder, path, layout: Xe2DpasV2::new() }
    }

    pub fn model(&self) -> Model {
        Model::open(&self.path).expect("a model")
    }

    pub fn plan(&self) -> TensorPlan {
        TensorPlan::built_in(b70_xe2pack::ALL_PLAN, &self.layout).expect("a built-in plan")
    }

    /// Prepares the plan `all-q4_0` into the root of that name.
    pub fn prepare(&self, root: &str, jobs: usize, worker_set: Option<u64>) -> PreparedSet {
        let options = PrepareOptions {
            cache_root: &self.folder.path().join(root),
            model_hash: &ModelHash::Unknown,
            rehash: false,
            force: false,
            immutable: false,
            jobs,
            lock_timeout: Duration::from_secs(60),
            tool: Some(&tool()),
            progress: Progress::NONE,
        };
        let layout: &dyn Layout = &self.layout;
        prepare_in(&self.model(), &self.plan(), layout, &options, worker_set).expect("the model can be prepared")
    }

    /// The folder of a prepared set.
    pub fn set(&self, root: &str, prepared: &PreparedSet) -> PathBuf {
        self.folder.path().join(root).join(prepared.set_key.to_string())
    }
}

pub fn tool() -> ToolRecord {
    b70_packset::tool_record("test", "0")
}

pub fn sha256_of(path: &Path) -> Sha256Hex {
    Sha256Hex::of(&std::fs::read(path).expect("a readable file"))
}
