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
    GpuMode, InitOptions, Lane, Plan, RenderFormat, ResolveOptions, StartOptions, StatusOptions, StopOptions,
    Supervisor, UnitOptions, WorkerError, assign, follow_log, log_tail, render, starter, validate, write_new,
};
use b70_xe2pack::Xe2DpasV2;

use crate::{Cli, Command, Format, KeyArgs, LaneArgs, StopArgs, text};

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
            Output::ok(&document, text)
        }
        Command::Assign { profile, candidates, swap, out } => {
            let document = assign(&Lane::load(&args.config)?, &profile, &candidates, swap)?;
            write_new(&out, &document)?;
            let text = text::arms(&document, &out);
            Output::ok(&document, text)
        }
        Command::Logs { name, follow, lines } => logs(ui, args, &name, follow, lines),
        command => with_supervisor(ui, args, &host, mode, command),
    }
}

/// Commands that look at processes and cards.
fn with_supervisor(ui: &Ui, args: &LaneArgs, host: &Host, mode: GpuMode, command: Command) -> Result<Output, CliError> {
    let lane = Lane::load(&args.config)?;
    let pool = b70_admission::pool(0)?;
    let layout = Xe2DpasV2::new();
    let uid = Host::real().uid();
    let resolve = ResolveOptions { layout: Some(&layout), pool: &pool, uid };
    let supervisor =
        Supervisor { lane: &lane, host, local: host.is_real(), mode, lease_root: args.lease_root.clone(), resolve };
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
            // Rendering needs the cards' numbers only; a host without any gets ordinals as they are.
            let mut cards = lane.cards(host, mode)?;
            if cards.cards.cards.is_empty() {
                cards = lane.cards(host, GpuMode::Absent)?;
            }
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
            Output::ok(&serde_json::json!({ "schema_version": 1, "files": files }), text.join("\n"))
        }
        Command::Start { execute, wait } => {
            only_here(execute)?;
            let plan = if execute {
                let interrupted = interrupt_flag().map_err(|e| CliError::usage("signals", e.to_string()))?;
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
            finish(ui, &do_stop(&supervisor, names, &stop, &signaller, &progress)?)
        }
        Command::Restart { stop, ready_wait } => {
            only_here(stop.execute)?;
            if !stop.execute {
                // The start is planned by itself: what blocks it now is mostly the worker that would be stopped.
                return finish(ui, &supervisor.plan_stop(names)?);
            }
            let stopped = do_stop(&supervisor, names, &stop, &signaller, &progress)?;
            if stopped.exit_code() != exit::OK {
                return finish(ui, &stopped);
            }
            let interrupted = interrupt_flag().map_err(|e| CliError::usage("signals", e.to_string()))?;
            let options = StartOptions {
                wait: seconds("--ready-wait", ready_wait)?,
                interrupted: &interrupted,
                progress: &progress,
                signaller: &signaller,
            };
            finish(ui, &supervisor.start(names, &options)?)
        }
        Command::Run { name } => {
            only_here(true)?;
            Err(supervisor.run(&name).into())
        }
        Command::Validate | Command::Init { .. } | Command::Assign { .. } | Command::Logs { .. } => {
            Err(CliError::usage("internal", "this command needs no supervisor"))
        }
    }
}

fn do_stop(
    supervisor: &Supervisor<'_>,
    names: &[String],
    stop: &StopArgs,
    signaller: &Signaller,
    progress: &dyn Fn(&str, &str),
) -> Result<Plan, CliError> {
    if !stop.execute {
        return Ok(supervisor.plan_stop(names)?);
    }
    let kill_after = stop.kill_after.map(|s| seconds("--kill-after", s)).transpose()?;
    Ok(supervisor.stop(names, &StopOptions { wait: seconds("--wait", stop.wait)?, kill_after, signaller, progress })?)
}

fn finish(ui: &Ui, plan: &Plan) -> Result<Output, CliError> {
    Output::new(plan, text::plan(ui, plan), plan.exit_code())
}

fn logs(ui: &Ui, args: &LaneArgs, name: &str, follow: bool, lines: usize) -> Result<Output, CliError> {
    let lane = Lane::load(&args.config)?;
    let log = lane.paths(lane.worker(name)?).log;
    let end = log_tail(&log, lines, 4 << 20)?;
    if !follow {
        return Output::ok(
            &serde_json::json!({ "schema_version": 1, "worker": name, "log": log, "text": end }),
            end.clone(),
        );
    }
    if ui.json() {
        return Err(CliError::usage("usage", "--follow prints lines as they come and cannot be one JSON document"));
    }
    let interrupted = interrupt_flag().map_err(|e| CliError::usage("signals", e.to_string()))?;
    let mut at = std::fs::metadata(&log).map_err(|e| CliError::io(&log, &e))?.len();
    write_out(&format!("{end}\n"))?;
    while !interrupted.load(Ordering::SeqCst) {
        // Between rotation and the new file there is no log for a moment.
        match follow_log(&log, at) {
            Ok((text, next)) => {
                at = next;
                write_out(&text)?;
            }
            Err(WorkerError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => at = 0,
            Err(error) => return Err(error.into()),
        }
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
