//! Entry point of `b70-gpu`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::gpu::run)
}
