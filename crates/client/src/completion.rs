//! What is asked of a server: one prompt, one generation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The API that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// `POST /v1/chat/completions`: the prompt is a user message, the server applies the chat template.
    Chat,
    /// `POST /v1/completions`: the prompt is taken as it is.
    Completions,
    /// `POST /completion`: llama-server's own; the prompt is taken as it is, token ids are asked for.
    Native,
}

impl Api {
    /// The path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Native => "/completion",
        }
    }
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A completion to ask for. [`CompletionRequest::cold`] gives the settings of a cold measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// The API.
    pub api: Api,
    /// A system message before the prompt; only [`Api::Chat`] sends it.
    pub system: Option<String>,
    /// The prompt.
    pub prompt: String,
    /// The most tokens to generate (`max_tokens`, native: `n_predict`).
    pub max_tokens: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Nucleus sampling; 1 turns it off.
    pub top_p: f64,
    /// The sampler's seed.
    pub seed: Option<u64>,
    /// llama-server's `cache_prompt`; `None` leaves the server's default, which is to reuse.
    pub cache_prompt: Option<bool>,
    /// Fields merged into the body last; they override all others.
    pub extra: Map<String, Value>,
    /// Sent as `X-Request-Id`.
    pub request_id: Option<String>,
}

impl CompletionRequest {
    /// Greedy, seed 1, `top_p` 1, prompt reuse off.
    pub fn cold(api: Api, prompt: impl Into<String>, max_tokens: u32) -> Self {
        Self {
            api,
            system: None,
            prompt: prompt.into(),
            max_tokens,
            temperature: 0.0,
            top_p: 1.0,
            seed: Some(1),
            cache_prompt: Some(false),
            extra: Map::new(),
            request_id: None,
        }
    }

    /// The messages of [`Api::Chat`], also what [`Endpoint::apply_template`](crate::Endpoint::apply_template) takes.
    pub fn messages(&self) -> Vec<Message> {
        let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let mut messages: Vec<Message> = self.system.iter().map(|text| message("system", text)).collect();
        messages.push(message("user", &self.prompt));
        messages
    }

    /// The JSON body, streamed or not. A stream asks for the usage in its last event.
    pub fn body(&self, stream: bool) -> Value {
        let mut body = Map::new();
        let mut set = |key: &str, value: Value| body.insert(key.to_owned(), value);
        match self.api {
            Api::Chat => set("messages", json!(self.messages())),
            Api::Completions | Api::Native => set("prompt", json!(self.prompt)),
        };
        let limit = if self.api == Api::Native { "n_predict" } else { "max_tokens" };
        set(limit, json!(self.max_tokens));
        set("temperature", number(self.temperature));
        set("top_p", number(self.top_p));
        if let Some(seed) = self.seed {
            set("seed", json!(seed));
        }
        if let Some(cache) = self.cache_prompt {
            set("cache_prompt", json!(cache));
        }
        if self.api == Api::Native {
            set("return_tokens", json!(true));
        }
        set("stream", json!(stream));
        if stream && self.api != Api::Native {
            set("stream_options", json!({ "include_usage": true }));
        }
        body.extend(self.extra.clone());
        Value::Object(body)
    }
}

/// A whole number is written without a fraction, as other clients write `"temperature": 0`.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e9 { json!(value as i64) } else { json!(value) }
}

/// Makes a request id of any text: characters other than letters, digits and `_.:-` become `-`, at most 180 characters.
pub fn request_id(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || "_.:-".contains(c) { c } else { '-' }).take(180).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_the_three_apis() {
        let mut request = CompletionRequest::cold(Api::Chat, "hi", 512);
        request.system = Some("be brief".to_owned());
        assert_eq!(
            request.body(true),
            json!({
                "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
                "max_tokens": 512, "temperature": 0, "top_p": 1, "seed": 1, "cache_prompt": false,
                "stream": true, "stream_options": {"include_usage": true}
            })
        );
        request.api = Api::Completions;
        assert_eq!(request.body(false)["prompt"], "hi");
        assert!(request.body(false).get("stream_options").is_none());
        request.api = Api::Native;
        request.extra.insert("n_predict".to_owned(), json!(4));
        let body = request.body(true);
        assert_eq!((&body["n_predict"], &body["return_tokens"]), (&json!(4), &json!(true)));
        assert!(body.get("max_tokens").is_none() && body.get("stream_options").is_none());
    }

    #[test]
    fn request_ids_are_safe() {
        assert_eq!(request_id("bench-a b\r\nX: ü/1"), "bench-a-b--X:---1");
        assert_eq!(request_id(&"x".repeat(500)).len(), 180);
    }
}
