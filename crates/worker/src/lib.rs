//! Supervisor of single-GPU servers: plan, start, watch, stop, liveness, rendered units.
