//! The record of a started worker: written at once when it starts, read to stop it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex, UnixTime, state::WorkerIdentity, workers::Worker};
use b70_procguard::{Host, PidState, ProcessIdentity, Session};
use b70_store::{RelPath, json_bytes, replace_bytes, sha256_file};
use serde_json::{Map, Value, json};

use crate::{
    build::BuildFingerprint,
    error::WorkerError,
    lane::WorkerPaths,
    resolve::ResolvedCommand,
    trust::{own_directory, read_record},
    upstream,
};

/// Digests of the executable and of the libraries of its build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BinaryDigests {
    pub(crate) binary: Sha256Hex,
    pub(crate) libraries: BTreeMap<String, Sha256Hex>,
}

impl BinaryDigests {
    /// Reads the executable and the shared libraries beside it, each once whatever its links are called.
    pub(crate) fn read(binary: &Path) -> Result<Self, WorkerError> {
        let real = fs::canonicalize(binary).map_err(|e| WorkerError::io(binary, "resolve", e))?;
        let mut libraries = BTreeMap::new();
        let folder = real.parent().unwrap_or(Path::new("/"));
        let build = [folder.to_owned(), folder.join("../lib")];
        // A folder of the system's is not the build's.
        let of_system = ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|s| folder == Path::new(s));
        for folder in build.iter().filter(|_| !of_system) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let plain = entry.file_type().is_ok_and(|t| t.is_file());
                if plain && (format!("{name}.").contains(".so.")) {
                    libraries.insert(name, sha256_file(&entry.path())?);
                }
            }
        }
        Ok(Self { binary: sha256_file(&real)?, libraries })
    }
}

/// What a record is made of.
pub(crate) struct Parts<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) command: &'a ResolvedCommand,
    pub(crate) process: &'a ProcessIdentity,
    pub(crate) token: &'a str,
    pub(crate) digests: &'a BinaryDigests,
    pub(crate) build: &'a BuildFingerprint,
    pub(crate) lease: Option<PathBuf>,
    pub(crate) leads_session: bool,
}

/// Builds the record; secrets are replaced.
pub(crate) fn record(parts: &Parts<'_>) -> WorkerIdentity {
    let Parts { worker, command, process, .. } = parts;
    let started = UnixTime::now();
    let shown = command.redacted();
    let mut extra = Map::new();
    extra.insert("session_token".into(), json!(parts.token));
    extra.insert("pid_namespace".into(), json!(process.pid_namespace));
    extra.insert("unset_environment".into(), json!(command.unset));
    extra.insert("lease".into(), json!(parts.lease));
    extra.insert("build_fingerprint".into(), json!(parts.build.text()));
    WorkerIdentity {
        schema_version: 1,
        format: Some("b70-worker-identity-v1".into()),
        evidence_class: EvidenceClass::DevelopmentScreenOnly,
        promotion_eligible: NeverEligible,
        name: worker.name.clone(),
        role: worker.role.clone(),
        profile: worker.profile.clone(),
        gpu: worker.gpu,
        card: command.card,
        port: worker.port,
        pid: process.pid,
        start_time_ticks: process.start_time,
        boot_id: process.boot_id.clone(),
        session: parts.leads_session.then_some(process.pid),
        command: shown.argv,
        environment: shown.set.into_iter().collect(),
        target_model: command.target_model.clone(),
        draft_model: command.draft_model.clone(),
        binary_sha256: parts.digests.binary,
        libraries: parts.digests.libraries.clone(),
        build_fingerprint_sha256: parts.build.sha256(),
        pack_stage: command.pack_stage.clone(),
        log: Some(command.log.display().to_string()),
        started_unix: started,
        started_utc: Some(started.rfc3339()),
        extra,
    }
}

/// Publishes the record and the pid file, each atomically; the record first, because it is what counts.
pub(crate) fn write(paths: &WorkerPaths, identity: &WorkerIdentity) -> Result<(), WorkerError> {
    let root = own_directory(paths)?;
    upstream::keep(paths)?;
    let text = json_bytes(&paths.identity, identity)?;
    replace_bytes(&root, &RelPath::new("resolved-identity.json")?, &text, 0o644)?;
    replace_bytes(&root, &RelPath::new("server.pid")?, format!("{}\n", identity.pid).as_bytes(), 0o644)?;
    Ok(())
}

/// A record that was found.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The document.
    pub identity: WorkerIdentity,
    /// Its process.
    pub process: ProcessIdentity,
    /// Its session and the mark of its members.
    pub session: Session,
    /// User who wrote the record.
    pub owner: u32,
}

/// Reads a worker's record; `None` if it was never started, or not by the kit.
pub fn read(paths: &WorkerPaths) -> Result<Option<Recorded>, WorkerError> {
    let Some((bytes, owner)) = read_record(&paths.identity)? else { return Ok(None) };
    if upstream::is_upstreams(&bytes) {
        return Ok(None);
    }
    // A record that does not hold what identifies a process identifies none; the caller says so.
    let identity: WorkerIdentity = serde_json::from_slice(&bytes).map_err(|e| {
        WorkerError::io(&paths.identity, "read the identity record", io::Error::new(io::ErrorKind::InvalidData, e))
    })?;
    let process = ProcessIdentity {
        boot_id: identity.boot_id.clone(),
        pid: identity.pid,
        start_time: identity.start_time_ticks,
        pid_namespace: identity.extra.get("pid_namespace").and_then(Value::as_u64),
    };
    let token = identity.extra.get("session_token").and_then(Value::as_str).map(str::to_owned);
    let session = Session { leader: process.clone(), token };
    Ok(Some(Recorded { identity, process, session, owner }))
}

impl Recorded {
    /// What became of the process; `absent` also for one that has exited and was not collected.
    pub fn state(&self, host: &Host) -> PidState {
        match self.process.state(host) {
            PidState::Zombie => PidState::Absent,
            state => state,
        }
    }
}
