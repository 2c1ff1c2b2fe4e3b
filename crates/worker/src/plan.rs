//! Plans as data: what would be done, and what stands against it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use b70_manifest::workers::Worker;
use b70_procguard::{Host, LeaseStatus, PidState, PortOwner, PortState, StopOutcome, port_owners, probe_port};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    error::WorkerError,
    identity::{self, BinaryDigests},
    lane::GpuMode,
    memory::MemoryPlan,
    resolve::{ResolvedCommand, resolve},
    supervisor::{Supervisor, View},
    upstream::{self, UpstreamProcess, UpstreamRecord},
    validate::obstacles,
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
pub struct WorkerPlan {
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
    pub outcome: ActionOutcome,
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
pub enum ActionOutcome {
    /// It answers, and everything was confirmed.
    Ready,
    /// It was started and not waited for.
    Started,
    /// It did not come up; the detail says so if something of it is left.
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

impl WorkerPlan {
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
        let any = |outcome: ActionOutcome| self.results.iter().any(|r| r.outcome == outcome);
        if any(ActionOutcome::Interrupted) {
            exit::INTERRUPTED
        } else if any(ActionOutcome::Deadline) {
            exit::TIMEOUT
        } else if any(ActionOutcome::Failed) || !self.allowed() {
            exit::CHECK_FAILED
        } else {
            exit::OK
        }
    }
}

impl Action {
    pub(crate) fn new(worker: &Worker, action: ActionKind) -> Self {
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

    pub(crate) fn block(&mut self, reason: impl Into<String>) {
        self.allowed = false;
        let reason = reason.into();
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
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

/// Do these processes, and no others, hold the port? What clients left behind (`TIME_WAIT`) has no holder and is in nobody's
/// way once no one listens.
fn owned_by(owners: &[PortOwner], pids: &BTreeSet<u32>) -> bool {
    let ours = |owner: &PortOwner| owner.holders.iter().all(|h| pids.contains(&h.pid));
    let listening = |owner: &PortOwner| owner.state == "listening";
    owners.iter().any(|o| listening(o) && !o.holders.is_empty())
        && owners.iter().all(|o| ours(o) && (!o.holders.is_empty() || !listening(o)))
}

/// Does the lease end when these processes have ended?
fn ends_with(lease: &LeaseStatus, pids: &BTreeSet<u32>) -> bool {
    !lease.holders.is_empty() && lease.holders.iter().all(|pid| pids.contains(pid))
}

impl Supervisor<'_> {
    /// Plans to start workers. Nothing is changed.
    pub fn plan_start(&self, names: &[String]) -> Result<WorkerPlan, WorkerError> {
        let actions = self.start_actions(names, &BTreeSet::new())?;
        Ok(WorkerPlan::new(actions.into_iter().map(|(action, _)| action).collect()))
    }

    /// The starts of a plan, each with its command, judged as if the processes `gone` had ended.
    pub(crate) fn start_actions(
        &self,
        names: &[String],
        gone: &BTreeSet<u32>,
    ) -> Result<Vec<(Action, Option<ResolvedCommand>)>, WorkerError> {
        let workers = self.lane.select(names)?;
        let view = self.view()?;
        let obstacles = obstacles(self.lane, self.host, self.mode, &workers, self.local)?;
        let build = self.plan_build();
        let mut memory = MemoryPlan::look();
        let mut actions = Vec::new();
        for worker in workers {
            let (mut action, command) = self.plan_one(worker, &view, gone)?;
            for finding in &obstacles {
                let of_worker = self.lane.document.worker(&finding.subject).map(|w| &w.name);
                let of_profile = self.lane.document.profiles.get_key_value(&finding.subject).map(|(name, _)| name);
                // What is about no one worker is about all.
                if of_worker.is_none_or(|name| *name == worker.name)
                    && of_profile.is_none_or(|name| *name == worker.profile)
                {
                    action.block(&finding.message);
                }
            }
            match &build {
                Some(Ok(text)) => action.notes.push(text.clone()),
                Some(Err(text)) => action.block(text),
                None => {}
            }
            if let Some(command) = command.as_ref().filter(|_| self.local) {
                let verdict = memory.add(command, self.mode, self.checks.allow_low_memory);
                action.notes.extend(verdict.note);
                if let Some(reason) = verdict.blocked {
                    action.block(reason);
                }
            }
            actions.push((action, command));
        }
        Ok(actions)
    }

    /// What can be said of the build without starting it; `None` where files are not looked at.
    fn plan_build(&self) -> Option<Result<String, String>> {
        let binary = self.lane.path(&self.lane.document.binary);
        // Hashing is for those who gave something to compare with; a file that is not there is another check's.
        if !self.local || !binary.is_file() {
            return None;
        }
        if self.build_document().is_none() {
            return Some(Ok("build fingerprint unknown: no document is given".into()));
        }
        let found = BinaryDigests::read(&binary).and_then(|digests| self.build(&digests));
        Some(found.map(|build| build.text()).map_err(|error| error.to_string()))
    }

    /// Everything of the machine that stands against starting one worker, and the command it would get.
    pub(crate) fn plan_one(
        &self,
        worker: &Worker,
        view: &View,
        gone: &BTreeSet<u32>,
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
            let shown = command.redacted();
            action.command = shown.argv;
            action.environment = shown.set.into_iter().collect();
            action.unset = shown.unset;
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
        self.check_process(worker, gone, &mut action)?;
        self.check_port(worker, gone, &mut action)?;
        if let Ok(pci) = view.cards.resolve(worker.gpu) {
            match self.lease_status(pci) {
                Ok(Some(status)) if status.held && !ends_with(&status, gone) => {
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
        let own: BTreeSet<u32> = action.pid.into_iter().chain(gone.iter().copied()).collect();
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

    fn check_process(&self, worker: &Worker, gone: &BTreeSet<u32>, action: &mut Action) -> Result<(), WorkerError> {
        let recorded = match identity::read(&self.lane.paths(worker)) {
            Ok(recorded) => recorded,
            Err(error) => {
                action.block(format!("{error}; look at it and remove it, if no server of this worker runs"));
                return Ok(());
            }
        };
        let Some(recorded) = recorded else {
            match upstream::read(self.lane, worker, &Host::real()) {
                Ok(None) => {}
                Ok(Some(upstream)) => match upstream.process {
                    UpstreamProcess::Agrees(pid, how) => action.block(UpstreamRecord::running(pid, &how)),
                    UpstreamProcess::Ended(why) | UpstreamProcess::Other(_, why) => {
                        action.notes.push(format!("upstream's record of an earlier server is kept aside: {why}"));
                    }
                },
                Err(error) => action.block(error.to_string()),
            }
            return Ok(());
        };
        match recorded.state(&Host::real()) {
            PidState::Running if gone.contains(&recorded.process.pid) => {
                action.notes.push(format!("judged as if pid {} had been stopped", recorded.process.pid));
            }
            PidState::Running => {
                action.pid = Some(recorded.process.pid);
                action.block(format!("it runs already as pid {}", recorded.process.pid));
            }
            PidState::Unverifiable(why) => {
                action.block(format!("its recorded process {} cannot be verified: {why}", recorded.process.pid));
            }
            _ => {
                let left = recorded.session.members().map_err(WorkerError::Proc)?;
                for member in left.verified.iter().filter(|m| !gone.contains(&m.identity().pid)) {
                    action.block(format!(
                        "process {} ({}) of its last run is still there; stop the worker to end it",
                        member.identity().pid,
                        member.comm()
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_port(&self, worker: &Worker, gone: &BTreeSet<u32>, action: &mut Action) -> Result<(), WorkerError> {
        let Some(address) = self.lane.address(worker) else {
            action.notes.push(format!("port {} is unchecked: the host is not an address", worker.port));
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
            PortState::InUse { owners } if owned_by(&owners, gone) => {}
            PortState::InUse { owners } => {
                action.block(format!("port {} is in use {}", worker.port, port_text(&owners)));
            }
            PortState::Refused { reason } => {
                action.block(format!("{address} cannot be bound: {reason}"));
            }
        }
        Ok(())
    }
}
