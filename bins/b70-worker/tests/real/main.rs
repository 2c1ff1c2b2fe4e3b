//! The commands with a real llama-server, and a rendered unit with systemd's own checker.
//!
//! Gated: `B70_TEST_ALL=1 B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70-worker-bin --test real`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step is a failed test; figures and skips are said"
)]

mod copies;
mod support;
mod units;
mod workers;
