//! From a process's settings to physical cards.

use std::collections::BTreeSet;

use b70_manifest::PciAddress;

use super::{
    AffinityMask, Hierarchy, LlamaDevices, LlamaProgram, Reader, VulkanVisible, get, level_zero_variable,
    llama::Placement, parse_affinity_mask, parse_selector, parse_vulkan_visible, selector::Selected,
};
use crate::cards::{Cards, DeviceOrder};

/// The cards that a process may use, by what it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSelection {
    /// Nothing narrows it.
    All,
    /// No card at all.
    None,
    /// These.
    Only(BTreeSet<PciAddress>),
    /// It cannot be told, for this reason. Counts as every card.
    Unknown(String),
}

/// What decided a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinitySource {
    /// A variable of the driver or the runtime.
    Variable,
    /// A device flag of llama.cpp itself.
    DeviceFlag,
    /// Nothing was set.
    Absent,
}

/// A selection with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// Which cards.
    pub selection: DeviceSelection,
    /// Who said so.
    pub source: AffinitySource,
    /// At most this many cards can be in use, where that is known although the cards are not.
    pub at_most: Option<usize>,
}

/// Resolves a process's environment, and for a ggml program its own flags, to cards.
///
/// The driver's mask acts first, the runtime's selector on what the mask left and renumbered, the program's flags on
/// what that left. `vulkan` says that the process has the Vulkan loader mapped; Vulkan obeys neither mask nor selector.
pub fn resolve_affinity(
    cards: &Cards,
    env: &[(String, String)],
    program: Option<(LlamaProgram, &LlamaDevices)>,
    vulkan: bool,
) -> Affinity {
    let unknown = |why: String, source| Affinity { selection: DeviceSelection::Unknown(why), source, at_most: None };
    let sure = |selection, source| Affinity { selection, source, at_most: None };
    let llama = program.map(|(_, devices)| devices);
    let placement = llama.map_or(Placement::Default, LlamaDevices::placement);
    match &placement {
        Placement::Cpu => return sure(DeviceSelection::None, AffinitySource::DeviceFlag),
        Placement::Unknown(why) => return unknown(why.clone(), AffinitySource::DeviceFlag),
        Placement::Default | Placement::MainGpu { .. } if vulkan => {
            return match parse_vulkan_visible(get(env, "GGML_VK_VISIBLE_DEVICES")) {
                VulkanVisible::None => sure(DeviceSelection::None, AffinitySource::Variable),
                VulkanVisible::All => unknown(
                    "it uses Vulkan, which ignores ZE_AFFINITY_MASK, and GGML_VK_VISIBLE_DEVICES is not set".into(),
                    AffinitySource::Absent,
                ),
                VulkanVisible::Indices(list) => Affinity {
                    selection: DeviceSelection::Unknown(format!(
                        "GGML_VK_VISIBLE_DEVICES={list:?} counts in the Vulkan loader's order, which cannot be read from outside"
                    )),
                    source: AffinitySource::Variable,
                    at_most: Some(list.iter().collect::<BTreeSet<_>>().len()),
                },
            };
        }
        _ => {}
    }
    let reader = if program.is_some() { Reader::LlamaCpp } else { Reader::Sycl };
    let base = match visible(cards, env, reader) {
        Ok(list) => list,
        Err(why) => return unknown(why, AffinitySource::Variable),
    };
    let narrowed_by_variable = base.narrowed;
    let pick = |positions: &BTreeSet<u32>| -> DeviceSelection {
        let equal = base.cards.windows(2).all(|w| device_id(cards, w[0]) == device_id(cards, w[1]));
        if !equal {
            return DeviceSelection::Unknown(
                "llama.cpp numbers unequal cards by their size, not by the driver's order".into(),
            );
        }
        let set: BTreeSet<_> = positions.iter().filter_map(|n| base.cards.get(*n as usize).copied()).collect();
        if set.is_empty() { DeviceSelection::None } else { DeviceSelection::Only(set) }
    };
    match placement {
        Placement::Sycl(positions) => sure(pick(&positions), AffinitySource::DeviceFlag),
        Placement::MainGpu { index, first_too } => {
            let mut positions = BTreeSet::from([index]);
            if first_too {
                positions.insert(0);
            }
            sure(pick(&positions), AffinitySource::DeviceFlag)
        }
        _ if base.cards.is_empty() => sure(DeviceSelection::None, AffinitySource::Variable),
        _ if narrowed_by_variable => {
            sure(DeviceSelection::Only(base.cards.into_iter().collect()), AffinitySource::Variable)
        }
        _ => sure(DeviceSelection::All, AffinitySource::Absent),
    }
}

