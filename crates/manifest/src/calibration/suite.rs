use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The class of a prompt that names none.
pub const UNCLASSIFIED: &str = "unclassified";

/// Upstream's fixed suite: its prompts' ids, and the class each is documented to have. Its files name no class.
const FIXED_SUITE: [(&str, &str); 12] = [
    ("incident-retrospective", "operations"),
    ("release-plan", "operations"),
    ("bug-report-synthesis", "operations"),
    ("code-review", "code"),
    ("sql-debugging", "code"),
    ("customer-email", "prose"),
    ("decision-memo", "prose"),
    ("benchmark-analysis", "analysis"),
    ("architecture-tradeoff", "analysis"),
    ("performance-hypotheses", "analysis"),
    ("technical-guide", "documentation"),
    ("risk-register", "structured-writing"),
];

/// The class of each prompt, in order, if these are the ids of upstream's fixed suite: all twelve, each once, in any order.
///
/// ```
/// use b70_manifest::calibration::fixed_suite_classes;
/// assert_eq!(fixed_suite_classes(["code-review", "release-plan"]), None);
/// ```
pub fn fixed_suite_classes<'a>(ids: impl IntoIterator<Item = &'a str>) -> Option<Vec<&'static str>> {
    let mut left = FIXED_SUITE.to_vec();
    let mut classes = Vec::new();
    for id in ids {
        let at = left.iter().position(|(known, _)| *known == id)?;
        classes.push(left.swap_remove(at).1);
    }
    left.is_empty().then_some(classes)
}

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
    Prompt(SuiteEntry),
}

/// A prompt with an id and a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuiteEntry {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_suite_has_six_classes_in_any_order_of_its_ids() {
        let ids: Vec<&str> = FIXED_SUITE.iter().rev().map(|(id, _)| *id).collect();
        let classes = fixed_suite_classes(ids.iter().copied()).expect("the twelve");
        assert_eq!((classes.len(), classes[0], classes[11]), (12, "structured-writing", "operations"));
        assert_eq!(classes.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
        assert_eq!(fixed_suite_classes(ids[1..].iter().copied()), None, "one is missing");
        assert_eq!(fixed_suite_classes(ids.iter().copied().chain(["release-plan"])), None, "one comes twice");
    }
}
