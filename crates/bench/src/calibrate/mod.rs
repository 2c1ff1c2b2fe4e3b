//! The runner: plans a cold calibration of several endpoints and carries it out.

mod plan;
mod publish;
mod run;
mod targets;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use b70_client::{Api, ApiKey, ClientError, Deadlines};
use b70_manifest::PciAddress;
use b70_manifest::calibration::{CalibrationRun, Settings};
use b70_manifest::workers::Arm;
use b70_procguard::Host;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::identity::IdentityInputs;
use crate::metrics::WINDOW_EVENTS;
use crate::suite::Suite;

pub use plan::{CalibrationPlan, EndpointPlan};
pub use publish::write_document;
pub use targets::{parse_endpoint, targets_of_workers};

/// One endpoint to measure.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name; also the name of its result file.
    pub name: String,
    /// Its address.
    pub url: String,
    /// The card behind it.
    pub card: Option<PciAddress>,
    /// Its side of a comparison.
    pub arm: Option<Arm>,
    /// Its period of a crossover, from 1.
    pub period: Option<u64>,
    /// What the caller knows of the server.
    pub inputs: IdentityInputs,
}

/// How to ask.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// The API. [`Api::Native`] renders every prompt by `/apply-template` first and asks `/completion`.
    pub api: Api,
    /// The most tokens of an answer.
    pub max_tokens: u32,
    /// Events of the metric window.
    pub window: usize,
    /// The sampler's seed.
    pub seed: u64,
    /// How often the suite is asked; only the first time can hold first responses.
    pub repeats: u64,
    /// One endpoint after the other instead of all at once.
    pub sequential: bool,
    /// Ids of the prompts to ask, in the suite's order; `None` for all.
    pub selected: Option<Vec<String>>,
    /// Requests before the first row, with a prompt outside the suite. 0, and any other number fails the final gate.
    pub warm_up_requests: u64,
    /// Tell the server to generate past the end of the text.
    pub ignore_eos: bool,
    /// An unknown finish reason fails the screening.
    pub require_natural_eos: bool,
    /// Fields merged into every request last.
    pub request_extra: Map<String, Value>,
    /// Deadlines of every request.
    pub deadlines: Deadlines,
    /// The whole run may take this long.
    pub total: Option<Duration>,
    /// Wait this long for servers that are still loading.
    pub wait: Duration,
    /// Measure endpoints that do not name themselves llama.cpp.
    pub any_server: bool,
    /// Sent with every request.
    pub api_key: Option<ApiKey>,
}

impl Default for CalibrateOptions {
    /// Cold and as the final gate wants it: chat, 512 tokens, window 100, seed 1, every prompt once, no warm-up.
    fn default() -> Self {
        Self {
            api: Api::Chat,
            max_tokens: 512,
            window: WINDOW_EVENTS,
            seed: 1,
            repeats: 1,
            sequential: false,
            selected: None,
            warm_up_requests: 0,
            ignore_eos: false,
            require_natural_eos: true,
            request_extra: Map::new(),
            deadlines: Deadlines::default(),
            total: None,
            wait: Duration::ZERO,
            any_server: false,
            api_key: None,
        }
    }
}

/// A calibration to plan or to run.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The endpoints, each once.
    pub targets: Vec<Target>,
    /// The prompts.
    pub suite: Suite,
    /// How to ask.
    pub options: CalibrateOptions,
    /// Folder of the results; files in it are never overwritten.
    pub out: PathBuf,
    /// Where facts about processes and cards come from.
    pub host: Host,
    /// Directory of lease files; `None` takes no lease.
    pub lease_root: Option<PathBuf>,
}

impl Calibration {
    /// The settings as a result states them.
    pub fn settings(&self) -> Settings {
        let options = &self.options;
        let api = match options.api {
            Api::Chat => "chat",
            Api::Completions => "completions",
            Api::Native => "native",
        };
        let extra = &options.request_extra;
        let effective = |name: &str| extra.get(name).and_then(Value::as_bool);
        let order = if options.sequential { "one-by-one" } else { "parallel" };
        Settings {
            api: api.to_owned(),
            max_tokens: u64::from(options.max_tokens),
            metric_window: options.window as u64,
            temperature: 0.0,
            top_p: 1.0,
            seed: i64::try_from(options.seed).unwrap_or(i64::MAX),
            // As it is sent: a further field overrides it.
            cache_prompt: if extra.contains_key("cache_prompt") { effective("cache_prompt") } else { Some(false) },
            ignore_eos: effective("ignore_eos").unwrap_or(options.ignore_eos),
            repeats: options.repeats,
            warm_up_requests: options.warm_up_requests,
            endpoints_at_once: if options.sequential { 1 } else { self.targets.len() as u64 },
            require_natural_eos: options.require_natural_eos,
            request_extra: extra.clone(),
            extra: Map::from_iter([("order".to_owned(), json!(order))]),
        }
    }
}

/// How a calibration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    /// Every row of every endpoint was collected and every screening gate passed.
    Passed,
    /// An endpoint failed, or a screening gate did.
    Failed,
    /// Interrupted; the rows taken until then are on disk, in documents that say that they are unfinished.
    Interrupted,
    /// The deadline passed; as for an interruption.
    DeadlinePassed,
}

/// What `calibrate` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration report")]
pub struct CalibrationReport {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// Always true: the requests were sent.
    pub executed: bool,
    /// How it ended.
    pub status: RunStatus,
    /// Folder of the results.
    pub out: PathBuf,
    /// File of each endpoint, by its name, and `result.json` under `run`.
    pub files: BTreeMap<String, PathBuf>,
    /// The run, as `result.json` holds it.
    pub run: CalibrationRun,
    /// Remarks of each endpoint.
    pub notes: BTreeMap<String, Vec<String>>,
}

/// What happens while a calibration runs. Calls come from the endpoints' threads, one at a time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CalibrationEvent<'a> {
    /// An endpoint's first request is about to be sent.
    Begins {
        /// The endpoint.
        endpoint: &'a str,
        /// Rows to take.
        rows: usize,
    },
    /// A row was taken and written.
    Row {
        /// The endpoint.
        endpoint: &'a str,
        /// Rows taken, this one included.
        taken: usize,
        /// Rows to take.
        rows: usize,
        /// It.
        row: &'a b70_manifest::calibration::CalibrationRow,
    },
    /// An endpoint is done, or failed.
    Ends {
        /// The endpoint.
        endpoint: &'a str,
        /// Why it failed.
        error: Option<&'a str>,
    },
}

/// Why a calibration could not be planned or run. Failures of an endpoint are not errors: they are in its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// An option or a target that makes no sense.
    #[error("{what}: {found}; expected {expected}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// What was given.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// The plan has blocked endpoints; nothing was sent.
    #[error("blocked, nothing was sent: {}", reasons.join("; "))]
    Blocked {
        /// Why.
        reasons: Vec<String>,
        /// True if a wait passed in vain.
        timed_out: bool,
    },
    /// Interrupted before anything was sent.
    #[error("interrupted; nothing was sent")]
    Interrupted,
    /// A result could not be written.
    #[error(transparent)]
    Publish(#[from] b70_store::Error),
    /// The client could not be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The workers' configuration cannot be read.
    #[error(transparent)]
    Config(#[from] b70_manifest::document::DocumentError),
}
