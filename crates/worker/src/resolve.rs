//! From a worker's settings to the command line and environment its server gets.

use std::path::{Path, PathBuf};

use b70_admission::{CacheLookup, ModelCache};
use b70_manifest::{
    Sha256Hex,
    state::{ModelChoice, ModelCopy, PackStageChoice},
    workers::{CacheType, DRAFT_MODEL_HOLE, Profile, SpecType, Worker},
};
use b70_packset::{Depth, Layout, StageOptions, VerifyStatus, stage_validate};
use b70_procguard::{pin_to_card, redact_arguments, redact_variable};
use b70_store::HashOptions;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Map;

use crate::{
    error::WorkerError,
    lane::{CardMap, Lane, WorkerPaths},
    launcher::{self, LauncherScript},
};

/// What resolving needs beside the configuration.
#[derive(Clone, Copy)]
pub struct ResolveOptions<'a> {
    /// The layouts' implementation, for pack sets; without one no stage can be admitted.
    pub layout: Option<&'a dyn Layout>,
    /// User id that must own RAM roots.
    pub uid: u32,
}

/// Exactly what a worker's server is started with.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResolvedCommand {
    /// The worker.
    pub worker: String,
    /// Executable and arguments.
    pub argv: Vec<String>,
    /// Variables that are set, in order; later ones win nothing, names are unique.
    pub set: Vec<(String, String)>,
    /// Variables that are removed: they would change the device numbering or the server's settings.
    pub unset: Vec<String>,
    /// Model and copy.
    pub target_model: ModelChoice,
    /// Draft model and copy.
    pub draft_model: Option<ModelChoice>,
    /// The RAM stage, bound or not.
    pub pack_stage: Option<PackStageChoice>,
    /// Where the server's output goes.
    pub log: PathBuf,
    /// Where the output of the started process is sent: the log, unless a launcher writes that itself.
    pub output: PathBuf,
    /// The card, if it is a real address.
    pub card: Option<b70_manifest::PciAddress>,
}

impl ResolvedCommand {
    /// A command of no words yet.
    pub(crate) fn bare(worker: &str, target_model: ModelChoice) -> Self {
        Self {
            worker: worker.to_owned(),
            argv: Vec::new(),
            set: Vec::new(),
            unset: Vec::new(),
            target_model,
            draft_model: None,
            pack_stage: None,
            log: PathBuf::new(),
            output: PathBuf::new(),
            card: None,
        }
    }

    /// The same with secrets replaced, for eyes and records.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let set = self.set.iter().map(|(name, value)| (name.clone(), redact_variable(name, value).to_owned()));
        Self { argv: redact_arguments(&self.argv), set: set.collect(), ..self.clone() }
    }

    /// Value of a variable that is set.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn put(&mut self, name: &str, value: impl Into<String>) {
        let value = value.into();
        self.unset.retain(|other| other != name);
        match self.set.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.set.push((name.to_owned(), value)),
        }
    }
}

/// Variables of llama.cpp that change a server behind its command line.
pub(crate) fn is_hidden_setting(name: &str) -> bool {
    name.starts_with("LLAMA_ARG_") || matches!(name, "AIP_MODE" | "AIP_HTTP_PORT" | "LLAMA_SERVER_ROUTER_PORT")
}

/// Variables that choose devices, shadows included: a configuration that set one would undo the pinning.
pub(crate) fn chooses_devices(name: &str) -> bool {
    let bare = name.strip_prefix("NEO_L0_").or(name.strip_prefix("NEO_OCL_")).or(name.strip_prefix("NEO_"));
    matches!(
        bare.unwrap_or(name),
        "ZE_AFFINITY_MASK"
            | "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
            | "ZE_FLAT_DEVICE_HIERARCHY"
            | "ONEAPI_DEVICE_SELECTOR"
            | "SYCL_DEVICE_FILTER"
            | "FilterBdfPath"
    )
}

