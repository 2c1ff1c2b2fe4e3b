//! Canonical JSON and the hashes made from it.
//!
//! The keys of pack sets are SHA-256 digests of JSON text, so the text must have exactly one form. It is the form that
//! `CPython`'s `json.dumps(value, sort_keys=True, separators=(",", ":"))` writes, since the artifacts already on disk
//! were named by it: keys sorted by code point, no spaces, every character outside printable ASCII escaped as `\uXXXX`
//! in lower-case hex (a surrogate pair above the BMP), with the short escapes `\b \f \n \r \t \" \\`.
//! Numbers are integers only: the text of a float depends on the printer.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::hex::Sha256Hex;

/// A value that has no canonical text.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// A number is not an integer in the range of `i64` or `u64`.
    #[error("{pointer}: the number {found} has no canonical form; expected an integer")]
    NotAnInteger {
        /// JSON pointer to the number.
        pointer: String,
        /// The number as written.
        found: String,
    },
    /// The value could not be turned into JSON at all.
    #[error("the value cannot be written as JSON: {0}")]
    Serialize(#[from] serde_json::Error),
}

/// The canonical text of `value`.
///
/// ```
/// use b70_manifest::canonical_json;
/// let value = serde_json::json!({"b": [1, 2], "a": "größe"});
/// assert_eq!(canonical_json(&value).unwrap(), r#"{"a":"gr\u00f6\u00dfe","b":[1,2]}"#);
/// assert!(canonical_json(&serde_json::json!({"seconds": 1.5})).is_err());
/// ```
pub fn canonical_json(value: &Value) -> Result<String, CanonicalError> {
    let mut text = String::new();
    write_value(&mut text, value, &mut String::new())?;
    Ok(text)
}

/// SHA-256 of the canonical text of anything that serialises to JSON.
pub fn canonical_sha256<T: Serialize + ?Sized>(value: &T) -> Result<Sha256Hex, CanonicalError> {
    let text = canonical_json(&serde_json::to_value(value)?)?;
    Ok(Sha256Hex::from_bytes(Sha256::digest(text.as_bytes()).into()))
}

fn write_value(out: &mut String, value: &Value, pointer: &mut String) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) if number.is_i64() || number.is_u64() => out.push_str(&number.to_string()),
        Value::Number(number) => {
            return Err(CanonicalError::NotAnInteger { pointer: pointer.clone(), found: number.to_string() });
        }
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                within(pointer, &index.to_string(), |pointer| write_value(out, item, pointer))?;
            }
            out.push(']');
        }
        Value::Object(map) => {
            // Rust compares strings by their UTF-8 bytes, which is the order of code points.
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(out, key);
                out.push(':');
                within(pointer, key, |pointer| write_value(out, &map[key], pointer))?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn within<T>(pointer: &mut String, token: &str, inner: impl FnOnce(&mut String) -> T) -> T {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
    let result = inner(pointer);
    pointer.truncate(length);
    result
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str("\\u");
                    for shift in [12, 8, 4, 0] {
                        out.push(char::from(b"0123456789abcdef"[usize::from((*unit >> shift) & 15)]));
                    }
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn known_answer_with_escapes_and_a_surrogate_pair() {
        let value = json!({"größe": "β→𝄞", "name": "blk.0.ffn_gate.weight", "shape": [5120, 17408]});
        assert_eq!(
            canonical_sha256(&value).unwrap().to_string(),
            "391c2311953646f1dc7da3f69470a8bff73b878aa4c1e95cbb9c5d6e8dae17e0"
        );
    }

    #[test]
    fn every_ascii_character_is_written_as_cpython_writes_it() {
        // 0x7f is ASCII but not printable: CPython escapes it.
        let value = json!({"k": "\u{0}\u{1f}\u{7f}\u{80} \"\\/\u{8}\u{c}\n\r\t~"});
        assert_eq!(canonical_json(&value).unwrap(), r#"{"k":"\u0000\u001f\u007f\u0080 \"\\/\b\f\n\r\t~"}"#);
    }

    #[test]
    fn keys_sort_by_code_point_not_by_utf16_unit() {
        // U+FF61 sorts before U+1D11E by code point and after its first surrogate by UTF-16 unit.
        let value = json!({"\u{1d11e}": 1, "\u{ff61}": 2, "Z": 3, "a": 4});
        assert_eq!(canonical_json(&value).unwrap(), r#"{"Z":3,"a":4,"\uff61":2,"\ud834\udd1e":1}"#);
    }

    #[test]
    fn floats_are_refused_with_their_place() {
        let error = canonical_json(&json!({"a/b": [1, 2.5]})).unwrap_err();
        assert_eq!(error.to_string(), "/a~1b/1: the number 2.5 has no canonical form; expected an integer");
    }

    #[test]
    fn integers_keep_their_full_range() {
        assert_eq!(
            canonical_json(&json!([u64::MAX, i64::MIN])).unwrap(),
            "[18446744073709551615,-9223372036854775808]"
        );
    }
}
