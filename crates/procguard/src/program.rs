//! A program that is run to its end: bounded in time, its output handed on as it comes, ended with all that it started.

use std::{
    io::{self, PipeWriter, Read as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::{
    host::Host,
    process::{ProcStat, VerifiedProcess},
};

/// How long output may follow the end of the program (a grandchild that left its group can hold the pipe).
const DRAIN: Duration = Duration::from_secs(2);
/// How long what the program left behind may take to end after it was killed.
const END: Duration = Duration::from_secs(5);
/// Pieces of output, of up to 64 KiB each, that wait to be taken. A program that prints faster waits, so that no output
/// piles up in memory.
const PIECES: usize = 16;
/// The most of a standard error of its own that is kept.
const MAX_ERRORS: usize = 4096;

/// How a program ended.
#[derive(Debug)]
pub enum ProgramEnd {
    /// By itself.
    Exited(ExitStatus),
    /// It did not end in time and was killed.
    TimedOut,
    /// The caller wanted no more of it, and it was killed.
    Stopped,
}

/// A program that was run.
#[derive(Debug)]
pub struct ProgramRun {
    /// How it ended.
    pub end: ProgramEnd,
    /// The beginning of its standard error, where that was kept apart.
    pub errors: String,
    /// Whether all of its output was taken: a process that left its group may hold the pipe and go on writing.
    pub is_complete: bool,
}

/// Runs a program without standard input in a process group of its own.
///
/// `take` gets the standard output in pieces as it comes, with standard error in order when that is `merged`, and an empty
/// piece now and then; as soon as it returns `false`, the program is killed. Nothing of the group survives the call.
///
/// # Errors
/// The program cannot be started, or what it started cannot be ended.
pub fn run_program(
    mut command: Command,
    merged: bool,
    timeout: Duration,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<ProgramRun> {
    let started = Instant::now();
    let (sender, received) = sync_channel(PIECES);
    let output = pipe(false, sender.clone())?;
    let errors = if merged { output.try_clone()? } else { pipe(true, sender)? };
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn()?;
    // The command holds the pipes' writing ends; the readers wait for their last copies to go.
    drop(command);
    // An uncollected child keeps its number, so this is the child even if it has exited already.
    let process = VerifiedProcess::of_child(child.id()).ok();
    let mut errors = Vec::new();
    let mut pass = |(is_error, bytes): (bool, Vec<u8>)| {
        if is_error {
            errors.extend_from_slice(&bytes[..bytes.len().min(MAX_ERRORS - errors.len())]);
        }
        take(if is_error { &[] } else { &bytes })
    };
    let cut = loop {
        if started.elapsed() >= timeout {
            break Some(ProgramEnd::TimedOut);
        }
        let waited = received.recv_timeout(Duration::from_millis(20));
        let closed = waited == Err(RecvTimeoutError::Disconnected);
        let idle = waited.is_err();
        if !pass(waited.unwrap_or_default()) {
            break Some(ProgramEnd::Stopped);
        }
        if idle && process.as_ref().is_none_or(|p| p.exited().unwrap_or(true)) {
            break None;
        }
        if closed {
            // It closed its output and lives on, or is about to end.
            thread::sleep(Duration::from_millis(5));
        }
    };
    let status = end_group(&mut child)?;
    let until = Instant::now() + DRAIN;
    let is_complete = loop {
        match received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(piece) => {
                pass(piece);
            }
            Err(error) => break error == RecvTimeoutError::Disconnected,
        }
    };
    let errors = String::from_utf8_lossy(&errors).trim().to_owned();
    Ok(ProgramRun { end: cut.unwrap_or(ProgramEnd::Exited(status)), errors, is_complete })
}

/// A pipe that is read in a thread of its own, which ends with the last writer or the receiver.
fn pipe(is_error: bool, sender: SyncSender<(bool, Vec<u8>)>) -> io::Result<PipeWriter> {
    let (mut reader, writer) = io::pipe()?;
    thread::Builder::new().name("b70-output".into()).spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) if sender.send((is_error, buffer[..n].to_vec())).is_err() => break,
                Err(e) if e.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
    })?;
    Ok(writer)
}

/// Kills the group that the uncollected child leads, so that its number cannot mean another one, collects the child, and
/// waits for the others. Those that nobody collects are dead all the same.
fn end_group(child: &mut Child) -> io::Result<ExitStatus> {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::KILL);
    let status = child.wait()?;
    let (host, until) = (Host::real(), Instant::now() + END);
    let lives = |pid| {
        let stat = ProcStat::read(&host, pid).ok().flatten();
        stat.is_some_and(|stat| stat.pgrp == child.id() && !stat.is_dead())
    };
    while test_kill_process_group(group).is_ok() && host.pids()?.into_iter().any(lives) {
        if Instant::now() >= until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "what it started does not end after SIGKILL"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_is_bounded_and_ended_with_what_it_started() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut text = Vec::new();
        let mut keep = |piece: &[u8]| {
            text.extend_from_slice(piece);
            true
        };
        let run = run_program(shell("echo out; echo why >&2; exit 3"), false, second * 60, &mut keep).unwrap();
        assert!(matches!(run.end, ProgramEnd::Exited(status) if status.code() == Some(3)), "{run:?}");
        assert!(run.is_complete && run.errors == "why");
        run_program(shell("echo one; echo two >&2"), true, second * 60, &mut keep).unwrap();
        // A helper in the background would hold the pipe for a minute.
        let run = run_program(shell("sleep 60 & echo $!"), false, second * 60, &mut keep).unwrap();
        assert!(run.is_complete);
        assert!(matches!(
            run_program(shell("sleep 60 & sleep 60"), false, second / 5, &mut keep).unwrap().end,
            ProgramEnd::TimedOut
        ));
        let endless = run_program(shell("yes"), false, second * 60, &mut |piece| piece.is_empty()).unwrap();
        assert!(matches!(endless.end, ProgramEnd::Stopped));
        assert!(run_program(Command::new("/nonexistent"), false, second, &mut keep).is_err());
        assert!(text.starts_with(b"out\none\ntwo\n"), "{:?}", String::from_utf8_lossy(&text));
        assert!(start.elapsed() < second * 30, "nothing was waited for");
    }
}
