//! Two real servers: planned, started, asked for a token, and stopped again.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use b70_bench::{CalibrateOptions, Calibration, RunStatus, Suite, load_folder, targets_of_workers};
use b70_cli::CliError;
use b70_manifest::workers::{ExtraArgs, Workers};
use b70_procguard::{Host, Signaller};
use b70_worker::{
    FIRST_PORT, GpuMode, InitOptions, Lane, LivenessState, ProbeOptions, ResolveOptions, StartChecks, StartOptions,
    StopOptions, Supervisor, probe, starter, write_new,
};
use b70_xe2pack::Xe2DpasV2;

use super::{Places, Proof, Tour, expect, told};
use crate::tour::model::CONTEXT;

/// How long a server of a few megabytes may take to load.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end.
const ENDED: Duration = Duration::from_secs(20);

/// Prompts that each server is asked.
const PROMPTS: usize = 3;
/// Tokens of an answer. Random weights emit bytes that are not whole characters, so an answer has fewer events than tokens,
/// and they end it at random; 256 tokens past every end leave more than the 100 events of the metric.
const ANSWER: u32 = 256;

/// Returns whether every step proved what it should, or was skipped with a reason.
pub(crate) fn run(places: &Places, llama_server: Option<&Path>, tour: &mut Tour<'_>) -> Result<bool, CliError> {
    let config = places.folder.join("two-workers.json");
    let start_command = format!("b70-worker start --config {} --no-gpu --execute", config.display());
    let Some(binary) = llama_server else {
        return Ok(tour.skip("workers", start_command, "no llama-server on PATH; name one with --llama-server"));
    };
    let lane = match lane(places, binary, &config) {
        Ok(lane) => lane,
        Err(problem) => return Ok(tour.step("workers", start_command, || Err(problem))),
    };
    let layout = Xe2DpasV2::new();
    let host = Host::real();
    let supervisor = Supervisor {
        lane: &lane,
        host: &host,
        local: true,
        mode: GpuMode::Absent,
        lease_root: places.folder.join("leases"),
        resolve: ResolveOptions { layout: Some(&layout), uid: host.uid() },
        checks: StartChecks::default(),
    };
    let plan = match supervisor.plan_start(&[]) {
        Ok(plan) if !plan.allowed() => {
            // Somebody's own servers come first; the tour does not argue with them.
            let reasons: Vec<String> = plan.plan.iter().flat_map(|action| action.reasons.clone()).collect();
            return Ok(tour.skip(
                "workers",
                start_command,
                &format!("a start is blocked here: {}", reasons.join("; ")),
            ));
        }
        other => other.map_err(told),
    };
    let interrupted = b70_cli::interrupt_flag()?;
    let signaller = Signaller::new();
    let started = tour.step("workers", start_command, || {
        plan?;
        start(&supervisor, &signaller, &interrupted)
    });
    let answered = started
        && tour.step("probe", format!("b70-worker status --probe --config {} --no-gpu", config.display()), || {
            ask(&lane, &host)
        });
    let measured = answered
        && tour.step(
            "calibrate",
            format!(
                "b70-bench calibrate --config {} --out DIR --max-tokens {ANSWER} --ignore-eos --prompt …",
                config.display()
            ),
            || calibrate(places, &config, &host, &interrupted),
        );
    // What was started is stopped, whatever the steps before said.
    let stopped = tour.step("stop", format!("b70-worker stop --config {} --execute", config.display()), || {
        stop(&supervisor, &signaller)
    });
    Ok(started && answered && measured && stopped)
}

/// A configuration of two workers on free ports, without cards.
fn lane(places: &Places, binary: &Path, config: &Path) -> Result<Lane, String> {
    let document = starter(&InitOptions {
        gpus: vec!["0".parse().map_err(told)?, "1".parse().map_err(told)?],
        model: places.model.clone(),
        binary: binary.to_owned(),
        runtime_root: places.folder.join("state"),
        first_port: two_free_ports().ok_or("there are no two free ports on 127.0.0.1")?,
    })
    .map_err(told)?;
    let mut document = Workers { lane: "b70-tour".into(), ..document };
    document.common.ctx_size = CONTEXT.into();
    // A thread each, and no reuse of prompts: what is measured must be cold.
    document.common.extra_llama_args = ExtraArgs::Text("--threads 1 --cache-ram 0".into());
    write_new(config, &document).map_err(told)?;
    Lane::load(config).map_err(told)
}

