//! Entry point of `b70-worker`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70_worker_bin::run)
}
