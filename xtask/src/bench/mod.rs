//! `cargo xtask bench`: whole processes against their peers, side by side in one run.
//!
//! Every comparison is interleaved (ours, peer, ours, peer …) and reported as medians and ratios, because machines are noisy.
//! The floor is measured in the same run: rates of the parts in memory, and of writing to the very folders that are used.
//! The result is one JSON file with every sample; `--render` turns it into the tables of docs/performance.md.

mod cases;
mod growth;
mod probe;
mod render;
mod sample;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{AtPath, Failure};
use crate::process;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Small models and one round: whether everything runs, not how fast.
    #[arg(long)]
    quick: bool,
    /// Folder for the result [default: bench/results].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only write the tables of docs/performance.md from a result.
    #[arg(long, value_name = "RESULT.json")]
    render: Option<PathBuf>,
    /// Geometry of the model in memory [default: a quarter of qwen27, 2.4 GB; tiny with --quick].
    #[arg(long, value_name = "NAME|FILE")]
    geometry: Option<String>,
    /// Folder in memory for models, sets and stages.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Folder on a disk for the full-size run [default: target/bench]; 20 GB free are needed.
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Leave out the full-size run on the disk.
    #[arg(long)]
    no_disk: bool,
    /// Rounds of every comparison.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Leave out cases that have not begun after this many minutes; the result names them.
    #[arg(long, value_name = "MIN", default_value_t = 14)]
    minutes: u64,
    /// Set by the command itself once it has built itself with optimisation.
    #[arg(long, hide = true)]
    built: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let docs = process::workspace_root().join("docs/performance.md");
    if let Some(result) = &args.render {
        render::into(&docs, result)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.built {
        return build_and_run();
    }
    let out = args.out.clone().unwrap_or_else(|| process::workspace_root().join("bench/results"));
    std::fs::create_dir_all(&out).at("create", &out)?;
    let result = measure(args)?;
    let name = format!(
        "{}{}.json",
        if args.quick { "quick-" } else { "" },
        result["started_utc"].as_str().unwrap_or("").replace(':', "")
    );
    let path = out.join(name);
    let mut text = serde_json::to_string_pretty(&result).unwrap_or_default();
    text.push('\n');
    std::fs::write(&path, text).at("write", &path)?;
    let markdown = path.with_extension("md");
    std::fs::write(&markdown, render::all(&result)).at("write", &markdown)?;
    println!("{}\n{}", path.display(), markdown.display());
    println!("into the documentation: cargo xtask bench --render {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// The command itself computes hashes: it must be optimised, too.
fn build_and_run() -> Result<ExitCode, Failure> {
    process::run(
        process::cargo().current_dir(process::workspace_root()).args([
            "build",
            "--release",
            "--locked",
            "--package",
            "xtask",
            "--package",
            "b70kit-bins",
        ]),
        "correct what the compiler says",
    )?;
    let own = release("xtask");
    let status = Command::new(&own).args(std::env::args_os().skip(1)).arg("--built").status().at("start", &own)?;
    Ok(ExitCode::from(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1))))
}

/// A program of the release build.
fn release(name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| process::workspace_root().join("target"), |dir| process::workspace_root().join(dir));
    target.join("release").join(name)
}

/// Touches memory and gives it back, so that what is measured next finds pages that the machine really has.
///
/// A virtual machine may return free memory to its host, which takes seconds to notice and costs microseconds for each page
/// that is used again: up to six times the cost of writing a page of a file in memory. Without this, whoever runs first after
/// much was freed pays for it, whichever program that is.
fn touch_memory(bytes: u64) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = b70_store::meminfo_bytes(&meminfo, "MemAvailable").map_or(0, |bytes| bytes / 2);
    std::hint::black_box(vec![1_u8; bytes.min(available) as usize]);
}

/// What all cases share.
struct Bench {
    pack: PathBuf,
    /// Python with numpy and gguf; none when it cannot be set up.
    python: Option<PathBuf>,
    b3sum: Option<PathBuf>,
    quick: bool,
    rounds: usize,
    until: Instant,
    left_out: Vec<String>,
}

impl Bench {
    /// Whether there is time for one more case; notes its name when there is not.
    fn has_time_for(&mut self, case: &str) -> bool {
        let has = Instant::now() < self.until;
        if !has {
            self.left_out.push(format!("{case}: the time was used up"));
        }
        has
    }

    fn say(text: &str) {
        eprintln!("bench: {text}");
    }
}

