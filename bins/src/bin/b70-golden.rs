//! Entry point of `b70-golden`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::golden::run)
}
