//! Token counts and timings as a server reports them, without trusting their types.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// A count in a server's answer: missing, a count, or something else that is kept as it came.
///
/// A gate on "no cached tokens" must tell an absent field from zero, and zero from `false`, `0.0`, `"0"` and `null`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reported {
    /// The field was not there.
    #[default]
    Missing,
    /// A JSON integer ≥ 0.
    Count(u64),
    /// Any other JSON value, `null` included.
    NotACount(Value),
}

impl Reported {
    /// Reads a field of an object.
    pub fn of(object: &Value, field: &str) -> Self {
        object.get(field).map_or(Self::Missing, |value| Self::from_value(value.clone()))
    }

    fn from_value(value: Value) -> Self {
        match value {
            Value::Number(number) if number.is_u64() => Self::Count(number.as_u64().expect("is_u64 was checked")),
            other => Self::NotACount(other),
        }
    }

    /// The count, if it is one.
    pub fn count(&self) -> Option<u64> {
        if let Self::Count(count) = self { Some(*count) } else { None }
    }

    /// True if the field was not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

impl Serialize for Reported {
    /// The value as it came; a missing field is to be skipped (`skip_serializing_if = "Reported::is_missing"`).
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Missing => serializer.serialize_none(),
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::NotACount(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Reported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from_value)
    }
}

impl JsonSchema for Reported {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Reported".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "description": "a count as the server sent it; anything but an integer >= 0 is kept and never counts as zero" })
    }
}

/// `usage` of an OpenAI-like answer; for the native API the fields that mean the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenUsage {
    /// Tokens of the prompt (native: `tokens_evaluated`).
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub prompt_tokens: Reported,
    /// Generated tokens (native: `tokens_predicted`).
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub completion_tokens: Reported,
    /// Their sum as reported.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub total_tokens: Reported,
    /// `prompt_tokens_details.cached_tokens` (native: `prompt_tokens_cached`, never `tokens_cached`, which is the length
    /// of the slot).
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub cached_tokens: Reported,
}

impl TokenUsage {
    /// The same in the form of an OpenAI-like `usage` object; what was missing stays missing.
    pub fn to_openai(&self) -> Value {
        let mut usage = serde_json::Map::new();
        let mut set = |name: &str, count: &Reported| match count {
            Reported::Missing => {}
            Reported::Count(count) => drop(usage.insert(name.to_owned(), json!(count))),
            Reported::NotACount(value) => drop(usage.insert(name.to_owned(), value.clone())),
        };
        set("completion_tokens", &self.completion_tokens);
        set("prompt_tokens", &self.prompt_tokens);
        set("total_tokens", &self.total_tokens);
        if !self.cached_tokens.is_missing() {
            usage.insert("prompt_tokens_details".to_owned(), json!({ "cached_tokens": self.cached_tokens }));
        }
        Value::Object(usage)
    }

    /// Reads an OpenAI-like `usage` object.
    pub fn from_openai(usage: &Value) -> Self {
        // Details of the wrong type are kept as "not a count" too: they must not read as absent. They are kept under their
        // name, so that a bare 0 in their place does not become a count of zero when the record is read back.
        let cached_tokens = match usage.get("prompt_tokens_details") {
            None | Some(Value::Null) => Reported::Missing,
            Some(details @ Value::Object(_)) => Reported::of(details, "cached_tokens"),
            Some(other) => Reported::NotACount(json!({ "prompt_tokens_details": other })),
        };
        Self {
            prompt_tokens: Reported::of(usage, "prompt_tokens"),
            completion_tokens: Reported::of(usage, "completion_tokens"),
            total_tokens: Reported::of(usage, "total_tokens"),
            cached_tokens,
        }
    }

    /// Reads the final answer of the native API.
    pub(crate) fn from_native(answer: &Value) -> Self {
        Self {
            prompt_tokens: Reported::of(answer, "tokens_evaluated"),
            completion_tokens: Reported::of(answer, "tokens_predicted"),
            total_tokens: Reported::Missing,
            cached_tokens: Reported::of(answer, "prompt_tokens_cached"),
        }
    }
}

/// llama-server's `timings`. Times in milliseconds, rates per second, as the server measured them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timings {
    /// Prompt tokens taken from a cache.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub cache_n: Reported,
    /// Prompt tokens processed.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub prompt_n: Reported,
    /// Time spent on the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_ms: Option<f64>,
    /// Prompt tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_per_second: Option<f64>,
    /// Generated tokens.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub predicted_n: Reported,
    /// Time spent on generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// Generated tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_per_second: Option<f64>,
    /// Drafted tokens; only sent when the server speculates.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub draft_n: Reported,
    /// Drafted tokens that the target accepted; only sent when the server speculates.
    #[serde(skip_serializing_if = "Reported::is_missing")]
    pub draft_n_accepted: Reported,
}

impl Timings {
    /// Reads a `timings` object; a field of another type is kept or left out, never an error.
    pub(crate) fn from_value(timings: &Value) -> Self {
        let count = |name| Reported::of(timings, name);
        let number = |name: &str| timings.get(name).and_then(Value::as_f64);
        Self {
            cache_n: count("cache_n"),
            prompt_n: count("prompt_n"),
            prompt_ms: number("prompt_ms"),
            prompt_per_second: number("prompt_per_second"),
            predicted_n: count("predicted_n"),
            predicted_ms: number("predicted_ms"),
            predicted_per_second: number("predicted_per_second"),
            draft_n: count("draft_n"),
            draft_n_accepted: count("draft_n_accepted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_json_integer_and_nothing_else() {
        for value in [json!(false), json!(0.0), json!("0"), json!(null), json!([]), json!(-1)] {
            let object = json!({ "n": value });
            assert_eq!(Reported::of(&object, "n"), Reported::NotACount(value));
        }
        assert_eq!(Reported::of(&json!({"n": 0}), "n"), Reported::Count(0));
        assert_eq!(Reported::of(&json!({}), "n"), Reported::Missing);
    }

    #[test]
    fn usage_survives_a_round_trip_with_its_faults() {
        for usage in [
            json!({"prompt_tokens": 3, "completion_tokens": "x", "prompt_tokens_details": {"cached_tokens": false}}),
            json!({"prompt_tokens_details": {}}),
            json!({"prompt_tokens_details": {"cached_tokens": null}}),
            json!({"prompt_tokens_details": 0}),
            json!([]),
        ] {
            let read = TokenUsage::from_openai(&usage);
            let text = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<TokenUsage>(&text).unwrap(), read, "{text}");
            assert_eq!(TokenUsage::from_openai(&read.to_openai()), read);
        }
        assert!(TokenUsage::from_openai(&json!({"prompt_tokens_details": null})).cached_tokens.is_missing());
        let native = json!({"tokens_evaluated": 7, "tokens_predicted": 2, "tokens_cached": 9});
        assert!(TokenUsage::from_native(&native).cached_tokens.is_missing(), "the slot's length is not reuse");
    }

    #[test]
    fn timings_take_what_is_usable() {
        let timings = Timings::from_value(
            &json!({"cache_n": 0, "prompt_ms": 1.5, "predicted_ms": "x", "draft_n": 6, "draft_n_accepted": 4}),
        );
        assert_eq!(timings.cache_n, Reported::Count(0));
        assert_eq!((timings.prompt_ms, timings.predicted_ms), (Some(1.5), None));
        assert_eq!(timings.draft_n_accepted.count(), Some(4));
    }
}
