//! The command line of `b70-gpu`: physical cards, who uses them, and the right to use them.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in `b70-procguard`.

mod commands;
mod text;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_procguard::{DEFAULT_LEASE_ROOT, GpuRef};
use clap::{Args, Parser, Subcommand};

/// Which Intel GPUs are in this machine, who uses them, and who has the right to.
#[derive(Debug, Parser)]
#[command(name = "b70-gpu", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    /// Read a recorded tree (see `record`) instead of this machine.
    #[arg(long, global = true, value_name = "DIR")]
    host_root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the cards: PCI address, device, driver, nodes, Level Zero ordinal and how it was derived, VRAM where known.
    List,
    /// Show the processes that use each card, with the evidence, and what could not be read.
    Owners {
        /// Only this card: a PCI address, or an ordinal.
        #[arg(long, value_name = "G")]
        gpu: Option<GpuRef>,
        /// Milliseconds between the two samples that show whether engines work.
        #[arg(long, value_name = "MS", default_value_t = 250)]
        sample: u64,
    },
    /// Leases: the exclusive right to a card.
    Lease {
        /// What to do.
        #[command(subcommand)]
        command: LeaseCommand,
    },
    /// Ask a server for one token: healthy, loading, busy, asleep, wedged or lost. A recovery plan is printed, never run.
    ///
    /// Exits 0 for a server that serves (healthy, busy, asleep) and 1 otherwise.
    Probe {
        /// Address of the server, for example `http://127.0.0.1:19720`.
        #[arg(long, value_name = "URL")]
        url: String,
        /// Seconds for the whole probe; longer than the server's longest batch.
        #[arg(long, value_name = "S", default_value_t = 15.0)]
        deadline: f64,
        /// The server's card, to join the kernel's log: a PCI address, or an ordinal [default: where its process holds memory].
        #[arg(long, value_name = "G")]
        gpu: Option<GpuRef>,
        /// File with the server's API key; `B70_API_KEY` otherwise.
        #[arg(long, value_name = "FILE")]
        api_key_file: Option<PathBuf>,
    },
    /// Check what will hurt later: groups, limits, memory, kernel, firmware, variables.
    ///
    /// Exits 1 if a check failed; warnings and what could not be determined do not change the exit code.
    Doctor,
    /// Write the part of /proc, /sys and /dev that verdicts rest on, secrets removed, for others to replay.
    Record {
        /// A directory that does not exist yet.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// What to do with leases.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// Run a command while holding the card's lease, with the variables that pin it to the card.
    ///
    /// The command takes this process's place, so its exit code and signals are its own. The lease lasts until it and
    /// whatever it leaves behind have ended.
    Run {
        /// A PCI address, or an ordinal.
        #[arg(long, value_name = "G")]
        gpu: GpuRef,
        /// Wait up to this many seconds for the lease [default: not at all].
        #[arg(long, value_name = "S", default_value_t = 0.0, hide_default_value = true)]
        wait: f64,
        /// Lease the address on a host without the card; nothing is pinned or looked for.
        #[arg(long)]
        no_gpu: bool,
        /// Where lock files are.
        #[command(flatten)]
        root: LeaseRootArgs,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<std::ffi::OsString>,
    },
    /// Show which cards are leased, by whom and since when.
    Status {
        /// Where lock files are.
        #[command(flatten)]
        root: LeaseRootArgs,
    },
}

/// Where lock files are.
#[derive(Debug, Args)]
pub struct LeaseRootArgs {
    /// Directory of lock files, the same for all who must exclude each other.
    #[arg(long, env = "B70_LEASE_ROOT", value_name = "DIR", default_value = DEFAULT_LEASE_ROOT)]
    lease_root: PathBuf,
}

/// Runs one command.
///
/// # Errors
/// Whatever kept it from being done, with its exit code.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    commands::run(cli, ui)
}
