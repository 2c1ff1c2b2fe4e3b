//! One test as a child process: streamed to its log, bounded in time and output, ended with all that it started.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use b70_procguard::{Host, ProcStat, ProcessIdentity, ProcessSignal, Signaller, VerifiedProcess};

use super::output::{Counter, Counts};
use crate::error::GoldenError;

/// The largest log of one test; a program that prints more is ended.
const MAX_LOG: u64 = 256 << 20;
/// How long output may follow the end of the program (a grandchild that left its group can hold the pipe).
const DRAIN: Duration = Duration::from_secs(2);

/// Pieces of output, of up to 64 KiB each, that wait to be written. A program that prints faster waits for its log, so that
/// no output piles up in memory.
const PIECES: usize = 16;

/// How a test ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) counts: Counts,
    /// Why it is no pass, apart from its counts.
    pub(super) fault: Option<String>,
    pub(super) seconds: f64,
}

/// What is the same for every test.
pub(super) struct Bounds<'a> {
    pub(super) timeout: Duration,
    pub(super) cancel: &'a AtomicBool,
}

/// Runs `command` to its end, its output (both streams, in order) going to `log` and to `stream`.
pub(super) fn run(
    mut command: Command,
    log: (&Path, File),
    stream: &mut dyn FnMut(&[u8]),
    bounds: &Bounds<'_>,
) -> Result<Ended, GoldenError> {
    let program = command.get_program().to_owned();
    let binary = |e: std::io::Error| GoldenError::Binary { path: program.clone().into(), why: e.to_string() };
    let (mut reader, writer) = std::io::pipe().map_err(binary)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(binary)?).stderr(writer);
    // A group of its own: an interrupt of the terminal is ours to pass on, and what it starts can be ended with it.
    command.process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().map_err(binary)?;
    // The command holds the pipe's writing end; the reader waits for its last copy to go.
    drop(command);
    let (sender, received) = sync_channel(PIECES);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) if sender.send(buffer[..n].to_vec()).is_err() => break,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    });
    let mut sink = Sink { path: log.0, file: log.1, size: 0, counter: Counter::default(), stream };
    let watched = watch(&child, &received, &mut sink, started, bounds);
    // Whatever happened: nothing of the group survives, and the child, which held the group's number, is collected last.
    let ended = end_group(child.id());
    let status = child.wait();
    drain(&received, &mut sink)?;
    ended.map_err(|e| GoldenError::Io { action: "end the processes of", path: program.clone().into(), source: e })?;
    let fault = match watched? {
        Watched::Exited => fault_of(status.map_err(binary)?),
        Watched::Fault(fault) => Some(fault),
    };
    Ok(Ended { counts: sink.counter.finish(), fault, seconds: started.elapsed().as_secs_f64() })
}

fn fault_of(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("it ended with exit code {code}")),
        (None, Some(signal)) => {
            Some(format!("it crashed: signal {signal}{}", if status.core_dumped() { ", core dumped" } else { "" }))
        }
        (None, None) => Some("it ended in an unknown way".to_owned()),
    }
}

struct Sink<'a> {
    path: &'a Path,
    file: File,
    size: u64,
    counter: Counter,
    stream: &'a mut dyn FnMut(&[u8]),
}

impl Sink<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), GoldenError> {
        let room = MAX_LOG.saturating_sub(self.size) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        self.file.write_all(bytes).map_err(|source| GoldenError::Io {
            action: "write the log",
            path: self.path.to_path_buf(),
            source,
        })?;
        self.size += bytes.len() as u64;
        self.counter.take(bytes);
        (self.stream)(bytes);
        Ok(())
    }
}

enum Watched {
    Exited,
    Fault(String),
}

/// Passes output on until the child exits (it is not collected), its time is up, or the caller ends it.
fn watch(
    child: &Child,
    received: &Receiver<Vec<u8>>,
    sink: &mut Sink<'_>,
    started: Instant,
    bounds: &Bounds<'_>,
) -> Result<Watched, GoldenError> {
    // An uncollected child keeps its number, so this is the child even if it has exited already.
    let process = VerifiedProcess::of_child(child.id()).ok();
    loop {
        if bounds.cancel.load(Ordering::Relaxed) {
            return Err(GoldenError::Interrupted);
        }
        if started.elapsed() >= bounds.timeout {
            return Ok(Watched::Fault(format!(
                "it did not end within {} s and was killed",
                bounds.timeout.as_secs_f64()
            )));
        }
        if sink.size >= MAX_LOG {
            return Ok(Watched::Fault(format!("it printed more than {MAX_LOG} bytes and was killed")));
        }
        match received.recv_timeout(Duration::from_millis(20)) {
            Ok(bytes) => sink.take(&bytes)?,
            Err(wait) => {
                if process.as_ref().is_none_or(|p| p.exited().unwrap_or(true)) {
                    return Ok(Watched::Exited);
                }
                if wait == RecvTimeoutError::Disconnected {
                    // It closed its output and lives on.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

fn drain(received: &Receiver<Vec<u8>>, sink: &mut Sink<'_>) -> Result<(), GoldenError> {
    let until = Instant::now() + DRAIN;
    while let Ok(bytes) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
        sink.take(&bytes)?;
    }
    Ok(())
}

/// Kills every member of the group that the uncollected child leads. Its number cannot mean another group meanwhile, and
/// each member is opened by a pidfd and looked at again before it is signalled.
fn end_group(leader: u32) -> std::io::Result<()> {
    let (host, signaller) = (Host::real(), Signaller::new());
    // A member may fork while it is being ended.
    for _ in 0..64 {
        let mut alive = 0;
        for pid in host.pids()? {
            let in_group = |stat: &ProcStat| stat.pgrp == leader && !stat.is_dead();
            if !ProcStat::read(&host, pid)?.as_ref().is_some_and(in_group) {
                continue;
            }
            let Some(identity) = ProcessIdentity::of(&host, pid)? else { continue };
            let Ok(member) = VerifiedProcess::open(&identity) else { continue };
            if ProcStat::read(&host, pid)?.as_ref().is_some_and(in_group) {
                alive += 1;
                signaller.send(&member, ProcessSignal::Kill).map_err(std::io::Error::other)?;
                member.wait_exit(Instant::now() + Duration::from_secs(5))?;
            }
        }
        if alive == 0 {
            return Ok(());
        }
    }
    Err(std::io::Error::other("its processes multiply faster than they can be ended"))
}
