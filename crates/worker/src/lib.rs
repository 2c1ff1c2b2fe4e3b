//! Supervisor of single-GPU servers: plan, start, watch, stop, liveness, rendered units.
#![deny(unsafe_code)]

mod error;
mod flags;
mod graph;
mod init;
mod identity;
mod lane;
mod launcher;
mod liveness;
mod logs;
mod plan;
mod render;
mod resolve;
mod start;
mod status;
mod stop;
mod supervisor;
mod sys;
mod validate;

pub use crate::{
    error::WorkerError,
    flags::ServerFlags,
    graph::{GraphEvidence, GraphState},
    lane::{CardMap, GpuMode, Lane, WorkerPaths},
    launcher::LauncherScript,
    liveness::{
        Activity, KernelFindings, LivenessReport, LivenessState, ProbeOptions, ProbeStep, RecoveryStep, local_listener,
        probe,
    },
    resolve::{ResolveOptions, ResolvedCommand, resolve},
    validate::{Finding, Severity, Validation, validate},
};
pub use crate::{
    identity::{Recorded, read as read_identity},
    logs::{follow as follow_log, tail as log_tail},
    plan::{Action, ActionKind, ActionResult, Outcome, Plan},
    start::StartOptions,
    status::StatusOptions,
    stop::StopOptions,
    supervisor::Supervisor,
};
pub use crate::{
    init::{FIRST_PORT, InitOptions, assign, starter, write_new},
    render::{RenderFormat, Rendered, UnitOptions, render},
};
