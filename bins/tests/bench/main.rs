//! The executable `b70-bench`.

mod cli;
#[path = "../../../crates/bench/tests/support/fake.rs"]
mod fake;
#[path = "../../../crates/client/tests/support/mod.rs"]
mod fault_server;
