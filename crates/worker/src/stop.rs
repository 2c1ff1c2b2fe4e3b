//! Stopping: exactly what was started, and nothing else.

use std::{
    fs,
    time::{Duration, Instant},
};

use b70_procguard::{Host, PidState, ProcessIdentity, Signaller, StopPolicy, stop};

use crate::{
    error::WorkerError,
    identity,
    plan::{Action, ActionKind, ActionOutcome, ActionResult, WorkerPlan},
    start::operation_lock,
    supervisor::Supervisor,
    trust::not_ours,
    upstream::{self, UpstreamProcess, UpstreamRecord},
};

/// After KILL the kernel takes a process down at once, unless a driver holds it.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// How to stop.
pub struct StopOptions<'a> {
    /// After TERM, wait this long. llama-server ends its current batch first.
    pub wait: Duration,
    /// Kill after this long instead of giving up.
    pub kill_after: Option<Duration>,
    /// The sender of all signals; its log tells every one.
    pub signaller: &'a Signaller,
    /// Told what happens, by worker.
    pub progress: &'a dyn Fn(&str, &str),
}

impl Supervisor<'_> {
    /// Plans to stop workers. Nothing is changed.
    pub fn plan_stop(&self, names: &[String]) -> Result<WorkerPlan, WorkerError> {
        let mut plan = Vec::new();
        for worker in self.lane.select(names)? {
            let mut action = Action::new(worker, ActionKind::None);
            match identity::read(&self.lane.paths(worker)) {
                Ok(Some(recorded)) => plan_one(&recorded, &mut action)?,
                Ok(None) => match upstream::read(self.lane, worker, &Host::real())?.map(|record| record.process) {
                    None => action.reasons.push("the kit has no record of it: nothing to stop".into()),
                    Some(UpstreamProcess::Agrees(pid, how)) => action.block(UpstreamRecord::running(pid, &how)),
                    Some(UpstreamProcess::Ended(why)) => {
                        action.reasons.push(format!("upstream's record: {why}: nothing to stop"));
                    }
                    Some(UpstreamProcess::Other(pid, why)) => action.reasons.push(format!(
                        "upstream's record: pid {pid} is another process now ({why}): it is not signalled"
                    )),
                },
                Err(error) => action.block(error.to_string()),
            }
            plan.push(action);
        }
        Ok(WorkerPlan::new(plan))
    }

    /// Plans and carries out a stop. Workers whose process cannot be verified are reported and not signalled.
    pub fn stop(&self, names: &[String], options: &StopOptions<'_>) -> Result<WorkerPlan, WorkerError> {
        let mut plan = self.plan_stop(names)?;
        plan.executed = true;
        let policy = StopPolicy {
            term_wait: options.kill_after.unwrap_or(options.wait),
            kill_wait: options.kill_after.map(|_| KILL_WAIT),
        };
        for action in plan.plan.iter().filter(|a| a.allowed) {
            let worker = self.lane.worker(&action.worker)?;
            let paths = self.lane.paths(worker);
            let began = Instant::now();
            let mut result = ActionResult {
                worker: worker.name.clone(),
                outcome: ActionOutcome::Nothing,
                detail: action.reasons.join("; "),
                pid: action.pid,
                seconds: 0.0,
                stop: None,
            };
            if matches!(action.action, ActionKind::Stop | ActionKind::Sweep) {
                let _guard = operation_lock(&paths)?;
                // Read again under the lock; stopping verifies the process once more, by its pidfd.
                if let Some(recorded) = identity::read(&paths)?.filter(|r| not_ours(r.owner).is_none()) {
                    (options.progress)(&worker.name, &format!("TERM to pid {}", recorded.process.pid));
                    let outcome = stop(options.signaller, &recorded.session, policy).map_err(WorkerError::Proc)?;
                    let done = outcome.ended && outcome.leftovers_alive.is_empty();
                    result.outcome = if done { ActionOutcome::Stopped } else { ActionOutcome::Deadline };
                    result.detail = describe(&outcome, options);
                    if done {
                        let _ = fs::remove_file(&paths.pid);
                    }
                    result.stop = Some(outcome);
                }
            }
            result.seconds = began.elapsed().as_secs_f64();
            (options.progress)(&worker.name, &result.detail);
            plan.results.push(result);
        }
        Ok(plan)
    }
}

fn plan_one(recorded: &identity::Recorded, action: &mut Action) -> Result<(), WorkerError> {
    let pid = recorded.process.pid;
    if let Some(why) = not_ours(recorded.owner) {
        action.block(format!("pid {pid} is not signalled: {why}"));
        return Ok(());
    }
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
            leftovers(recorded, action)?;
        }
        PidState::Stale => {
            action.reasons.push(format!("the machine was booted since; pid {pid} means nothing and is not signalled"));
        }
        PidState::Absent | PidState::Zombie => {
            action.reasons.push(format!("pid {pid} has ended"));
            leftovers(recorded, action)?;
        }
    }
    Ok(())
}

fn leftovers(recorded: &identity::Recorded, action: &mut Action) -> Result<(), WorkerError> {
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

fn describe(outcome: &b70_procguard::StopOutcome, options: &StopOptions<'_>) -> String {
    let mut text = if outcome.ended {
        let how = if outcome.killed { "killed" } else { "ended" };
        format!("{how}, {} other process(es) of its session ended", outcome.leftovers_ended.len())
    } else {
        let state = outcome.stuck_state.unwrap_or('?');
        let next = match (state, options.kill_after) {
            ('D', _) => "it is stuck in the kernel and still holds the card's memory: do not start on that card",
            ('T' | 't', None) => "it is stopped by a signal; SIGCONT lets it end, --kill-after S kills it",
            (_, None) => "--kill-after S kills it",
            (_, Some(_)) => "it was killed and is not gone yet",
        };
        format!(
            "still there after {:.0} s (state {state}): {next}",
            options.kill_after.unwrap_or(options.wait).as_secs_f64()
        )
    };
    if !outcome.leftovers_alive.is_empty() {
        text.push_str(&format!("; {} process(es) of its session are still there", outcome.leftovers_alive.len()));
    }
    for other in &outcome.unverified {
        text.push_str(&format!("; process {} ({}) was not signalled: {}", other.pid, other.comm, other.reason));
    }
    text
}
