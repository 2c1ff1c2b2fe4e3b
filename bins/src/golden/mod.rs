//! The command line of `b70-golden`: kernel fixtures, corpus status, captures, focused backend tests.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in the library `b70-golden`.

mod commands;
mod text;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_golden::DEFAULT_TESTS;
use b70_manifest::golden::GoldenRule;
use b70_procguard::{DEFAULT_LEASE_ROOT, GpuRef};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Deterministic Q4_0 x Q8_1 kernel fixtures, the state of the golden corpus, and focused backend tests.
#[derive(Debug, Parser)]
#[command(name = "b70-golden", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a set of fixtures: weights, inputs, expected outputs, a manifest with a SHA-256 each, and a C header.
    ///
    /// The bytes depend on nothing but the parameters. A set that is there and sound is kept, whoever wrote it; a damaged one
    /// of the kit is replaced. What another tool or kit 0.1 wrote is replaced only with --force.
    Prepare(PrepareArgs),
    /// Check the set: the manifest's form, that nothing is missing, and the SHA-256 of every tensor.
    Verify {
        /// Where fixtures live.
        #[command(flatten)]
        root: RootArgs,
        /// Also make the tensors again from the manifest's parameters and compare.
        #[arg(long)]
        recompute: bool,
    },
    /// List what the corpus requires as present or outstanding.
    ///
    /// Exits 0 whatever is outstanding; an invalid corpus manifest, or a set or capture whose bytes are wrong, exits 1.
    Status {
        /// Where fixtures live.
        #[command(flatten)]
        root: RootArgs,
    },
    /// Admit a real capture: a tensor file and complete metadata. It is diagnostic evidence, never more.
    Import {
        /// Where fixtures live.
        #[command(flatten)]
        root: RootArgs,
        /// Case it belongs to.
        #[arg(long, value_name = "NAME")]
        case: String,
        /// The tensor: .safetensors or .npy.
        #[arg(long, value_name = "FILE")]
        tensor: PathBuf,
        /// The metadata: name, shape, type, strides, layer, positions, digests, runtime and kernel.
        #[arg(long, value_name = "FILE")]
        meta: PathBuf,
    },
    /// Run named backend tests of a build, a process and a log each. A run in which no test was executed fails.
    Focused(FocusedArgs),
}

/// Arguments of `prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    #[command(flatten)]
    root: RootArgs,
    /// Columns of the weights, a multiple of 32.
    #[arg(long, default_value_t = 5120)]
    k: u64,
    /// Rows of the weights; a multiple of 16 with --packed.
    #[arg(long, default_value_t = 256)]
    n: u64,
    /// Seed of the weights; the input of width M has seed + M.
    #[arg(long, default_value_t = 270_036)]
    seed: u64,
    /// Widths M.
    #[arg(long, value_name = "M,...", value_delimiter = ',', default_value = "1,4,8,16")]
    widths: Vec<u64>,
    /// How values become blocks.
    #[arg(long, value_enum, default_value_t = Rule::Contract)]
    rule: Rule,
    /// Add the weights packed for Xe2 DPAS.
    #[arg(long)]
    packed: bool,
    /// Model-pack manifest of the model the shapes stand for.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Source tree of the build the set is made for.
    #[arg(long, value_name = "DIR", requires = "build")]
    runtime: Option<PathBuf>,
    /// Build folder of the build the set is made for.
    #[arg(long, value_name = "DIR", requires = "runtime")]
    build: Option<PathBuf>,
    /// Replace what is there: a sound set of other parameters, or one that another tool or kit 0.1 wrote.
    #[arg(long, alias = "replace")]
    force: bool,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
}

/// How values become blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    /// The project's contract: f64, half to even, the same bytes on every machine.
    Contract,
    /// As ggml's reference quantises.
    Ggml,
}

impl From<Rule> for GoldenRule {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Contract => Self::Contract,
            Rule::Ggml => Self::Ggml,
        }
    }
}

/// Arguments of `focused`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("card").required(true).args(["gpu", "no_gpu"])))]
pub struct FocusedArgs {
    #[command(flatten)]
    root: RootArgs,
    /// Build folder, the one with CMakeCache.txt.
    #[arg(long, value_name = "DIR")]
    build: PathBuf,
    /// Source tree [default: the one the build was configured for].
    #[arg(long, value_name = "DIR")]
    runtime: Option<PathBuf>,
    /// Test binary [default: bin/test-backend-ops of the build folder].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Card to run on, holding its lease: a PCI address, or an ordinal.
    #[arg(long, value_name = "G")]
    gpu: Option<GpuRef>,
    /// Run without a card: no lease, nothing pinned.
    #[arg(long)]
    no_gpu: bool,
    /// Backend to test, as the binary's -b takes it [default: every device but the CPU].
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Test to run, as the binary's -o takes it; can be repeated. The default tests are those of upstream's fork.
    #[arg(long = "op", value_name = "OP", num_args = 1.., default_values = DEFAULT_TESTS)]
    ops: Vec<String>,
    /// Variable to set for the tests; part of the key.
    #[arg(long = "env", value_name = "K=V", num_args = 1.., value_parser = pair)]
    environment: Vec<(String, String)>,
    /// Seconds one test may take.
    #[arg(long, value_name = "S", default_value_t = 600.0, value_parser = seconds)]
    timeout: f64,
    /// Reuse a pass of exactly the same build, fixtures, card, tests and environment.
    #[arg(long)]
    reuse_pass: bool,
    /// Directory of lease files.
    #[arg(long, env = "B70_LEASE_ROOT", value_name = "DIR", default_value = DEFAULT_LEASE_ROOT)]
    lease_root: PathBuf,
    /// Seconds to wait for the card's lease [default: not at all].
    #[arg(long, value_name = "S", default_value_t = 0.0, hide_default_value = true, value_parser = seconds)]
    wait: f64,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.0..=1e9).contains(&seconds) { Ok(seconds) } else { Err("expected 0 to 1e9 seconds".to_owned()) }
}

/// Where fixtures and results live.
#[derive(Debug, Args)]
pub struct RootArgs {
    /// Folder of fixtures, captures, logs and results, or the one above it when that has a `golden` [default: the one the
    /// documents name, else `artifacts` in the kit's state folder].
    #[arg(long, value_name = "DIR", env = "B70_ARTIFACT_ROOT")]
    artifact_root: Option<PathBuf>,
    /// Golden-corpus manifest: names the folder, where no root is given, and for status and import the cases [default: the
    /// lane's nine cases at widths 1, 4, 8, 16].
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Allow a root inside a Git work tree.
    #[arg(long)]
    allow_in_repo: bool,
}

/// Carries out a parsed command line.
///
/// # Errors
/// Whatever kept it from being done, with its exit code.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    match cli.command {
        Command::Prepare(args) => commands::prepare(ui, &args),
        Command::Verify { root, recompute } => commands::verify(ui, &root, recompute),
        Command::Status { root } => commands::status(ui, &root),
        Command::Import { root, case, tensor, meta } => commands::import(ui, &root, &case, &tensor, &meta),
        Command::Focused(args) => commands::focused(ui, &args),
    }
}
