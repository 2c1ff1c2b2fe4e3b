//! Plans as data: what would be done, and what stands against it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use b70_manifest::workers::Worker;
use b70_procguard::{
    Host, PidState, PortOwner, PortState, ProcessIdentity, StopOutcome, port_owners, probe_port, redact_arguments,
    redact_variable,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    error::WorkerError,
    identity,
    lane::GpuMode,
    resolve::{ResolvedCommand, resolve},
    supervisor::{Supervisor, View},
};

/// What is to be done with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ActionKind {
    /// Start its server.
    Start,
    /// End its process and sweep its session.
    Stop,
    /// Its process is gone; end what is left of its session.
    Sweep,
    /// Nothing.
    None,
}

/// One worker's part of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Action {
    /// The worker.
    pub worker: String,
    /// What.
    pub action: ActionKind,
    /// May it be done?
    pub allowed: bool,
    /// If not: why not, all of it. Otherwise what is worth knowing of the action.
    pub reasons: Vec<String>,
    /// What was not checked, and which copies were chosen why.
    pub notes: Vec<String>,
    /// Process it is about.
    pub pid: Option<u32>,
    /// Command line of a start, secrets removed.
    pub command: Vec<String>,
    /// Variables a start sets, secrets removed.
    pub environment: BTreeMap<String, String>,
    /// Variables a start removes.
    pub unset: Vec<String>,
}

/// A plan, and after its execution what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Plan {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// One entry a worker.
    pub plan: Vec<Action>,
    /// Whether it was carried out.
    pub executed: bool,
    /// What came of each, when it was.
    pub results: Vec<ActionResult>,
}

/// What came of one worker's action.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ActionResult {
    /// The worker.
    pub worker: String,
    /// What came of it.
    pub outcome: Outcome,
    /// In words.
    pub detail: String,
    /// Its process.
    pub pid: Option<u32>,
    /// Seconds it took.
    pub seconds: f64,
    /// Particulars of a stop.
    pub stop: Option<StopOutcome>,
}

/// Outcome of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It answers, and everything was confirmed.
    Ready,
    /// It was started and not waited for.
    Started,
    /// It did not come up; nothing of it is left.
    Failed,
    /// It was not ready in time, and has been stopped; or it did not end in time, and runs on.
    Deadline,
    /// Interrupted; what was not ready has been stopped.
    Interrupted,
    /// It has ended.
    Stopped,
    /// There was nothing to do.
    Nothing,
}

impl Plan {
    pub(crate) fn new(plan: Vec<Action>) -> Self {
        Self { schema_version: 1, plan, executed: false, results: Vec::new() }
    }

    /// May every action be done?
    pub fn allowed(&self) -> bool {
        self.plan.iter().all(|action| action.allowed)
    }

    /// The exit code the plan or its execution ends with.
    pub fn exit_code(&self) -> u8 {
        use b70_manifest::exit;
        let any = |outcome: Outcome| self.results.iter().any(|r| r.outcome == outcome);
        if any(Outcome::Interrupted) {
            exit::INTERRUPTED
        } else if any(Outcome::Deadline) {
            exit::TIMEOUT
        } else if any(Outcome::Failed) || !self.allowed() {
            exit::CHECK_FAILED
        } else {
            exit::OK
        }
    }
}

impl Action {
    fn new(worker: &Worker, action: ActionKind) -> Self {
        Self {
            worker: worker.name.clone(),
            action,
            allowed: true,
            reasons: Vec::new(),
            notes: Vec::new(),
            pid: None,
            command: Vec::new(),
            environment: BTreeMap::new(),
            unset: Vec::new(),
        }
    }

    fn block(&mut self, reason: impl Into<String>) {
        self.allowed = false;
        self.reasons.push(reason.into());
    }
}