fn measure(args: &Args) -> Result<Value, Failure> {
    let started = Instant::now();
    let started_utc = b70_manifest::UnixTime::now().rfc3339();
    let python = crate::setup::python_for_benchmarks().ok();
    let mut bench = Bench {
        pack: release("b70-pack"),
        python,
        b3sum: b3sum(args.quick),
        quick: args.quick,
        rounds: if args.quick { 1 } else { args.rounds.max(1) },
        until: started + Duration::from_secs(60 * args.minutes),
        left_out: Vec::new(),
    };
    if bench.python.is_none() {
        bench.left_out.push("numpy: no Python environment could be set up".to_owned());
    }
    if bench.b3sum.is_none() {
        bench.left_out.push("b3sum: not installed".to_owned());
    }
    let memory = Scratch::new(&args.memory)?;
    let geometry =
        args.geometry.clone().unwrap_or_else(|| (if args.quick { "tiny" } else { "qwen27-quarter" }).to_owned());

    let machine = machine();
    let floor = probe::all(&memory.0, args.quick)?;
    let in_memory = cases::in_memory(&mut bench, &geometry, &memory.0)?;
    let growth = growth::table(&mut bench, &memory.0)?;
    let on_disk = if args.no_disk || args.quick {
        bench.left_out.push("full size on the disk: not asked for".to_owned());
        Value::Null
    } else {
        let root = args.disk.clone().unwrap_or_else(|| process::workspace_root().join("target/bench"));
        std::fs::create_dir_all(&root).at("create", &root)?;
        let disk = Scratch::new(&root)?;
        cases::on_disk(&mut bench, &disk.0)?
    };
    Ok(json!({
        "schema_version": 1,
        "format": "b70-bench-speed-v1",
        "started_utc": started_utc,
        "seconds": started.elapsed().as_secs_f64(),
        "quick": args.quick,
        "rounds": bench.rounds,
        "commit": commit(),
        "command": std::env::args().skip(1).filter(|arg| arg != "--built").collect::<Vec<_>>().join(" "),
        "machine": machine,
        "load_average_at_end": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "floor": floor,
        "in_memory": in_memory,
        "growth": growth,
        "on_disk": on_disk,
        "left_out": bench.left_out,
    }))
}

/// A folder that is gone at the end, whatever happened.
struct Scratch(PathBuf);

impl Scratch {
    fn new(root: &Path) -> Result<Self, Failure> {
        let path = root.join(format!("b70-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).at("create", &path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `b3sum` of the search path, or of the development cache, where it is installed once.
fn b3sum(quick: bool) -> Option<PathBuf> {
    const VERSION: &str = "1.8.2";
    let works = |path: &Path| process::answer(Command::new(path).arg("--version")).is_some();
    if works(Path::new("b3sum")) {
        return Some("b3sum".into());
    }
    let folder = crate::cache::Cache::open().ok()?.path("b3sum");
    let own = folder.join("bin/b3sum");
    if works(&own) {
        return Some(own);
    }
    if quick {
        return None;
    }
    Bench::say("installing b3sum once");
    let mut install = process::cargo();
    install.args(["install", "--quiet", "--locked", "b3sum", "--version", VERSION, "--root"]).arg(&folder);
    process::run(&mut install, "install b3sum by hand").ok()?;
    works(&own).then_some(own)
}

fn commit() -> String {
    let git = |args: &[&str]| process::answer(Command::new("git").current_dir(process::workspace_root()).args(args));
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if changed { format!("{commit} with changes") } else { commit }
}

fn machine() -> Value {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let wanted = ["sha_ni", "avx2", "avx512f", "avx512bw", "avx512vbmi", "gfni"];
    let flags = field("flags").unwrap_or_default();
    let memory = rustix::system::sysinfo();
    json!({
        "cpu": field("model name"),
        "cpu_family": field("cpu family"),
        "cpu_model": field("model"),
        "cpu_features": wanted.into_iter().filter(|name| flags.split(' ').any(|flag| flag == *name)).collect::<Vec<_>>(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory": format!("MemTotal: {:>14} kB", memory.totalram * u64::from(memory.mem_unit) / 1024),
        "kernel": process::answer(Command::new("uname").arg("-sr")),
        "load_average_at_start": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "lane_kernel": b70_store::StreamKernel::best().name(),
        "pack_kernel": b70_xe2pack::Kernel::best().name(),
    })
}
