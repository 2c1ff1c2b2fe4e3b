//! The command line of `b70-bench`: cold calibration, its gates, comparison, reports.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in the library `b70-bench`.

mod commands;
mod text;

use std::path::PathBuf;

use b70_bench::Target;
use b70_cli::{CliError, Global, Output, Ui};
use b70_manifest::Sha256Hex;
use b70_procguard::DEFAULT_LEASE_ROOT;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Cold calibration of llama-server workers: rows with raw offsets, gates, card-swap comparison, reports.
#[derive(Debug, Parser)]
#[command(name = "b70-bench", version, after_help = b70_cli::EXIT_CODES)]
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
    /// Ask every prompt of a suite once and cold, on every endpoint; with --dry-run only say what would be done.
    ///
    /// Exits 0 when every row was collected and the screening gate passed on every endpoint.
    Calibrate(Box<CalibrateArgs>),
    /// Run a gate over a result file, from its raw rows; what the file claims of itself does not count.
    Gate {
        /// Result file of one endpoint.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Gate that decides the exit code.
        #[arg(long, value_enum, default_value_t = GateName::Final)]
        gate: GateName,
    },
    /// Make every figure and every gate of result files again from the raw offsets, and compare with what they say.
    #[command(visible_alias = "recompute")]
    Verify {
        /// Result files of endpoints.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Compare a candidate with a control over a card-swap crossover; exits 0 for a win alone.
    Compare(CompareArgs),
    /// Tables on the terminal, and one HTML file with plots that needs nothing else.
    Report {
        /// Folders of results, or result files; upstream's older files, too.
        #[arg(value_name = "DIR|FILE", required = true)]
        paths: Vec<PathBuf>,
        /// Write the HTML report to this file.
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Comparison document to show in the HTML report.
        #[arg(long, value_name = "FILE")]
        comparison: Option<PathBuf>,
        /// Replace an HTML file that is there.
        #[arg(long)]
        replace: bool,
    },
    /// Write a payload file for a public queue, only from a promotion-eligible result. It is never posted.
    Export(ExportArgs),
    /// Show a suite, or check one of your own.
    Suite {
        /// What to do.
        #[command(subcommand)]
        command: SuiteCommand,
    },
}

/// What to do with a suite.
#[derive(Debug, Subcommand)]
pub enum SuiteCommand {
    /// Print a suite: ids, classes, hashes.
    Show {
        /// Suite file [default: the built-in suite].
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Check a suite: its form, every error at once, and that no prompt occurs twice.
    Validate {
        /// Suite file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// A gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GateName {
    /// The realistic final gate: what a promotion needs.
    Final,
    /// Fresh responses, complete rows, nothing reused.
    Screening,
    /// Nothing reused.
    CachedZero,
    /// What ran is on record.
    Identity,
}

impl GateName {
    /// Its name in a result.
    fn word(self) -> &'static str {
        match self {
            Self::Final => "realistic_final",
            Self::Screening => "screening",
            Self::CachedZero => "cached_zero",
            Self::Identity => "identity",
        }
    }
}

/// An API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ApiName {
    /// /v1/chat/completions.
    Chat,
    /// /v1/completions.
    Completions,
    /// /apply-template, then /completion.
    Native,
}

