//! Entry point of `b70-cache`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::cache::run)
}
