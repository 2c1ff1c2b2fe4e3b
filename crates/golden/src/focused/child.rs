//! One test as a child process: streamed to its log, bounded in time and output, ended with all that it started.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use b70_procguard::{ProgramEnd, run_program};

use super::output::{Counter, Counts};
use crate::error::GoldenError;

/// The largest log of one test; a program that prints more is ended.
const MAX_LOG: u64 = 256 << 20;

/// How a test ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) counts: Counts,
    /// Why it is not a pass, apart from its counts.
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
    command: Command,
    log: (&Path, File),
    stream: &mut dyn FnMut(&[u8]),
    bounds: &Bounds<'_>,
) -> Result<Ended, GoldenError> {
    let path = PathBuf::from(command.get_program());
    let started = Instant::now();
    let mut sink = Sink { path: log.0, file: log.1, size: 0, counter: Counter::default(), stream };
    let mut unwritten = None;
    let run = run_program(command, true, bounds.timeout, &mut |bytes| {
        if let Err(error) = sink.take(bytes) {
            unwritten.get_or_insert(error);
        }
        unwritten.is_none() && sink.size < MAX_LOG && !bounds.cancel.load(Ordering::Relaxed)
    });
    let run = run.map_err(|source| match source.kind() {
        std::io::ErrorKind::TimedOut => GoldenError::Io { action: "end the processes of", path, source },
        _ => GoldenError::Binary { path, why: source.to_string() },
    })?;
    if let Some(error) = unwritten {
        return Err(error);
    }
    let fault = match run.end {
        ProgramEnd::Exited(status) => fault_of(status),
        ProgramEnd::TimedOut => {
            Some(format!("it did not end within {} s and was killed", bounds.timeout.as_secs_f64()))
        }
        ProgramEnd::Stopped if bounds.cancel.load(Ordering::Relaxed) => return Err(GoldenError::Interrupted),
        ProgramEnd::Stopped => Some(format!("it printed more than {MAX_LOG} bytes and was killed")),
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
        if bytes.is_empty() {
            return Ok(());
        }
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