/// The first of two neighbouring ports that can both be bound now.
fn two_free_ports() -> Option<u16> {
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (FIRST_PORT..FIRST_PORT + 400).step_by(2).find(|port| free(*port) && free(*port + 1))
}

fn start(supervisor: &Supervisor<'_>, signaller: &Signaller, interrupted: &AtomicBool) -> Proof {
    let options = StartOptions { wait: READY, interrupted, progress: &|_, _| {}, signaller };
    let plan = supervisor.start(&[], &options).map_err(told)?;
    if plan.exit_code() != 0 {
        let details: Vec<&str> = plan.results.iter().map(|result| result.detail.as_str()).collect();
        return Err(details.join("; "));
    }
    let again = supervisor.plan_start(&[]).map_err(told)?;
    let pids: Vec<String> = plan.results.iter().filter_map(|result| result.pid).map(|pid| pid.to_string()).collect();
    expect(
        !again.allowed() && pids.len() == 2,
        format!("two servers answer (processes {}); a second start is refused", pids.join(" and ")),
    )
}

fn ask(lane: &Lane, host: &Host) -> Proof {
    let mut said = Vec::new();
    for worker in &lane.document.workers {
        let report = probe(&lane.url(worker), host, &ProbeOptions::default()).map_err(told)?;
        if report.state != LivenessState::Healthy {
            return Err(format!("{} is {}: {}", worker.name, report.state.word(), report.reason));
        }
        said.push(format!("{} healthy", worker.name));
    }
    Ok(format!("{}, each by a token it generated for the question", said.join(", ")))
}

/// A brief cold calibration of both servers, and every figure made again from the raw offsets.
fn calibrate(places: &Places, config: &Path, host: &Host, interrupted: &AtomicBool) -> Proof {
    let suite = Suite::builtin();
    let selected = suite.prompts.iter().take(PROMPTS).map(|prompt| prompt.id.clone()).collect();
    let calibration = Calibration {
        targets: targets_of_workers(config, &[], host).map_err(told)?,
        suite,
        options: CalibrateOptions {
            max_tokens: ANSWER,
            selected: Some(selected),
            ignore_eos: true,
            total: Some(Duration::from_secs(120)),
            ..CalibrateOptions::default()
        },
        out: places.folder.join("calibration"),
        host: host.clone(),
        lease_root: None,
    };
    let report = calibration.execute(interrupted, &mut |_| {}).map_err(told)?;
    if report.status != RunStatus::Passed {
        return Err(format!("the screening gate did not pass; the rows are in {}", report.out.display()));
    }
    let results = load_folder(&report.out).map_err(told)?;
    let rows: usize = results.iter().map(|result| result.judged.measured().rows.len()).sum();
    let same = results.iter().all(|result| result.disagreements.is_empty());
    let cold = results.iter().all(|result| result.judged.gates().get("cached_zero").is_some_and(|gate| gate.passed));
    let promoted = results.iter().any(|result| result.promotion().is_some());
    expect(
        results.len() == 2 && rows == 2 * PROMPTS && same && cold && !promoted,
        format!(
            "{rows} cold rows, cached tokens 0 in each; every figure made again from its offsets; a subset of the suite, so \
             not promotion-eligible"
        ),
    )
}

fn stop(supervisor: &Supervisor<'_>, signaller: &Signaller) -> Proof {
    let options = StopOptions { wait: ENDED, kill_after: Some(ENDED), signaller, progress: &|_, _| {} };
    let plan = supervisor.stop(&[], &options).map_err(told)?;
    let mut signalled: Vec<u32> = signaller.log().iter().map(|record| record.target.pid).collect();
    signalled.sort_unstable();
    signalled.dedup();
    let ours: Vec<u32> = plan.results.iter().filter_map(|result| result.pid).collect();
    expect(
        plan.exit_code() == 0 && signalled.iter().all(|pid| ours.contains(pid)),
        format!("both ended; {} processes were signalled, no other than the two", signalled.len()),
    )
}
