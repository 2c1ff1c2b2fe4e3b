//! Entry point of `b70-tour`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::tour::run)
}
