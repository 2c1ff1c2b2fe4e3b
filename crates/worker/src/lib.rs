//! Supervisor of single-GPU servers: plan, start, watch, stop, liveness, rendered units.
//!
//! A *lane* is one `workers.json`: several llama-server processes, each alone on one physical card. This crate says what would
//! be done with them and what stands against it, does it, and tells whether they still generate. It starts programs
//! without a shell, signals nothing that it did not start, and prints nothing.
//!
//! # Vocabulary
//! - *plan*: what would be done with each worker, whether it may be, and every reason. Execution plans again.
//! - *record*: `resolved-identity.json`, which names the process (boot, number, start) and exactly what it runs.
//! - *session*: the server and the helpers it started, found by session number and a random mark.
//! - *foreign*: a process the kit did not start for that worker. It blocks a start and is never signalled.
//! - *liveness*: `healthy`, `loading`, `busy`, `asleep`, `wedged` or `lost`, by what passes the server's task queue.
//!
//! # Example
//! ```
//! use b70_procguard::Host;
//! use b70_worker::{GpuMode, LivenessState, ProbeOptions, probe, validate};
//!
//! // Nobody listens on port 1: lost, with a plan for what to do that is only ever printed.
//! let report = probe("http://127.0.0.1:1", &Host::real(), &ProbeOptions::default())?;
//! assert_eq!(report.state, LivenessState::Lost);
//! assert!(!report.recovery.is_empty());
//!
//! assert!(validate("no-such-workers.json".as_ref(), &Host::real(), GpuMode::Absent, &[]).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! - A process that leaves its session by `setsid` of its own is not found by a sweep; a unit's cgroup finds it.
//! - Between the last look at a card and the server's own memory there, another program may take it. The look is repeated
//!   when the server is ready.
//! - Without a known process, a batch longer than the probe's deadline reads as wedged.
//! - Records of workers are development screens: nothing measured on them is promotion-eligible by itself.
#![deny(unsafe_code)]

mod build;
mod error;
mod flags;
mod graph;
mod identity;
mod init;
mod lane;
mod launcher;
mod liveness;
mod logs;
mod memory;
mod output;
mod plan;
mod render;
mod resolve;
mod restart;
mod start;
mod status;
mod stop;
mod supervisor;
mod sys;
mod trust;
mod upstream;
mod validate;

pub use crate::{
    error::WorkerError,
    flags::ServerFlags,
    graph::{GraphEvidence, GraphState},
    identity::{Recorded, read as read_identity},
    init::{FIRST_PORT, InitOptions, assign, redacted, starter, write_new},
    lane::{CardMap, GpuMode, Lane, WorkerPaths},
    launcher::LauncherScript,
    liveness::{
        Activity, KernelFindings, LivenessReport, LivenessState, ProbeOptions, ProbeStep, RecoveryStep, local_listener,
        probe,
    },
    logs::{LogFollower, tail as log_tail},
    output::{LogText, RenderedFiles, ResolvedWorkers, output_schemas},
    plan::{Action, ActionKind, ActionOutcome, ActionResult, WorkerPlan},
    render::{RenderFormat, Rendered, UnitOptions, render},
    resolve::{ResolveOptions, ResolvedCommand, resolve},
    start::StartOptions,
    status::StatusOptions,
    stop::StopOptions,
    supervisor::{StartChecks, Supervisor},
    validate::{Finding, Severity, Validation, validate},
};
