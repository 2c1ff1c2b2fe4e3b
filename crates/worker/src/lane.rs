//! A configuration, with the cards and files it names found on this machine.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use b70_manifest::{
    GpuRef, PciAddress, document,
    workers::{Profile, Worker, Workers},
};
use b70_procguard::{Cards, Host};

use crate::{error::WorkerError, validate::missing_files};

/// What is done about cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuMode {
    /// Cards are looked for, leased and checked.
    Required,
    /// The host has no cards (trial, CI): presence, DRM clients and leases are not looked at, and that is said.
    Absent,
}

/// A `workers.json` that was read and is valid as a document.
#[derive(Debug, Clone)]
pub struct Lane {
    /// The file, absolute.
    pub config: PathBuf,
    /// What it says.
    pub document: Workers,
}

/// Where one worker keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPaths {
    /// `<runtime_root>/workers/<name>`.
    pub directory: PathBuf,
    /// Process id, one line.
    pub pid: PathBuf,
    /// Output of the server.
    pub log: PathBuf,
    /// Output of a launcher script that writes the log itself.
    pub launcher_log: PathBuf,
    /// The identity record.
    pub identity: PathBuf,
}

/// The cards of a host, and how each worker's is called there.
#[derive(Debug, Clone)]
pub struct CardMap {
    /// The cards: real ones, or assumed ones with [`GpuMode::Absent`].
    pub cards: Cards,
    /// Whether they were looked for.
    pub mode: GpuMode,
    by_ref: BTreeMap<GpuRef, PciAddress>,
    missing: BTreeMap<GpuRef, String>,
}

impl Lane {
    /// Reads a configuration; every error of the document at once.
    pub fn load(path: &Path) -> Result<Self, WorkerError> {
        let document = document::read::<Workers>(path)?;
        let config = std::path::absolute(path).map_err(|e| WorkerError::io(path, "resolve", e))?;
        Ok(Self { config, document })
    }

    /// [`Lane::load`] for whoever acts on this machine: if the document is not valid, the files that it names and that are
    /// missing are named as well, so that one reading of the error is enough.
    pub fn load_here(path: &Path) -> Result<Self, WorkerError> {
        Self::load(path).map_err(|error| {
            let missing: Vec<String> = missing_files(path).into_iter().map(|(_, _, message)| message).collect();
            match error {
                WorkerError::Document(source @ document::DocumentError::Invalid { .. }) if !missing.is_empty() => {
                    WorkerError::DocumentAndFiles { source, missing }
                }
                error => error,
            }
        })
    }

    /// The workers to act on: all, or those named.
    pub fn select(&self, names: &[String]) -> Result<Vec<&Worker>, WorkerError> {
        if names.is_empty() {
            return Ok(self.document.workers.iter().collect());
        }
        names.iter().map(|name| self.worker(name)).collect()
    }

    /// The worker of that name.
    pub fn worker(&self, name: &str) -> Result<&Worker, WorkerError> {
        self.document.worker(name).ok_or_else(|| WorkerError::NoWorker {
            name: name.to_owned(),
            config: self.config.clone(),
            present: self.document.workers.iter().map(|w| w.name.clone()).collect(),
        })
    }

    /// The profile a worker uses.
    pub fn profile(&self, name: &str) -> Result<&Profile, WorkerError> {
        self.document.profiles.get(name).ok_or_else(|| WorkerError::NoProfile {
            name: name.to_owned(),
            config: self.config.clone(),
            present: self.document.profiles.keys().cloned().collect(),
        })
    }

    /// A path of the file; relative ones count from the file's folder.
    pub fn path(&self, text: &str) -> PathBuf {
        self.config.parent().unwrap_or(Path::new("/")).join(text)
    }

    /// Where a worker keeps its files.
    pub fn paths(&self, worker: &Worker) -> WorkerPaths {
        let directory = self.path(&self.document.runtime_root).join("workers").join(&worker.name);
        WorkerPaths {
            pid: directory.join("server.pid"),
            log: directory.join("server.log"),
            launcher_log: directory.join("launcher.log"),
            identity: directory.join("resolved-identity.json"),
            directory,
        }
    }

