//! Values as people type them on a command line, for clap's `value_parser`. Documents are read by their own, strict rules.

use b70_manifest::Sha256Hex;

/// A SHA-256 in any case, also as `sha256:HEX`, the form of registries and release pages.
///
/// ```
/// let hex = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";
/// assert_eq!(b70_cli::digest(&format!("sha256:{hex}")), b70_cli::digest(&hex.to_lowercase()));
/// ```
///
/// # Errors
/// What was expected.
pub fn digest(text: &str) -> Result<Sha256Hex, String> {
    let text = text.trim().to_ascii_lowercase();
    let hex = text.strip_prefix("sha256:").unwrap_or(&text);
    hex.parse().map_err(|_| "expected 64 hexadecimal digits, with or without sha256: in front".to_owned())
}

/// A size in bytes: a whole number, alone or with `KiB`, `MiB`, `GiB` or `TiB` behind it, in any case.
///
/// ```
/// assert_eq!(b70_cli::size("8GiB"), Ok(8 << 30));
/// ```
///
/// # Errors
/// What was expected.
pub fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 6] = [("", 0), ("b", 0), ("kib", 10), ("mib", 20), ("gib", 30), ("tib", 40)];
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim_start();
    let shift = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, shift)| *shift);
    let number = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .zip(shift)
        .and_then(|(number, shift)| number.parse::<u64>().ok()?.checked_mul(1 << shift))
        .ok_or_else(|| "expected a whole number of bytes, or one with KiB, MiB, GiB or TiB, below 16 EiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes_and_nothing_that_could_mean_two_things() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 64 << 10),
            ("3 MiB", 3 << 20),
            ("8gib", 8 << 30),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "GiB", "8G", "8GB", "8K", "1.5GiB", "-1", "+1", "8GiBs", "0x10", "18446744073709551616", "16777216TiB"]
        {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn digests_take_any_case_and_a_prefix_and_stay_whole() {
        let hex = Sha256Hex::EMPTY.to_string();
        for text in [hex.clone(), hex.to_uppercase(), format!("sha256:{hex}"), format!("SHA256:{}", hex.to_uppercase())]
        {
            assert_eq!(digest(&text), Ok(Sha256Hex::EMPTY), "{text}");
        }
        for text in [
            "",
            "sha256:",
            &hex[1..],
            &format!("sha512:{hex}"),
            &format!("sha256:sha256:{hex}"),
            &hex.replace('e', "g"),
        ] {
            assert!(digest(text).is_err(), "{text:?}");
        }
    }
}
