//! Who uses which card, and how sure that is.

pub(crate) mod scan;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use b70_manifest::PciAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    affinity::{AffinitySource, DeviceSelection},
    cards::Cards,
    host::Host,
};
use scan::{Client, Process};

/// How to look.
#[derive(Debug, Clone)]
pub struct UsageOptions {
    /// A process that holds less than this much of a card's memory only looks at the card.
    pub memory_threshold_bytes: u64,
    /// Time between the two samples that show whether engines work.
    pub sample: Duration,
    /// One read in a driver may take this long.
    pub read_deadline: Duration,
    /// The whole scan may take this long; what was not read by then makes verdicts unknown.
    pub deadline: Duration,
    /// Look at DRM clients. Off only on a host without cards, where settings are all there is to go by: then verdicts
    /// speak of the visible ggml programs alone, and what a namespace hides is not counted as unreadable.
    pub fdinfo: bool,
    /// Processes to leave out, by number: the caller's own.
    pub ignore: BTreeSet<u32>,
}

impl Default for UsageOptions {
    fn default() -> Self {
        Self {
            memory_threshold_bytes: 32 << 20,
            sample: Duration::from_millis(250),
            read_deadline: Duration::from_millis(500),
            deadline: Duration::from_secs(10),
            fdinfo: true,
            ignore: BTreeSet::new(),
        }
    }
}

/// May a job be started on the card?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CardVerdict {
    /// Everything was read, and nobody uses it.
    Free,
    /// Somebody does.
    Used,
    /// It cannot be told. Never to be taken for free.
    Unknown,
}

/// What speaks for a process using a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UseEvidence {
    /// It holds memory through the card's DRM client, in VRAM or evicted from it.
    FdinfoVram,
    /// Its engines worked between two samples.
    FdinfoActive,
    /// A ggml program whose driver variables name the card.
    Affinity,
    /// A ggml program whose own flags name the card.
    DeviceFlag,
    /// A ggml program whose variables and flags name no card, or cannot be read or understood: it may use any.
    AmbiguousAffinity,
}

/// A process that uses, or may use, a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its start in clock ticks since boot, which together with the number identifies it.
    pub start_time: u64,
    /// Why it counts.
    pub evidence: Vec<UseEvidence>,
    /// VRAM it holds, each client counted once: at the oldest of the processes that share it.
    pub vram_resident_bytes: u64,
    /// The evidence in words, where it needs any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One card's verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CardUsage {
    /// The card.
    pub pci: PciAddress,
    /// May it be used?
    pub verdict: CardVerdict,
    /// By whom it is used, ascending by pid.
    pub owners: Vec<Owner>,
    /// Processes that have its node open and nothing more: enumeration, monitoring. Information, no conflict.
    pub open_only: Vec<u32>,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Unreadable {
    /// The process, or null for something about the whole machine.
    pub pid: Option<u32>,
    /// What, and why.
    pub what: String,
    /// The only card it can concern, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<PciAddress>,
}

/// All verdicts of one scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Version of this document.
    pub schema_version: u32,
    /// One per card, ascending by address.
    pub cards: Vec<CardUsage>,
    /// What the scan could not see.
    pub unreadable: Vec<Unreadable>,
}

impl Usage {
    /// Looks at every process of the host.
    ///
    /// An open device node does not count as use: Level Zero opens all nodes for a moment, Vulkan keeps them open for good. Use is
    /// memory, or engines that work, or (for ggml programs, which may be asleep or still loading) a setting that names
    /// the card. A card is free only if every process could be looked at.
    pub fn scan(host: &Host, cards: &Cards, options: &UsageOptions) -> Self {
        let scan = scan::run(host, cards, options);
        judge(cards, options, &scan.processes, &scan.clients, scan.unreadable)
    }

    /// The card on which the process holds memory: where a server computes.
    pub fn card_of(&self, pid: u32) -> Option<PciAddress> {
        let holds = |owner: &Owner| owner.pid == pid && owner.evidence.contains(&UseEvidence::FdinfoVram);
        self.cards.iter().find(|card| card.owners.iter().any(holds)).map(|card| card.pci)
    }

