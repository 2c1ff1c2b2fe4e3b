//! What all operations on workers share: the configuration, the machine, and how to look at it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use b70_manifest::workers::Worker;
use b70_procguard::{
    CardVerdict, Host, LeaseError, LeaseKind, LeaseRoot, LeaseStatus, Owner, PciAddress, Usage, UsageOptions,
    UseEvidence,
};

use crate::{
    build::BuildFingerprint,
    error::WorkerError,
    identity::BinaryDigests,
    lane::{CardMap, GpuMode, Lane},
    resolve::ResolveOptions,
};

/// Acts on the workers of one configuration.
pub struct Supervisor<'a> {
    /// The configuration.
    pub lane: &'a Lane,
    /// Where cards and their users are looked for: this machine, or a recorded one for dry runs.
    pub host: &'a Host,
    /// Whether files, ports, leases and recorded processes are looked at on this machine; off when `host` is replayed.
    pub local: bool,
    /// Whether cards are looked for.
    pub mode: GpuMode,
    /// Directory of leases.
    pub lease_root: PathBuf,
    /// What resolving commands needs.
    pub resolve: ResolveOptions<'a>,
    /// What the caller says about starts.
    pub checks: StartChecks,
}

/// What a caller may say about starts beside the configuration.
#[derive(Debug, Clone, Default)]
pub struct StartChecks {
    /// Start although the models' files do not fit into the memory that is available.
    pub allow_low_memory: bool,
    /// Fingerprint document of the build, instead of the configuration's.
    pub build_fingerprint: Option<PathBuf>,
}

/// Cards and their users at one moment.
pub(crate) struct View {
    pub(crate) cards: CardMap,
    pub(crate) usage: Usage,
}

/// Who is in the way on a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Processes that the kit did not start for this worker.
    pub(crate) pids: Vec<u32>,
    /// One sentence each.
    pub(crate) reasons: Vec<String>,
}

impl Supervisor<'_> {
    /// Looks at the machine once.
    pub(crate) fn view(&self) -> Result<View, WorkerError> {
        let cards = self.lane.cards(self.host, self.mode)?;
        let options = UsageOptions { fdinfo: self.mode == GpuMode::Required, ..UsageOptions::default() };
        let usage = Usage::scan(self.host, &cards.cards, &options);
        Ok(View { cards, usage })
    }

    /// The fingerprint document of the build, if one is given.
    pub(crate) fn build_document(&self) -> Option<PathBuf> {
        let configured = || self.lane.document.build_fingerprint.as_deref().map(|path| self.lane.path(path));
        self.checks.build_fingerprint.clone().or_else(configured)
    }

    /// What is known of the build of the executable with these digests.
    pub(crate) fn build(&self, digests: &BinaryDigests) -> Result<BuildFingerprint, WorkerError> {
        let binary = self.lane.path(&self.lane.document.binary);
        let name = binary.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        BuildFingerprint::find(self.build_document().as_ref(), &name, digests)
    }

    /// State of the lease of a card; `None` where leases are not looked at.
    pub(crate) fn lease_status(&self, pci: PciAddress) -> Result<Option<LeaseStatus>, WorkerError> {
        if self.mode == GpuMode::Absent || !self.local {
            return Ok(None);
        }
        match LeaseRoot::open_existing(&self.lease_root) {
            // Leases are of this machine, whatever cards are replayed.
            Ok(root) => Ok(Some(root.status(&Host::real(), pci, LeaseKind::Card)?)),
            Err(LeaseError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl View {
    /// Who uses, or may use, a worker's card, apart from the processes given.
    pub(crate) fn foreign(&self, worker: &Worker, ours: &BTreeSet<u32>) -> Foreign {
        let mut found = Foreign::default();
        let Ok(pci) = self.cards.resolve(worker.gpu) else { return found };
        let Some(card) = self.usage.card(pci) else { return found };
        for owner in card.owners.iter().filter(|owner| !ours.contains(&owner.pid)) {
            found.pids.push(owner.pid);
            found.reasons.push(owner_text(owner));
        }
        // Verdict `unknown` without any owner: something could not be read. On a host without cards nothing unread can use one.
        if self.cards.mode == GpuMode::Required && card.verdict == CardVerdict::Unknown && card.owners.is_empty() {
            let mut whats: BTreeMap<&str, usize> = BTreeMap::new();
            for item in self.usage.unreadable.iter().filter(|u| u.pci.is_none_or(|p| p == pci)) {
                *whats.entry(&item.what).or_default() += 1;
            }
            let list: Vec<String> = whats.iter().take(3).map(|(what, n)| format!("{what} ({n})")).collect();
            found.reasons.push(format!(
                "it cannot be told whether the card is free, and unknown is not free: {}; run as root, or with CAP_SYS_PTRACE",
                list.join(", ")
            ));
        }
        found
    }
}

/// The evidence against a process in words.
fn owner_text(owner: &Owner) -> String {
    let words: Vec<&str> = owner
        .evidence
        .iter()
        .map(|evidence| match evidence {
            UseEvidence::FdinfoVram => "holds memory of the card",
            UseEvidence::FdinfoActive => "works on the card",
            UseEvidence::Affinity => "its driver variables name the card",
            UseEvidence::DeviceFlag => "its flags name the card",
            UseEvidence::AmbiguousAffinity => "may use any card",
        })
        .collect();
    let notes = if owner.notes.is_empty() { String::new() } else { format!(" ({})", owner.notes.join("; ")) };
    format!("foreign process {} ({}): {}{notes}; it is never signalled", owner.pid, owner.comm, words.join(", "))
}
