//! What will hurt later: settings of a machine, each with what to do about it.

mod checks;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{cards::Cards, host::Host};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// Nothing to do.
    Ok,
    /// Could not be determined.
    Unknown,
    /// Works now, will hurt under some condition.
    Warn,
    /// Does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Short stable name.
    pub name: String,
    /// How it came out.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// What to do; empty when there is nothing to do.
    pub todo: String,
}

/// All checks of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Version of this document.
    pub schema_version: u32,
    /// The gravest status among the checks.
    pub status: CheckStatus,
    /// In a fixed order.
    pub checks: Vec<Check>,
}

impl DoctorReport {
    /// Runs every check. `env` is the environment whose variables are judged: that of the shell that starts servers.
    pub fn run(host: &Host, cards: &Cards, env: &[(String, String)]) -> Self {
        let checks = checks::all(host, cards, env);
        let status = checks.iter().map(|c| c.status).max().unwrap_or(CheckStatus::Unknown);
        Self { schema_version: 1, status, checks }
    }
}
