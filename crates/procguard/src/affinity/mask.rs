//! `ZE_AFFINITY_MASK`, as Intel's compute runtime reads it.

use std::collections::BTreeSet;

use super::get;

/// What a mask leaves of n devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AffinityMask {
    /// No restriction: the variable is not set, empty, or `default`.
    All,
    /// These ordinals of the unmasked order. Never empty. The order written in the mask changes nothing.
    Only(BTreeSet<u32>),
    /// Every entry was out of range or refused: the process sees no Intel GPU.
    None,
    /// The driver throws or reads out of bounds on this text; what the process holds cannot be told from it.
    Undefined(String),
}

/// The device model the mask is read against: `ZE_FLAT_DEVICE_HIERARCHY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hierarchy {
    /// Devices are cards; `N.0` is the first tile of card N. The default on everything but data-centre GPUs.
    #[default]
    Composite,
    /// Devices are tiles; `N.M` entries are skipped. `FLAT` and `COMBINED`.
    Flat,
}

impl Hierarchy {
    /// Reads the variable's value. Anything but the three exact words means the default.
    pub fn from_value(value: Option<&str>) -> Self {
        match value {
            Some("FLAT" | "COMBINED") => Self::Flat,
            _ => Self::Composite,
        }
    }
}

/// A variable of the Level Zero driver with its shadows: `NEO_L0_<name>`, then `NEO_<name>`, then `<name>`.
/// The first that exists wins, even when it is empty.
pub fn level_zero_variable<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    get(env, &format!("NEO_L0_{name}")).or_else(|| get(env, &format!("NEO_{name}"))).or_else(|| get(env, name))
}

/// Reads a mask for a machine with `devices` single-tile cards.
///
/// Entries are split at `,` and `.` and read by `std::stoul(_, nullptr, 0)`: leading blanks and a sign are taken,
/// `0x` and `0` prefixes change the base, and whatever follows the digits is ignored. There are no ranges.
///
/// ```
/// use b70_procguard::{AffinityMask, Hierarchy, parse_affinity_mask};
///
/// let only = |n| AffinityMask::Only([n].into());
/// assert_eq!(parse_affinity_mask(Some("1"), Hierarchy::Composite, 4), only(1));
/// assert_eq!(parse_affinity_mask(Some("0-1"), Hierarchy::Composite, 4), only(0));
/// assert_eq!(parse_affinity_mask(Some(""), Hierarchy::Composite, 4), AffinityMask::All);
/// assert_eq!(parse_affinity_mask(Some("1.0"), Hierarchy::Flat, 4), AffinityMask::None);
/// ```
pub fn parse_affinity_mask(value: Option<&str>, hierarchy: Hierarchy, devices: u32) -> AffinityMask {
    let Some(text) = value.filter(|v| !v.is_empty() && *v != "default") else { return AffinityMask::All };
    let mut kept = BTreeSet::new();
    for entry in split(text, ',') {
        let parts = split(entry, '.');
        let Some(first) = parts.first() else {
            return AffinityMask::Undefined(format!("the driver reads out of bounds on the empty entry of {text:?}"));
        };
        let root = match stoul(first) {
            Ok(n) => n,
            Err(why) => return AffinityMask::Undefined(format!("the driver throws on {text:?}: {why}")),
        };
        if root >= devices {
            continue;
        }
        if let Some(sub) = parts.get(1) {
            if hierarchy == Hierarchy::Flat {
                continue;
            }
            match stoul(sub) {
                // Single-tile cards: only tile 0 exists.
                Ok(0) => {}
                Ok(_) => continue,
                Err(why) => return AffinityMask::Undefined(format!("the driver throws on {text:?}: {why}")),
            }
        }
        kept.insert(root);
    }
    if kept.is_empty() { AffinityMask::None } else { AffinityMask::Only(kept) }
}

/// Splits as a loop over `std::getline` does: a trailing separator makes no empty last part, an empty text no part.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts: Vec<&str> = text.split(separator).collect();
    if parts.last().is_some_and(|p| p.is_empty()) {
        parts.pop();
    }
    parts
}

