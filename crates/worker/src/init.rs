//! New configurations: a starter file, and the sides of a comparison.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use b70_manifest::{
    GpuRef,
    workers::{Arm, CacheType, Common, ExtraArgs, FlashAttention, Profile, SpecType, Worker, Workers},
};
use b70_procguard::{redact_arguments, redact_variable};
use b70_store::{OnExisting, RelPath, Root, json_bytes, publish_bytes};

use crate::{error::WorkerError, lane::Lane};

/// The first port of a starter file; outside the range the kernel gives to outgoing connections.
pub const FIRST_PORT: u16 = 19720;

/// What a starter file is made of.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// One worker each.
    pub gpus: Vec<GpuRef>,
    /// The model.
    pub model: PathBuf,
    /// The llama-server.
    pub binary: PathBuf,
    /// Where records and logs go.
    pub runtime_root: PathBuf,
    /// Port of the first worker.
    pub first_port: u16,
}

/// A starter configuration: independent workers, prompt cache off, no speculation.
pub fn starter(options: &InitOptions) -> Result<Workers, WorkerError> {
    if options.gpus.is_empty() {
        return Err(WorkerError::Usage("--gpus names no card".into()));
    }
    let absolute = |path: &Path| -> Result<String, WorkerError> {
        let path = std::path::absolute(path).map_err(|e| WorkerError::io(path, "resolve", e))?;
        path.to_str().map(str::to_owned).ok_or_else(|| WorkerError::Usage(format!("{} is not UTF-8", path.display())))
    };
    let stem = options.model.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    let mut workers = Vec::new();
    for (n, gpu) in options.gpus.iter().enumerate() {
        let port = u16::try_from(n).ok().and_then(|n| options.first_port.checked_add(n)).ok_or_else(|| {
            WorkerError::Usage(format!("there is no port for worker {n} after {}", options.first_port))
        })?;
        let role = if n == 0 { "control" } else { "candidate" };
        workers.push(Worker {
            name: format!("gpu{n}"),
            gpu: *gpu,
            port,
            role: role.into(),
            profile: "control".into(),
            arm: None,
        });
    }
    let profile = Profile {
        spec_type: SpecType::None,
        enable_mtp: false,
        mtp_n_max: None,
        mtp_n_min: None,
        mtp_p_min: None,
        spec_n_max: None,
        spec_n_min: None,
        spec_p_min: None,
        draft_model: None,
        n_gpu_layers: None,
        draft_n_gpu_layers: None,
        draft_device: None,
        draft_cache_type_k: None,
        draft_cache_type_v: None,
        extra_llama_args: ExtraArgs::default(),
        environment: BTreeMap::new(),
        pack_set: None,
    };
    Ok(Workers {
        schema: None,
        schema_version: 2,
        lane: format!("{stem}-tp1"),
        runtime_root: absolute(&options.runtime_root)?,
        launcher: None,
        binary: absolute(&options.binary)?,
        build_fingerprint: None,
        target_model: absolute(&options.model)?,
        target_model_sha256: None,
        draft_model: None,
        draft_model_sha256: None,
        model_alias: stem,
        common: Common {
            host: "127.0.0.1".into(),
            ctx_size: 4096,
            batch_size: 1024,
            ubatch_size: 256,
            n_parallel: 1,
            flash_attn: FlashAttention::Auto,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            prefer_ram_model_cache: false,
            ram_model_cache_root: None,
            extra_llama_args: ExtraArgs::Text("--cache-ram 0".into()),
            environment: BTreeMap::new(),
        },
        profiles: BTreeMap::from([("control".into(), profile)]),
        workers,
        pack_set: None,
        extensions: None,
    })
}

/// Puts a profile on some workers as the candidate; the others become the control. `swap` exchanges the sides for the second
/// period, so that a card's own speed cannot pass for the profile's.
pub fn assign(lane: &Lane, profile: &str, workers: &[String], swap: bool) -> Result<Workers, WorkerError> {
    lane.profile(profile)?;
    for name in workers {
        lane.worker(name)?;
    }
    let mut document = lane.document.clone();
    let total = document.workers.len();
    let named = document.workers.iter().filter(|w| workers.contains(&w.name)).count();
    if named == 0 || named == total {
        return Err(WorkerError::Usage(format!(
            "{named} of {total} workers are named; a comparison needs workers on both sides"
        )));
    }
    // The control is what the unnamed workers run already.
    let mut controls: Vec<&str> =
        lane.document.workers.iter().filter(|w| !workers.contains(&w.name)).map(|w| w.profile.as_str()).collect();
    controls.sort_unstable();
    controls.dedup();
    let [control] = controls.as_slice() else {
        return Err(WorkerError::Usage(format!(
            "the other workers run several profiles ({}): there is no one control",
            controls.join(", ")
        )));
    };
    if *control == profile {
        return Err(WorkerError::Usage(format!("the other workers run {profile} already: nothing would be compared")));
    }
    let control = (*control).to_owned();
    for worker in &mut document.workers {
        let candidate = workers.contains(&worker.name) != swap;
        worker.arm = Some(if candidate { Arm::Candidate } else { Arm::Control });
        worker.profile = if candidate { profile.to_owned() } else { control.clone() };
    }
    Ok(document)
}

/// A configuration for eyes: the same, with secrets in arguments and variables replaced.
pub fn redacted(document: &Workers) -> Workers {
    let mut shown = document.clone();
    let Common { extra_llama_args, environment, .. } = &mut shown.common;
    hide(extra_llama_args, environment);
    for profile in shown.profiles.values_mut() {
        hide(&mut profile.extra_llama_args, &mut profile.environment);
    }
    shown
}

fn hide(args: &mut ExtraArgs, environment: &mut BTreeMap<String, String>) {
    if let Ok(words) = args.words() {
        let shown = redact_arguments(&words);
        if shown != words {
            *args = ExtraArgs::Words(shown);
        }
    }
    for (name, value) in environment {
        *value = redact_variable(name, value).to_owned();
    }
}

/// Writes a new configuration; a file that is there is not replaced.
pub fn write_new(path: &Path, document: &Workers) -> Result<(), WorkerError> {
    let path = std::path::absolute(path).map_err(|e| WorkerError::io(path, "resolve", e))?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(WorkerError::Usage(format!("{} names no file", path.display())));
    };
    let exists = || {
        let error = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        WorkerError::io(&path, "create (it is there and is not replaced)", error)
    };
    if path.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let text = json_bytes(&path, document)?;
    publish_bytes(&Root::open(folder)?, &RelPath::new(name)?, &text, 0o644, OnExisting::Fail)?;
    Ok(())
}
