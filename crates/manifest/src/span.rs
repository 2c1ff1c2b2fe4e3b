//! Where in a JSON text each value stands, and which keys an object has twice.
//!
//! Text that is not JSON has no places.

use std::collections::HashMap;
use std::ops::Range;

use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

/// JSON and nothing beside it.
pub(crate) const STRICT: ParseOptions = ParseOptions {
    allow_comments: false,
    allow_loose_object_property_names: false,
    allow_trailing_commas: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// A place in a text, counted from 1; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

/// Byte ranges of a member: its key, when it has one, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) key: Option<Range<usize>>,
    pub(crate) value: Range<usize>,
}

/// A key an object has twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) pointer: String,
    pub(crate) first: usize,
    pub(crate) second: usize,
}

/// The places of a text.
#[derive(Debug)]
pub(crate) struct Spans<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    places: HashMap<String, Span>,
    pub(crate) duplicates: Vec<Duplicate>,
}

impl<'a> Spans<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(index, _)| index + 1)).collect();
        let mut spans = Self { text, line_starts, places: HashMap::new(), duplicates: Vec::new() };
        if let Ok(Some(value)) = parse_to_ast(text, &CollectOptions::default(), &STRICT).map(|parsed| parsed.value) {
            spans.add(&value, &mut String::new(), None);
        }
        spans
    }

    fn add(&mut self, value: &Value<'_>, pointer: &mut String, key: Option<Range<usize>>) {
        let length = pointer.len();
        match value {
            Value::Object(object) => {
                let mut keys: HashMap<&str, usize> = HashMap::new();
                for property in &object.properties {
                    let name = property.name.as_str();
                    let key = property.name.start()..property.name.end();
                    pointer.push('/');
                    pointer.push_str(&escape(name));
                    if let Some(first) = keys.insert(name, key.start) {
                        self.duplicates.push(Duplicate { pointer: pointer.clone(), first, second: key.start });
                    }
                    self.add(&property.value, pointer, Some(key));
                    pointer.truncate(length);
                }
            }
            Value::Array(array) => {
                for (index, item) in array.elements.iter().enumerate() {
                    pointer.push_str(&format!("/{index}"));
                    self.add(item, pointer, None);
                    pointer.truncate(length);
                }
            }
            _ => {}
        }
        self.places.insert(pointer.clone(), Span { key, value: value.start()..value.end() });
    }

    /// Place of a byte offset.
    pub(crate) fn position(&self, offset: usize) -> Position {
        let line = self.line_starts.partition_point(|start| *start <= offset).max(1);
        let start = self.line_starts[line - 1];
        let before = self.text.get(start..offset).unwrap_or_default();
        Position { line: line as u64, column: before.chars().count() as u64 + 1 }
    }

    /// Place of the value a pointer names, or of the nearest one around it that is known.
    pub(crate) fn value_position(&self, pointer: &str) -> Position {
        let mut pointer = pointer;
        loop {
            if let Some(span) = self.places.get(pointer) {
                return self.position(span.value.start);
            }
            match pointer.rfind('/') {
                Some(end) => pointer = &pointer[..end],
                None => return Position { line: 1, column: 1 },
            }
        }
    }

    /// Place of the key a pointer names.
    pub(crate) fn key_position(&self, pointer: &str) -> Position {
        match self.places.get(pointer).and_then(|span| span.key.as_ref()) {
            Some(key) => self.position(key.start),
            None => self.value_position(pointer),
        }
    }

    /// The innermost value around a place given by line and byte column, as `serde_json` gives it.
    pub(crate) fn pointer_at(&self, line: usize, column: usize) -> String {
        let start = line.checked_sub(1).and_then(|line| self.line_starts.get(line)).copied().unwrap_or(0);
        let offset = start + column.saturating_sub(1);
        let around = self.places.iter().filter(|(_, span)| span.value.contains(&offset) || span.value.end == offset);
        around.min_by_key(|(_, span)| span.value.len()).map(|(pointer, _)| pointer.clone()).unwrap_or_default()
    }

    /// Every number literal with its pointer.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.places.iter().filter_map(|(pointer, span)| {
            let literal = &self.text[span.value.clone()];
            literal
                .starts_with(|first: char| first == '-' || first.is_ascii_digit())
                .then_some((pointer.as_str(), literal))
        })
    }
}

/// A key as a token of a JSON pointer.
pub(crate) fn escape(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9_f64).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    fn pointers(value: &Value, at: &mut String, out: &mut Vec<String>) {
        out.push(at.clone());
        let length = at.len();
        let members: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(key, value)| (escape(key), value)).collect(),
            Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
            _ => Vec::new(),
        };
        for (token, member) in members {
            at.push('/');
            at.push_str(&token);
            pointers(member, at, out);
            at.truncate(length);
        }
    }

    proptest! {
        #[test]
        fn every_value_is_found_where_it_stands(value in any_json(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            let spans = Spans::new(&text);
            let mut known = Vec::new();
            pointers(&value, &mut String::new(), &mut known);
            prop_assert_eq!(spans.places.len(), known.len());
            prop_assert!(spans.duplicates.is_empty());
            for pointer in known {
                let span = spans.places.get(&pointer).expect("every value has a place");
                let there: Value = serde_json::from_str(&text[span.value.clone()]).unwrap();
                let parsed: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(Some(&there), parsed.pointer(&pointer));
                let position = spans.position(span.value.start);
                let line = text.split('\n').nth(position.line as usize - 1).unwrap();
                let rest: String = line.chars().skip(position.column as usize - 1).collect();
                prop_assert!(text[span.value.start..].starts_with(rest.as_str()));
            }
        }

        #[test]
        fn no_text_makes_the_places_panic(text: String, position in 0_usize..64) {
            let spans = Spans::new(&text);
            spans.position(position);
            spans.pointer_at(position, position);
        }

        #[test]
        fn no_damage_makes_the_places_panic(value in any_json(), cut in 0.0..1.0_f64, with: char) {
            let mut text = value.to_string();
            let mut at = (text.len() as f64 * cut) as usize;
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            text.insert(at, with);
            Spans::new(&text);
            Spans::new(&text[..at]);
        }
    }

    #[test]
    fn keys_that_occur_twice_are_reported_with_both_places() {
        let text = "{\"a\": 1,\n \"b\": {\"c\": 1, \"\\u0063\": 2}, \"a\": 2}";
        let spans = Spans::new(text);
        let found: Vec<_> = spans
            .duplicates
            .iter()
            .map(|one| (one.pointer.as_str(), spans.position(one.first), spans.position(one.second)))
            .collect();
        let at = |line, column| Position { line, column };
        assert_eq!(found, [("/b/c", at(2, 8), at(2, 16)), ("/a", at(1, 2), at(2, 30))]);
    }

    #[test]
    fn columns_count_characters() {
        let spans = Spans::new("{\"größe\": \"β→𝄞\", \"x\": 1}");
        assert_eq!(spans.value_position("/x"), Position { line: 1, column: 23 });
        assert_eq!(spans.key_position("/x"), Position { line: 1, column: 18 });
        assert_eq!(spans.value_position("/nowhere/else"), Position { line: 1, column: 1 });
    }

    #[test]
    fn nesting_beyond_the_limit_ends_the_scan() {
        let deep = "[".repeat(100_000);
        assert!(Spans::new(&deep).places.is_empty());
    }
}
