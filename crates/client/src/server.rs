//! What a server says about itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The answer of `/health`. It says nothing about the inference thread: a hung server is still `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Status 200.
    Ready,
    /// Status 503 while the model is loaded, with the server's words.
    Loading(String),
}

/// `GET /props`, with the fields this kit uses; all others stay in `raw`.
#[derive(Clone, Debug, PartialEq)]
pub struct Props {
    /// The model's path on the server's host.
    pub model_path: Option<String>,
    /// The name under which it serves the model.
    pub model_alias: Option<String>,
    /// Number of slots.
    pub total_slots: Option<u64>,
    /// Context of one slot, in tokens.
    pub n_ctx: Option<u64>,
    /// The build.
    pub build_info: Option<String>,
    /// True while the model is unloaded after idling.
    pub is_sleeping: Option<bool>,
    /// True if `/slots` answers.
    pub endpoint_slots: Option<bool>,
    /// The whole answer.
    pub raw: Value,
}

impl Props {
    pub(crate) fn from_value(raw: Value) -> Self {
        let text = |name: &str| raw.get(name).and_then(Value::as_str).map(str::to_owned);
        let flag = |name: &str| raw.get(name).and_then(Value::as_bool);
        Self {
            model_path: text("model_path"),
            model_alias: text("model_alias"),
            total_slots: raw.get("total_slots").and_then(Value::as_u64),
            n_ctx: raw.pointer("/default_generation_settings/n_ctx").and_then(Value::as_u64),
            build_info: text("build_info"),
            is_sleeping: flag("is_sleeping"),
            endpoint_slots: flag("endpoint_slots"),
            raw,
        }
    }
}

/// One slot of `GET /slots`.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its number.
    pub id: Option<i64>,
    /// Its context, in tokens.
    pub n_ctx: Option<u64>,
    /// True while it works on a request.
    pub is_processing: bool,
    /// True if it speculates.
    pub speculative: Option<bool>,
    /// The task it works on or worked on last.
    pub id_task: Option<i64>,
    /// Tokens generated for that task: a busy slot whose number grows is alive.
    pub n_decoded: Option<u64>,
    /// Prompt tokens processed for that task.
    pub n_prompt_tokens_processed: Option<u64>,
    /// The whole entry.
    pub raw: Value,
}

impl Slot {
    /// `None` if the entry does not say whether the slot works: that must not read as idle.
    pub(crate) fn from_value(raw: &Value) -> Option<Self> {
        Some(Self {
            id: raw.get("id").and_then(Value::as_i64),
            n_ctx: raw.get("n_ctx").and_then(Value::as_u64),
            is_processing: raw.get("is_processing")?.as_bool()?,
            speculative: raw.get("speculative").and_then(Value::as_bool),
            id_task: raw.get("id_task").and_then(Value::as_i64),
            n_decoded: raw.pointer("/next_token/0/n_decoded").and_then(Value::as_u64),
            n_prompt_tokens_processed: raw.get("n_prompt_tokens_processed").and_then(Value::as_u64),
            raw: raw.clone(),
        })
    }
}

/// One model of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEntry {
    /// Its id.
    pub id: String,
    /// Who serves it; llama-server says `llamacpp`.
    pub owned_by: Option<String>,
    /// The whole entry.
    pub raw: Value,
}

impl ModelEntry {
    pub(crate) fn from_value(raw: &Value) -> Option<Self> {
        Some(Self {
            id: raw.get("id")?.as_str()?.to_owned(),
            owned_by: raw.get("owned_by").and_then(Value::as_str).map(str::to_owned),
            raw: raw.clone(),
        })
    }
}

/// What identifies the program behind an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerIdentity {
    /// The `Server` header; llama-server says `llama.cpp`.
    pub server: Option<String>,
    /// `model_path` of `/props`.
    pub model_path: Option<String>,
    /// `model_alias` of `/props`.
    pub model_alias: Option<String>,
    /// `build_info` of `/props`.
    pub build_info: Option<String>,
    /// Slots.
    pub total_slots: Option<u64>,
    /// Context of one slot, in tokens.
    pub n_ctx: Option<u64>,
    /// Ids of `/v1/models`.
    pub models: Vec<String>,
    /// `owned_by` of `/v1/models`, each once.
    pub owned_by: Vec<String>,
    /// The server was still loading its model.
    pub loading: bool,
    /// Which of the three marks of llama-server were found: `server-header`, `owned-by`, `model-path`.
    pub evidence: Vec<String>,
}

impl ServerIdentity {
    /// True if the header or the owner names llama.cpp. `model-path` alone does not: others have `/props` too.
    pub fn is_llama_server(&self) -> bool {
        self.evidence.iter().any(|mark| mark == "server-header" || mark == "owned-by")
    }

    pub(crate) fn gather_evidence(&mut self) {
        let marks = [
            ("server-header", self.server.as_deref() == Some("llama.cpp")),
            ("owned-by", self.owned_by.iter().any(|owner| owner == "llamacpp")),
            ("model-path", self.model_path.is_some()),
        ];
        self.evidence = marks.iter().filter(|(_, found)| *found).map(|(mark, _)| (*mark).to_owned()).collect();
    }
}
