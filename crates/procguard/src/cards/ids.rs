//! PCI device ids of the Battlemage family.

/// PCI vendor id of Intel.
pub(crate) const INTEL: u16 = 0x8086;

/// Device ids of Intel's compute runtime (`devices_base.inl`) and the public PCI id list: (id, name).
const BATTLEMAGE: &[(u16, &str)] = &[
    (0xe202, "Battlemage G21"),
    (0xe209, "Battlemage G21"),
    (0xe20b, "Arc B580"),
    (0xe20c, "Arc B570"),
    (0xe20d, "Battlemage G21"),
    (0xe210, "Battlemage G21"),
    (0xe211, "Arc Pro B60"),
    (0xe212, "Arc Pro B50"),
    (0xe215, "Battlemage G21"),
    (0xe216, "Battlemage G21"),
    (0xe220, "Battlemage G31"),
    (0xe221, "Battlemage G31"),
    (0xe222, "Arc Pro B65"),
    (0xe223, "Arc Pro B70"),
];

/// Is the Intel device of this id a Battlemage card?
pub(crate) fn is_battlemage(device: u16) -> bool {
    BATTLEMAGE.iter().any(|(id, _)| *id == device)
}

/// A name for people.
pub(crate) fn device_name(vendor: u16, device: u16) -> String {
    let known = BATTLEMAGE.iter().find(|(id, _)| vendor == INTEL && *id == device);
    match (known, vendor) {
        (Some((_, name)), _) => format!("Intel {name}"),
        (None, INTEL) => format!("Intel GPU {device:04x}"),
        (None, 0x1002) => format!("AMD GPU {device:04x}"),
        (None, 0x10de) => format!("NVIDIA GPU {device:04x}"),
        (None, 0x1a03) => format!("ASPEED display {device:04x}"),
        (None, _) => format!("display device {vendor:04x}:{device:04x}"),
    }
}
