//! What ran: collected from the worker's own record, from the process behind the endpoint, and from what the caller vouches
//! for. What cannot be known stays absent; nothing is guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use b70_client::{BaseUrl, Props, ServerIdentity};
use b70_manifest::calibration::{CardIdentity, Measured, RunIdentity};
use b70_manifest::state::WorkerIdentity;
use b70_manifest::{PciAddress, Sha256Hex, canonical_sha256};
use b70_procguard::{
    Cards, Host, ListenerOwnership, PidState, ProcessIdentity, command_line, environment, listening_inode_belongs_to,
    port_owners, redact_arguments, redact_variable,
};
use b70_store::sha256_file;
use serde_json::{Map, Value, json};

/// What the caller knows of a server. Values given here are the caller's word and are marked as such.
#[derive(Clone, Debug, Default)]
pub struct IdentityInputs {
    /// The worker's `resolved-identity.json`; used only if the process it names is the one behind the endpoint.
    pub worker_identity: Option<PathBuf>,
    /// SHA-256 of the target model.
    pub target_model_sha256: Option<Sha256Hex>,
    /// SHA-256 of the draft model.
    pub draft_model_sha256: Option<Sha256Hex>,
    /// Fingerprint of the build.
    pub build_fingerprint_sha256: Option<Sha256Hex>,
    /// Read the model file that the server names and hash it, where it is a file of this machine.
    pub hash_model: bool,
    /// Name of the profile.
    pub profile: Option<String>,
}

/// The identity, and what people should know about how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    pub(crate) identity: RunIdentity,
    pub(crate) notes: Vec<String>,
}

/// Names of variables that bear on a server's speed or results, by prefix.
const RELEVANT: [&str; 24] = [
    "GGML_",
    "LLAMA_",
    "SYCL_",
    "ONEAPI_",
    "ONEDNN_",
    "ZE_",
    "ZES_",
    "ZET_",
    "UR_",
    "IGC_",
    "NEO",
    "OMP_",
    "KMP_",
    "MKL_",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_",
    "CUDA_",
    "HIP_",
    "VK_",
    "INTEL_",
    "Enable",
    "Override",
    "GPU_",
];

pub(crate) fn collect(
    host: &Host,
    url: &BaseUrl,
    card: Option<PciAddress>,
    inputs: &IdentityInputs,
    server: &ServerIdentity,
    props: Option<&Props>,
) -> Collected {
    let mut notes = Vec::new();
    let mut identity = empty();
    let address = loopback(url);
    let pid = address.and_then(|address| listener(host, address, &mut notes));
    match (pid, address) {
        (Some(pid), _) => from_process(host, pid, &mut identity, &mut notes),
        (None, None) => {
            notes.push("the server is not on this machine's loopback: its process cannot be looked at".to_owned());
        }
        (None, Some(_)) => {}
    }
    if let Some(path) = &inputs.worker_identity {
        match from_worker(host, path, address, &mut identity) {
            Ok(()) => {}
            Err(why) => notes.push(format!("{}: not used, {why}", path.display())),
        }
    }
    if let Some(profile) = &inputs.profile {
        identity.profile.get_or_insert_with(|| profile.clone());
    }
    let mut vouched = Vec::new();
    let mut vouch = |slot: &mut Option<Sha256Hex>, given: Option<Sha256Hex>, what: &str| {
        let Some(given) = given else { return };
        match *slot {
            Some(found) if found != given => {
                notes.push(format!("{what}: {given} was given, {found} is on record; neither is used"));
                *slot = None;
            }
            _ => {
                *slot = Some(given);
                vouched.push(what.to_owned());
            }
        }
    };
    vouch(&mut identity.target_model_sha256, inputs.target_model_sha256, "target_model_sha256");
    vouch(&mut identity.draft_model_sha256, inputs.draft_model_sha256, "draft_model_sha256");
    vouch(&mut identity.build_fingerprint_sha256, inputs.build_fingerprint_sha256, "build_fingerprint_sha256");
    if !vouched.is_empty() {
        identity.extra.insert("given_by_the_caller".to_owned(), json!(vouched));
    }
    if inputs.hash_model {
        hash_model(&mut identity, pid.is_some(), props, &mut notes);
    }
    identity.extra.insert("server".to_owned(), json!(server));
    identity.extra.insert("is_llama_server".to_owned(), json!(server.is_llama_server()));
    if let Some(template) = props.and_then(|props| props.raw.get("chat_template")).and_then(Value::as_str) {
        identity.extra.insert("chat_template_sha256".to_owned(), json!(Sha256Hex::of(template.as_bytes())));
    }
    identity.card = card.and_then(|pci| card_identity(host, pci));
    if let Some(card) = card.filter(|_| identity.card.is_none()) {
        notes.push(format!("this machine shows no card {card}: it is a name, and not on record as what ran"));
    }
    Collected { identity, notes }
}

