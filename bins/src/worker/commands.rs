//! One library call a command.

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use b70_cli::{CliError, Output, Ui, exit, interrupt_flag};
use b70_client::ApiKey;
use b70_procguard::{Host, Signaller};
use b70_worker::{
    GpuMode, InitOptions, Lane, LogFollower, LogText, RenderFormat, RenderedFiles, ResolveOptions, StartChecks,
    StartOptions, StatusOptions, StopOptions, Supervisor, UnitOptions, WorkerPlan, assign, log_tail, redacted, render,
    starter, validate, write_new,
};
use b70_xe2pack::Xe2DpasV2;

use crate::worker::{Cli, Command, Format, KeyArgs, LaneArgs, StopArgs, text};

pub(crate) fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let args = &cli.lane;
    let host = match &args.host_root {
        Some(root) => Host::recorded(root)?,
        None => Host::real(),
    };
    let mode = if args.no_gpu { GpuMode::Absent } else { GpuMode::Required };
    match cli.command {
        Command::Validate => {
            let found = validate(&args.config, &host, mode, &args.workers)?;
            let code = if found.valid { exit::OK } else { exit::CHECK_FAILED };
            Output::new(&found, text::validation(ui, &found), code)
        }
        Command::Init { gpus, model, binary, runtime_root, port } => {
            let binary = find_executable(binary);
            let options = InitOptions { gpus, model, binary, runtime_root, first_port: port };
            let document = starter(&options)?;
            write_new(&args.config, &document)?;
            let text = format!("wrote {}; next: b70-worker validate --config {0}", args.config.display());
            Output::ok(&redacted(&document), text)
        }
        Command::Assign { profile, candidates, swap, out } => {
            let document = assign(&Lane::load(&args.config)?, &profile, &candidates, swap)?;
            write_new(&out, &document)?;
            let text = text::arms(&document, &out);
            Output::ok(&redacted(&document), text)
        }
        Command::Logs { name, follow, lines } => logs(ui, args, &name, follow, lines),
        command => with_supervisor(ui, args, &host, mode, command),
    }
}

/// Commands that look at processes and cards.
fn with_supervisor(ui: &Ui, args: &LaneArgs, host: &Host, mode: GpuMode, command: Command) -> Result<Output, CliError> {
    let lane = if host.is_real() { Lane::load_here(&args.config)? } else { Lane::load(&args.config)? };
    let layout = Xe2DpasV2::new();
    let resolve = ResolveOptions { layout: Some(&layout), uid: b70_cli::uid() };
    let checks = match &command {
        Command::Start { checks, .. } | Command::Restart { checks, .. } | Command::Run { checks, .. } => StartChecks {
            allow_low_memory: checks.allow_low_memory,
            build_fingerprint: checks.build_fingerprint.clone(),
        },
        _ => StartChecks::default(),
    };
    let lease_root = args.lease_root.clone();
    let supervisor = Supervisor { lane: &lane, host, local: host.is_real(), mode, lease_root, resolve, checks };
    let names = &args.workers;
    let only_here = |execute: bool| {
        if execute && !host.is_real() {
            return Err(CliError::usage(
                "usage",
                "--execute acts on this machine; --host-root cannot be given with it",
            ));
        }
        Ok(())
    };
    let progress = |worker: &str, what: &str| ui.note(&format!("{worker}: {what}"));
    let signaller = Signaller::new();
    match command {
        Command::Status { probe, deadline, key } => {
            let options = StatusOptions {
                probe: if probe { Some(seconds("--deadline", deadline)?) } else { None },
                api_key: api_key(&key)?,
            };
            let status = supervisor.status(names, &options)?;
            Output::ok(&status, text::status(ui, &status))
        }
        Command::Render { format, out, executable } => {
            let workers = lane.select(names)?;
            let cards = lane.cards_or_assumed(host, mode)?;
            let executable = match executable {
                Some(path) => path,
                None => std::env::current_exe().map_err(|e| CliError::io(Path::new("/proc/self/exe"), &e))?,
            };
            let unit = UnitOptions { executable: &executable, lease_root: &args.lease_root, mode };
            let format = match format {
                Format::Shell => RenderFormat::Shell,
                Format::Json => RenderFormat::Json,
                Format::Systemd => RenderFormat::Systemd,
                Format::LlamaPreset => RenderFormat::LlamaPreset,
            };
            let files = render(&lane, &workers, &cards, format, &resolve, &unit)?;
            if let Some(out) = out {
                for file in &files {
                    let path = out.join(&file.file);
                    std::fs::write(&path, &file.text).map_err(|e| CliError::io(&path, &e))?;
                }
            }
            let text: Vec<&str> = files.iter().map(|f| f.text.as_str()).collect();
            let text = text.join("\n");
            Output::ok(&RenderedFiles { schema_version: 1, files }, text)
        }
        Command::Start { execute, wait, .. } => {
            only_here(execute)?;
            let plan = if execute {
                let interrupted = interrupt_flag()?;
                let options = StartOptions {
                    wait: seconds("--wait", wait)?,
                    interrupted: &interrupted,
                    progress: &progress,
                    signaller: &signaller,
                };
                supervisor.start(names, &options)?
            } else {
                supervisor.plan_start(names)?
            };
            finish(ui, &plan)
        }
        Command::Stop { stop } => {
            only_here(stop.execute)?;
            let options = stop_options(&stop, &signaller, &progress)?;
            let plan = if stop.execute { supervisor.stop(names, &options)? } else { supervisor.plan_stop(names)? };
            finish(ui, &plan)
        }
        Command::Restart { stop, ready_wait, .. } => {
            only_here(stop.execute)?;
            if !stop.execute {
                return finish(ui, &supervisor.plan_restart(names)?);
            }
            let interrupted = interrupt_flag()?;
            let start = StartOptions {
                wait: seconds("--ready-wait", ready_wait)?,
                interrupted: &interrupted,
                progress: &progress,
                signaller: &signaller,
            };
            finish(ui, &supervisor.restart(names, &stop_options(&stop, &signaller, &progress)?, &start)?)
        }
        Command::Run { name, .. } => {
            only_here(true)?;
            Err(supervisor.run(&name).into())
        }
        Command::Validate | Command::Init { .. } | Command::Assign { .. } | Command::Logs { .. } => {
            Err(CliError::usage("internal", "this command needs no supervisor"))
        }
    }
}