/// A side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArmName {
    /// What is in use.
    Control,
    /// What might replace it.
    Candidate,
}

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Configuration of workers: its workers are the endpoints, their records tell what runs.
    #[arg(long, value_name = "workers.json", conflicts_with = "endpoints", required_unless_present = "endpoints")]
    config: Option<PathBuf>,
    /// Worker of the configuration; can be repeated [default: all].
    #[arg(long = "worker", value_name = "NAME", requires = "config")]
    workers: Vec<String>,
    /// Endpoint: NAME=URL[,card=PCI][,arm=control|candidate][,period=N][,identity=FILE]; can be repeated.
    #[arg(long = "endpoint", value_name = "NAME=URL,...", value_parser = b70_bench::parse_endpoint)]
    endpoints: Vec<Target>,
    /// Folder for result.json and a file of each endpoint; nothing in it is overwritten.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Send nothing; print the plan. A plan that would be refused exits 1.
    #[arg(long)]
    dry_run: bool,
    /// API to ask.
    #[arg(long, value_enum, default_value_t = ApiName::Chat)]
    api: ApiName,
    /// Suite file [default: the built-in suite].
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Ask only this prompt of the suite; can be repeated. A subset never passes the final gate.
    #[arg(long = "prompt", value_name = "ID")]
    prompts: Vec<String>,
    /// Most tokens of an answer; the final gate wants 512.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: u32,
    /// How often the suite is asked; only once is cold.
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeats: u64,
    /// Seed of every request.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One endpoint after the other instead of all at once.
    #[arg(long)]
    sequential: bool,
    /// Side of the comparison, for endpoints that do not name theirs.
    #[arg(long, value_enum)]
    arm: Option<ArmName>,
    /// Period of the crossover, for endpoints that do not name theirs.
    #[arg(long, value_name = "N")]
    period: Option<u64>,
    /// Requests before the first row, with a prompt of no suite; the final gate wants none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,
    /// Let the servers generate past the end of the text; never passes the final gate.
    #[arg(long)]
    ignore_eos: bool,
    /// JSON object merged into every request last.
    #[arg(long, value_name = "JSON")]
    request_extra: Option<String>,
    /// SHA-256 of the target model, where no record names it: your word.
    #[arg(long, value_name = "HEX", value_parser = b70_cli::digest)]
    model_sha: Option<Sha256Hex>,
    /// SHA-256 of the draft model: your word.
    #[arg(long, value_name = "HEX", value_parser = b70_cli::digest)]
    draft_sha: Option<Sha256Hex>,
    /// Fingerprint of the build (b70-registry fingerprint): your word.
    #[arg(long, value_name = "HEX", value_parser = b70_cli::digest)]
    build_sha: Option<Sha256Hex>,
    /// Read and hash the model file the server names, where it is on this machine.
    #[arg(long)]
    hash_model: bool,
    /// Seconds to wait for servers that load, and for the right to measure on a card.
    #[arg(long, value_name = "S", default_value_t = 0.0, hide_default_value = true, value_parser = seconds)]
    wait: f64,
    /// Seconds the whole run may take [default: no limit].
    #[arg(long, value_name = "S", value_parser = seconds)]
    timeout: Option<f64>,
    /// Seconds one request may take.
    #[arg(long, value_name = "S", default_value_t = 900.0, value_parser = seconds)]
    request_timeout: f64,
    /// Seconds without a token after which a server counts as wedged.
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    idle_timeout: f64,
    /// Measure servers that do not name themselves llama.cpp, too.
    #[arg(long)]
    any_server: bool,
    /// Key to send with every request; it is never written.
    #[arg(long, env = "B70_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Directory of lease files.
    #[arg(long, env = "B70_LEASE_ROOT", value_name = "DIR", default_value = DEFAULT_LEASE_ROOT)]
    lease_root: PathBuf,
    /// Take no lease; for hosts without the cards.
    #[arg(long)]
    no_lease: bool,
    /// Allow results inside a Git work tree.
    #[arg(long)]
    allow_in_repo: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Result files of the control.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    control: Vec<PathBuf>,
    /// Result files of the candidate.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    candidate: Vec<PathBuf>,
    /// Said for clarity: a comparison always needs a crossover.
    #[arg(long)]
    crossover: bool,
    /// Smallest effect that counts, as a share.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    min_effect: f64,
    /// Confidence of the intervals.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    confidence: f64,
    /// Draws of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    draws: usize,
    /// Seed of the bootstrap.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// |ln ratio| of equal single runs from an earlier A/A calibration.
    #[arg(long, value_name = "X")]
    aa_floor: Option<f64>,
    /// How the A/A noise enters: that of the estimate, or that of single runs, which is stricter.
    #[arg(long, value_enum, default_value_t = FloorName::Estimate)]
    floor_rule: FloorName,
    /// Also write the comparison to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How the A/A noise enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FloorName {
    /// The noise that equal runs give this estimate.
    Estimate,
    /// The noise between two single runs.
    SingleRun,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Result file of one endpoint.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Form of the payload.
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The model on the hub, owner/name.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    hf_id: String,
    /// Its revision.
    #[arg(long, value_name = "REV")]
    model_revision: Option<String>,
    /// Its quantisation.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    quantization: String,
    /// The backend, such as SYCL.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    backend: String,
    /// Memory of the card, in GB.
    #[arg(long, value_name = "GB")]
    vram_gb: Option<f64>,
    /// The processor.
    #[arg(long, value_name = "NAME")]
    cpu: Option<String>,
    /// Main memory, in GB.
    #[arg(long, value_name = "GB")]
    ram_gb: Option<f64>,
    /// The operating system.
    #[arg(long, value_name = "NAME")]
    os: Option<String>,
    /// Remarks.
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
}

/// A form of payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// LocalMaxxing's queue.
    Localmaxxing,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.0..=1e9).contains(&seconds) { Ok(seconds) } else { Err("expected 0 to 1e9 seconds".to_owned()) }
}

/// Carries out a parsed command line.
///
/// # Errors
/// Whatever kept it from being done, with its exit code.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    match cli.command {
        Command::Calibrate(args) => commands::calibrate(ui, *args),
        Command::Gate { file, gate } => commands::gate(ui, &file, gate),
        Command::Verify { files } => commands::verify(ui, &files),
        Command::Compare(args) => commands::compare(ui, &args),
        Command::Report { paths, html, comparison, replace } => {
            commands::report(&paths, html.as_deref(), comparison.as_deref(), replace)
        }
        Command::Export(args) => commands::export(ui, args),
        Command::Suite { command } => commands::suite(ui, command),
    }
}
