//! The same worker for other hands: a shell, systemd, llama.cpp's own presets.

use std::path::Path;

use b70_manifest::workers::Worker;
use b70_procguard::REDACTED;

use crate::{
    error::WorkerError,
    lane::{CardMap, GpuMode, Lane},
    output::ResolvedWorkers,
    resolve::{ResolveOptions, ResolvedCommand, resolve},
};

/// Forms in which workers are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderFormat {
    /// A script that sets the variables and runs the server. It holds no lease.
    Shell,
    /// The resolved commands as data.
    Json,
    /// A systemd unit that calls `b70-worker run`.
    Systemd,
    /// llama.cpp's preset file; it cannot pin a card.
    LlamaPreset,
}

/// A rendered file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Rendered {
    /// Its usual name.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// What a unit needs beside the configuration.
#[derive(Debug, Clone)]
pub struct UnitOptions<'a> {
    /// The executable of `b70-worker`, absolute.
    pub executable: &'a Path,
    /// Directory of leases.
    pub lease_root: &'a Path,
    /// Whether cards are looked for.
    pub mode: GpuMode,
}

/// Resolves and renders workers.
pub fn render(
    lane: &Lane,
    workers: &[&Worker],
    cards: &CardMap,
    format: RenderFormat,
    options: &ResolveOptions<'_>,
    unit: &UnitOptions<'_>,
) -> Result<Vec<Rendered>, WorkerError> {
    match format {
        RenderFormat::Systemd => workers.iter().map(|worker| systemd(lane, worker, unit)).collect(),
        RenderFormat::Shell => {
            workers.iter().map(|worker| Ok(shell(worker, &resolve(lane, worker, cards, options)?))).collect()
        }
        RenderFormat::Json => {
            let commands: Result<Vec<ResolvedCommand>, _> = workers
                .iter()
                .map(|worker| resolve(lane, worker, cards, options).map(|command| command.redacted()))
                .collect();
            let text = serde_json::to_string_pretty(&ResolvedWorkers { schema_version: 1, workers: commands? })
                .map_err(|e| WorkerError::Usage(format!("a command is not UTF-8 text: {e}")))?;
            Ok(vec![Rendered { file: "workers-resolved.json".into(), text: text + "\n" }])
        }
        RenderFormat::LlamaPreset => {
            let mut text = "version = 1\n\n; Presets carry no environment: nothing here pins a card. Start the server with the\n; variables of `render --format shell`.\n".to_owned();
            for worker in workers {
                text.push_str(&preset(lane, worker, &resolve(lane, worker, cards, options)?));
            }
            Ok(vec![Rendered { file: "llama-presets.ini".into(), text }])
        }
    }
}

/// A word that a POSIX shell reads back unchanged.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The variable from which a script takes the secret of a flag: `--api-key` is `API_KEY`.
fn variable_of(flag: &str) -> String {
    let name = flag.trim_start_matches('-').to_ascii_uppercase();
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("SECRET_{name}") }
}

fn shell(worker: &Worker, command: &ResolvedCommand) -> Rendered {
    let mut text = format!(
        "#!/bin/sh\n# Worker {} on gpu {}, port {}. This script holds no lease of the card; `b70-worker run` does.\n",
        worker.name, worker.gpu, worker.port
    );
    for name in &command.unset {
        text.push_str(&format!("unset {name}\n"));
    }
    let shown = command.redacted();
    for ((name, value), (_, shown)) in command.set.iter().zip(&shown.set) {
        if value == shown {
            text.push_str(&format!("export {name}={}\n", shell_word(value)));
        } else {
            // Asked for instead of written: a script is passed on.
            text.push_str(&format!(": \"${{{name}:?is a secret that this script does not hold}}\"\nexport {name}\n"));
        }
    }
    let mut before = "";
    let words: Vec<String> = command
        .argv
        .iter()
        .zip(&shown.argv)
        .map(|(word, shown)| {
            let flag = std::mem::replace(&mut before, word);
            if word == shown {
                return shell_word(word);
            }
            let (name, prefix) = match shown.split_once('=') {
                Some((name, _)) => (name, format!("{name}=")),
                None => (flag, String::new()),
            };
            format!("{prefix}\"${{{}:?is a secret that this script does not hold}}\"", variable_of(name))
        })
        .collect();
    text.push_str(&format!("exec {}\n", words.join(" ")));
    Rendered { file: format!("{}.sh", worker.name), text }
}

