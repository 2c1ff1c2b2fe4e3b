//! Child processes: commands whose output goes to standard error, and commands whose output is wanted.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// Runs a command to its end. Its output goes to standard error, because standard output is ours; it reads nothing.
pub(crate) fn run(command: &mut Command, next: &str) -> Result<(), Failure> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(io::stderr()))
        .status()
        .map_err(|error| Failure::new(format!("cannot start {}: {error}", name(command)), next))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("{} ended with {status}", line(command)), next))
}

/// The standard output of a command that ends well, without surrounding blanks; `None` for anything else.
pub(crate) fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The cargo that runs us, so that `cargo +toolchain xtask` stays on its toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The root of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    // Cargo sets the variable when it runs us; the compiled-in value serves a binary that is started directly.
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.join("src/generated.rs").is_file())
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    own.parent().map_or_else(|| own.clone(), Path::to_path_buf)
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn line(command: &Command) -> String {
    let mut words = vec![name(command)];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
