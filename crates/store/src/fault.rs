//! Fault points for tests: death at a step, and writes, fsyncs and locks that misbehave.
//!
//! Every step of every publish calls [`step`]. Only with the feature `fault`, which tests turn on and no release has, are
//! the variables below read; without it the calls are empty.
//!
//! | variable | effect |
//! |---|---|
//! | `B70_FAULT_STEP=N` | the process sends itself SIGKILL at its N-th step (1-based) |
//! | `B70_FAULT_COUNT_FILE=PATH` | the number of steps taken so far, rewritten at each step |
//! | `B70_FAULT_TRACE_FILE=PATH` | one line with the name of each step, appended |
//! | `B70_FAULT_WRITE=short:N\|enospc:N\|eio:N` | the N-th write takes half of its bytes, or fails; `short:*` halves every write |
//! | `B70_FAULT_FSYNC=eio:N` | the N-th fsync fails |
//! | `B70_FAULT_FLOCK=lie\|unsupported` | locks always succeed, as on some cluster file systems; or ENOTSUP |
//! | `B70_FAULT_NO_TMPFILE=1` | as if the file system had no `O_TMPFILE` |
//!
//! They can only make an operation fail: no check is skipped by any of them except the
//! exclusion by locks, on which correctness never rests.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFault {
    Short,
    Error(rustix::io::Errno),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlockFault {
    Lie,
    Unsupported,
}

#[derive(Debug, Default)]
struct Config {
    step: Option<u64>,
    count_file: Option<PathBuf>,
    trace_file: Option<PathBuf>,
    write: Option<(WriteFault, Option<u64>)>,
    fsync: Option<u64>,
    flock: Option<FlockFault>,
    no_tmpfile: bool,
}

static CONFIG: OnceLock<Option<Box<Config>>> = OnceLock::new();
static STEPS: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicU64 = AtomicU64::new(0);
static FSYNCS: AtomicU64 = AtomicU64::new(0);

fn config() -> Option<&'static Config> {
    if !cfg!(feature = "fault") {
        return None;
    }
    CONFIG.get_or_init(|| from_env(&|name| std::env::var(name).ok()).map(Box::new)).as_deref()
}

fn from_env(get: &dyn Fn(&str) -> Option<String>) -> Option<Config> {
    let mut config = Config::default();
    let mut any = false;
    let mut take = |name: &str| get(name).inspect(|_| any = true);
    config.step = take("B70_FAULT_STEP").and_then(|v| v.parse().ok());
    config.count_file = take("B70_FAULT_COUNT_FILE").map(PathBuf::from);
    config.trace_file = take("B70_FAULT_TRACE_FILE").map(PathBuf::from);
    config.write = take("B70_FAULT_WRITE").and_then(|v| {
        let (kind, n) = v.split_once(':')?;
        let fault = match kind {
            "short" => WriteFault::Short,
            "enospc" => WriteFault::Error(rustix::io::Errno::NOSPC),
            "eio" => WriteFault::Error(rustix::io::Errno::IO),
            _ => return None,
        };
        Some((fault, if n == "*" { None } else { Some(n.parse().ok()?) }))
    });
    config.fsync = take("B70_FAULT_FSYNC").and_then(|v| v.strip_prefix("eio:")?.parse().ok());
    config.flock = take("B70_FAULT_FLOCK").and_then(|v| match v.as_str() {
        "lie" => Some(FlockFault::Lie),
        "unsupported" => Some(FlockFault::Unsupported),
        _ => None,
    });
    config.no_tmpfile = take("B70_FAULT_NO_TMPFILE").is_some();
    any.then_some(config)
}

/// Marks a step of a publish; `name` says which, `object.step`. See the table above for what a test can do with it.
///
/// Crates that publish in several calls mark their own steps too, so that "killed at every step" covers them.
pub fn step(name: &'static str) {
    if let Some(config) = config() {
        step_slow(config, name);
    }
}

#[cold]
fn step_slow(config: &Config, name: &'static str) {
    let n = STEPS.fetch_add(1, Ordering::SeqCst) + 1;
    // A fixture's bookkeeping that fails shows as a wrong count in the test that reads it.
    if let Some(path) = &config.count_file {
        let _ = std::fs::write(path, n.to_string());
    }
    if let Some(path) = &config.trace_file {
        let _ = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut f| f.write_all(format!("{name}\n").as_bytes()));
    }
    if config.step == Some(n) {
        // SIGKILL cannot be handled: neither destructors nor buffers run, as in a real kill.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// How many bytes of a write of `len` may be taken, or the injected error.
pub(crate) fn write_limit(len: usize) -> io::Result<usize> {
    let Some(Config { write: Some((fault, at)), .. }) = config() else { return Ok(len) };
    let n = WRITES.fetch_add(1, Ordering::SeqCst) + 1;
    if at.is_some_and(|at| at != n) {
        return Ok(len);
    }
    match fault {
        WriteFault::Short => Ok(len.div_ceil(2)),
        WriteFault::Error(errno) => Err((*errno).into()),
    }
}

/// The injected error of this fsync, if any.
pub(crate) fn fsync_fault() -> io::Result<()> {
    let Some(Config { fsync: Some(at), .. }) = config() else { return Ok(()) };
    if FSYNCS.fetch_add(1, Ordering::SeqCst) + 1 == *at { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
}

/// The injected behaviour of locks, if any.
pub(crate) fn flock_fault() -> Option<FlockFault> {
    config().and_then(|c| c.flock)
}

/// Whether `O_TMPFILE` must be treated as missing.
pub(crate) fn no_tmpfile() -> bool {
    config().is_some_and(|c| c.no_tmpfile)
}
