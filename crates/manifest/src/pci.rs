//! A physical card as documents name it: an ordinal or, better, a PCI address.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use crate::report::{ErrorReport, Explain};

/// Text that is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{found:?} is not a PCI address; expected domain:bus:device.function in hexadecimal, such as 0000:03:00.0 (see `lspci -D`)"
)]
pub struct ParsePciError {
    /// The text, shortened.
    pub found: String,
}

impl Explain for ParsePciError {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("pci-address", self.to_string()).found(&self.found)
    }

    fn exit_code(&self) -> u8 {
        crate::exit::USAGE
    }
}

/// A PCI address, `domain:bus:device.function`, written in lower-case hexadecimal with four or more digits of domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain (segment); hosts with volume management devices have domains above `ffff`.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = ParsePciError;

    /// Reads `0000:03:00.0`; either case, the domain may be left out (`03:00.0`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParsePciError { found: text.chars().take(40).collect() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let valid = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
    let device = u8::try_from(hex(device, 2..=2)?).ok().filter(|device| *device < 32)?;
    let function = u8::try_from(hex(function, 1..=1)?).ok().filter(|function| *function < 8)?;
    Some(PciAddress { domain: hex(domain, 4..=8)?, bus: u8::try_from(hex(bus, 2..=2)?).ok()?, device, function })
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for PciAddress {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PciAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "PCI address",
            "description": "PCI address of a card, domain:bus:device.function.",
            "type": "string",
            "pattern": "^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\\.[0-7]$",
            "examples": ["0000:03:00.0"],
        })
    }
}

/// How a document names a card: by an ordinal, which may shift, or by a PCI address, which does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuRef {
    /// Level Zero ordinal.
    Ordinal(u32),
    /// PCI address.
    Pci(PciAddress),
}

impl fmt::Display for GpuRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordinal(ordinal) => write!(f, "{ordinal}"),
            Self::Pci(address) => write!(f, "{address}"),
        }
    }
}

impl FromStr for GpuRef {
    type Err = ParsePciError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.is_empty() && text.len() < 4 && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Ordinal).map_err(|_| ParsePciError { found: text.to_owned() });
        }
        text.parse().map(Self::Pci)
    }
}

impl JsonSchema for GpuRef {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GpuRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "Card",
            "description": "A physical card: its PCI address, or its Level Zero ordinal (which may shift).",
            "type": ["integer", "string"],
            "minimum": 0,
            "maximum": 255,
            "pattern": "^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\\.[0-7]$",
            "examples": [0, "0000:03:00.0"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_normalised_and_bad_ones_refused() {
        for (text, written) in
            [("0000:03:00.0", "0000:03:00.0"), ("03:00.0", "0000:03:00.0"), ("10000:E1:1F.7", "10000:e1:1f.7")]
        {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), written);
        }
        for bad in ["", "0", "0000:03:00", "0000:03:20.0", "0000:03:00.8", "000:03:00.0", "0000:3:00.0", "+000:03:00.0"]
        {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn a_card_is_an_ordinal_or_an_address() {
        assert_eq!("3".parse::<GpuRef>().unwrap(), GpuRef::Ordinal(3));
        assert_eq!(serde_json::from_str::<GpuRef>("\"0000:03:00.0\"").unwrap().to_string(), "0000:03:00.0");
        assert!(serde_json::from_str::<GpuRef>("\"0\"").is_err(), "an ordinal is a number in a document");
        assert!(serde_json::from_str::<GpuRef>("-1").is_err());
        assert!("-1".parse::<GpuRef>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn every_address_survives_a_round_trip(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let a = PciAddress { domain, bus, device, function };
            proptest::prop_assert_eq!(a.to_string().parse::<PciAddress>().unwrap(), a);
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<PciAddress>();
            let _ = text.parse::<GpuRef>();
        }
    }
}
