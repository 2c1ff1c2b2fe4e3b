//! Token-level liveness: does this server still generate?
//!
//! `/health` is answered by a thread of its own and stays 200 when the inference thread hangs. So a server is judged by
//! what passes through its task queue: `/slots`, and one tiny completion.

mod activity;
mod probe;
mod recovery;

use std::time::Duration;

use b70_client::ApiKey;
use b70_procguard::{Host, KernelEvent, KernelLog, PciAddress, has_devcoredump};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use activity::{Activity, local_listener};
pub use probe::probe;
pub use recovery::RecoveryStep;

/// What a server is, by its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LivenessState {
    /// It generated a token for the probe.
    Healthy,
    /// It still loads its model.
    Loading,
    /// It works for somebody else, and progress was seen.
    Busy,
    /// It unloaded its model after idling; the next request wakes it. The probe does not.
    Asleep,
    /// It is there and nothing gets through any more.
    Wedged,
    /// Nobody answers at the address.
    Lost,
}

impl LivenessState {
    /// The word used in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::Asleep => "asleep",
            Self::Wedged => "wedged",
            Self::Lost => "lost",
        }
    }

    /// Would a request be served, now or when it wakes or gets its turn?
    pub fn is_serving(self) -> bool {
        matches!(self, Self::Healthy | Self::Busy | Self::Asleep)
    }
}

/// How to probe.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The whole probe takes at most this long. A server whose longest batch takes longer than this can only be told
    /// from a hung one by its process's activity, so choose it generously.
    pub deadline: Duration,
    /// Key of the server.
    pub api_key: Option<ApiKey>,
    /// Process of the server, if it is of this machine: its activity tells a long batch from a hang.
    pub pid: Option<u32>,
    /// Its card, if known: the kernel's log is read for it.
    pub card: Option<PciAddress>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(15), api_key: None, pid: None, card: None }
    }
}

/// One call of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeStep {
    /// What was asked: `health`, `props`, `slots`, `completion`, `activity`.
    pub call: String,
    /// A stable word: `ok`, `loading`, or the code of the failure.
    pub code: String,
    /// What came of it.
    pub detail: String,
    /// Seconds it took.
    pub seconds: f64,
}

/// What the kernel's log says of the card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum KernelFindings {
    /// The card is not known, so nothing was looked up.
    NotAsked,
    /// It was read.
    Read {
        /// Events of this card since the server started (since the log's beginning, if that is not known).
        events: Vec<KernelEvent>,
        /// Is a device core dump waiting? Null if sysfs would not say.
        devcoredump: Option<bool>,
    },
    /// It could not be read, which does not mean that nothing happened.
    Unreadable {
        /// Why.
        reason: String,
    },
}

impl KernelFindings {
    /// What a log says of a card since a process started (clock ticks since boot), and whether a dump is waiting.
    pub(crate) fn of(host: &Host, log: &KernelLog, pci: PciAddress, started: Option<u64>) -> Self {
        // Start times count in ticks of 10 ms since boot, the log in microseconds.
        let since = started.map(|ticks| ticks.saturating_mul(10_000));
        match log {
            KernelLog::Unreadable { reason } => Self::Unreadable { reason: reason.clone() },
            KernelLog::Read { events, .. } => Self::Read {
                events: events
                    .iter()
                    .filter(|e| e.pci == pci && since.is_none_or(|since| e.at_usec.is_none_or(|at| at >= since)))
                    .cloned()
                    .collect(),
                devcoredump: has_devcoredump(host, pci).ok(),
            },
        }
    }

    /// The gravest event, the latest of several.
    pub fn gravest(&self) -> Option<&KernelEvent> {
        match self {
            Self::Read { events, .. } => events.iter().max_by_key(|event| event.kind),
            _ => None,
        }
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LivenessReport {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// The address.
    pub url: String,
    /// The verdict.
    pub state: LivenessState,
    /// Why, in one sentence.
    pub reason: String,
    /// The deadline, seconds.
    pub deadline_s: f64,
    /// Seconds the probe took.
    pub seconds: f64,
    /// The calls, in order.
    pub steps: Vec<ProbeStep>,
    /// Process of the server, where known.
    pub pid: Option<u32>,
    /// Its card, where known.
    pub card: Option<PciAddress>,
    /// What the kernel's log says of the card.
    pub kernel: KernelFindings,
    /// For a wedged or lost server: what to do, in order. Nothing of it is ever done by the kit itself.
    pub recovery: Vec<RecoveryStep>,
}
