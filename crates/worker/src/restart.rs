//! Restarting: one plan of two halves, the second judged as if the first had been carried out.

use std::collections::BTreeSet;

use crate::{
    error::WorkerError,
    identity,
    plan::{ActionKind, ActionOutcome, ActionResult, WorkerPlan},
    start::StartOptions,
    stop::StopOptions,
    supervisor::Supervisor,
};

impl Supervisor<'_> {
    /// Plans to stop workers and to start them again: all stops first, then all starts. Nothing is changed.
    ///
    /// What a start is judged by is the machine without the processes that the stops end; what of it cannot be foreseen
    /// (a process that ignores TERM, memory that a driver keeps) is found when the start plans again.
    pub fn plan_restart(&self, names: &[String]) -> Result<WorkerPlan, WorkerError> {
        let mut plan = self.plan_stop(names)?;
        let gone = self.ended_by(&plan)?;
        let starts = self.start_actions(names, &gone)?;
        plan.plan.extend(starts.into_iter().map(|(action, _)| action));
        Ok(plan)
    }

    /// Processes that the stops of a plan end.
    fn ended_by(&self, plan: &WorkerPlan) -> Result<BTreeSet<u32>, WorkerError> {
        let mut gone = BTreeSet::new();
        for action in plan.plan.iter().filter(|a| matches!(a.action, ActionKind::Stop | ActionKind::Sweep)) {
            let worker = self.lane.worker(&action.worker)?;
            if let Some(recorded) = identity::read(&self.lane.paths(worker))? {
                let members = recorded.session.members().map_err(WorkerError::Proc)?;
                gone.extend(members.verified.iter().map(|m| m.identity().pid));
                gone.extend(action.pid);
            }
        }
        Ok(gone)
    }

    /// Plans and carries out a restart: nothing is stopped if a start is blocked, and nothing is started if a stop fails.
    pub fn restart(
        &self,
        names: &[String],
        stop: &StopOptions<'_>,
        start: &StartOptions<'_>,
    ) -> Result<WorkerPlan, WorkerError> {
        let mut plan = self.plan_restart(names)?;
        if !plan.allowed() {
            return Ok(plan);
        }
        plan.executed = true;
        let stopped = self.stop(names, stop)?;
        let failed = stopped.exit_code() != b70_manifest::exit::OK;
        plan.results = stopped.results;
        // Planned again by `stop`, and refused since: whatever it was, nothing is started beside it.
        plan.results.extend(stopped.plan.iter().filter(|a| !a.allowed).map(|a| refused(&a.worker, &a.reasons)));
        if failed {
            return Ok(plan);
        }
        let started = self.start(names, start)?;
        plan.results.extend(started.results);
        plan.results.extend(started.plan.iter().filter(|a| !a.allowed).map(|a| refused(&a.worker, &a.reasons)));
        Ok(plan)
    }
}

fn refused(worker: &str, reasons: &[String]) -> ActionResult {
    ActionResult {
        worker: worker.to_owned(),
        outcome: ActionOutcome::Failed,
        detail: format!("blocked since it was planned: {}", reasons.join("; ")),
        pid: None,
        seconds: 0.0,
        stop: None,
    }
}
