//! Supervisor of single-GPU servers: plan, start, watch, stop, liveness, rendered units.
#![deny(unsafe_code)]

mod error;
mod liveness;

pub use crate::{
    error::WorkerError,
    liveness::{
        Activity, KernelFindings, LivenessReport, LivenessState, ProbeOptions, ProbeStep, RecoveryStep, local_listener,
        probe,
    },
};
