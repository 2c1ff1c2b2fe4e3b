//! What a calibration would do, and what stands in its way.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use b70_client::{BaseUrl, Deadlines, Endpoint, Health, ServerIdentity};
use b70_manifest::PciAddress;
use b70_manifest::calibration::{Settings, SuiteIdentity};
use b70_manifest::workers::Arm;
use b70_procguard::{LeaseKind, LeaseRoot};
use b70_store::spawn_scoped;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CalibrateError, Calibration, Target};
use crate::identity::loopback;

/// How long a server may take to say who it is.
const PROBE: Duration = Duration::from_secs(5);
/// Between two looks at a server that is loading.
const PAUSE: Duration = Duration::from_millis(100);

/// What a calibration would do. Nothing was generated to find out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Calibration plan")]
pub struct CalibrationPlan {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// Always false: nothing was sent.
    pub executed: bool,
    /// False if an endpoint is blocked; then the run would be refused.
    pub allowed: bool,
    /// Folder of the results.
    pub out: PathBuf,
    /// The suite.
    pub suite: SuiteIdentity,
    /// How the requests would be made.
    pub settings: Settings,
    /// One entry an endpoint.
    pub endpoints: Vec<EndpointPlan>,
    /// What blocks the run as a whole.
    pub reasons: Vec<String>,
}

/// What would be done with one endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EndpointPlan {
    /// Its name.
    pub name: String,
    /// Its address.
    pub url: String,
    /// The card behind it.
    pub card: Option<PciAddress>,
    /// Its side of a comparison.
    pub arm: Option<Arm>,
    /// Its period.
    pub period: Option<u64>,
    /// The file its result would be written to.
    pub file: PathBuf,
    /// Requests that would be sent.
    pub requests: usize,
    /// Whether it may be measured.
    pub allowed: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// Who answers there.
    pub server: Option<ServerIdentity>,
}

impl Calibration {
    /// Checks everything that can be checked without a generation: names, files, who answers, whether it is ready, its
    /// context, the card's leases.
    ///
    /// # Errors
    /// [`CalibrateError::Invalid`] for options and targets that make no sense. What may change by itself, such as a server
    /// that is not there, is not an error but a reason of the plan.
    pub fn plan(&self, cancel: &AtomicBool) -> Result<CalibrationPlan, CalibrateError> {
        self.check()?;
        let mut reasons = Vec::new();
        for path in self.files() {
            if path.symlink_metadata().is_ok() {
                reasons.push(format!("{} exists; results are never overwritten, name another folder", path.display()));
            }
        }
        let until = Instant::now() + self.options.wait.min(Deadlines::LONGEST);
        let endpoints: Result<Vec<EndpointPlan>, b70_store::Error> = thread::scope(|scope| {
            let begin = |target| spawn_scoped(scope, "an endpoint", move || self.look(target, until, cancel));
            let looks: Vec<_> = self.targets.iter().map(begin).collect();
            let joined = looks.into_iter().map(|look| Ok(look?.join().ok()));
            joined.filter_map(Result::transpose).collect()
        });
        let endpoints = endpoints?;
        Ok(CalibrationPlan {
            schema_version: 1,
            executed: false,
            allowed: reasons.is_empty()
                && endpoints.len() == self.targets.len()
                && endpoints.iter().all(|endpoint| endpoint.allowed),
            out: self.out.clone(),
            suite: self.suite.identity(self.options.selected.clone()),
            settings: self.settings(),
            endpoints,
            reasons,
        })
    }

