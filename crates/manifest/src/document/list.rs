use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Kind;

/// What `list` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Kinds of documents")]
pub struct KindList {
    /// Version of this document's form, 1.
    #[schemars(example = 1)]
    pub schema_version: u64,
    /// The kinds.
    pub kinds: Vec<KindEntry>,
}

/// One kind of document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KindEntry {
    /// Name of the kind.
    pub kind: Kind,
    /// One line about it.
    #[schemars(example = &"the prompts of a cold calibration")]
    pub about: String,
    /// Whether people write it.
    #[schemars(example = true)]
    pub written_by_people: bool,
    /// Usual names of its files.
    #[schemars(example = serde_json::json!(["*.suite.json"]))]
    pub file_patterns: Vec<String>,
    /// The schema's `$id`.
    #[schemars(example = &"https://b70kit.dev/schemas/v1/calibration-suite.schema.json")]
    pub schema_id: String,
}

impl KindList {
    /// Every kind.
    pub fn every() -> Self {
        let entry = |kind: &Kind| KindEntry {
            kind: *kind,
            about: kind.about().into(),
            written_by_people: kind.is_written_by_people(),
            file_patterns: kind.file_patterns().iter().map(|pattern| (*pattern).to_owned()).collect(),
            schema_id: kind.schema_id(),
        };
        Self { schema_version: 1, kinds: Kind::ALL.iter().map(entry).collect() }
    }
}