struct Visible {
    cards: Vec<PciAddress>,
    narrowed: bool,
}

fn device_id(cards: &Cards, pci: PciAddress) -> Option<&str> {
    cards.get(pci).map(|c| c.device_id.as_str())
}

/// The Level Zero devices a process sees, in its own numbering.
///
/// Which nodes *it* can open is not known from outside. Where that would change the answer, the answer is unknown.
fn visible(cards: &Cards, env: &[(String, String)], reader: Reader) -> Result<Visible, String> {
    let one = |openable_only| visible_with(cards, env, reader, openable_only);
    let (all, ours) = (one(false)?, one(true)?);
    if all.narrowed && all.cards != ours.cards {
        return Err("its mask counts the cards it can open, and this user cannot open all of them".into());
    }
    Ok(all)
}

fn visible_with(
    cards: &Cards,
    env: &[(String, String)],
    reader: Reader,
    openable_only: bool,
) -> Result<Visible, String> {
    // An OpenCL program reads NEO_OCL_ shadows instead of NEO_L0_ ones; from outside either may be at work.
    for name in ["ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"] {
        let shadow = get(env, &format!("NEO_OCL_{name}"));
        if shadow.is_some() && shadow != level_zero_variable(env, name) {
            return Err(format!(
                "NEO_OCL_{name} differs from what Level Zero reads, and it cannot be told which driver it uses"
            ));
        }
    }
    if get(env, "FilterBdfPath").is_some() || get(env, "NEO_FilterBdfPath").is_some() {
        return Err("FilterBdfPath is set, a debugging key that removes cards before they are numbered".into());
    }
    let by_address = level_zero_variable(env, "ZE_ENABLE_PCI_ID_DEVICE_ORDER").is_some_and(is_nonzero);
    let order = if by_address { DeviceOrder::PciAddress } else { DeviceOrder::DiscreteFirst };
    let mut list = cards.level_zero_order(order, openable_only);
    let mut narrowed = false;
    let hierarchy = Hierarchy::from_value(level_zero_variable(env, "ZE_FLAT_DEVICE_HIERARCHY"));
    match parse_affinity_mask(level_zero_variable(env, "ZE_AFFINITY_MASK"), hierarchy, list.len() as u32) {
        AffinityMask::All => {}
        AffinityMask::None => return Ok(Visible { cards: Vec::new(), narrowed: true }),
        AffinityMask::Undefined(why) => return Err(why),
        AffinityMask::Only(set) => {
            narrowed = true;
            list = set.iter().filter_map(|n| list.get(*n as usize).copied()).collect();
        }
    }
    if let Some(text) = get(env, "ONEAPI_DEVICE_SELECTOR").filter(|t| !t.is_empty() || reader == Reader::LlamaCpp) {
        let selector = parse_selector(text).map_err(|e| e.to_string())?;
        match selector.select(reader, list.len() as u32) {
            Selected::All => {}
            Selected::None => return Ok(Visible { cards: Vec::new(), narrowed: true }),
            Selected::Unknown(why) => return Err(why),
            Selected::Positions(set) => {
                narrowed = true;
                list = set.iter().filter_map(|n| list.get(*n as usize).copied()).collect();
            }
        }
    }
    Ok(Visible { cards: list, narrowed })
}

/// As the driver reads an integer setting: a leading number other than 0.
fn is_nonzero(text: &str) -> bool {
    let digits: String =
        text.trim_start().trim_start_matches(['+', '-']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().is_ok_and(|n| n != 0)
}
