//! Entry point of `b70-pack`.

fn main() -> std::process::ExitCode {
    b70_cli::run(b70_pack_bin::run)
}