/// `static_cast<uint32_t>(std::stoul(text, nullptr, 0))` on a 64-bit machine.
fn stoul(text: &str) -> Result<u32, &'static str> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (negative, text) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (radix, digits) = match hex {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_hexdigit()) => (16, rest),
        _ if text.starts_with('0') => (8, text),
        _ => (10, text),
    };
    let mut value: u64 = 0;
    let mut any = false;
    for digit in digits.chars().map_while(|c| c.to_digit(radix)) {
        any = true;
        value = value
            .checked_mul(u64::from(radix))
            .and_then(|v| v.checked_add(u64::from(digit)))
            .ok_or("the number is out of range")?;
    }
    if !any {
        return Err("it is not a number");
    }
    Ok(if negative { value.wrapping_neg() as u32 } else { value as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mask: &AffinityMask) -> String {
        match mask {
            AffinityMask::All => "all".into(),
            AffinityMask::None => "none".into(),
            AffinityMask::Undefined(_) => "undefined".into(),
            AffinityMask::Only(set) => set.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        }
    }

    /// The table measured with the driver's own parser for four single-tile cards.
    #[test]
    fn every_row_of_the_drivers_table() {
        let rows: &[(Option<&str>, &str, &str)] = &[
            (None, "all", "all"),
            (Some(""), "all", "all"),
            (Some("default"), "all", "all"),
            (Some("1"), "1", "1"),
            (Some(" 1"), "1", "1"),
            (Some("01"), "1", "1"),
            (Some("0x1"), "1", "1"),
            (Some("1a"), "1", "1"),
            (Some("1;0"), "1", "1"),
            (Some("1,"), "1", "1"),
            (Some("0,1"), "0,1", "0,1"),
            (Some("1,0"), "0,1", "0,1"),
            (Some("0, 1"), "0,1", "0,1"),
            (Some("0-1"), "0", "0"),
            (Some("1.0"), "1", "none"),
            (Some("1.1"), "none", "none"),
            (Some("4"), "none", "none"),
            (Some("-1"), "none", "none"),
            (Some("08"), "0", "0"),
            (Some("a"), "undefined", "undefined"),
            (Some("level_zero:0"), "undefined", "undefined"),
            (Some(",1"), "undefined", "undefined"),
            (Some("1,,0"), "undefined", "undefined"),
        ];
        for (value, composite, flat) in rows {
            assert_eq!(shown(&parse_affinity_mask(*value, Hierarchy::Composite, 4)), *composite, "{value:?} composite");
            assert_eq!(shown(&parse_affinity_mask(*value, Hierarchy::Flat, 4)), *flat, "{value:?} flat");
        }
    }

    #[test]
    fn numbers_are_read_as_the_c_library_reads_them() {
        // 2^64 - 4294967295 = 0xFFFFFFFF00000001, cut to 32 bits.
        let rows = [
            ("-4294967295", "1"),
            ("0x", "0"),
            ("010", "none"),
            ("+2", "2"),
            ("DEFAULT", "undefined"),
            ("99999999999999999999", "undefined"),
            ("0.", "0"),
            (".5", "undefined"),
            ("9.a", "none"),
            ("0.0, 3.0", "0,3"),
            ("1.0.7", "1"),
        ];
        for (value, expected) in rows {
            assert_eq!(shown(&parse_affinity_mask(Some(value), Hierarchy::Composite, 4)), expected, "{value:?}");
        }
    }

    #[test]
    fn shadows_win_even_when_empty() {
        let env =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let all = env(&[("ZE_AFFINITY_MASK", "1"), ("NEO_ZE_AFFINITY_MASK", "2"), ("NEO_L0_ZE_AFFINITY_MASK", "")]);
        assert_eq!(level_zero_variable(&all, "ZE_AFFINITY_MASK"), Some(""));
        assert_eq!(level_zero_variable(&all[..2], "ZE_AFFINITY_MASK"), Some("2"));
        assert_eq!(level_zero_variable(&all[..1], "ZE_AFFINITY_MASK"), Some("1"));
    }

    #[test]
    fn the_hierarchys_words_are_exact() {
        assert_eq!(Hierarchy::from_value(Some("flat")), Hierarchy::Composite);
        assert_eq!(Hierarchy::from_value(Some("COMBINED")), Hierarchy::Flat);
    }

    proptest::proptest! {
        #[test]
        fn no_mask_panics_and_nothing_out_of_range_is_kept(text in "[-+0-9a-fxX., ]{0,20}", devices in 0u32..6) {
            for hierarchy in [Hierarchy::Composite, Hierarchy::Flat] {
                if let AffinityMask::Only(set) = parse_affinity_mask(Some(&text), hierarchy, devices) {
                    proptest::prop_assert!(!set.is_empty() && set.iter().all(|n| *n < devices));
                }
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse_affinity_mask(Some(&text), Hierarchy::Composite, 4);
        }
    }
}
