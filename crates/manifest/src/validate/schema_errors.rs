//! Errors of a schema in words, at the place they mean.

use std::collections::BTreeMap;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, types::JsonType};
use serde_json::Value;

use super::nearest::{nearest, suggestion};
use super::problem::{Problem, short};
use crate::document::Kind;
use crate::schema;
use crate::span::{Spans, escape};

/// Every error of the kind's schema.
pub(super) fn collect(kind: Kind, value: &Value, spans: &Spans<'_>) -> Vec<Problem> {
    let mut words =
        Words { schema: schema::of(kind), root: value, spans, problems: Vec::new(), meant: BTreeMap::new() };
    for error in schema::validator(kind).iter_errors(value) {
        words.add(&error);
    }
    let Words { mut problems, meant, .. } = words;
    // A misspelt field is one mistake: the missing one it was meant to be is not another.
    problems.retain(|problem| {
        problem.code != "required"
            || !meant
                .get(&problem.pointer)
                .is_some_and(|fields| fields.iter().any(|field| problem.found == missing(field)))
    });
    problems
}

struct Words<'a> {
    schema: &'a Value,
    root: &'a Value,
    spans: &'a Spans<'a>,
    problems: Vec<Problem>,
    /// For each object, the fields its unknown ones were meant to be.
    meant: BTreeMap<String, Vec<String>>,
}

fn missing(field: &str) -> String {
    format!("no field {field:?}")
}