fn stop_options<'a>(
    stop: &StopArgs,
    signaller: &'a Signaller,
    progress: &'a dyn Fn(&str, &str),
) -> Result<StopOptions<'a>, CliError> {
    let kill_after = stop.kill_after.map(|s| seconds("--kill-after", s)).transpose()?;
    Ok(StopOptions { wait: seconds("--wait", stop.wait)?, kill_after, signaller, progress })
}

fn finish(ui: &Ui, plan: &WorkerPlan) -> Result<Output, CliError> {
    Output::new(plan, text::plan(ui, plan), plan.exit_code())
}

fn logs(ui: &Ui, args: &LaneArgs, name: &str, follow: bool, lines: usize) -> Result<Output, CliError> {
    let lane = Lane::load(&args.config)?;
    let log = lane.paths(lane.worker(name)?).log;
    if !follow {
        let text = log_tail(&log, lines, 4 << 20)?;
        return Output::ok(&LogText { schema_version: 1, worker: name.to_owned(), log, text: text.clone() }, text);
    }
    if ui.json() {
        return Err(CliError::usage("usage", "--follow prints lines as they come and cannot be one JSON document"));
    }
    let interrupted = interrupt_flag()?;
    let (end, mut follower) = LogFollower::open(&log, lines)?;
    write_out(&format!("{end}\n"))?;
    while !interrupted.load(Ordering::SeqCst) {
        write_out(&follower.more()?)?;
        thread::sleep(Duration::from_millis(250));
    }
    Output::new(&serde_json::Value::Null, "", exit::INTERRUPTED)
}

/// Standard output as it grows; a closed pipe ends the command quietly.
fn write_out(text: &str) -> Result<(), CliError> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| CliError::io(Path::new("standard output"), &e))
}

fn seconds(flag: &str, value: f64) -> Result<Duration, CliError> {
    Duration::try_from_secs_f64(value)
        .map_err(|e| CliError::usage("usage", format!("{flag} {value}: {e}")).expected("seconds, 0 or more"))
}

/// The key from a file, or from `B70_API_KEY`; never from an argument, which every user of the machine can read.
fn api_key(args: &KeyArgs) -> Result<Option<ApiKey>, CliError> {
    let text = match &args.api_key_file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| CliError::io(path, &e))?),
        None => std::env::var("B70_API_KEY").ok().filter(|key| !key.is_empty()),
    };
    text.map(|key| ApiKey::new(&key)).transpose().map_err(|e| CliError::usage("api-key", e.to_string()))
}

/// A bare name is looked up in `PATH`.
fn find_executable(name: PathBuf) -> PathBuf {
    if name.components().count() > 1 {
        return name;
    }
    let found = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|d| d.join(&name)).find(|p| p.is_file()));
    found.unwrap_or(name)
}
