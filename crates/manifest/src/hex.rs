//! Digests as documents hold them: lower-case hexadecimal text of 32 bytes.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected 64 lower-case hexadecimal digits, found {found:?}")]
pub struct ParseDigestError {
    /// The text, shortened.
    pub found: String,
}

macro_rules! digest_hex {
    ($(#[$doc:meta])* $name:ident, $title:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// Wraps the 32 raw bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The 32 raw bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(text(&mut [0; 64], &self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl FromStr for $name {
            type Err = ParseDigestError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse(text).map(Self).ok_or_else(|| ParseDigestError { found: text.chars().take(80).collect() })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(text(&mut [0; 64], &self.0))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "title": $title,
                    "description": $what,
                    "type": "string",
                    "pattern": "^[0-9a-f]{64}$",
                    "examples": ["e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
                })
            }
        }
    };
}

digest_hex!(
    /// A SHA-256 digest, the identity of an artifact.
    Sha256Hex,
    "SHA-256",
    "SHA-256 digest as 64 lower-case hexadecimal digits."
);
impl Sha256Hex {
    /// The digest of no bytes: worth recognising, since an interrupted download has it.
    pub const EMPTY: Self = Self([
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae,
        0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
    ]);

    /// The digest of a slice.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

digest_hex!(
    /// A BLAKE3 digest, for fast re-checks of bytes whose SHA-256 is known.
    Blake3Hex,
    "BLAKE3",
    "BLAKE3 digest as 64 lower-case hexadecimal digits."
);

/// The digits of some bytes. Formatting them one by one takes a tenth of a trusted look-up.
fn text<'t>(digits: &'t mut [u8; 64], bytes: &[u8; 32]) -> &'t str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    std::str::from_utf8(digits).unwrap_or_default()
}

fn parse(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_bad_text_is_refused() {
        let text = "00ff1234567890abcdef00112233445566778899aabbccddeeff001122334455";
        assert_eq!(text.parse::<Sha256Hex>().unwrap().to_string(), text);
        for bad in ["", "00", &text.to_uppercase(), &format!("{text}0"), &text.replace('1', "g")] {
            assert!(bad.parse::<Sha256Hex>().is_err(), "{bad:?} must be refused");
        }
    }
}
