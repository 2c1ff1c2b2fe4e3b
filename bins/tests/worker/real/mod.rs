//! The commands with a real llama-server, and a rendered unit with systemd's own checker.
//!
//! `B70_TEST_LLAMA_SERVER=…/llama-server B70_TEST_MODEL=….gguf cargo test -p b70kit-bins --test real -- --include-ignored`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed step is a failed test; figures and skips are said"
)]

mod copies;
mod support;
mod units;
mod workers;
