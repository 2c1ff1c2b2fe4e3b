//! `cargo xtask fuzz`: the cargo-fuzz targets, with their committed corpora as seeds.

use std::fs;
use std::process::{Command, ExitCode, Stdio};

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
        let mut command = cargo_nightly(&["fuzz", "run", target]);
        command.arg(&grown);
        if committed.is_dir() {
            command.arg(&committed);
        }
        let status = command
            .args(["--", &format!("-max_total_time={}", args.seconds)])
            .current_dir(&root)
            .stdin(Stdio::null())
            .status()
            .map_err(|error| Failure::new(format!("cannot start cargo fuzz: {error}"), GET_CARGO_FUZZ))?;
        if !status.success() {
            found.push(target.as_str());
        }
    }
    println!("fuzz: {} targets, {} s each, {} with a finding or an error", targets.len(), args.seconds, found.len());
    if found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::check(
        format!("the fuzzer stopped on: {}", found.join(", ")),
        "read the output above; the inputs are under fuzz/artifacts; fix, and keep the input as a test",
    ))
}

/// `cargo +nightly …`: the proxy on PATH understands the toolchain, the cargo behind it does not.
fn cargo_nightly(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    // Set by the cargo that runs us; they would pin the inner cargo to our toolchain.
    command.arg("+nightly").args(args).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}
