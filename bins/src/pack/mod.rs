//! The command line of `b70-pack`: Q4_0 tensors of a GGUF into the layout `q4_0-xe2-dpas-v2`, and back.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in `b70-packset` and `b70-xe2pack`.

mod commands;
mod context;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_manifest::Sha256Hex;
use clap::{Args, Parser, Subcommand};

/// Repack a GGUF's Q4_0 tensors offline into the layout an Xe2 DPAS kernel reads; verify, list, reverse.
#[derive(Debug, Parser)]
#[command(name = "b70-pack", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    /// Flags that every command of the kit has.
    #[command(flatten)]
    global: Global,
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a GGUF's directory, the tensors a plan selects, and the reason for each one left out.
    Inspect {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// The plan.
        #[command(flatten)]
        plan: PlanArgs,
    },
    /// Compute the tensor keys and the set key a model of known hash would have, without the model.
    Keys {
        /// The plan.
        #[command(flatten)]
        plan: PlanArgs,
        /// SHA-256 of the model.
        #[arg(long, value_name = "HEX", value_parser = b70_cli::digest)]
        sha256: Sha256Hex,
    },
    /// Run every kernel this CPU offers against the scalar reference.
    SelfTest {
        /// The kernel.
        #[command(flatten)]
        kernel: KernelArgs,
    },
    /// Make a model's pack set ready: reuse what is there, import what another set has, pack the rest.
    Prepare {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// The plan.
        #[command(flatten)]
        plan: PlanArgs,
        /// The cache root.
        #[command(flatten)]
        roots: RootArgs,
        /// The kernel.
        #[command(flatten)]
        kernel: KernelArgs,
        /// Expected SHA-256 of the model.
        #[arg(long, value_name = "HEX", conflicts_with = "spec", value_parser = b70_cli::digest)]
        sha256: Option<Sha256Hex>,
        /// Trust the hash recorded for this path and size instead of reading the model; the set says so.
        #[arg(long)]
        skip_source_hash: bool,
        /// Recheck everything that could be trusted: ready payloads by SHA-256.
        #[arg(long, conflicts_with = "skip_source_hash")]
        rehash: bool,
        /// Repair also a set whose documents another tool wrote.
        #[arg(long)]
        force: bool,
        /// Make the payloads immutable (chattr +i), so that they may rest unread; needs root.
        #[arg(long)]
        immutable: bool,
        /// Tensors packed at once [default: by cores and memory].
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        jobs: usize,
        /// Seconds to wait for another prepare of the same set.
        #[arg(long, value_name = "S", default_value_t = 600)]
        wait: u64,
    },
    /// Check a set: documents, keys, sizes and index; with --deep every payload's SHA-256; with --against every block.
    Verify {
        /// The set.
        #[command(flatten)]
        set: SetArgs,
        /// The cache root.
        #[command(flatten)]
        roots: RootArgs,
        /// Model-pack manifest whose identity and admission requirements the set must meet; without --set-key the newest set
        /// of its model is taken.
        #[arg(long, value_name = "FILE")]
        spec: Option<PathBuf>,
        /// Rehash every payload.
        #[arg(long)]
        deep: bool,
        /// Unpack every payload and compare it with this GGUF's own blocks [default: the source that the spec names].
        #[arg(long, value_name = "MODEL", num_args = 0..=1)]
        against: Option<Vec<PathBuf>>,
    },
    /// Copy a set into RAM, verified and atomically, or find the copy that is there, and prove it.
    StageRam {
        /// Which set.
        #[command(flatten)]
        set: SetArgs,
        /// Where sets live.
        #[command(flatten)]
        roots: RootArgs,
        /// Where stages live.
        #[command(flatten)]
        ram: RamArgs,
        /// Memory that must stay free; KiB, MiB and GiB are understood.
        #[arg(long, value_name = "SIZE", default_value = b70_packset::DEFAULT_MIN_FREE_TEXT, value_parser = b70_cli::size)]
        min_free: u64,
        /// Make the payloads immutable (chattr +i), so that they may rest unread, and let other users read the stage; needs root.
        #[arg(long)]
        immutable: bool,
        /// Print only the line a shell or unit needs for the loader.
        #[arg(long)]
        print_env: bool,
        /// Variable of that line.
        #[arg(
            long,
            value_name = "NAME",
            value_parser = context::variable,
            help = "Variable of that line [default for the plan qwen27-xe2-m6: GGML_SYCL_XE2_Q4_M6_PACK_CACHE, upstream's loader]"
        )]
        variable: Option<String>,
    },
    /// Check a RAM stage: unread where it is immutable, else by BLAKE3 of every payload; with --deep every payload's SHA-256.
    StageValidate {
        /// Which set.
        #[command(flatten)]
        set: SetArgs,
        /// Where sets live.
        #[command(flatten)]
        roots: RootArgs,
        /// Where stages live.
        #[command(flatten)]
        ram: RamArgs,
        /// Rehash every staged payload.
        #[arg(long)]
        deep: bool,
    },
    /// Write a tensor's Q4_0 bytes back from its payload, bit for bit.
    Unpack {
        /// The set.
        #[command(flatten)]
        set: SetArgs,
        /// The cache root.
        #[command(flatten)]
        roots: RootArgs,
        /// Name of the tensor.
        #[arg(long, value_name = "NAME")]
        tensor: String,
        /// File to write; it must not exist.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// List the sets under the cache root.
    List {
        /// The cache root.
        #[command(flatten)]
        roots: RootArgs,
    },
    /// Show what no ready set needs, and with --execute remove it.
    Gc {
        /// The cache root.
        #[command(flatten)]
        roots: RootArgs,
        /// Carry the plan out.
        #[arg(long)]
        execute: bool,
    },
}

