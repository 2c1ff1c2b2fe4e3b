//! What each worker is doing.

use std::{collections::BTreeSet, time::Duration};

use b70_client::ApiKey;
use b70_manifest::{
    EvidenceClass,
    state::{StatusRow, WorkerStatus},
    workers::Worker,
};
use b70_procguard::{Host, KernelLog, PidState, port_owners};
use serde_json::{Map, Value, json};

use crate::{
    error::WorkerError,
    graph::GraphEvidence,
    identity,
    lane::GpuMode,
    liveness::{KernelFindings, ProbeOptions, local_listener, probe},
    supervisor::{Supervisor, View},
    upstream::{self, UpstreamProcess, UpstreamRecord},
};

/// How to look.
#[derive(Debug, Clone, Default)]
pub struct StatusOptions {
    /// Probe each running worker for a token, within this deadline.
    pub probe: Option<Duration>,
    /// Key of the servers.
    pub api_key: Option<ApiKey>,
}

impl Supervisor<'_> {
    /// Looks at the workers. With a recorded host, only what that record shows is known.
    pub fn status(&self, names: &[String], options: &StatusOptions) -> Result<WorkerStatus, WorkerError> {
        let view = self.view()?;
        let log = KernelLog::read(self.host);
        let mut rows = Vec::new();
        for worker in self.lane.select(names)? {
            rows.push(self.row(worker, &view, &log, options)?);
        }
        let mut extra = Map::new();
        if self.mode == GpuMode::Absent {
            extra.insert("skipped".into(), json!(["presence of cards", "memory in use on cards", "leases"]));
        }
        Ok(WorkerStatus { schema_version: 1, workers: rows, extra })
    }

    fn row(
        &self,
        worker: &Worker,
        view: &View,
        log: &KernelLog,
        options: &StatusOptions,
    ) -> Result<StatusRow, WorkerError> {
        let mut extra = Map::new();
        let (mut pid, mut state, mut started) = (None, PidState::Absent, None);
        let mut ours = BTreeSet::new();
        match identity::read(&self.lane.paths(worker)) {
            Ok(Some(recorded)) => {
                state = recorded.state(self.host);
                pid = Some(recorded.process.pid);
                started = (state == PidState::Running).then_some(recorded.process.start_time);
                if self.host.is_real() {
                    let members = recorded.session.members().map_err(WorkerError::Proc)?;
                    ours.extend(members.verified.iter().map(|m| m.identity().pid));
                } else if state == PidState::Running {
                    ours.insert(recorded.process.pid);
                }
                extra.insert("session_pids".into(), json!(ours));
                extra.insert("model".into(), json!(recorded.identity.target_model));
                extra.insert("draft_model".into(), json!(recorded.identity.draft_model));
                extra.insert("pack_stage".into(), json!(recorded.identity.pack_stage));
                extra.insert("build_fingerprint_sha256".into(), json!(recorded.identity.build_fingerprint_sha256));
                extra.insert("started_unix".into(), json!(recorded.identity.started_unix));
                extra.insert("started_utc".into(), json!(recorded.identity.started_utc));
                if let Some(log) = &recorded.identity.log {
                    let graph = GraphEvidence::read(log.as_ref());
                    extra.insert(
                        "graph".into(),
                        graph.map_or_else(|e| json!({"unreadable": e.to_string()}), |g| json!(g)),
                    );
                }
            }
            Ok(None) => {
                if let Some(upstream) = upstream::read(self.lane, worker, self.host)? {
                    let (number, found, why) = match &upstream.process {
                        UpstreamProcess::Ended(why) => (None, PidState::Absent, why.clone()),
                        UpstreamProcess::Other(pid, why) => (Some(*pid), PidState::Reused, why.clone()),
                        UpstreamProcess::Agrees(pid, how) => {
                            ours.insert(*pid);
                            let why = UpstreamRecord::running(*pid, how);
                            (Some(*pid), PidState::Unverifiable(why.clone()), why)
                        }
                    };
                    (pid, state) = (number, found);
                    extra.insert("record".into(), json!("upstream"));
                    extra.insert("record_reason".into(), json!(why));
                    extra.insert("started_unix".into(), json!(upstream.identity.started_unix));
                }
            }
            Err(error) => state = PidState::Unverifiable(error.to_string()),
        }
        if let PidState::Unverifiable(why) = &state {
            extra.insert("pid_state_reason".into(), json!(why));
        }
        let foreign = view.foreign(worker, &ours);
        extra.insert("foreign".into(), json!(foreign.reasons));
        let pci = view.cards.resolve(worker.gpu);
        extra.insert("card".into(), json!(view.cards.real(worker.gpu)));
        match &pci {
            Ok(pci) => {
                if self.mode == GpuMode::Required {
                    // Of a worker that runs, since it started; otherwise everything the log still has.
                    extra.insert("kernel".into(), json!(KernelFindings::of(self.host, log, *pci, started)));
                }
                let lease = self.lease_status(*pci);
                extra.insert("lease".into(), lease.map_or_else(|e| json!({"unreadable": e.to_string()}), |l| json!(l)));
            }
            Err(why) => drop(extra.insert("card_reason".into(), json!(why))),
        }
        let port_open = match self.lane.address(worker) {
            Some(address) => port_owners(self.host, address)
                .map_err(WorkerError::Proc)?
                .iter()
                .any(|owner| owner.state == "listening"),
            None => false,
        };
        if let Some(deadline) = options.probe
            && self.host.is_real()
        {
            let card = view.cards.real(worker.gpu).filter(|_| self.mode == GpuMode::Required);
            // A launcher that stays is not the process that computes.
            let url = self.lane.url(worker);
            let serving = local_listener(self.host, &url)
                .filter(|pid| ours.contains(pid))
                .or(pid.filter(|_| state == PidState::Running));
            let probing = ProbeOptions { deadline, api_key: options.api_key.clone(), pid: serving, card };
            let report = probe(&url, &Host::real(), &probing)?;
            extra.insert("liveness".into(), serde_json::to_value(report).unwrap_or(Value::Null));
        }
        Ok(StatusRow {
            name: worker.name.clone(),
            role: worker.role.clone(),
            profile: worker.profile.clone(),
            gpu: worker.gpu,
            port: worker.port,
            pid,
            pid_state: state.word().to_owned(),
            port_open,
            foreign_llama_pids: foreign.pids,
            evidence_class: EvidenceClass::DevelopmentScreenOnly,
            extra,
        })
    }
}