/// Who holds a port, in words.
pub(crate) fn port_text(owners: &[PortOwner]) -> String {
    if owners.is_empty() {
        return "by a socket that is bound and does not listen".into();
    }
    // Who listens is in the way; what its clients left behind (TIME_WAIT and the like) is not.
    let listens = owners.iter().any(|owner| owner.state == "listening");
    let texts: Vec<String> = owners
        .iter()
        .filter(|owner| !listens || owner.state == "listening")
        .take(4)
        .map(|owner| {
            let holders: Vec<String> = owner.holders.iter().map(|h| format!("pid {} ({})", h.pid, h.comm)).collect();
            let who = if holders.is_empty() { format!("a process of user {}", owner.uid) } else { holders.join(", ") };
            format!("by {who}, {} at {}", owner.state, owner.address)
        })
        .collect();
    texts.join("; ")
}

impl Supervisor<'_> {
    /// Plans to start workers. Nothing is changed.
    pub fn plan_start(&self, names: &[String]) -> Result<Plan, WorkerError> {
        let workers = self.lane.select(names)?;
        let view = self.view()?;
        let mut cards = BTreeMap::new();
        let mut plan = Vec::new();
        for worker in workers {
            let (mut action, _) = self.plan_one(worker, &view)?;
            if let Ok(pci) = view.cards.resolve(worker.gpu)
                && let Some(other) = cards.insert(pci, worker.name.clone())
            {
                action.block(format!("gpu {} is the same card as that of {other}", worker.gpu));
            }
            plan.push(action);
        }
        Ok(Plan::new(plan))
    }

    /// Everything that stands against starting one worker, and the command it would get.
    pub(crate) fn plan_one(
        &self,
        worker: &Worker,
        view: &View,
    ) -> Result<(Action, Option<ResolvedCommand>), WorkerError> {
        let mut action = Action::new(worker, ActionKind::Start);
        let command = match resolve(self.lane, worker, &view.cards, &self.resolve) {
            Ok(command) => Some(command),
            Err(error) => {
                action.block(error.to_string());
                None
            }
        };
        if let Some(command) = &command {
            action.command = redact_arguments(&command.argv);
            action.environment =
                command.set.iter().map(|(k, v)| (k.clone(), redact_variable(k, v).to_owned())).collect();
            action.unset.clone_from(&command.unset);
            action.notes.push(format!("model: {}: {}", command.target_model.path, command.target_model.reason));
            if let Some(draft) = &command.draft_model {
                action.notes.push(format!("draft model: {}: {}", draft.path, draft.reason));
            }
            if let Some(stage) = &command.pack_stage {
                action.notes.push(format!("pack set {}: {}", stage.set_key, stage.reason));
            }
            if self.local {
                self.check_files(command, &mut action);
            }
        }
        self.check_process(worker, &mut action)?;
        self.check_port(worker, &mut action)?;
        if let Ok(pci) = view.cards.resolve(worker.gpu) {
            match self.lease_status(pci) {
                Ok(Some(status)) if status.held => {
                    let who = status.owner.map_or_else(
                        || format!("processes {:?}", status.holders),
                        |o| format!("pid {} ({})", o.pid, o.command),
                    );
                    action.block(format!("{pci} is leased by {who}"));
                }
                Ok(_) => {}
                Err(error) => action.block(error.to_string()),
            }
        }
        // The worker's own process blocks as such, and is not foreign.
        let own: BTreeSet<u32> = action.pid.into_iter().collect();
        for reason in view.foreign(worker, &own).reasons {
            action.block(reason);
        }
        if self.mode == GpuMode::Absent {
            action.notes.push("skipped with --no-gpu: presence of the card, memory in use on it, its lease".into());
        }
        Ok((action, command))
    }

    fn check_files(&self, command: &ResolvedCommand, action: &mut Action) {
        let binary = self.lane.path(&self.lane.document.binary);
        let mut files = vec![(binary, "the executable"), (command.target_model.path.clone().into(), "the model")];
        files.extend(command.draft_model.iter().map(|d| (d.path.clone().into(), "the draft model")));
        for (path, what) in files {
            if !Path::new(&path).is_file() {
                action.block(format!("{what} is not there: {}", path.display()));
            }
        }
    }

    fn check_process(&self, worker: &Worker, action: &mut Action) -> Result<(), WorkerError> {
        let recorded = match identity::read(&self.lane.paths(worker)) {
            Ok(recorded) => recorded,
            Err(error) => {
                action.block(format!("{error}; look at it and remove it, if no server of this worker runs"));
                return Ok(());
            }
        };
        let Some(recorded) = recorded else { return Ok(()) };
        match recorded.state(&Host::real()) {
            PidState::Running => {
                action.pid = Some(recorded.process.pid);
                action.block(format!("it runs already as pid {}", recorded.process.pid));
            }
            PidState::Unverifiable(why) => {
                action.block(format!("its recorded process {} cannot be verified: {why}", recorded.process.pid));
            }
            _ => {
                let left = recorded.session.members().map_err(WorkerError::Proc)?;
                for member in &left.verified {
                    action.block(format!(
                        "process {} ({}) of its last run is still there; b70-worker stop ends it",
                        member.identity().pid,
                        member.comm()
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_port(&self, worker: &Worker, action: &mut Action) -> Result<(), WorkerError> {
        let Some(address) = self.lane.address(worker) else {
            action.notes.push(format!("port {} is unchecked: the host is no address", worker.port));
            return Ok(());
        };
        if !self.local {
            let owners = port_owners(self.host, address).unwrap_or_default();
            if !owners.is_empty() {
                action.block(format!("port {} is in use {}", worker.port, port_text(&owners)));
            }
            return Ok(());
        }
        match probe_port(address, false).map_err(WorkerError::Proc)? {
            PortState::Free => {}
            PortState::InUse { owners } => {
                action.block(format!("port {} is in use {}", worker.port, port_text(&owners)));
            }
            PortState::Refused { reason } => {
                action.block(format!("{address} cannot be bound: {reason}"));
            }
        }
        Ok(())
    }

    /// Plans to stop workers. Nothing is changed.
    pub fn plan_stop(&self, names: &[String]) -> Result<Plan, WorkerError> {
        let mut plan = Vec::new();
        for worker in self.lane.select(names)? {
            let mut action = Action::new(worker, ActionKind::None);
            match identity::read(&self.lane.paths(worker)) {
                Ok(Some(recorded)) => self.plan_stop_one(&recorded, &mut action)?,
                Ok(None) => action.reasons.push("the kit has no record of it: nothing to stop".into()),
                Err(error) => action.block(error.to_string()),
            }
            plan.push(action);
        }
        Ok(Plan::new(plan))
    }

    fn plan_stop_one(&self, recorded: &identity::Recorded, action: &mut Action) -> Result<(), WorkerError> {
        let pid = recorded.process.pid;
        match recorded.state(&Host::real()) {
            PidState::Running => {
                action.action = ActionKind::Stop;
                action.pid = Some(pid);
                action.reasons.push(format!("pid {pid} is the process that was started"));
            }
            PidState::Unverifiable(why) => {
                action.block(format!("pid {pid} cannot be verified, so it is not signalled: {why}"));
            }
            PidState::Reused => {
                action.reasons.push(format!("pid {pid} is another process now: it is not signalled"));
                self.leftovers(recorded, action)?;
            }
            PidState::Stale => {
                action
                    .reasons
                    .push(format!("the machine was booted since; pid {pid} means nothing and is not signalled"));
            }
            PidState::Absent | PidState::Zombie => {
                action.reasons.push(format!("pid {pid} has ended"));
                self.leftovers(recorded, action)?;
            }
        }
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "one face for all steps of a plan")]
    fn leftovers(&self, recorded: &identity::Recorded, action: &mut Action) -> Result<(), WorkerError> {
        let members = recorded.session.members().map_err(WorkerError::Proc)?;
        for member in &members.verified {
            action.action = ActionKind::Sweep;
            let ProcessIdentity { pid, .. } = member.identity();
            action.reasons.push(format!("process {pid} ({}) of its session is left", member.comm()));
        }
        for other in members.unverified {
            action.reasons.push(format!("process {} ({}) is not signalled: {}", other.pid, other.comm, other.reason));
        }
        Ok(())
    }
}
