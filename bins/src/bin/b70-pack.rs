//! Entry point of `b70-pack`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70kit_bins::pack::run)
}
