//! Entry point of `b70-gpu`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70_gpu_bin::run)
}
