use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Code;

/// What a gate found: passed when there is no code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateOutcome {
    /// Whether the gate let the result through.
    #[schemars(example = true)]
    pub passed: bool,
    /// Why not, in stable words.
    #[schemars(example = json!(["cached_count_not_zero"]))]
    pub codes: Vec<String>,
    /// The same with rows and values, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = json!(["row 3 (release-plan): usage reports 3 cached tokens"]))]
    pub details: Vec<String>,
}

/// Collects codes, each once, with every detail.
#[derive(Debug, Default)]
pub(super) struct Findings {
    codes: Vec<Code>,
    details: Vec<String>,
}

impl Findings {
    pub(super) fn add(&mut self, code: Code, detail: impl Into<String>) {
        if !self.codes.contains(&code) {
            self.codes.push(code);
        }
        self.details.push(detail.into());
    }

    pub(super) fn check(&mut self, holds: bool, code: Code, detail: impl Into<String>) {
        if !holds {
            self.add(code, detail);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    pub(super) fn outcome(self) -> GateOutcome {
        GateOutcome {
            passed: self.codes.is_empty(),
            codes: self.codes.into_iter().map(|code| code.as_str().to_owned()).collect(),
            details: self.details,
        }
    }
}
