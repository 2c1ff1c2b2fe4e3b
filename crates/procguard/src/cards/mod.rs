//! Physical cards: what is in the machine, and which number Level Zero gives it.

mod ids;

pub(crate) use ids::{INTEL, device_name, is_battlemage};

use std::{collections::BTreeMap, io};

use b70_manifest::{GpuRef, PciAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// One display device of the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Card {
    /// Its address: the identity.
    pub pci: PciAddress,
    /// PCI vendor, e.g. `0x8086`.
    pub vendor_id: String,
    /// PCI device, e.g. `0xe223`.
    pub device_id: String,
    /// A name for people; nothing is decided by it.
    pub name: String,
    /// Kernel driver bound to it: `xe`, `i915`, `amdgpu`, …
    pub driver: Option<String>,
    /// `/dev/dri/cardN`.
    pub card_node: Option<String>,
    /// `/dev/dri/renderDN`. Its number follows from nothing; it was read.
    pub render_node: Option<String>,
    /// Position in Level Zero's default order as the looking user's processes see it; null for what it cannot see.
    pub level_zero_ordinal: Option<u32>,
    /// How the ordinal was derived, or why there is none.
    pub ordinal_reason: String,
    /// Bytes of VRAM, where the kernel tells this user.
    pub vram_total_bytes: Option<u64>,
    /// Bytes of VRAM in use, where the kernel tells this user. Never estimated.
    pub vram_used_bytes: Option<u64>,
    #[serde(skip)]
    #[schemars(skip)]
    integrated: bool,
    #[serde(skip)]
    #[schemars(skip)]
    openable: bool,
    /// Orders assumed cards as they were given; 0 for real ones.
    #[serde(skip)]
    #[schemars(skip)]
    rank: u32,
}

/// All cards of a machine, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cards {
    /// Version of this document.
    pub schema_version: u32,
    /// Ascending by PCI address.
    pub cards: Vec<Card>,
    /// Reasons for which another process may count the cards differently.
    pub ordinal_may_shift: Vec<String>,
    /// What could not be read; an entry here means that a card may be missing.
    pub unreadable: Vec<String>,
}

/// The order in which Level Zero numbers devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOrder {
    /// Discrete before integrated, then by PCI address: the default.
    DiscreteFirst,
    /// By PCI address alone: `ZE_ENABLE_PCI_ID_DEVICE_ORDER=1`.
    PciAddress,
}

/// A card that is not there.
#[derive(Debug, thiserror::Error)]
#[error("there is no card {wanted}; {present}")]
pub struct NoSuchCard {
    /// What was asked for.
    pub wanted: GpuRef,
    /// What is there.
    pub present: String,
}

impl Card {
    /// Does it share the host's memory instead of having its own?
    pub fn is_integrated(&self) -> bool {
        self.integrated
    }

    /// Could the looking user open its render node?
    pub fn is_openable(&self) -> bool {
        self.openable
    }

    /// Would Level Zero report it to a user who may open every node?
    pub fn is_level_zero_capable(&self) -> bool {
        self.render_node.is_some() && matches!(self.driver.as_deref(), Some("xe" | "i915"))
    }
}

impl From<&Card> for PciAddress {
    fn from(card: &Card) -> Self {
        card.pci
    }
}

