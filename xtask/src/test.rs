//! `cargo xtask test`: set-up, then plain `cargo test` over the workspace, documentation examples included.

use std::process::{ExitCode, Stdio};

use crate::failure::Failure;
use crate::{process, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also run the tests that need a built llama.cpp, Node, systemd or root.
    #[arg(long)]
    all: bool,
    /// Arguments for cargo test, for example: -- -p b70-gguf -- --nocapture
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let environment = setup::prepare(args.all)?;
    let mut command = process::cargo();
    command.current_dir(process::workspace_root()).args(["test", "--locked", "--no-fail-fast"]);
    // A package named by the caller replaces the whole workspace.
    let narrowed = args.cargo_args.iter().take_while(|arg| *arg != "--").any(|arg| {
        matches!(arg.as_str(), "-p" | "--package") || arg.starts_with("--package=") || arg.starts_with("-p")
    });
    if !narrowed {
        command.arg("--workspace");
    }
    command.args(&args.cargo_args).envs(environment).stdin(Stdio::null());
    if args.all {
        if !args.cargo_args.iter().any(|arg| arg == "--") {
            command.arg("--");
        }
        command.arg("--include-ignored");
    }
    let status = command
        .status()
        .map_err(|error| Failure::new(format!("cannot start cargo test: {error}"), "check that cargo is on PATH"))?;
    Ok(ExitCode::from(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))))
}