/// Resolves a worker: card, model copies, pack stage, command, environment.
pub fn resolve(
    lane: &Lane,
    worker: &Worker,
    cards: &CardMap,
    options: &ResolveOptions<'_>,
) -> Result<ResolvedCommand, WorkerError> {
    let blocked = |reason: String| WorkerError::Blocked { worker: worker.name.clone(), reasons: vec![reason] };
    let profile = lane.profile(&worker.profile)?;
    let document = &lane.document;
    let paths = lane.paths(worker);
    let pci = cards.resolve(worker.gpu).map_err(blocked)?;
    let pinning = pin_to_card(&cards.cards, pci)?;
    let target = model(lane, &document.target_model, document.target_model_sha256);
    let draft = draft_path(lane, profile).map(|(path, sha)| model(lane, &path, sha));
    let script = match &document.launcher {
        Some(launcher) => {
            let path = lane.path(launcher);
            let bytes = launcher::read(&path)?;
            Some((path, LauncherScript::new(&String::from_utf8_lossy(&bytes))))
        }
        None => None,
    };
    let extra = extra_words(lane, profile)?;
    let own_log = script.as_ref().is_some_and(|(_, script)| script.writes_log());
    let mut command = ResolvedCommand {
        unset: pinning.unset,
        draft_model: draft,
        log: paths.log.clone(),
        output: if own_log { paths.launcher_log.clone() } else { paths.log.clone() },
        card: cards.real(worker.gpu),
        ..ResolvedCommand::bare(&worker.name, target)
    };
    command
        .unset
        .extend(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|n| is_hidden_setting(n)));
    command.unset.sort();
    command.unset.dedup();
    for (name, value) in pinning.set {
        if name != "B70_GPU_PCI" || cards.real(worker.gpu).is_some() {
            command.put(&name, value);
        }
    }
    match script {
        Some((path, _)) => {
            command.argv = vec![path.display().to_string()];
            launcher_variables(&mut command, lane, worker, profile, &paths, &extra);
        }
        None => command.argv = server_arguments(&command, lane, worker, profile, extra),
    }
    for (name, value) in document.common.environment.iter().chain(&profile.environment) {
        if chooses_devices(name) {
            return Err(blocked(format!("{name} chooses devices; a worker's card comes from its gpu alone")));
        }
        command.put(name, value.clone());
    }
    command.pack_stage = pack_stage(lane, profile, options);
    match command.pack_stage.clone() {
        Some(PackStageChoice { bound: true, variable, path: Some(path), .. }) => command.put(&variable, path),
        Some(choice) => {
            // A stage that was not admitted must not reach the server by another way either.
            command.set.retain(|(name, _)| *name != choice.variable);
            command.unset.push(choice.variable);
        }
        None => {}
    }
    Ok(command)
}

/// The words after the command line's settings: the lane's, then the profile's.
pub(crate) fn extra_words(lane: &Lane, profile: &Profile) -> Result<Vec<String>, WorkerError> {
    let words = |args: &b70_manifest::workers::ExtraArgs| args.words().map_err(|e| WorkerError::Usage(e.to_string()));
    let mut all = words(&lane.document.common.extra_llama_args)?;
    all.extend(words(&profile.extra_llama_args)?);
    Ok(all)
}

/// Path and digest of a profile's draft model.
pub(crate) fn draft_path(lane: &Lane, profile: &Profile) -> Option<(String, Option<Sha256Hex>)> {
    let named = profile.draft_model.as_deref()?;
    if named == DRAFT_MODEL_HOLE {
        return Some((lane.document.draft_model.clone()?, lane.document.draft_model_sha256));
    }
    let same = lane.document.draft_model.as_deref() == Some(named);
    Some((named.to_owned(), lane.document.draft_model_sha256.filter(|_| same)))
}

/// More layers than a model has: every build of llama-server takes the number, not every one the word `all`.
const ALL_LAYERS: u64 = 999;

