//! The command line of `b70-cache`: byte-identical copies of GGUF files in memory.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in `b70-admission`.

mod commands;
mod context;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_manifest::Sha256Hex;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Keep byte-identical copies of GGUF files in memory; admit, verify, warm and drop them.
#[derive(Debug, Parser)]
#[command(name = "b70-cache", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Look at entries: document, record of the last check, receipt; a copy that is not immutable is read with BLAKE3.
    Status {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
    },
    /// Copy a model into memory and prove the copy; reuse a valid one, repair a damaged one.
    Prepare {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
        #[command(flatten)]
        build: BuildArgs,
        /// Copy again even if the entry is valid.
        #[arg(long)]
        force: bool,
        /// Make the copy immutable (chattr +i), so that it may rest unread; needs root.
        #[arg(long)]
        immutable: bool,
        /// Bytes that must stay free; KiB, MiB and GiB are understood [default: 64 MiB + 2 % of the file system].
        #[arg(long, value_name = "SIZE", value_parser = b70_cli::size)]
        min_free: Option<u64>,
        /// Do not measure what the copy buys (it reads up to 128 MiB of the source once more).
        #[arg(long)]
        no_measure: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Rehash the copy and renew the record of its last check and its receipt.
    Verify {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Bring every page of an admitted copy into memory and count what is resident.
    Warm {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
    },
    /// Print the admitted path, or fail with the reason.
    Path {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
    },
    /// Show what would be removed and who uses it; with --execute remove it. A copy in use is never removed.
    Drop {
        #[command(flatten)]
        select: SelectArgs,
        #[command(flatten)]
        root: RootArgs,
        /// Carry the plan out.
        #[arg(long)]
        execute: bool,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

/// Which models. Without any, status, verify and drop take every entry.
#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// Model-pack manifest that names the models and their digests.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Which of the manifest's models; with --model, the role the copy is recorded for.
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<Role>,
    /// GGUF file, or any shard of a split model.
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    model: Option<PathBuf>,
    /// Expected SHA-256 of the model; of a split model the digest made of its shards.
    #[arg(long, value_name = "HEX", requires = "model", value_parser = b70_cli::digest)]
    sha256: Option<Sha256Hex>,
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// The model that answers.
    Target,
    /// The model that drafts tokens.
    Draft,
    /// Both.
    All,
}

/// Where the copies live.
#[derive(Debug, Args)]
pub(crate) struct RootArgs {
    /// Folder of the cache [default: the root that the manifest names, else models in the RAM root].
    #[arg(long, value_name = "DIR")]
    cache_root: Option<PathBuf>,
    /// Allow a root inside a Git work tree.
    #[arg(long)]
    allow_in_repo: bool,
}

/// The build to record.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Source tree of the llama.cpp whose identity is recorded beside the copy.
    #[arg(long, value_name = "DIR", requires = "build")]
    runtime: Option<PathBuf>,
    /// Its build folder.
    #[arg(long, value_name = "DIR", requires = "runtime")]
    build: Option<PathBuf>,
}

/// Patience.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct WaitArgs {
    /// Seconds to wait for another process that works on the same model.
    #[arg(long, value_name = "S", default_value_t = 600)]
    wait: u64,
}

/// Carries out a parsed command line.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let context = b70_cli::Context::new(ui)?;
    match cli.command {
        Command::Status { select, root } => commands::status(&context, &select, &root),
        Command::Prepare { select, root, build, force, immutable, min_free, no_measure, wait } => {
            let options =
                commands::PrepareOptions { force, immutable, min_free, measure: !no_measure, wait: wait.wait };
            commands::prepare(&context, &select, &root, &build, &options)
        }
        Command::Verify { select, root, wait } => commands::verify(&context, &select, &root, wait.wait),
        Command::Warm { select, root } => commands::warm(&context, &select, &root),
        Command::Path { select, root } => commands::path(&context, &select, &root),
        Command::Drop { select, root, execute, wait } => commands::drop(&context, &select, &root, execute, wait.wait),
    }
}
