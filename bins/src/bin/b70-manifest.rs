//! Entry point of `b70-manifest`.

use std::process::ExitCode;

fn main() -> ExitCode {
    b70_cli::run(b70kit_bins::manifest::run)
}