impl Cards {
    /// Reads all display devices.
    ///
    /// # Errors
    /// The PCI bus in `/sys` cannot be listed. A host without that directory has no cards, which is not an error.
    pub fn scan(host: &Host) -> io::Result<Self> {
        let mut cards =
            Self { schema_version: 1, cards: Vec::new(), ordinal_may_shift: Vec::new(), unreadable: Vec::new() };
        let names = match host.list("/sys/bus/pci/devices") {
            Ok(names) => names,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        for name in names {
            let Ok(pci) = name.parse::<PciAddress>() else { continue };
            match read_card(host, pci) {
                Ok(Some(card)) => cards.cards.push(card),
                Ok(None) => {}
                Err(e) => cards.unreadable.push(format!("/sys/bus/pci/devices/{name}: {e}")),
            }
        }
        cards.cards.sort_by_key(|c| c.pci);
        cards.number(host);
        Ok(cards)
    }

    /// Cards that nobody looked for: B70s at these addresses, numbered in this order. For hosts without GPUs, where a
    /// guard by ordinal must still be able to read masks.
    pub fn assumed(addresses: &[PciAddress]) -> Self {
        let card = |(n, pci): (usize, &PciAddress)| Card {
            pci: *pci,
            vendor_id: "0x8086".into(),
            device_id: "0xe223".into(),
            name: device_name(INTEL, 0xe223),
            driver: Some("xe".into()),
            card_node: None,
            render_node: Some(format!("/dev/dri/renderD{}", 128 + n)),
            level_zero_ordinal: Some(n as u32),
            ordinal_reason: "assumed, not looked for".into(),
            vram_total_bytes: None,
            vram_used_bytes: None,
            integrated: false,
            openable: true,
            rank: n as u32,
        };
        Self {
            schema_version: 1,
            cards: addresses.iter().enumerate().map(card).collect(),
            ordinal_may_shift: vec!["the cards were assumed, not looked for".into()],
            unreadable: Vec::new(),
        }
    }

    /// The card of that address.
    pub fn get(&self, pci: PciAddress) -> Option<&Card> {
        self.cards.iter().find(|c| c.pci == pci)
    }

    /// Finds the card a person named, by address or by ordinal in the default order.
    pub fn resolve(&self, wanted: GpuRef) -> Result<&Card, NoSuchCard> {
        let found = self.cards.iter().find(|c| match wanted {
            GpuRef::Pci(pci) => c.pci == pci,
            GpuRef::Ordinal(n) => c.level_zero_ordinal == Some(n),
        });
        found.ok_or_else(|| {
            let list: Vec<String> = self
                .cards
                .iter()
                .map(|c| c.level_zero_ordinal.map_or_else(|| c.pci.to_string(), |n| format!("{n} = {}", c.pci)))
                .collect();
            let present = if list.is_empty() {
                "this machine shows no display devices".into()
            } else {
                format!("present: {}", list.join(", "))
            };
            NoSuchCard { wanted, present }
        })
    }

    /// Addresses in Level Zero's order: element n is ordinal n of a process without a mask.
    ///
    /// With `openable_only`, cards whose render node the looking user cannot open are skipped, as the driver skips them.
    pub fn level_zero_order(&self, order: DeviceOrder, openable_only: bool) -> Vec<PciAddress> {
        let mut seen: Vec<&Card> =
            self.cards.iter().filter(|c| c.is_level_zero_capable() && (c.openable || !openable_only)).collect();
        seen.sort_by_key(|c| (c.rank, order == DeviceOrder::DiscreteFirst && c.integrated, c.pci));
        seen.into_iter().map(|c| c.pci).collect()
    }

    fn number(&mut self, host: &Host) {
        let by_path = by_path_nodes(host);
        let order = self.level_zero_order(DeviceOrder::DiscreteFirst, true);
        let seen = |c: &Card| by_path.as_ref().is_none_or(|list| list.contains_key(&c.pci));
        let order: Vec<PciAddress> = order.into_iter().filter(|p| self.get(*p).is_some_and(seen)).collect();
        let mut shift = Vec::new();
        for card in &mut self.cards {
            let listed = by_path.as_ref().is_none_or(|list| list.contains_key(&card.pci));
            if let Some(n) = order.iter().position(|p| *p == card.pci) {
                card.level_zero_ordinal = Some(n as u32);
                card.ordinal_reason = format!(
                    "position {n} of {} render nodes that this user can open, discrete before integrated, then by PCI address",
                    order.len()
                );
            } else {
                card.ordinal_reason = if card.render_node.is_none() {
                    "it has no render node".into()
                } else if !card.is_level_zero_capable() {
                    format!(
                        "Level Zero's Intel driver takes xe and i915 only, this is {}",
                        card.driver.as_deref().unwrap_or("without a driver")
                    )
                } else if listed {
                    "this user cannot open its render node, so its processes do not see it (group render?)".into()
                } else {
                    "/dev/dri/by-path has other nodes but not this one, so the driver does not find it".into()
                };
                if card.is_level_zero_capable() && !card.openable {
                    shift.push(format!("{} cannot be opened by this user; a user who can counts it too", card.pci));
                } else if card.is_level_zero_capable() && !listed {
                    shift.push(format!("{} is missing from /dev/dri/by-path", card.pci));
                }
            }
        }
        if by_path.is_none() {
            shift.push("/dev/dri/by-path is empty or unreadable; the driver then tries renderD128 upwards".into());
        }
        let natural = self.level_zero_order(DeviceOrder::PciAddress, false);
        if natural != self.level_zero_order(DeviceOrder::DiscreteFirst, false) {
            shift.push("an integrated GPU comes first by PCI address: a process with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 counts from it".into());
        }
        if natural.len() > 1 {
            shift.push(
                "a process in a container, or in another group, sees only the nodes it was given and counts those"
                    .into(),
            );
            shift.push("a card that stops answering is not reported, and all after it move up".into());
        }
        self.ordinal_may_shift = shift;
    }
}

/// `/dev/dri/by-path/pci-<address>-render` entries, or `None` if there are none.
fn by_path_nodes(host: &Host) -> Option<BTreeMap<PciAddress, String>> {
    let names = host.list("/dev/dri/by-path").ok()?;
    let nodes: BTreeMap<_, _> = names
        .into_iter()
        .filter_map(|n| n.strip_prefix("pci-")?.strip_suffix("-render")?.parse().ok().map(|pci| (pci, n.clone())))
        .collect();
    (!nodes.is_empty()).then_some(nodes)
}

fn hex_id(host: &Host, path: &str) -> io::Result<u32> {
    let text = host.read_text(path)?;
    let digits = text.trim().trim_start_matches("0x");
    u32::from_str_radix(digits, 16).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{path}: expected a hexadecimal number, found {text:?}"))
    })
}

