//! A set of the plan `mini`, prepared, damaged and verified through the library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::{Explain as _, Sha256Hex};
use b70_packset::{
    Depth, Expectation, Model, ModelHash, PackError, PrepareOptions, PreparedSet, SetDir, TensorPlan, Verification,
    VerifyOptions, VerifyStatus,
};
use b70_store::Progress;

use super::files::walk;
use super::models::{STANDARD, mini_plan, write_json};
use super::{Lab, sha256_of, tool};

fn plan(lab: &Lab, prefix: &str) -> TensorPlan {
    let path = lab.folder.path().join(format!("{prefix}.json"));
    write_json(&path, &mini_plan(prefix));
    TensorPlan::from_file(&path).expect("a plan")
}

/// The standard model and the set of the plan `mini` over it.
pub struct Mini {
    pub lab: Lab,
    plan: TensorPlan,
    pub root: PathBuf,
    pub key: Sha256Hex,
}

impl Mini {
    pub fn new() -> Self {
        let lab = Lab::with(&STANDARD);
        let (plan, root) = (plan(&lab, "mini"), lab.folder.path().join("cache"));
        let key = b70_packset::plan_keys(&plan, &lab.layout, sha256_of(&lab.path)).expect("exact shapes").set_key;
        let mini = Self { lab, plan, root, key };
        mini.prepare();
        mini
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.lab.folder.path().join(name)
    }

    pub fn set(&self) -> PathBuf {
        self.root.join(self.key.to_string())
    }

    pub fn try_prepare(&self) -> Result<PreparedSet, PackError> {
        self.try_prepare_plan(&self.plan)
    }

    fn try_prepare_plan(&self, plan: &TensorPlan) -> Result<PreparedSet, PackError> {
        let sha256 = sha256_of(&self.lab.path);
        let options = PrepareOptions {
            cache_root: &self.root,
            model_hash: &ModelHash::Expected { sha256, vouched_by: "argument".to_owned() },
            rehash: false,
            force: false,
            immutable: false,
            jobs: 2,
            lock_timeout: Duration::from_secs(60),
            tool: Some(&tool()),
            progress: Progress::NONE,
        };
        b70_packset::prepare(&self.lab.model(), plan, &self.lab.layout, &options)
    }

    #[track_caller]
    pub fn prepare(&self) -> PreparedSet {
        self.try_prepare().expect("it can be prepared")
    }

    /// Prepares another plan over the same tensors.
    #[track_caller]
    pub fn second(&self) -> PreparedSet {
        self.try_prepare_plan(&plan(&self.lab, "second")).expect("it can be prepared")
    }

    pub fn verification(
        &self,
        key: Sha256Hex,
        depth: Depth,
        against: Option<&Path>,
    ) -> Result<Verification, PackError> {
        let against = against.map(|path| Model::open(path).expect("a model"));
        let options = VerifyOptions {
            depth,
            expectation: &Expectation { set_key: Some(key), ..Expectation::default() },
            against: against.as_ref(),
            spec: None,
            progress: Progress::NONE,
        };
        b70_packset::verify(&SetDir::open(&self.root, key)?, &self.lab.layout, &options)
    }

    /// The failure codes, sorted; empty when the set is ready.
    #[track_caller]
    pub fn codes(&self, depth: Depth, against: Option<&Path>) -> Vec<String> {
        self.codes_of(self.key, depth, against)
    }

    #[track_caller]
    pub fn codes_of(&self, key: Sha256Hex, depth: Depth, against: Option<&Path>) -> Vec<String> {
        let found = self.verification(key, depth, against).expect("it can be verified");
        let codes: BTreeSet<String> = found.failures.into_iter().collect();
        assert_eq!(found.status == VerifyStatus::Ready, codes.is_empty(), "{codes:?}");
        codes.into_iter().collect()
    }

    #[track_caller]
    pub fn is_refused(&self) -> PackError {
        let error = self.verification(self.key, Depth::Shallow, None).expect_err("it cannot be read");
        assert_eq!(error.exit_code(), 2, "{error}");
        error
    }

    pub fn newest(&self) -> Result<Sha256Hex, PackError> {
        Ok(SetDir::newest(&self.root)?.read_manifest()?.0.key)
    }

    /// Every file below the root, without locks, and receipts of the model and of the set.
    pub fn files(&self) -> Vec<String> {
        let bookkeeping = |name: &String| name.starts_with('.') || name.ends_with("deep-validation.json");
        walk(&self.root).into_keys().filter(|name| !bookkeeping(name)).collect()
    }
}
