//! PCI addresses, and the way a person names a card.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de};

/// A PCI address, `domain:bus:device.function`: the only name of a card that no driver setting renumbers.
///
/// Parses `0000:03:00.0` and the short form `03:00.0` (domain 0); domains above 16 bits occur behind volume management
/// devices. Displays lower case with at least four digits of domain. Orders by domain, bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no PCI address; expected domain:bus:device.function in hexadecimal, such as 0000:03:00.0 (see `lspci -D`)"
)]
pub struct PciAddressError {
    /// What was given.
    pub found: String,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        fn hex(part: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
            let fits = digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            fits.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        }
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplitn(3, ':');
            let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0000"));
            let address = Self {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)? as u8,
                device: hex(device, 2..=2)? as u8,
                function: hex(function, 1..=1)? as u8,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| PciAddressError { found: text.to_owned() })
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for PciAddress {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PciAddress".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "PCI address, domain:bus:device.function in hexadecimal",
            "pattern": "^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\\.[0-7]$",
            "examples": ["0000:03:00.0"]
        })
    }
}

/// How a person names a card: by PCI address, or by Level Zero ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CardRef {
    /// The address itself.
    Pci(PciAddress),
    /// A position in Level Zero's default order, which settings and permissions can shift.
    Ordinal(u32),
}

impl FromStr for CardRef {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().map(Self::Ordinal).map_err(|_| PciAddressError { found: text.to_owned() });
        }
        text.parse().map(Self::Pci)
    }
}

impl fmt::Display for CardRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(pci) => pci.fmt(f),
            Self::Ordinal(n) => n.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for (text, printed) in
            [("0000:03:00.0", "0000:03:00.0"), ("C3:1f.7", "0000:c3:1f.7"), ("10000:e1:00.0", "10000:e1:00.0")]
        {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), printed);
        }
        for bad in [
            "",
            "3",
            "03:00",
            "0000:03:20.0",
            "0000:03:00.8",
            "000:03:00.0",
            "0000:3:00.0",
            "0000:03:00.0 ",
            "+000:03:00.0",
        ] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_card_is_named_by_address_or_ordinal() {
        assert_eq!("2".parse(), Ok(CardRef::Ordinal(2)));
        assert!(matches!("03:00.0".parse(), Ok(CardRef::Pci(_))));
        assert!("-1".parse::<CardRef>().is_err());
        assert!("99999999999".parse::<CardRef>().is_err());
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
            let _ = text.parse::<CardRef>();
        }
    }
}
