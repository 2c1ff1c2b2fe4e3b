use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The class of a prompt that names none.
pub const UNCLASSIFIED: &str = "unclassified";

/// Calibration suite: the prompts of a cold calibration, in the order they are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "Calibration suite")]
#[expect(clippy::large_enum_variant, reason = "one value a file; a box would only make it harder to use")]
pub enum CalibrationSuite {
    /// Prompts alone.
    List(Vec<SuiteItem>),
    /// Prompts with a name and a version.
    Document(SuiteDocument),
}

impl CalibrationSuite {
    /// The prompts in order, each with an id (`prompt-0`, `prompt-1`, … where it has none) and a class.
    pub fn prompts(&self) -> Vec<ResolvedPrompt<'_>> {
        let items = match self {
            Self::List(items) => items,
            Self::Document(document) => &document.prompts,
        };
        items.iter().enumerate().map(|(index, item)| item.resolve(index)).collect()
    }
}

/// Prompts with a name and a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Suite")]
pub struct SuiteDocument {
    /// Where an editor finds the schema of this document.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    #[schemars(title = "Schema", example = &"./schemas/calibration-suite.schema.json")]
    pub schema: Option<String>,
    /// Version of this document's form, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub schema_version: Option<u64>,
    /// Name of the suite; part of every request id.
    #[schemars(length(min = 1, max = 128), example = &"b70-cold-v1")]
    pub suite_id: String,
    /// Version of the suite, a number or text.
    #[schemars(extend("type" = ["integer", "string"]), example = 1)]
    pub version: Value,
    /// What the suite is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"Twelve cold prompts in six classes.")]
    pub description: Option<String>,
    /// What the suite measures; kept as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"median_tok_s_1_100_intervals_after_ttft")]
    pub metric: Option<Value>,
    /// System message sent before every prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), example = &"You answer briefly.")]
    pub system_prompt: Option<String>,
    /// The prompts; no two may be the same.
    #[schemars(length(min = 1), example = json!([{"id": "release-plan", "prompt": "Plan the release of …", "prompt_class": "operations"}]))]
    pub prompts: Vec<SuiteItem>,
    /// Free room for other tools; the kit keeps it and never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({"my-tool": {"colour": "blue"}}))]
    pub extensions: Option<Map<String, Value>>,
}

/// One prompt: its text alone, or with an id and a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SuiteItem {
    /// The text alone.
    Text(String),
    /// With an id and a class.
    Prompt(SuitePrompt),
}

impl SuiteItem {
    fn resolve(&self, index: usize) -> ResolvedPrompt<'_> {
        match self {
            Self::Text(text) => {
                ResolvedPrompt { id: format!("prompt-{index}"), prompt: text, prompt_class: UNCLASSIFIED }
            }
            Self::Prompt(prompt) => ResolvedPrompt {
                id: prompt.id.clone().unwrap_or_else(|| format!("prompt-{index}")),
                prompt: &prompt.prompt,
                prompt_class: prompt.prompt_class.as_deref().unwrap_or(UNCLASSIFIED),
            },
        }
    }
}

/// A prompt as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPrompt<'a> {
    /// Id, unique in the suite.
    pub id: String,
    /// Text.
    pub prompt: &'a str,
    /// Class.
    pub prompt_class: &'a str,
}

/// A prompt with an id and a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuitePrompt {
    /// Id, unique in the suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"), example = &"release-plan")]
    pub id: Option<String>,
    /// Text of the prompt.
    #[schemars(length(min = 1), example = &"Plan the release of …")]
    pub prompt: String,
    /// Class of the prompt; five or more classes make a suite fit for promotion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), example = &"operations")]
    pub prompt_class: Option<String>,
}
