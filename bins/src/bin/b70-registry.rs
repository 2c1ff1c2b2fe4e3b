//! Entry point of `b70-registry`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::registry::run)
}