/// An identity of which nothing is known.
pub(crate) fn empty() -> RunIdentity {
    RunIdentity {
        target_model_sha256: None,
        draft_model_sha256: None,
        binary_sha256: None,
        build_fingerprint_sha256: None,
        command: None,
        environment: None,
        profile: None,
        pack_set_key: None,
        card: None,
        workers_at_once: None,
        telemetry: None,
        extra: Map::new(),
    }
}

/// The socket address, if the endpoint is on this machine's loopback.
pub(crate) fn loopback(url: &BaseUrl) -> Option<SocketAddr> {
    let text = url.to_string();
    let authority = text.strip_prefix("http://")?.split('/').next()?;
    let address = authority.replace("localhost", "127.0.0.1").parse::<SocketAddr>().ok()?;
    address.ip().is_loopback().then_some(address)
}

fn listener(host: &Host, address: SocketAddr, notes: &mut Vec<String>) -> Option<u32> {
    if !host.is_real() {
        return None;
    }
    let owners = match port_owners(host, address) {
        Ok(owners) => owners,
        Err(error) => {
            notes.push(format!("the listener at {address} is unknown: {error}"));
            return None;
        }
    };
    let pids: BTreeSet<u32> = owners
        .iter()
        .filter(|owner| owner.state == "listening")
        .flat_map(|owner| owner.holders.iter().map(|holder| holder.pid))
        .collect();
    if pids.len() != 1 {
        notes.push(format!("the listener at {address} is unknown: {} processes could be it", pids.len()));
        return None;
    }
    pids.into_iter().next()
}

fn from_process(host: &Host, pid: u32, identity: &mut RunIdentity, notes: &mut Vec<String>) {
    match command_line(host, pid) {
        Ok(command) if !command.is_empty() => identity.command = Some(redact_arguments(&command)),
        _ => notes.push(format!("the command line of process {pid} cannot be read")),
    }
    match environment(host, pid) {
        Ok(all) => identity.environment = Some(relevant(&all)),
        Err(error) => notes.push(format!("the environment of process {pid} cannot be read: {error}")),
    }
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    match sha256_file(&exe) {
        Ok(digest) => identity.binary_sha256 = Some(digest),
        Err(error) => notes.push(format!("the executable of process {pid} cannot be read: {error}")),
    }
    identity.extra.insert("pid".to_owned(), json!(pid));
    identity.extra.insert("collected_from".to_owned(), json!("the process that listens at the endpoint"));
}

fn relevant(all: &[(String, String)]) -> BTreeMap<String, String> {
    all.iter()
        .filter(|(name, _)| RELEVANT.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| (name.clone(), redact_variable(name, value).to_owned()))
        .collect()
}

/// The worker's own record, if the process it names lives and is the one that listens.
fn from_worker(
    host: &Host,
    path: &Path,
    address: Option<SocketAddr>,
    identity: &mut RunIdentity,
) -> Result<(), String> {
    let record: WorkerIdentity = b70_manifest::document::read(path).map_err(|error| error.to_string())?;
    let process = ProcessIdentity::of(host, record.pid)
        .ok()
        .flatten()
        .filter(|found| found.start_time == record.start_time_ticks && found.boot_id == record.boot_id)
        .ok_or_else(|| format!("process {} is not the one it names", record.pid))?;
    if !matches!(process.state(host), PidState::Running) {
        return Err(format!("process {} does not run", record.pid));
    }
    let address = address.ok_or("the endpoint is not on this machine")?;
    match listening_inode_belongs_to(host, address, &BTreeSet::from([record.pid])) {
        ListenerOwnership::Ours { .. } => {}
        other => return Err(format!("the listener at {address} is not process {}: {other:?}", record.pid)),
    }
    identity.target_model_sha256 = record.target_model.sha256;
    identity.draft_model_sha256 = record.draft_model.as_ref().and_then(|draft| draft.sha256);
    identity.binary_sha256 = Some(record.binary_sha256);
    identity.build_fingerprint_sha256 = record.build_fingerprint_sha256;
    identity.command = Some(redact_arguments(&record.command));
    let mut environment = identity.environment.take().unwrap_or_default();
    for (name, value) in &record.environment {
        environment.insert(name.clone(), redact_variable(name, value).to_owned());
    }
    identity.environment = Some(environment);
    identity.profile = Some(record.profile.clone());
    identity.pack_set_key = record.pack_stage.filter(|stage| stage.bound).map(|stage| stage.set_key);
    let extra = &mut identity.extra;
    extra.insert("worker".to_owned(), json!({"name": record.name, "role": record.role, "pid": record.pid}));
    extra.insert("target_model_copy".to_owned(), json!(record.target_model.copy));
    extra.insert("libraries".to_owned(), json!(record.libraries));
    extra.insert("collected_from".to_owned(), json!("the worker's record, which names the listening process"));
    Ok(())
}

