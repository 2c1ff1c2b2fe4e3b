//! JSON with comments and trailing commas, as VS Code writes its settings.

/// The text with comments and trailing commas replaced by spaces, byte for byte in place, so that offsets in the result
/// are offsets in the text. A comment that never ends is left, and is no JSON then.
pub(super) fn plain(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    let mut comma: Option<usize> = None;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                comma = None;
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' && bytes[at] != b'\r' {
                    out[at] = b' ';
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(length) = text.get(at + 2..).and_then(|rest| rest.find("*/")) else { break };
                let end = at + 2 + length + 2;
                for byte in &mut out[at..end] {
                    if !matches!(byte, b'\n' | b'\r') {
                        *byte = b' ';
                    }
                }
                at = end;
            }
            b',' => {
                comma = Some(at);
                at += 1;
            }
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = b' ';
                }
                at += 1;
            }
            byte => {
                if !byte.is_ascii_whitespace() {
                    comma = None;
                }
                at += 1;
            }
        }
    }
    // Only whole characters were replaced: comments are blanked from their first byte to their last.
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn comments_and_trailing_commas_become_spaces_in_place() {
        let text = "{ // größe\n \"a//b\": [1, 2, /* , */ ],\n \"c\\\"/*\": 3, }\n";
        let plain = plain(text);
        assert_eq!(plain.len(), text.len());
        let value: serde_json::Value = serde_json::from_str(&plain).unwrap();
        assert_eq!(value, serde_json::json!({"a//b": [1, 2], "c\"/*": 3}));
    }

    proptest! {
        #[test]
        fn no_text_panics_or_changes_length(text in "[\\PC\\n\"/*,{}\\[\\]\\\\]{0,40}") {
            prop_assert_eq!(plain(&text).len(), text.len());
        }
    }
}