    /// The address a worker's server binds; `None` for a host name, which only the server resolves.
    pub fn address(&self, worker: &Worker) -> Option<SocketAddr> {
        let host = self.document.common.host.trim_matches(['[', ']']);
        let ip: IpAddr = if host == "localhost" { IpAddr::from([127, 0, 0, 1]) } else { host.parse().ok()? };
        Some(SocketAddr::new(ip, worker.port))
    }

    /// The address at which a worker's server is asked from this machine.
    pub fn url(&self, worker: &Worker) -> String {
        match self.address(worker) {
            Some(address) if address.ip().is_unspecified() => {
                let ip = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
                format!("http://{ip}:{}", worker.port)
            }
            Some(address) => format!("http://{address}"),
            None => format!("http://{}:{}", self.document.common.host, worker.port),
        }
    }

    /// Finds the cards the workers name.
    pub fn cards(&self, host: &Host, mode: GpuMode) -> Result<CardMap, WorkerError> {
        let refs: Vec<GpuRef> = self.document.workers.iter().map(|w| w.gpu).collect();
        CardMap::find(host, mode, &refs)
    }

    /// The cards as far as there are any: on a host without, every name stands for a card of its own. For what needs
    /// their numbers alone.
    pub fn cards_or_assumed(&self, host: &Host, mode: GpuMode) -> Result<CardMap, WorkerError> {
        let found = self.cards(host, mode)?;
        if found.cards.cards.is_empty() { self.cards(host, GpuMode::Absent) } else { Ok(found) }
    }
}

impl CardMap {
    /// Finds cards by the names given.
    pub fn find(host: &Host, mode: GpuMode, refs: &[GpuRef]) -> Result<Self, WorkerError> {
        if mode == GpuMode::Absent {
            return Ok(Self::assumed(refs));
        }
        let cards = Cards::scan(host).map_err(|e| WorkerError::io(Path::new("/sys/bus/pci/devices"), "list", e))?;
        let (mut by_ref, mut missing) = (BTreeMap::new(), BTreeMap::new());
        for gpu in refs {
            match cards.resolve(*gpu) {
                Ok(card) => drop(by_ref.insert(*gpu, card.pci)),
                Err(error) => drop(missing.insert(*gpu, error.to_string())),
            }
        }
        Ok(Self { cards, mode, by_ref, missing })
    }

    /// Cards nobody looked for: ordinals take their places, addresses follow in order.
    fn assumed(refs: &[GpuRef]) -> Self {
        let ordinals = refs.iter().filter_map(|g| if let GpuRef::Ordinal(n) = g { Some(*n) } else { None }).max();
        let slots = ordinals.map_or(0, |n| n.min(255) + 1);
        // A domain that no machine has: these addresses stand for nothing.
        let place = |n: u32| PciAddress { domain: 0xffff_fff0, bus: n as u8, device: 0, function: 0 };
        let mut addresses: Vec<PciAddress> = (0..slots).map(place).collect();
        let mut named: Vec<PciAddress> =
            refs.iter().filter_map(|g| if let GpuRef::Pci(p) = g { Some(*p) } else { None }).collect();
        named.sort_unstable();
        named.dedup();
        addresses.extend(named);
        let by_ref = refs
            .iter()
            .map(|gpu| match gpu {
                GpuRef::Ordinal(n) => (*gpu, place((*n).min(255))),
                GpuRef::Pci(pci) => (*gpu, *pci),
            })
            .collect();
        Self { cards: Cards::assumed(&addresses), mode: GpuMode::Absent, by_ref, missing: BTreeMap::new() }
    }

    /// The address of a card, or why there is none.
    pub fn resolve(&self, gpu: GpuRef) -> Result<PciAddress, String> {
        match self.by_ref.get(&gpu) {
            Some(pci) => Ok(*pci),
            None => Err(self.missing.get(&gpu).cloned().unwrap_or_else(|| format!("there is no card {gpu}"))),
        }
    }

    /// The address if it is a real one, for documents.
    pub fn real(&self, gpu: GpuRef) -> Option<PciAddress> {
        match (self.mode, gpu) {
            (GpuMode::Required, gpu) => self.by_ref.get(&gpu).copied(),
            (GpuMode::Absent, GpuRef::Pci(pci)) => Some(pci),
            (GpuMode::Absent, GpuRef::Ordinal(_)) => None,
        }
    }
}