    /// Every file the run would write.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let names = self.targets.iter().map(|target| format!("{}.json", target.name));
        names.chain(["result.json".to_owned()]).map(|name| self.out.join(name)).collect()
    }

    fn check(&self) -> Result<(), CalibrateError> {
        let options = &self.options;
        let invalid = |what, found: String, expected| Err(CalibrateError::Invalid { what, found, expected });
        if self.targets.is_empty() {
            return invalid("endpoints", "none".to_owned(), "at least one --endpoint, or a --config with workers");
        }
        if options.window < 2 || options.max_tokens == 0 || options.repeats == 0 {
            let found =
                format!("window {}, max_tokens {}, repeats {}", options.window, options.max_tokens, options.repeats);
            return invalid(
                "settings",
                found,
                "a window of at least 2 events, and at least one token and one repetition",
            );
        }
        for id in options.selected.iter().flatten() {
            if !self.suite.prompts.iter().any(|prompt| prompt.id == *id) {
                return invalid("prompt", format!("{id:?}"), "an id of the suite");
            }
        }
        if options.selected.as_ref().is_some_and(Vec::is_empty) {
            return invalid("prompts", "none".to_owned(), "at least one");
        }
        let mut names = BTreeSet::new();
        let mut urls = BTreeSet::new();
        let mut cards = BTreeSet::new();
        for target in &self.targets {
            let name = &target.name;
            let safe = name.len() <= 64
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
            if !safe || name == "result" {
                return invalid(
                    "endpoint name",
                    format!("{name:?}"),
                    "up to 64 letters, digits, '.', '_', '-', the first a letter or digit, and not \"result\"",
                );
            }
            let url = BaseUrl::parse(&target.url)
                .map_err(|kind| CalibrateError::Invalid {
                    what: "endpoint address",
                    found: format!("{:?} ({kind})", target.url),
                    expected: "http://HOST:PORT",
                })?
                .to_string();
            if target.period == Some(0) || target.period.is_some_and(|period| period > 1000) {
                return invalid("period", format!("{:?}", target.period), "1 to 1000");
            }
            if !names.insert(name.clone()) {
                return invalid("endpoint name", format!("{name:?} twice"), "unique names");
            }
            if !urls.insert(url.clone()) {
                return invalid("endpoint address", format!("{url} twice"), "every server once");
            }
            if let Some(card) = target.card
                && !cards.insert(card)
            {
                return invalid("card", format!("{card} twice"), "every card once");
            }
        }
        Ok(())
    }

    fn look(&self, target: &Target, until: Instant, cancel: &AtomicBool) -> EndpointPlan {
        let mut plan = EndpointPlan {
            name: target.name.clone(),
            url: target.url.clone(),
            card: target.card,
            arm: target.arm,
            period: target.period,
            file: self.out.join(format!("{}.json", target.name)),
            requests: self.rows_per_endpoint() + self.options.warm_up_requests as usize,
            allowed: false,
            reasons: Vec::new(),
            notes: Vec::new(),
            server: None,
        };
        match self.probe(target, until, cancel) {
            Ok(server) => {
                if !server.is_llama_server() && !self.options.any_server {
                    plan.reasons.push(
                        "the server does not name itself llama.cpp (no Server header, no owned_by llamacpp); \
                         measure it with --any-server if that is meant"
                            .to_owned(),
                    );
                }
                self.look_at_context(&server, &mut plan);
                plan.server = Some(server);
            }
            Err(why) => plan.reasons.push(why),
        }
        self.look_at_leases(target, &mut plan);
        plan.allowed = plan.reasons.is_empty();
        plan
    }

    /// Who answers, once the server is ready.
    fn probe(&self, target: &Target, until: Instant, cancel: &AtomicBool) -> Result<ServerIdentity, String> {
        let mut endpoint = self.endpoint(target, Deadlines::within(PROBE)).map_err(|error| error.to_string())?;
        loop {
            let waiting = match endpoint.health() {
                Ok(Health::Ready) => None,
                Ok(Health::Loading(words)) => Some(format!("the server is still loading ({words}); wait with --wait")),
                // A server without /health is not a llama-server; who it is is told below.
                Err(error) if matches!(error.code(), "status" | "not_json") => None,
                Err(error) => Some(error.to_string()),
            };
            match waiting {
                None => return endpoint.identify().map_err(|error| error.to_string()),
                Some(why) if Instant::now() >= until || cancel.load(Ordering::SeqCst) => return Err(why),
                Some(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn look_at_context(&self, server: &ServerIdentity, plan: &mut EndpointPlan) {
        let Some(context) = server.n_ctx else { return };
        // A token is at least one byte, so a prompt cannot have more; most have a third of that.
        let longest = self.suite.prompts.iter().map(|prompt| prompt.prompt.len()).max().unwrap_or(0) as u64;
        let tokens = u64::from(self.options.max_tokens);
        if context < tokens + longest / 8 {
            plan.reasons.push(format!(
                "the slot's context holds {context} tokens, an answer of {tokens} and its prompt do not fit; start the \
                 server with a larger -c"
            ));
        } else if context < tokens + longest / 2 {
            plan.notes.push(format!("the slot's context of {context} tokens may be too small for prompt and answer"));
        }
        if server.total_slots.is_some_and(|slots| slots != 1) {
            plan.notes.push(format!("the server has {} slots; a worker has one", server.total_slots.unwrap_or(0)));
        }
    }

    fn look_at_leases(&self, target: &Target, plan: &mut EndpointPlan) {
        let Some(card) = target.card else {
            plan.notes.push("no card is named: the result cannot be part of a comparison".to_owned());
            return;
        };
        let Some(root) = &self.lease_root else { return };
        let Ok(root) = LeaseRoot::open_existing(root) else { return };
        match root.status(&self.host, card, LeaseKind::Measuring) {
            Ok(status) if status.held => plan.reasons.push(format!(
                "somebody measures on {card}: {}",
                status
                    .owner
                    .map_or_else(|| "unnamed".to_owned(), |owner| format!("pid {}, {}", owner.pid, owner.command))
            )),
            Ok(_) => {}
            Err(error) => plan.reasons.push(error.to_string()),
        }
        let local = BaseUrl::parse(&target.url).ok().as_ref().and_then(loopback);
        match (root.status(&self.host, card, LeaseKind::Card), local) {
            (Ok(status), Some(address)) if status.held => {
                let pids: BTreeSet<u32> = status.holders.iter().copied().collect();
                let owned = b70_procguard::listening_inode_belongs_to(&self.host, address, &pids);
                if let b70_procguard::ListenerOwnership::Foreign { .. } = owned {
                    plan.reasons.push(format!("the lease of {card} is held, but not by the server at {address}"));
                }
            }
            (Ok(status), _) if !status.held => {
                plan.notes.push(format!("nobody holds the lease of {card}: other programs may take the card"));
            }
            _ => {}
        }
    }

    pub(super) fn endpoint(&self, target: &Target, deadlines: Deadlines) -> Result<Endpoint, b70_client::ClientError> {
        let endpoint = Endpoint::new(&target.url)?.with_deadlines(deadlines);
        Ok(match &self.options.api_key {
            Some(key) => endpoint.with_api_key(key.clone()),
            None => endpoint,
        })
    }

    /// Places in the suite of the prompts to ask.
    pub(super) fn asked_prompts(&self) -> Vec<usize> {
        let selected = self.options.selected.as_ref();
        let wanted = |id: &String| selected.is_none_or(|selected| selected.contains(id));
        (0..self.suite.prompts.len()).filter(|index| wanted(&self.suite.prompts[*index].id)).collect()
    }

    pub(super) fn rows_per_endpoint(&self) -> usize {
        self.asked_prompts().len() * self.options.repeats as usize
    }
}
