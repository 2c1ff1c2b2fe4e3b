//! `cargo xtask fuzz`: the cargo-fuzz targets, with their committed corpora as seeds.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::failure::{AtPath, Failure};
use crate::process;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target runs.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Targets under `fuzz/fuzz_targets`; all of them by default.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

const GET_NIGHTLY: &str = "rustup toolchain install nightly";
const GET_CARGO_FUZZ: &str = "cargo install cargo-fuzz --locked";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let root = process::workspace_root();
    let folder = root.join("fuzz/fuzz_targets");
    let mut known = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                known.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
    }
    known.sort();
    if known.is_empty() {
        return Err(Failure::new("there is no fuzz target under fuzz/fuzz_targets", "run from a complete checkout"));
    }
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(target)) {
        return Err(Failure::new(
            format!("no fuzz target is named {unknown}"),
            format!("choose of: {}", known.join(", ")),
        ));
    }

    if process::answer(&mut cargo_nightly(&["--version"])).is_none() {
        return Err(Failure::new("fuzzing needs a nightly toolchain, and there is none", GET_NIGHTLY));
    }
    if process::answer(&mut cargo_nightly(&["fuzz", "--version"])).is_none() {
        return Err(Failure::new("fuzzing needs cargo-fuzz, and it is not installed", GET_CARGO_FUZZ));
    }

    let targets = if args.targets.is_empty() { &known } else { &args.targets };
    let mut found = Vec::new();
    for target in targets {
        eprintln!("fuzz: {target} for {} s", args.seconds);
        // New inputs go to the first corpus; the committed one is only read.
        let grown = root.join("fuzz/target/corpus").join(target);
        fs::create_dir_all(&grown).at("create", &grown)?;
        let committed = root.join("fuzz/corpus").join(target);
        // The readers are safe Rust: their panics are found without a sanitizer, at twice the speed.
        let mut command = cargo_nightly(&["fuzz", "run", "--sanitizer", "none", target]);
        command.arg(&grown);
        if committed.is_dir() {
            command.arg(&committed);
        }
        command.args(["--", &format!("-max_total_time={}", args.seconds), "-timeout=60", "-print_final_stats=1"]);
        let outcome = watch(command.current_dir(&root))?;
        println!(
            "fuzz {target}: {} executions in {:.0} s, {}",
            outcome.executions,
            outcome.seconds,
            if outcome.ended_well { "no finding" } else { "A FINDING OR AN ERROR" }
        );
        if !outcome.ended_well {
            found.push(target.as_str());
        }
    }
    println!("fuzz: {} targets, {} s each, {} with a finding or an error", targets.len(), args.seconds, found.len());
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::check(
        format!("the fuzzer stopped on: {}", found.join(", ")),
        "read the output above; the inputs are under fuzz/artifacts; fix, and keep the input under fuzz/regressions",
    ))
}

/// How a target ended.
struct Outcome {
    executions: u64,
    seconds: f64,
    ended_well: bool,
}

/// Runs a target; its output is passed on, and its last statistics are read from it.
fn watch(command: &mut Command) -> Result<Outcome, Failure> {
    let cannot = |error| Failure::new(format!("cannot start cargo fuzz: {error}"), GET_CARGO_FUZZ);
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let mut executions = 0;
    for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(|output| output.split(b'\n')) {
        let line = String::from_utf8_lossy(&line.map_err(cannot)?).into_owned();
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            executions = number.trim().parse().unwrap_or(0);
        }
        eprintln!("{line}");
    }
    let status = child.wait().map_err(cannot)?;
    Ok(Outcome { executions, seconds: began.elapsed().as_secs_f64(), ended_well: status.success() })
}

/// `cargo +nightly …`: the proxy on PATH understands the toolchain, the cargo behind it does not.
fn cargo_nightly(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    // Set by the cargo that runs us; they would pin the inner cargo to our toolchain.
    command.arg("+nightly").args(args).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}
