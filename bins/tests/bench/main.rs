//! The executable `b70-bench`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cli;
#[path = "../../../crates/bench/tests/support/fake.rs"]
mod fake;
#[path = "../../../crates/client/tests/support/mod.rs"]
mod fault_server;
