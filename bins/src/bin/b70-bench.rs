//! Entry point of `b70-bench`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::bench::run)
}
