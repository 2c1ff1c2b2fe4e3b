//! The record that upstream's script leaves of a server: `resolved-identity.json` without version, and the process's
//! number alone in `server.pid` beside it.
//!
//! Nothing in it tells a process from a later one of the same number. So it never lets anything be signalled; it only
//! keeps a start from running into a server that is there.

use std::{fs, io, path::Path};

use b70_manifest::{state::LabWorkerIdentity, workers::Worker};
use b70_procguard::{Host, ProcStat, command_line, environment, port_owners};

use crate::{
    error::WorkerError,
    lane::{Lane, WorkerPaths},
    trust::read_record,
};

/// Name under which the record is kept once the kit's own takes its place.
const KEPT: &str = "resolved-identity.upstream.json";
/// The same of the process's number.
const KEPT_PID: &str = "server.upstream.pid";

/// A record of upstream's, and what its number stands for now.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamRecord {
    pub(crate) identity: LabWorkerIdentity,
    pub(crate) process: UpstreamProcess,
}

/// What the number in `server.pid` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UpstreamProcess {
    /// No process has it, or the file holds none: the server has ended.
    Ended(String),
    /// A process has it that is not this server by command line and port.
    Other(u32, String),
    /// A process has it whose command line and port agree. More cannot be told.
    Agrees(u32, String),
}

/// Whether a record is upstream's rather than the kit's.
pub(crate) fn is_upstreams(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| {
        value.get("schema_version").is_none() && value.get("worker").is_some() && value.get("resolved").is_some()
    })
}

/// Reads upstream's record of a worker; `None` where there is none, or one of the kit's.
pub(crate) fn read(lane: &Lane, worker: &Worker, host: &Host) -> Result<Option<UpstreamRecord>, WorkerError> {
    let paths = lane.paths(worker);
    let Some((bytes, _)) = read_record(&paths.identity)?.filter(|(bytes, _)| is_upstreams(bytes)) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let identity: LabWorkerIdentity = b70_manifest::document::read_text(&paths.identity, &text)?;
    let process = match read_record(&paths.pid)? {
        None => UpstreamProcess::Ended("there is no server.pid beside it".into()),
        Some((number, _)) => {
            let number = String::from_utf8_lossy(&number).trim().to_owned();
            match number.parse::<u32>().ok().filter(|pid| *pid > 0) {
                None => UpstreamProcess::Ended(format!(
                    "server.pid has {:?}, expected the number of a process",
                    number.chars().take(40).collect::<String>()
                )),
                Some(pid) => look(lane, worker, &identity, host, pid)?,
            }
        }
    };
    Ok(Some(UpstreamRecord { identity, process }))
}

fn look(
    lane: &Lane,
    worker: &Worker,
    identity: &LabWorkerIdentity,
    host: &Host,
    pid: u32,
) -> Result<UpstreamProcess, WorkerError> {
    let Some(stat) = ProcStat::read(host, pid).map_err(WorkerError::Proc)?.filter(|stat| !stat.is_dead()) else {
        return Ok(UpstreamProcess::Ended(format!("pid {pid} has ended")));
    };
    // Another user's command line can be read; one that cannot be read agrees with nothing.
    let words = command_line(host, pid).unwrap_or_default();
    let port = identity.worker.port;
    // An interpreter and its options may stand before a script.
    let runs = |is: &dyn Fn(&str) -> bool| words.iter().take(3).any(|word| is(word));
    let launched = runs(&|word| identity.resolved.command.iter().any(|recorded| recorded == word));
    // A launcher that ends in exec has become the server.
    let serves = runs(&|word| Path::new(word).file_name() == Path::new(&lane.document.binary).file_name());
    if !launched && !serves {
        let shown = words.first().map_or(stat.comm.as_str(), String::as_str);
        return Ok(UpstreamProcess::Other(pid, format!("its command line is {shown:?}, not the recorded one")));
    }
    let told = words.windows(2).any(|pair| pair[0] == "--port" && pair[1] == port.to_string())
        || environment(host, pid)
            .is_ok_and(|set| set.iter().any(|(name, value)| name == "PORT" && *value == port.to_string()));
    let address = lane.address(worker).map(|address| std::net::SocketAddr::new(address.ip(), port));
    let listens = match address {
        Some(address) => port_owners(host, address).map_err(WorkerError::Proc)?.iter().any(|owner| {
            let of_it = |holder: u32| {
                holder == pid || ProcStat::read(host, holder).ok().flatten().is_some_and(|s| s.session == stat.session)
            };
            owner.state == "listening" && owner.holders.iter().any(|holder| of_it(holder.pid))
        }),
        None => false,
    };
    if !told && !listens {
        return Ok(UpstreamProcess::Other(pid, format!("neither its command line nor a socket of it has port {port}")));
    }
    let how = if listens { "listens on" } else { "was given" };
    Ok(UpstreamProcess::Agrees(pid, format!("it runs the recorded command and {how} port {port}")))
}

impl UpstreamRecord {
    /// The sentence about a server that seems to run: what is known, what is not, and how it is ended.
    pub(crate) fn running(pid: u32, how: &str) -> String {
        format!(
            "upstream's script started it as pid {pid}: {how}; its record names no start time and no boot, so that \
             nothing more can be verified and the kit does not signal it; you end it by: kill -TERM {pid}"
        )
    }
}

/// Keeps upstream's files under other names before the kit's take theirs; nothing that was kept before is replaced.
pub(crate) fn keep(paths: &WorkerPaths) -> Result<(), WorkerError> {
    if !read_record(&paths.identity)?.is_some_and(|(bytes, _)| is_upstreams(&bytes)) {
        return Ok(());
    }
    for (path, name) in [(&paths.identity, KEPT), (&paths.pid, KEPT_PID)] {
        let numbered = (1..1000).map(|n| match n {
            1 => paths.directory.join(name),
            n => paths.directory.join(format!("{name}.{n}")),
        });
        for kept in numbered {
            // A second name, not another place: whoever is killed here leaves both.
            match fs::hard_link(path, &kept) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(WorkerError::io(&kept, "keep upstream's record as", error)),
            }
        }
    }
    Ok(())
}