/// A word of an `ExecStart=` line: quotes, backslashes, specifiers and variables are literal.
fn unit_word(text: &str) -> Result<String, WorkerError> {
    if text.contains(|c: char| c.is_control()) {
        return Err(WorkerError::Usage(format!("{text:?} contains a control character, which no unit can hold")));
    }
    let escaped = text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,=%".contains(c);
    Ok(if escaped.chars().all(plain) && !escaped.is_empty() { escaped } else { format!("\"{escaped}\"") })
}

fn systemd(lane: &Lane, worker: &Worker, unit: &UnitOptions<'_>) -> Result<Rendered, WorkerError> {
    let executable = unit_word(&unit.executable.display().to_string())?;
    let config = unit_word(&lane.config.display().to_string())?;
    let name = unit_word(&worker.name)?;
    let lease = unit_word(&format!("B70_LEASE_ROOT={}", unit.lease_root.display()))?;
    let no_gpu = if unit.mode == GpuMode::Absent { " --no-gpu" } else { "" };
    let text = format!(
        "# b70-worker-{name}.service
[Unit]
Description=llama-server worker {name} on gpu {gpu}, port {port}
Wants=network-online.target
After=network-online.target local-fs.target
StartLimitIntervalSec=600
StartLimitBurst=3

[Service]
Type=exec
Environment={lease}
ExecStartPre={executable} validate --config {config} --worker {name}{no_gpu}
ExecStart={executable} run {name} --config {config}{no_gpu}
Restart=on-failure
RestartSec=15
# Only the server is asked to end; its helpers, such as a tee, follow or are killed at the end.
KillMode=mixed
TimeoutStartSec=120
# A long batch is ended first; a server that waits for a dead engine is killed after this.
TimeoutStopSec=120
LimitMEMLOCK=infinity
LimitCORE=0

[Install]
WantedBy=multi-user.target
",
        gpu = worker.gpu,
        port = worker.port,
    );
    Ok(Rendered { file: format!("b70-worker-{}.service", worker.name), text })
}

/// A section of long options without dashes; flags without a value are `true`.
fn preset(lane: &Lane, worker: &Worker, command: &ResolvedCommand) -> String {
    let mut text = format!("\n[{}]\n", worker.name);
    let words: Vec<String> = if lane.document.launcher.is_some() {
        text.push_str("; this worker starts by a launcher script; these are its settings\n");
        [
            ("model", "MODEL"),
            ("alias", "MODEL_ALIAS"),
            ("ctx-size", "CTX_SIZE"),
            ("batch-size", "BATCH_SIZE"),
            ("ubatch-size", "UBATCH_SIZE"),
            ("parallel", "N_PARALLEL"),
            ("flash-attn", "FLASH_ATTN"),
            ("cache-type-k", "CACHE_TYPE_K"),
            ("cache-type-v", "CACHE_TYPE_V"),
        ]
        .iter()
        .filter_map(|(flag, name)| Some([format!("--{flag}"), command.variable(name)?.to_owned()]))
        .flatten()
        .collect()
    } else {
        command.redacted().argv[1..].to_vec()
    };
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        let is_value = |w: &str| !w.starts_with('-') || w[1..].starts_with(|c: char| c.is_ascii_digit());
        let value = match name.split_once('=') {
            Some((_, value)) => value.to_owned(),
            None => words.next_if(|w| is_value(w)).cloned().unwrap_or_else(|| "true".into()),
        };
        if value == REDACTED {
            text.push_str(&format!("; {} is a secret and not written here\n", name.split('=').next().unwrap_or(name)));
        } else if !matches!(name, "host" | "port") {
            // The router gives each model an address of its own.
            text.push_str(&format!("{} = {value}\n", name.split('=').next().unwrap_or(name)));
        }
    }
    text
}
