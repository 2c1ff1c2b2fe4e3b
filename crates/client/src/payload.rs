//! Reads the JSON of completions: events of a stream and whole answers.

use serde_json::Value;

use crate::completion::Api;
use crate::error::ServerError;
use crate::usage::{Timings, TokenUsage};

/// What one JSON value brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Payload {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) tokens: Vec<i64>,
    pub(crate) finish_reasons: Vec<String>,
    pub(crate) usage: Option<TokenUsage>,
    pub(crate) timings: Option<Timings>,
    pub(crate) id: Option<String>,
    pub(crate) error: Option<ServerError>,
    /// The native API's last event.
    pub(crate) stop: bool,
    /// The value has the outline of this API's answer, even if nothing of use is in it.
    pub(crate) recognised: bool,
}

impl Payload {
    pub(crate) fn read(api: Api, value: &Value) -> Self {
        let mut payload = Self::default();
        if let Some(error) = error_of(value) {
            payload.error = Some(error);
            return payload;
        }
        payload.id = value.get("id").and_then(Value::as_str).map(str::to_owned);
        payload.timings = value.get("timings").filter(|timings| timings.is_object()).map(Timings::from_value);
        match api {
            Api::Chat | Api::Completions => payload.read_openai(value),
            Api::Native => payload.read_native(value),
        }
        payload
    }

    fn read_openai(&mut self, value: &Value) {
        self.usage = value.get("usage").filter(|usage| !usage.is_null()).map(TokenUsage::from_openai);
        let Some(choices) = value.get("choices").and_then(Value::as_array) else { return };
        self.recognised = true;
        for choice in choices {
            // One of `delta` (chat stream), `message` (chat), or the choice itself (`text`).
            let part = choice.get("delta").or_else(|| choice.get("message")).unwrap_or(choice);
            self.content.push_str(text(part, "content").or_else(|| text(choice, "text")).unwrap_or_default());
            // A server that sends the same text under both names must not be counted twice.
            let reasoning = text(part, "reasoning_content").or_else(|| text(part, "reasoning"));
            self.reasoning.push_str(reasoning.unwrap_or_default());
            if let Some(reason) = text(choice, "finish_reason") {
                self.finish_reasons.push(reason.to_owned());
            }
            let ids = choice.get("token_ids").or_else(|| part.get("token_ids"));
            self.tokens.extend(ids.into_iter().flat_map(token_ids));
        }
        if self.tokens.is_empty()
            && let Some(ids) = value.get("__verbose").and_then(|verbose| verbose.get("tokens"))
        {
            self.tokens.extend(token_ids(ids));
        }
    }

    fn read_native(&mut self, value: &Value) {
        let Some(content) = value.get("content").and_then(Value::as_str) else { return };
        self.recognised = true;
        self.content.push_str(content);
        self.tokens.extend(value.get("tokens").into_iter().flat_map(token_ids));
        self.stop = value.get("stop").and_then(Value::as_bool).unwrap_or(false);
        if self.stop {
            self.usage = Some(TokenUsage::from_native(value));
            let reason = match text(value, "stop_type") {
                Some("eos" | "word") => "stop",
                Some("limit") => "length",
                Some(other) => other,
                None => "unknown",
            };
            self.finish_reasons.push(reason.to_owned());
        }
    }
}

/// The error envelope of a value, if it has one.
pub(crate) fn error_of(value: &Value) -> Option<ServerError> {
    value.get("error").filter(|error| !error.is_null()).map(ServerError::from_value)
}

/// A non-empty string field.
fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn token_ids(value: &Value) -> impl Iterator<Item = i64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_of_a_chat_event() {
        let read =
            |delta: Value| Payload::read(Api::Chat, &json!({"choices": [{"delta": delta, "finish_reason": null}]}));
        assert_eq!(
            read(json!({"role": "assistant", "content": null})),
            Payload { recognised: true, ..Payload::default() }
        );
        assert_eq!(read(json!({"content": "a"})).content, "a");
        assert_eq!(read(json!({"reasoning_content": "t", "reasoning": "t"})).reasoning, "t");
        assert_eq!(read(json!({"reasoning": "t"})).reasoning, "t");
        assert_eq!(read(json!({"content": ["x"]})).content, "");
    }

    #[test]
    fn the_usage_event_has_no_text() {
        let event = json!({"choices": [], "usage": {"prompt_tokens": 5}, "timings": {"cache_n": 0}});
        let payload = Payload::read(Api::Chat, &event);
        assert!(
            payload.recognised && payload.content.is_empty() && payload.usage.is_some() && payload.timings.is_some()
        );
    }

    #[test]
    fn a_whole_answer_and_its_token_ids() {
        let chat = json!({"id": "x", "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "__verbose": {"tokens": [1, 2]}});
        let payload = Payload::read(Api::Chat, &chat);
        assert_eq!((payload.content.as_str(), payload.tokens.as_slice()), ("a", &[1, 2][..]));
        let vllm = json!({"choices": [{"text": "ab", "token_ids": [7]}]});
        assert_eq!(Payload::read(Api::Completions, &vllm).tokens, [7]);
        let native = json!({"content": "", "stop": true, "stop_type": "limit", "tokens": [], "tokens_predicted": 4});
        let payload = Payload::read(Api::Native, &native);
        assert_eq!((payload.stop, payload.finish_reasons), (true, vec!["length".to_owned()]));
    }

    #[test]
    fn errors_in_every_form() {
        for error in [json!({"message": "m", "type": "t", "code": 500}), json!("m"), json!({"detail": "m"})] {
            let payload = Payload::read(Api::Chat, &json!({ "error": error }));
            assert!(payload.error.unwrap().message.contains('m'));
        }
        assert!(Payload::read(Api::Chat, &json!({"error": null, "choices": []})).error.is_none());
        assert!(!Payload::read(Api::Chat, &json!([1])).recognised);
    }
}