/// llama-server's own command line.
fn server_arguments(
    command: &ResolvedCommand,
    lane: &Lane,
    worker: &Worker,
    profile: &Profile,
    extra: Vec<String>,
) -> Vec<String> {
    let common = &lane.document.common;
    let mut argv = vec![lane.path(&lane.document.binary).display().to_string()];
    let mut put = |flag: &str, value: String| argv.extend([flag.to_owned(), value]);
    put("--host", common.host.clone());
    put("--port", worker.port.to_string());
    put("--model", command.target_model.path.clone());
    put("--alias", lane.document.model_alias.clone());
    put("--ctx-size", common.ctx_size.to_string());
    put("--batch-size", common.batch_size.to_string());
    put("--ubatch-size", common.ubatch_size.to_string());
    put("--parallel", common.n_parallel.to_string());
    put("--flash-attn", common.flash_attn.as_str().to_owned());
    put("--cache-type-k", common.cache_type_k.as_str().to_owned());
    put("--cache-type-v", common.cache_type_v.as_str().to_owned());
    put("--n-gpu-layers", profile.n_gpu_layers.unwrap_or(ALL_LAYERS).to_string());
    // Checkpoints of a context are state of an earlier request.
    put("--ctx-checkpoints", "0".to_owned());
    if profile.spec_type != SpecType::None {
        put("--spec-type", profile.spec_type.as_str().to_owned());
    }
    let mtp = profile.spec_type == SpecType::DraftMtp;
    let pick = |own: Option<u64>, head: Option<u64>| if mtp { head.or(own) } else { own };
    if let Some(n) = pick(profile.spec_n_max, profile.mtp_n_max) {
        put("--spec-draft-n-max", n.to_string());
    }
    if let Some(n) = pick(profile.spec_n_min, profile.mtp_n_min) {
        put("--spec-draft-n-min", n.to_string());
    }
    if let Some(p) = if mtp { profile.mtp_p_min.or(profile.spec_p_min) } else { profile.spec_p_min } {
        put("--spec-draft-p-min", p.to_string());
    }
    if let Some(draft) = &command.draft_model {
        put("--spec-draft-model", draft.path.clone());
        for (flag, own) in
            [("--spec-draft-type-k", profile.draft_cache_type_k), ("--spec-draft-type-v", profile.draft_cache_type_v)]
        {
            put(flag, own.unwrap_or(CacheType::Q8Zero).as_str().to_owned());
        }
        put("--spec-draft-ngl", profile.draft_n_gpu_layers.unwrap_or(ALL_LAYERS).to_string());
        if let Some(device) = &profile.draft_device {
            put("--spec-draft-device", device.clone());
        }
    }
    argv.extend(extra);
    argv
}

