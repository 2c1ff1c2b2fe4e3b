//! Entry point of `b70-worker`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::worker::run)
}
