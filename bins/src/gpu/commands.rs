//! One library call a command.

use std::{ffi::OsString, path::Path, process, time::Duration};

use b70_cli::{CliError, Output, Style, Ui, exit};
use b70_client::ApiKey;
use b70_procguard::{
    CardVerdict, Cards, CheckStatus, DoctorReport, GpuRef, Host, LeaseKind, LeaseOwner, LeaseRoot, PciAddress, Usage,
    UsageOptions, pin_to_card, record, redact_arguments,
};
use b70_worker::{ProbeOptions, local_listener, probe};

use crate::gpu::{Cli, Command, LeaseCommand, text};

pub(crate) fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let host = match &cli.host_root {
        Some(root) => Host::recorded(root)?,
        None => Host::real(),
    };
    match cli.command {
        Command::List => {
            let cards = scan(&host)?;
            Output::ok(&cards, text::cards(ui, &cards))
        }
        Command::Owners { gpu, sample } => {
            let cards = scan(&host)?;
            let only = gpu.map(|g| cards.resolve(g).map(|c| c.pci)).transpose()?;
            let options = UsageOptions { sample: Duration::from_millis(sample), ..UsageOptions::default() };
            let mut usage = Usage::scan(&host, &cards, &options);
            usage.cards.retain(|c| only.is_none_or(|pci| c.pci == pci));
            Output::ok(&usage, text::usage(ui, &usage))
        }
        Command::Lease { command: LeaseCommand::Status { root } } => {
            let cards: Vec<PciAddress> = scan(&host)?.cards.iter().map(|c| c.pci).collect();
            let report = LeaseRoot::report(&root.lease_root, &host, &cards)?;
            Output::ok(&report, text::leases(ui, &report))
        }
        Command::Lease { command: LeaseCommand::Run { gpu, wait, no_gpu, root, command } } => {
            if !host.is_real() {
                return Err(CliError::usage(
                    "usage",
                    "a lease is taken on this machine; --host-root cannot be given with it",
                ));
            }
            let wait = Duration::try_from_secs_f64(wait)
                .map_err(|e| CliError::usage("usage", format!("--wait {wait}: {e}")).expected("seconds, 0 or more"))?;
            Err(lease_run(&host, ui, gpu, wait, no_gpu, &root.lease_root, &command))
        }
        Command::Probe { url, deadline, gpu, api_key_file } => {
            if !host.is_real() {
                return Err(CliError::usage("usage", "a server is asked now; --host-root cannot be given with it"));
            }
            probe_server(&host, ui, &url, deadline, gpu, api_key_file.as_deref())
        }
        Command::Doctor => {
            let cards = scan(&host)?;
            let env: Vec<(String, String)> = if host.is_real() {
                std::env::vars_os()
                    .map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()))
                    .collect()
            } else {
                Vec::new()
            };
            let report = DoctorReport::run(&host, &cards, &env);
            let code = if report.status == CheckStatus::Fail { exit::CHECK_FAILED } else { exit::OK };
            Output::new(&report, text::doctor(ui, &report), code)
        }
        Command::Record { out } => {
            let summary = record(&host, &out, UsageOptions::default().sample)?;
            let text = text::record(&summary);
            Output::ok(&summary, text)
        }
    }
}

fn scan(host: &Host) -> Result<Cards, CliError> {
    Cards::scan(host).map_err(|e| CliError::io(Path::new("/sys/bus/pci/devices"), &e))
}

fn probe_server(
    host: &Host,
    ui: &Ui,
    url: &str,
    deadline: f64,
    gpu: Option<GpuRef>,
    key_file: Option<&Path>,
) -> Result<Output, CliError> {
    let deadline = Duration::try_from_secs_f64(deadline)
        .map_err(|e| CliError::usage("usage", format!("--deadline {deadline}: {e}")).expected("seconds, 0 or more"))?;
    // Never from an argument, which every user of the machine can read.
    let key = match key_file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| CliError::io(path, &e))?),
        None => std::env::var("B70_API_KEY").ok().filter(|key| !key.is_empty()),
    };
    let api_key =
        key.map(|key| ApiKey::new(&key)).transpose().map_err(|e| CliError::usage("api-key", e.to_string()))?;
    let cards = scan(host)?;
    let pid = local_listener(host, url);
    let card = match gpu {
        Some(gpu) => Some(cards.resolve(gpu)?.pci),
        None => pid.and_then(|pid| Usage::scan(host, &cards, &UsageOptions::default()).card_of(pid)),
    };
    let report = probe(url, host, &ProbeOptions { deadline, api_key, pid, card })?;
    let code = if report.state.is_serving() { exit::OK } else { exit::CHECK_FAILED };
    Output::new(&report, text::liveness(ui, &report), code)
}

/// Takes the lease and becomes the command; returns only what kept it from that.
fn lease_run(
    host: &Host,
    ui: &Ui,
    gpu: GpuRef,
    wait: Duration,
    no_gpu: bool,
    root: &Path,
    argv: &[OsString],
) -> CliError {
    let attempt = || -> Result<CliError, CliError> {
        let mut command = process::Command::new(&argv[0]);
        command.args(&argv[1..]);
        let pci = match gpu {
            GpuRef::Pci(pci) if no_gpu => {
                command.env("B70_GPU_PCI", pci.to_string());
                pci
            }
            GpuRef::Ordinal(_) if no_gpu => {
                return Err(CliError::usage(
                    "usage",
                    "--no-gpu needs a PCI address: without the cards an ordinal names nothing",
                ));
            }
            gpu => {
                let cards = scan(host)?;
                let pinning = pin_to_card(&cards, cards.resolve(gpu)?.pci)?;
                warn_if_used(host, ui, &cards, pinning.pci);
                for name in &pinning.unset {
                    command.env_remove(name);
                }
                command.envs(pinning.set);
                pinning.pci
            }
        };
        let words: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        let owner = LeaseOwner::this_process(redact_arguments(&words).join(" "))
            .map_err(|e| CliError::io(Path::new("/proc/self"), &e))?;
        let lease = LeaseRoot::open(root)?.acquire(pci, LeaseKind::Card, &owner, wait)?;
        Ok(CliError::io(Path::new(&argv[0]), &lease.exec(&mut command)).hint("the lease was given back"))
    };
    attempt().unwrap_or_else(|e| e)
}

/// A lease excludes only those who ask for it; say so when somebody else is on the card.
fn warn_if_used(host: &Host, ui: &Ui, cards: &Cards, pci: PciAddress) {
    if ui.quiet() {
        return;
    }
    let usage = Usage::scan(host, cards, &UsageOptions::default());
    if let Some(card) = usage.card(pci).filter(|c| c.verdict == CardVerdict::Used) {
        let pids: Vec<String> = card.owners.iter().map(|o| format!("{} ({})", o.pid, o.comm)).collect();
        ui.note(&format!(
            "{} {pci} is in use without this lease by {}",
            ui.paint_error(Style::Warn, "warning:"),
            pids.join(", ")
        ));
    }
}