fn number(host: &Host, path: &str) -> Option<u64> {
    host.read_text(path).ok()?.trim().parse().ok()
}

fn read_card(host: &Host, pci: PciAddress) -> io::Result<Option<Card>> {
    let dir = format!("/sys/bus/pci/devices/{pci}");
    // Class 0x03xxxx: VGA, 3D and other display controllers.
    if hex_id(host, &format!("{dir}/class"))? >> 16 != 0x03 {
        return Ok(None);
    }
    let vendor = hex_id(host, &format!("{dir}/vendor"))? as u16;
    let device = hex_id(host, &format!("{dir}/device"))? as u16;
    let driver = match host.link(&format!("{dir}/driver")) {
        Ok(target) => target.rsplit('/').next().map(str::to_owned),
        Err(_) => None,
    };
    let nodes = host.list(&format!("{dir}/drm")).unwrap_or_default();
    let node = |prefix: &str| {
        let numbered = |n: &&String| {
            n.strip_prefix(prefix).is_some_and(|r| !r.is_empty() && r.bytes().all(|b| b.is_ascii_digit()))
        };
        nodes.iter().find(numbered).map(|n| format!("/dev/dri/{n}"))
    };
    let render_node = node("renderD");
    let openable = render_node.as_ref().is_some_and(|n| host.access_rw(n).is_ok());
    let (total, used) = vram(host, pci, &dir);
    Ok(Some(Card {
        pci,
        vendor_id: format!("0x{vendor:04x}"),
        device_id: format!("0x{device:04x}"),
        name: device_name(vendor, device),
        driver,
        card_node: node("card"),
        render_node,
        level_zero_ordinal: None,
        ordinal_reason: String::new(),
        vram_total_bytes: total,
        vram_used_bytes: used,
        // Intel's integrated GPU has always been 00:02.0 of domain 0; no Battlemage card can be there.
        integrated: vendor == INTEL
            && pci == (PciAddress { domain: 0, bus: 0, device: 2, function: 0 })
            && !is_battlemage(device),
        openable,
        rank: 0,
    }))
}

/// Device-level VRAM in bytes: the TTM manager in debugfs (root), or amdgpu's sysfs files.
fn vram(host: &Host, pci: PciAddress, dir: &str) -> (Option<u64>, Option<u64>) {
    let amd = (number(host, &format!("{dir}/mem_info_vram_total")), number(host, &format!("{dir}/mem_info_vram_used")));
    if amd.0.is_some() {
        return amd;
    }
    let Ok(text) = host.read_text(&format!("/sys/kernel/debug/dri/{pci}/tile0/vram_mm")) else { return (None, None) };
    let field = |name: &str| text.lines().find_map(|l| l.trim().strip_prefix(name)?.trim().parse().ok());
    (field("size:"), field("usage:"))
}
