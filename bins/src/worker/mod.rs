//! The command line of `b70-worker`: persistent servers, each on one card.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in `b70-worker`, the library.

mod commands;
mod text;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_manifest::GpuRef;
use b70_procguard::DEFAULT_LEASE_ROOT;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Persistent llama-server workers, each on one physical card.
///
/// Every command that changes something is a dry run until it is given --execute. Nothing that the kit did not start is
/// ever signalled.
#[derive(Debug, Parser)]
#[command(name = "b70-worker", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    lane: LaneArgs,
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// Which workers, where.
#[derive(Debug, Args)]
pub struct LaneArgs {
    /// The configuration.
    #[arg(long, global = true, env = "B70_WORKERS", value_name = "FILE", default_value = "workers.json")]
    config: PathBuf,
    /// Only this worker; repeatable [default: all].
    #[arg(long = "worker", global = true, value_name = "NAME")]
    workers: Vec<String>,
    /// This host has no cards: skip presence, memory in use and leases, and say so.
    #[arg(long, global = true)]
    no_gpu: bool,
    /// Directory of lock files, the same for all who must exclude each other.
    #[arg(long, global = true, env = "B70_LEASE_ROOT", value_name = "DIR", default_value = DEFAULT_LEASE_ROOT)]
    lease_root: PathBuf,
    /// Read a recorded tree instead of this machine (validate, status, dry runs).
    #[arg(long, global = true, value_name = "DIR")]
    host_root: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the configuration, files, flags and cards; all errors at once.
    Validate,
    /// Show what each worker is doing.
    Status {
        /// Ask each running worker for one token.
        #[arg(long)]
        probe: bool,
        /// Seconds for each probe.
        #[arg(long, value_name = "S", default_value_t = 15.0)]
        deadline: f64,
        /// Key of the servers.
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Print workers in another form.
    Render {
        /// Which form.
        #[arg(long, value_enum, default_value_t = Format::Shell)]
        format: Format,
        /// Write the files into this folder instead of printing them.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Executable that a unit calls [default: this one].
        #[arg(long, value_name = "PATH")]
        executable: Option<PathBuf>,
    },
    /// Start workers and wait until they answer.
    Start {
        /// Do it; without this, show the plan.
        #[arg(long)]
        execute: bool,
        /// Wait this many seconds for each to be ready; 0 does not wait.
        #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
        wait: f64,
        /// What is said of the start.
        #[command(flatten)]
        checks: CheckArgs,
    },
    /// Stop workers: TERM, wait, report.
    Stop {
        /// How to stop.
        #[command(flatten)]
        stop: StopArgs,
    },
    /// Stop workers, then start them.
    Restart {
        /// How to stop.
        #[command(flatten)]
        stop: StopArgs,
        /// Wait this many seconds for each to be ready.
        #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
        ready_wait: f64,
        /// What is said of the start.
        #[command(flatten)]
        checks: CheckArgs,
    },
    /// Print the end of a worker's log.
    Logs {
        /// The worker.
        name: String,
        /// Go on as it grows, until interrupted.
        #[arg(long)]
        follow: bool,
        /// Lines to begin with.
        #[arg(long, value_name = "N", default_value_t = 40)]
        lines: usize,
    },
    /// Become the server of a worker: resolve the card, take the lease, run in the foreground.
    Run {
        /// The worker.
        name: String,
        /// What is said of the start.
        #[command(flatten)]
        checks: CheckArgs,
    },
    /// Write a starter configuration to --config.
    Init {
        /// Cards, separated by commas: PCI addresses or ordinals.
        #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
        gpus: Vec<GpuRef>,
        /// The GGUF to serve.
        #[arg(long, value_name = "FILE")]
        model: PathBuf,
        /// The llama-server executable.
        #[arg(long, value_name = "PATH", default_value = "llama-server")]
        binary: PathBuf,
        /// Where records and logs go.
        #[arg(long, env = "B70_STATE_ROOT", value_name = "DIR", default_value = "b70-state")]
        runtime_root: PathBuf,
        /// Port of the first worker.
        #[arg(long, value_name = "PORT", default_value_t = b70_worker::FIRST_PORT)]
        port: u16,
    },
    /// Write a configuration in which some workers run a candidate profile and the others the control.
    Assign {
        /// The candidate profile.
        #[arg(long, value_name = "NAME")]
        profile: String,
        /// The candidate's workers, separated by commas.
        #[arg(long = "workers", value_name = "LIST", value_delimiter = ',', required = true)]
        candidates: Vec<String>,
        /// Exchange the sides, for the second period.
        #[arg(long)]
        swap: bool,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// What is said of a start beside the configuration.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Start although the models' files do not fit into the memory that is available.
    #[arg(long)]
    allow_low_memory: bool,
    /// Fingerprint document of the executable's build, as b70-registry fingerprint --json writes it [default: the configuration's].
    #[arg(long, value_name = "FILE")]
    build_fingerprint: Option<PathBuf>,
}

/// How to stop.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Do it; without this, show the plan.
    #[arg(long)]
    execute: bool,
    /// Wait this many seconds for each to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    wait: f64,
    /// Kill what is still there after this many seconds.
    #[arg(long, value_name = "S")]
    kill_after: Option<f64>,
}

/// Keys of servers.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// File with the servers' API key; `B70_API_KEY` otherwise.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

/// Forms of `render`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A shell script.
    Shell,
    /// The resolved commands.
    Json,
    /// A systemd unit a worker.
    Systemd,
    /// A preset file of llama.cpp.
    LlamaPreset,
}

/// Runs one command.
///
/// # Errors
/// Whatever kept it from being done, with its exit code.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    commands::run(cli, ui)
}
