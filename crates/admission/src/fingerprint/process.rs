//! One program, without a shell, with a clean environment and a deadline.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use b70_procguard::{ProgramEnd, run_program};

/// Runs `program` in `directory` and hands its standard output to `consume` in pieces as it comes.
///
/// The environment holds `PATH`, `HOME` and `XDG_CONFIG_HOME` (where Git looks for the folders its user vouches for),
/// `LC_ALL=C`, and `extra`; nothing that could change an answer, no `GIT_*` of the caller.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: &[A],
    directory: &Path,
    extra: &[(&str, &str)],
    deadline: Duration,
    consume: &mut dyn FnMut(&[u8]),
) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env_clear();
    for name in ["PATH", "HOME", "XDG_CONFIG_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("LC_ALL", "C").envs(extra.iter().copied());
    let take = &mut |piece: &[u8]| {
        consume(piece);
        true
    };
    let run = run_program(command, false, deadline, take).map_err(|e| format!("{program} cannot be started: {e}"))?;
    match run.end {
        ProgramEnd::Exited(status) if !status.success() => {
            let line = run.errors.lines().next().unwrap_or_default();
            Err(format!("{program} ended with {status}{}{line}", if line.is_empty() { "" } else { ": " }))
        }
        ProgramEnd::Exited(_) if run.is_complete => Ok(()),
        ProgramEnd::Exited(_) => Err(format!("{program} left a process behind that holds its output")),
        _ => Err(format!("{program} took longer than {} s", deadline.as_secs_f64())),
    }
}