/// The model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// GGUF file, or any shard of a split model [default: the source that the spec names].
    #[arg(long, value_name = "FILE", required_unless_present = "spec")]
    model: Option<PathBuf>,
    /// Model-pack manifest: names the model, vouches for its hash, and may name the plan.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
}

/// The plan.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Plan: qwen27-xe2-m6, all-q4_0, or a plan file [default: the one that the spec's kernel ABI names, else all-q4_0].
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
}

/// The set.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Key of the set [default: the newest].
    #[arg(long, value_name = "KEY", value_parser = b70_cli::digest)]
    set_key: Option<Sha256Hex>,
}

/// The kernel.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// Kernel to use [default: the fastest this CPU has].
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
}

/// Where stages live.
#[derive(Debug, Args)]
pub struct RamArgs {
    /// Folder of RAM stages [default: /dev/shm/b70kit-UID].
    #[arg(long, value_name = "DIR", env = "B70_RAM_ROOT")]
    ram_root: Option<PathBuf>,
    /// Seconds to wait for another staging of the same set.
    #[arg(long, value_name = "S", default_value_t = 600)]
    wait: u64,
}

/// Where sets live.
#[derive(Debug, Args)]
pub struct RootArgs {
    // Not a doc comment: the backticks it would need do not help on a terminal.
    #[arg(
        long,
        value_name = "DIR",
        env = "B70_CACHE_ROOT",
        help = "Folder of pack sets [default: $XDG_CACHE_HOME/b70kit]"
    )]
    cache_root: Option<PathBuf>,
    /// Allow a root inside a Git work tree.
    #[arg(long)]
    allow_in_repo: bool,
}

/// Carries out a parsed command line.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    match cli.command {
        Command::Inspect { model, plan } => commands::inspect(ui, &model, &plan),
        Command::Keys { plan, sha256 } => commands::keys(&plan, sha256),
        Command::SelfTest { kernel } => commands::self_test(ui, kernel.kernel.as_deref()),
        Command::Prepare {
            model,
            plan,
            roots,
            kernel,
            sha256,
            skip_source_hash,
            rehash,
            force,
            immutable,
            jobs,
            wait,
        } => commands::prepare(
            ui,
            &commands::PrepareArgs {
                model: &model,
                plan: &plan,
                cache_root: &context::cache_root(&roots)?,
                kernel: kernel.kernel.as_deref(),
                sha256,
                skip_source_hash,
                rehash,
                force,
                immutable,
                jobs,
                wait,
            },
        ),
        Command::Verify { set, roots, spec, deep, against } => {
            commands::verify(ui, &context::cache_root(&roots)?, set.set_key, spec.as_deref(), deep, against)
        }
        Command::StageRam { set, roots, ram, min_free, immutable, print_env, variable } => commands::stage_ram(
            ui,
            &commands::StageArgs {
                cache_root: &context::cache_root(&roots)?,
                ram_root: &context::ram_root(&ram, &roots)?,
                key: set.set_key,
                min_free,
                immutable,
                wait: ram.wait,
                print_env,
                variable: variable.as_deref(),
            },
        ),
        Command::StageValidate { set, roots, ram, deep } => commands::stage_validate(
            ui,
            &commands::StageArgs {
                cache_root: &context::cache_root(&roots)?,
                ram_root: &context::ram_root(&ram, &roots)?,
                key: set.set_key,
                min_free: 0,
                immutable: false,
                wait: ram.wait,
                print_env: false,
                variable: None,
            },
            deep,
        ),
        Command::Unpack { set, roots, tensor, out } => {
            commands::unpack(ui, &context::cache_root(&roots)?, set.set_key, &tensor, &out)
        }
        Command::List { roots } => commands::list(ui, &context::cache_root(&roots)?),
        Command::Gc { roots, execute } => commands::gc(ui, &context::cache_root(&roots)?, execute),
    }
}
