//! The developer's commands of b70kit: `cargo xtask test`, `setup`, `vectors`, `schemas`, `man`, `synth`, `bench`,
//! `fuzz`, `campaign`, `licences`, `dist`.
//!
//! Everything a test needs beyond a Rust toolchain (Python packages, a real model, a real llama.cpp, an npm package) is
//! fetched once into a development cache outside the repository and handed to the tests as `B70_TEST_…` variables.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a developer's command line talks to its user")]

mod bench;
mod cache;
mod campaign;
mod commands;
mod dist;
mod failure;
mod fuzz;
mod generated;
mod licences;
mod process;
#[cfg(test)]
mod rules;
mod setup;
mod synth;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of b70kit", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what the tests need, then run `cargo test --workspace --locked`.
    Test(test::Args),
    /// Set up what the tests need and print it as `export` lines: eval "$(cargo xtask setup)".
    Setup(setup::Args),
    /// Write the known-answer vectors under fixtures/vectors from the crates.
    Vectors(generated::Args),
    /// Write the JSON Schemas under docs/schemas from the document types.
    Schemas(generated::Args),
    /// Write the man pages under docs/man from the binaries' command lines.
    Man(generated::Args),
    /// Write a synthetic GGUF model with the tensors of a real one and deterministic bytes.
    Synth(synth::Args),
    /// Measure whole processes against their peers and write the result under bench/results.
    Bench(bench::Args),
    /// Run the fuzz targets under fuzz/ (needs cargo-fuzz and a nightly toolchain).
    Fuzz(fuzz::Args),
    /// Hurt the real executables and check what they promise: kill, io, tamper, mix, clock, signals.
    Campaign(campaign::Args),
    /// Check the licences and sources of every dependency against deny.toml.
    Licences,
    /// Build the release: binaries, man pages, completions and schemas in a tarball, with --deb a Debian package too.
    Dist(dist::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Setup(args) => setup::run(&args),
        Command::Vectors(args) => generated::run("vectors", generated::VECTORS, &args),
        Command::Schemas(args) => generated::run("schemas", generated::SCHEMAS, &args),
        Command::Man(args) => generated::run("man", generated::MAN, &args),
        Command::Synth(args) => synth::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Campaign(args) => campaign::run(&args),
        Command::Licences => licences::run(),
        Command::Dist(args) => dist::run(&args),
    };
    outcome.unwrap_or_else(|failure: Failure| {
        eprintln!("error: {failure}");
        ExitCode::from(failure.exit_code())
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
