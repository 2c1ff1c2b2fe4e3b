//! One program, without a shell, with a clean environment and a deadline.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The most of standard error that is kept.
const MAX_STDERR: u64 = 4096;

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
    consume: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env_clear();
    for name in ["PATH", "HOME", "XDG_CONFIG_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("LC_ALL", "C").envs(extra.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that a helper it started cannot hold the pipes beyond the deadline.
    command.process_group(0);
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("{program} cannot be started: {e}"))?;
    let (Some(mut stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(format!("{program} has no pipes"));
    };
    let (status, read, errors) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || -> std::io::Result<()> {
            let mut buffer = vec![0; 64 << 10];
            loop {
                match stdout.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(n) => consume(&buffer[..n]),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        });
        let complaints = scope.spawn(move || {
            let mut text = Vec::new();
            let mut stderr = stderr;
            let _ = (&mut stderr).take(MAX_STDERR).read_to_end(&mut text);
            // Drained to the end, or the program could block on a full pipe.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        let mut pause = Duration::from_millis(1);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Err(e) => break Err(e.to_string()),
                Ok(None) => {}
            }
            if start.elapsed() >= deadline {
                // Our own child, not yet collected, and the group it leads: nobody else can have the number.
                let _ = rustix::process::kill_process_group(
                    rustix::process::Pid::from_child(&child),
                    rustix::process::Signal::KILL,
                );
                let _ = child.wait();
                break Err(format!("{program} took longer than {} s", deadline.as_secs_f64()));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        (status, reader.join(), complaints.join().unwrap_or_default())
    });
    let status = status?;
    read.map_err(|_| format!("reading {program} panicked"))?.map_err(|e| format!("{program}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        let line = errors.lines().next().unwrap_or_default().to_owned();
        Err(format!("{program} ended with {status}{}{line}", if line.is_empty() { "" } else { ": " }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_holds_the_pipes_is_ended_with_its_program() {
        let start = Instant::now();
        let deadline = Duration::from_millis(200);
        let script = ["-c", "sleep 60 & sleep 60"];
        let error = run("sh", &script, Path::new("/"), &[], deadline, &mut |_| {}).expect_err("it takes too long");
        assert!(error.contains("took longer than 0.2 s"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "the background sleep was waited for");
    }
}