impl Words<'_> {
    fn add(&mut self, error: &ValidationError<'_>) {
        let pointer = error.instance_path().as_str().to_owned();
        match error.kind() {
            ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
                self.forms(error, &pointer, context);
            }
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for key in unexpected {
                    self.unknown_key(error, &pointer, key);
                }
            }
            ValidationErrorKind::PropertyNames { error: inner } => {
                let name = inner.instance().as_str().unwrap_or_default().to_owned();
                let expected = self.expected(inner);
                let at = format!("{pointer}/{}", escape(&name));
                let position = self.spans.key_position(&at);
                let message = format!("{name:?} is not the name of a field here; expected {expected}");
                self.problems.push(Problem::new(
                    "propertyNames",
                    &at,
                    position,
                    format!("{name:?}"),
                    expected,
                    message,
                ));
            }
            ValidationErrorKind::Required { property } => {
                let field = property.as_str().unwrap_or_default();
                let position = self.spans.value_position(&pointer);
                let found = missing(field);
                let message = format!("the field {field:?} is missing");
                self.problems.push(Problem::new(
                    "required",
                    &pointer,
                    position,
                    found,
                    format!("a field {field:?}"),
                    message,
                ));
            }
            kind => {
                let expected = self.expected(error);
                let value = self.root.pointer(&pointer).unwrap_or(&Value::Null);
                let mut message = format!("found {}, expected {expected}", short(value));
                if let (ValidationErrorKind::Enum { options }, Some(word)) = (kind, value.as_str()) {
                    let words = options.as_array().into_iter().flatten().filter_map(Value::as_str);
                    message.push_str(&suggestion(word, words));
                }
                let position = self.spans.value_position(&pointer);
                self.problems.push(Problem::new(kind.keyword(), &pointer, position, short(value), expected, message));
            }
        }
    }

    /// A value that may have several forms: the errors of the form it comes nearest to, or what the forms are.
    fn forms(&mut self, error: &ValidationError<'_>, pointer: &str, context: &[Vec<ValidationError<'static>>]) {
        let is_other_form = |inner: &ValidationError<'_>| {
            inner.instance_path().as_str() == pointer
                && matches!(
                    inner.kind(),
                    ValidationErrorKind::Type { .. }
                        | ValidationErrorKind::Enum { .. }
                        | ValidationErrorKind::Constant { .. }
                        | ValidationErrorKind::AnyOf { .. }
                )
        };
        let near = context.iter().filter(|errors| !errors.iter().any(is_other_form)).min_by_key(|errors| errors.len());
        // Words of a closed set are a form of their own when the value is text.
        let value = self.root.pointer(pointer).unwrap_or(&Value::Null);
        let near = near.or_else(|| {
            let words = |errors: &&Vec<ValidationError<'static>>| {
                let is_enum = |inner: &ValidationError<'_>| matches!(inner.kind(), ValidationErrorKind::Enum { .. });
                value.is_string() && errors.len() == 1 && errors.iter().all(is_enum)
            };
            let mut candidates = context.iter().filter(words);
            candidates.next().filter(|_| candidates.next().is_none())
        });
        if let Some(errors) = near {
            for inner in errors {
                self.add(inner);
            }
            return;
        }
        let mut forms: Vec<String> = Vec::new();
        for inner in context.iter().filter_map(|errors| errors.first()) {
            let form = self.expected(inner);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        let expected = forms.join(", or ");
        let message = format!("found {}, expected {expected}", short(value));
        let position = self.spans.value_position(pointer);
        self.problems.push(Problem::new(error.kind().keyword(), pointer, position, short(value), expected, message));
    }

    fn unknown_key(&mut self, error: &ValidationError<'_>, pointer: &str, key: &str) {
        let at = format!("{pointer}/{}", escape(key));
        let fields: Vec<&str> = self
            .parent_schema(error)
            .and_then(|schema| schema.get("properties"))
            .and_then(Value::as_object)
            .map(|fields| fields.keys().map(String::as_str).collect())
            .unwrap_or_default();
        let present = self.root.pointer(pointer).and_then(Value::as_object);
        let absent = fields.iter().copied().filter(|field| !present.is_some_and(|object| object.contains_key(*field)));
        let meant = nearest(key, absent).or_else(|| nearest(key, fields.iter().copied())).map(str::to_owned);
        let expected = format!("one of {}", fields.join(", "));
        if let Some(meant) = &meant {
            self.meant.entry(pointer.to_owned()).or_default().push(meant.clone());
        }
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
        let position = self.spans.key_position(&at);
        let message = format!("unknown field {key:?}{hint}");
        self.problems.push(Problem::new("unknown-key", &at, position, format!("{key:?}"), expected, message));
    }

    /// The schema a failed keyword stands in.
    fn parent_schema(&self, error: &ValidationError<'_>) -> Option<&Value> {
        let path = error.schema_path().as_str();
        self.schema.pointer(&path[..path.rfind('/')?])
    }

    fn expected(&self, error: &ValidationError<'_>) -> String {
        match error.kind() {
            ValidationErrorKind::Type { kind } => match kind {
                TypeKind::Single(one) => type_name(*one).to_owned(),
                TypeKind::Multiple(several) => several.iter().map(type_name).collect::<Vec<_>>().join(" or "),
            },
            ValidationErrorKind::Enum { options } => {
                let words: Vec<String> = options.as_array().into_iter().flatten().map(Value::to_string).collect();
                format!("one of {}", words.join(", "))
            }
            ValidationErrorKind::Constant { expected_value } => expected_value.to_string(),
            ValidationErrorKind::Minimum { limit } => format!("at least {limit}"),
            ValidationErrorKind::Maximum { limit } => format!("at most {limit}"),
            ValidationErrorKind::ExclusiveMinimum { limit } => format!("more than {limit}"),
            ValidationErrorKind::ExclusiveMaximum { limit } => format!("less than {limit}"),
            ValidationErrorKind::MultipleOf { multiple_of } => format!("a multiple of {multiple_of}"),
            ValidationErrorKind::MinLength { limit: 1 } => "text that is not empty".into(),
            ValidationErrorKind::MinLength { limit } => format!("at least {limit} characters"),
            ValidationErrorKind::MaxLength { limit } => format!("at most {limit} characters"),
            ValidationErrorKind::MinItems { limit: 1 } => "a list that is not empty".into(),
            ValidationErrorKind::MinItems { limit } => format!("at least {limit} items"),
            ValidationErrorKind::MaxItems { limit } => format!("at most {limit} items"),
            ValidationErrorKind::MinProperties { limit } => format!("at least {limit} fields"),
            ValidationErrorKind::UniqueItems => "each item once".into(),
            ValidationErrorKind::Pattern { pattern } => {
                let example = self.parent_schema(error).and_then(|schema| schema.pointer("/examples/0"));
                let example = example.filter(|example| example.is_string());
                let example = example.map_or_else(String::new, |example| format!(", for example {example}"));
                format!("text of the form {pattern}{example}")
            }
            _ => error.to_string(),
        }
    }
}

fn type_name(kind: JsonType) -> &'static str {
    match kind {
        JsonType::Array => "a list",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "an integer",
        JsonType::Null => "null",
        JsonType::Number => "a number",
        JsonType::Object => "an object",
        JsonType::String => "text",
    }
}