/// The flags the kit writes itself, for a look at what the installed server accepts.
pub(crate) fn own_flags(profile: &Profile) -> Vec<String> {
    let mut flags = vec![
        "--host",
        "--port",
        "--model",
        "--alias",
        "--ctx-size",
        "--batch-size",
        "--ubatch-size",
        "--parallel",
        "--flash-attn",
        "--cache-type-k",
        "--cache-type-v",
        "--n-gpu-layers",
        "--ctx-checkpoints",
    ];
    if profile.spec_type != SpecType::None {
        flags.extend(["--spec-type", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"]);
    }
    if profile.draft_model.is_some() {
        flags.extend(["--spec-draft-model", "--spec-draft-type-k", "--spec-draft-type-v", "--spec-draft-ngl"]);
        flags.extend(profile.draft_device.as_ref().map(|_| "--spec-draft-device"));
    }
    flags.into_iter().map(str::to_owned).collect()
}

/// The launcher contract: every variable of it, whether the profile uses it or not, so that none is inherited.
fn launcher_variables(
    command: &mut ResolvedCommand,
    lane: &Lane,
    worker: &Worker,
    profile: &Profile,
    paths: &WorkerPaths,
    extra: &[String],
) {
    let common = &lane.document.common;
    // What a profile leaves out is what upstream sets, as Python writes it: 3, 0, 0.0.
    let most = |n: Option<u64>| n.unwrap_or(3).to_string();
    let fewest = |n: Option<u64>| n.unwrap_or(0).to_string();
    let share = |p: Option<f64>| format!("{:?}", p.unwrap_or(0.0));
    let line = b70_manifest::workers::ExtraArgs::Words(extra.to_vec()).line();
    let ordinal = command.variable("ZE_AFFINITY_MASK").unwrap_or_default().to_owned();
    let draft = command.draft_model.as_ref().map_or_else(String::new, |d| d.path.clone());
    let model = command.target_model.path.clone();
    for (name, value) in [
        ("GPU_INDEX", ordinal),
        ("PORT", worker.port.to_string()),
        ("HOST", common.host.clone()),
        ("MODEL", model),
        ("MODEL_ALIAS", lane.document.model_alias.clone()),
        ("LLAMA_SERVER", lane.path(&lane.document.binary).display().to_string()),
        ("CTX_SIZE", common.ctx_size.to_string()),
        ("BATCH_SIZE", common.batch_size.to_string()),
        ("UBATCH_SIZE", common.ubatch_size.to_string()),
        ("N_PARALLEL", common.n_parallel.to_string()),
        ("FLASH_ATTN", common.flash_attn.as_str().to_owned()),
        ("CACHE_TYPE_K", common.cache_type_k.as_str().to_owned()),
        ("CACHE_TYPE_V", common.cache_type_v.as_str().to_owned()),
        ("ENABLE_MTP", u8::from(profile.enable_mtp).to_string()),
        ("SPEC_TYPE", profile.spec_type.as_str().to_owned()),
        ("SPEC_N_MAX", most(profile.spec_n_max)),
        ("SPEC_N_MIN", fewest(profile.spec_n_min)),
        ("SPEC_P_MIN", share(profile.spec_p_min)),
        ("DRAFT_MODEL", draft),
        ("MTP_N_MAX", most(profile.mtp_n_max)),
        ("MTP_N_MIN", fewest(profile.mtp_n_min)),
        ("MTP_P_MIN", share(profile.mtp_p_min)),
        ("EXTRA_LLAMA_ARGS", line),
        ("OUT_DIR", paths.directory.display().to_string()),
        ("LOG", paths.log.display().to_string()),
    ] {
        command.put(name, value);
    }
}

/// The admitted RAM copy of a model, or its file with the reason.
fn model(lane: &Lane, path: &str, sha256: Option<Sha256Hex>) -> ModelChoice {
    let source = lane.path(path);
    let choice = |path: &Path, copy, reason: String| ModelChoice {
        path: path.display().to_string(),
        sha256,
        copy,
        reason,
        trust: None,
        extra: Map::new(),
    };
    let common = &lane.document.common;
    if !common.prefer_ram_model_cache {
        return choice(&source, ModelCopy::Source, "prefer_ram_model_cache is off".into());
    }
    let Some(root) = &common.ram_model_cache_root else {
        return choice(&source, ModelCopy::Source, "no ram_model_cache_root is given".into());
    };
    let cache = match ModelCache::open(&lane.path(root)) {
        Ok(cache) => cache,
        Err(error) => return choice(&source, ModelCopy::Source, format!("no RAM copy: {error}")),
    };
    let Some(key) = sha256 else {
        return choice(
            &source,
            ModelCopy::Source,
            "no RAM copy: the configuration gives no SHA-256 by which a copy could be admitted".into(),
        );
    };
    match cache.look(&key, &HashOptions::default()) {
        CacheLookup::Admitted(copy, trust) => ModelChoice {
            trust: Some(trust),
            ..choice(&copy, ModelCopy::Ram, format!("the RAM copy is admitted; trust: {trust}"))
        },
        CacheLookup::Fallback(reason) => choice(&source, ModelCopy::Source, format!("no RAM copy: {reason}")),
    }
}

/// The pack set's RAM stage, bound only if it is admitted.
fn pack_stage(lane: &Lane, profile: &Profile, options: &ResolveOptions<'_>) -> Option<PackStageChoice> {
    let binding = lane.document.pack_set_of(profile)?;
    let mut choice = PackStageChoice {
        set_key: binding.set_key,
        variable: binding.variable.clone(),
        bound: false,
        path: None,
        reason: String::new(),
        trust: None,
        extra: Map::new(),
    };
    let Some(layout) = options.layout else {
        choice.reason = "left out: this program knows no pack layout".into();
        return Some(choice);
    };
    let root = lane.path(&binding.ram_root);
    let lock_timeout = std::time::Duration::ZERO;
    let how = StageOptions { uid: options.uid, min_free: 0, lock_timeout, ..StageOptions::new(&root) };
    match stage_validate(binding.set_key, None, layout, Depth::Shallow, &how) {
        Ok(report) if report.status == VerifyStatus::Ready => {
            choice.bound = true;
            choice.path = Some(report.stage.display().to_string());
            choice.trust = report.trust;
            choice.reason.push_str("the stage is admitted");
            if !report.reasons.is_empty() {
                choice.reason.push_str(&format!(" ({})", report.reasons.join("; ")));
            }
            if let Some(trust) = report.trust {
                choice.reason.push_str(&format!("; trust: {trust}"));
            }
        }
        Ok(report) => choice.reason = format!("left out: the stage is not admitted: {}", report.failures.join(", ")),
        Err(error) => choice.reason = format!("left out: {error}"),
    }
    Some(choice)
}
