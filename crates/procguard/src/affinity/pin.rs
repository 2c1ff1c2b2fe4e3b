//! The variables that pin a program to one card.

use b70_manifest::PciAddress;

use crate::cards::{Cards, DeviceOrder};

/// Variables to set and to remove so that a program sees exactly one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinning {
    /// The card.
    pub pci: PciAddress,
    /// Name and value.
    pub set: Vec<(String, String)>,
    /// Names to remove: they would override or disturb what is set.
    pub unset: Vec<String>,
}

/// The card has no position in Level Zero's order, so no mask can name it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pci} cannot be pinned: {reason}")]
pub struct PinError {
    /// The card.
    pub pci: PciAddress,
    /// Why it has no ordinal.
    pub reason: String,
}

/// Finds the variables that leave a program only this card, whatever else is installed.
///
/// The order is forced to PCI addresses and the hierarchy to cards, so that the one number in the mask means the same in
/// every process of this user; the selector counts what the mask left. The shadows (`NEO_L0_`, `NEO_OCL_`, `NEO_`) of each
/// variable win over it and are removed, as are device choices of llama.cpp's environment. Vulkan obeys none of this.
pub fn pin_to_card(cards: &Cards, pci: PciAddress) -> Result<Pinning, PinError> {
    let order = cards.level_zero_order(DeviceOrder::PciAddress, true);
    let position =
        order.iter().position(|p| *p == pci).filter(|_| cards.get(pci).is_some_and(|c| c.level_zero_ordinal.is_some()));
    let Some(ordinal) = position else {
        let reason = cards.get(pci).map_or_else(|| "there is no such card".into(), |c| c.ordinal_reason.clone());
        return Err(PinError { pci, reason });
    };
    let pairs = [
        ("ZE_AFFINITY_MASK", ordinal.to_string()),
        ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".into()),
        ("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE".into()),
    ];
    let shadows = pairs.iter().flat_map(|(name, _)| ["NEO_L0_", "NEO_OCL_", "NEO_"].map(|p| format!("{p}{name}")));
    let others = [
        "FilterBdfPath",
        "NEO_FilterBdfPath",
        "SYCL_DEVICE_FILTER",
        "LLAMA_ARG_DEVICE",
        "LLAMA_ARG_MAIN_GPU",
        "MTMD_BACKEND_DEVICE",
    ];
    let unset = shadows.chain(others.map(str::to_owned)).collect();
    let mut set: Vec<(String, String)> = pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    set.push(("ONEAPI_DEVICE_SELECTOR".into(), "level_zero:0".into()));
    set.push(("B70_GPU_PCI".into(), pci.to_string()));
    Ok(Pinning { pci, set, unset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::{AffinitySource, DeviceSelection, LlamaDevices, LlamaProgram, resolve_affinity};

    #[test]
    fn what_is_pinned_resolves_to_the_card_again() {
        let addresses: Vec<PciAddress> =
            ["0000:03:00.0", "0000:07:00.0", "0000:43:00.0"].map(|a| a.parse().unwrap()).to_vec();
        let cards = Cards::assumed(&addresses);
        for pci in &addresses {
            let pinning = pin_to_card(&cards, *pci).unwrap();
            let flags = LlamaDevices::collect(LlamaProgram::Common, &[], &pinning.set, &["llama-server".to_owned()]);
            let affinity = resolve_affinity(&cards, &pinning.set, Some((LlamaProgram::Common, &flags)), false);
            assert_eq!(affinity.selection, DeviceSelection::Only([*pci].into()));
            assert_eq!(affinity.source, AffinitySource::Variable);
            assert!(pinning.unset.iter().any(|v| v == "NEO_L0_ZE_AFFINITY_MASK"));
        }
        assert!(pin_to_card(&cards, "0000:99:00.0".parse().unwrap()).is_err());
    }
}