fn hash_model(identity: &mut RunIdentity, local: bool, props: Option<&Props>, notes: &mut Vec<String>) {
    let path = props.and_then(|props| props.model_path.clone()).map(PathBuf::from).filter(|path| path.is_absolute());
    let Some(path) = path.filter(|_| local) else {
        notes.push("the model cannot be hashed: the server names no absolute path of this machine".to_owned());
        return;
    };
    match (sha256_file(&path), identity.target_model_sha256) {
        (Ok(found), Some(known)) if found != known => {
            notes.push(format!("the model file has SHA-256 {found}, expected {known} as on record; neither is used"));
            identity.target_model_sha256 = None;
        }
        (Ok(found), _) => identity.target_model_sha256 = Some(found),
        (Err(error), _) => notes.push(format!("the model cannot be hashed: {error}")),
    }
}

/// The card, if this machine shows it.
fn card_identity(host: &Host, pci: PciAddress) -> Option<CardIdentity> {
    let cards = Cards::scan(host).ok()?;
    let card = cards.get(pci)?;
    let id = |text: &str| text.trim_start_matches("0x").to_owned();
    let extra = [("name", json!(card.name)), ("driver", json!(card.driver))];
    Some(CardIdentity {
        pci,
        device_id: Some(format!("{}:{}", id(&card.vendor_id), id(&card.device_id))),
        extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    })
}

/// How many llama-server processes run on the host, as far as they can be seen.
pub(crate) fn servers_on_host(host: &Host) -> usize {
    let Ok(pids) = host.pids() else { return 0 };
    let is_server =
        |pid: &u32| host.read_text(&format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == "llama-server");
    pids.iter().filter(|pid| is_server(pid)).count()
}

/// Flags whose value tells workers of one recipe apart: addresses, names, cards, files of their own.
const PRIVATE_FLAGS: [&str; 15] = [
    "--port",
    "--host",
    "-a",
    "--alias",
    "-dev",
    "--device",
    "-mg",
    "--main-gpu",
    "--log-file",
    "--slot-save-path",
    "-m",
    "--model",
    "-md",
    "--model-draft",
    "--spec-draft-model",
];
/// Variables that do.
const PRIVATE_VARIABLES: [&str; 4] = ["ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "GPU_INDEX", "GGML_SYCL_DEVICE"];

/// The hash of everything that makes a configuration, and of nothing that tells cards apart; `None` unless the models, the
/// executable and the command line are on record, since unknown is equal to nothing.
pub fn recipe_sha256(measured: &Measured) -> Option<Sha256Hex> {
    let identity = &measured.identity;
    let command = identity.command.as_ref()?;
    let mut words = Vec::new();
    let mut skip = false;
    for word in command.iter().skip(1) {
        if std::mem::take(&mut skip) {
            continue;
        }
        let flag = word.split('=').next().unwrap_or_default();
        if PRIVATE_FLAGS.contains(&flag) {
            skip = !word.contains('=');
            continue;
        }
        words.push(word);
    }
    let environment: BTreeMap<&String, &String> =
        identity.environment.iter().flatten().filter(|(name, _)| !PRIVATE_VARIABLES.contains(&name.as_str())).collect();
    // Numbers as texts: the canonical form has no fractions.
    let settings = &measured.settings;
    let recipe = json!({
        "target_model_sha256": identity.target_model_sha256?,
        "draft_model_sha256": identity.draft_model_sha256,
        "binary_sha256": identity.binary_sha256?,
        "build_fingerprint_sha256": identity.build_fingerprint_sha256,
        "pack_set_key": identity.pack_set_key,
        "command": words,
        "environment": environment,
        "settings": serde_json::to_string(settings).ok()?,
    });
    canonical_sha256(&recipe).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_bears_on_the_server_is_kept_and_secrets_go() {
        let all =
            [("GGML_SYCL_ENABLE_GRAPH", "1"), ("HOME", "/root"), ("LLAMA_API_KEY", "abc"), ("ZE_AFFINITY_MASK", "0")];
        let all: Vec<_> = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let kept = relevant(&all);
        assert_eq!(kept.len(), 3);
        assert_eq!(kept["LLAMA_API_KEY"], b70_procguard::REDACTED);
    }

    #[test]
    fn a_card_is_on_record_only_where_it_is_shown() {
        let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/four-b70-idle");
        let host = Host::recorded(Path::new(tree)).unwrap();
        let shown = Cards::scan(&host).unwrap().cards[0].pci;
        let card = card_identity(&host, shown).unwrap();
        assert!(card.device_id.unwrap().starts_with("8086:") && card.extra.contains_key("driver"));
        assert!(card_identity(&host, "ffff:ff:1f.7".parse().unwrap()).is_none());
    }

    #[test]
    fn loopback_addresses() {
        let at = |url: &str| loopback(&BaseUrl::parse(url).unwrap()).map(|address| address.to_string());
        assert_eq!(at("http://127.0.0.1:8080").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(at("http://localhost:8080").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(at("http://192.168.1.2:8080"), None);
    }
}