    /// The verdict of one card.
    pub fn card(&self, pci: PciAddress) -> Option<&CardUsage> {
        self.cards.iter().find(|c| c.pci == pci)
    }
}

#[derive(Default)]
struct Holding {
    vram: u64,
    held: u64,
    active: bool,
}

fn judge(
    cards: &Cards,
    options: &UsageOptions,
    processes: &BTreeMap<u32, Process>,
    clients: &[Client],
    mut unreadable: Vec<Unreadable>,
) -> Usage {
    let mut holdings: BTreeMap<(PciAddress, u32), Holding> = BTreeMap::new();
    for client in clients {
        // The oldest holder of a shared client carries its bytes, so that sums stay true.
        let oldest = client.pids.iter().min_by_key(|p| (processes.get(p).map_or(u64::MAX, |x| x.stat.start_time), **p));
        for pid in &client.pids {
            let holding = holdings.entry((client.pci, *pid)).or_default();
            holding.held = holding.held.saturating_add(client.vram.saturating_add(client.host_memory));
            holding.active |= client.active;
            if Some(pid) == oldest {
                holding.vram = holding.vram.saturating_add(client.vram);
            }
        }
    }
    let uses = |h: &Holding| h.active || h.held >= options.memory_threshold_bytes;
    let mut result = Vec::new();
    for card in &cards.cards {
        let mut owners = Vec::new();
        let mut open_only = Vec::new();
        for (pid, process) in processes {
            let holding = holdings.get(&(card.pci, *pid));
            let mut evidence = BTreeSet::new();
            let mut notes = Vec::new();
            if let Some(h) = holding {
                if h.held >= options.memory_threshold_bytes {
                    evidence.insert(UseEvidence::FdinfoVram);
                    if h.vram < options.memory_threshold_bytes {
                        notes.push(format!(
                            "{} bytes through this card's client, most of it outside the card or shared",
                            h.held
                        ));
                    }
                }
                if h.active {
                    evidence.insert(UseEvidence::FdinfoActive);
                }
            }
            if let Some(affinity) = process.affinity.as_ref().filter(|_| card.is_level_zero_capable()) {
                let named = match affinity.source {
                    AffinitySource::DeviceFlag => UseEvidence::DeviceFlag,
                    _ => UseEvidence::Affinity,
                };
                match &affinity.selection {
                    DeviceSelection::Only(set) if set.contains(&card.pci) => drop(evidence.insert(named)),
                    DeviceSelection::None | DeviceSelection::Only(_) => {}
                    DeviceSelection::All => {
                        evidence.insert(UseEvidence::AmbiguousAffinity);
                        notes.push("nothing pins it to a card".into());
                    }
                    DeviceSelection::Unknown(why) => {
                        // If it uses as many cards as it may, those are all.
                        let used = holdings.iter().filter(|((_, p), h)| p == pid && uses(h)).count();
                        if affinity.at_most.is_none_or(|most| used < most) {
                            evidence.insert(UseEvidence::AmbiguousAffinity);
                            notes.push(why.clone());
                        }
                    }
                }
                if process.may_sleep && !evidence.is_empty() {
                    notes.push("it unloads its model when idle and takes the memory back at the next request".into());
                }
            }
            if !evidence.is_empty() {
                owners.push(Owner {
                    pid: *pid,
                    comm: process.stat.comm.clone(),
                    start_time: process.stat.start_time,
                    evidence: evidence.into_iter().collect(),
                    vram_resident_bytes: holding.map_or(0, |h| h.vram),
                    notes,
                });
            } else if holding.is_some() {
                open_only.push(*pid);
            }
        }
        let sure = owners.iter().any(|o| o.evidence.iter().any(|e| *e != UseEvidence::AmbiguousAffinity));
        let blind = !owners.is_empty() || unreadable.iter().any(|u| u.pci.is_none_or(|p| p == card.pci));
        let verdict = match (sure, blind) {
            (true, _) => CardVerdict::Used,
            (false, true) => CardVerdict::Unknown,
            (false, false) => CardVerdict::Free,
        };
        result.push(CardUsage { pci: card.pci, verdict, owners, open_only });
    }
    unreadable.sort();
    unreadable.dedup();
    Usage { schema_version: 1, cards: result, unreadable }
}
