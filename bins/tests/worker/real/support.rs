//! Lanes of real servers on ports of their own, in a pid namespace of their own.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use b70_testkit::{chat_model, conforms, llama_server, port_from};
use serde_json::{Value, json};

pub(crate) struct Lane {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) server: PathBuf,
    pub(crate) model: PathBuf,
    pub(crate) ports: Vec<u16>,
    pub(crate) foreign: Vec<Child>,
}

impl Lane {
    /// Workers `w0`, `w1`, … from that port on.
    pub(crate) fn new(workers: u16, first_port: u16, adjust: impl FnOnce(&mut Value)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = llama_server();
        let model = chat_model();
        let ports: Vec<u16> = (0..workers).map(|n| port_from(first_port + 100 * n)).collect();
        let list: Vec<Value> = ports
            .iter()
            .enumerate()
            .map(|(n, port)| json!({"name": format!("w{n}"), "gpu": n, "port": port, "role": "trial", "profile": "p"}))
            .collect();
        let mut document = json!({
            "schema_version": 2, "lane": "trial", "runtime_root": dir.path().join("state"),
            "binary": server, "target_model": model, "model_alias": "trial",
            "common": {"host": "127.0.0.1", "ctx_size": 512, "batch_size": 64, "ubatch_size": 64, "n_parallel": 1,
                "flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16",
                "extra_llama_args": "--cache-ram 0 --threads 1 --no-warmup"},
            "profiles": {"p": {"spec_type": "none"}}, "workers": list,
        });
        adjust(&mut document);
        fs::write(dir.path().join("workers.json"), document.to_string()).unwrap();
        Self { dir, server, model, ports, foreign: Vec::new() }
    }

    /// A file of a worker's folder.
    pub(crate) fn file(&self, worker: &str, name: &str) -> PathBuf {
        self.dir.path().join("state/workers").join(worker).join(name)
    }

    pub(crate) fn record(&self, worker: &str) -> Value {
        serde_json::from_slice(&fs::read(self.file(worker, "resolved-identity.json")).unwrap()).unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
        command.arg("--config").arg(self.dir.path().join("workers.json")).arg("--no-gpu").args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command with `--json`; what it prints is held against its schema.
    pub(crate) fn run(&self, args: &[&str]) -> (Value, i32) {
        let out = self.command(args).arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let document: Value = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {text} {}", String::from_utf8_lossy(&out.stderr)));
        let schema = match args[0] {
            _ if document.get("error").is_some() => "error",
            "start" | "stop" | "restart" => "worker-plan",
            "validate" => "worker-validate",
            "status" => "worker-status",
            "render" => "worker-render",
            "logs" => "worker-logs",
            other => panic!("no schema is known for {other}"),
        };
        conforms(schema, &document);
        (document, out.status.code().unwrap())
    }

    /// State and reason of every worker, by a probe.
    pub(crate) fn states(&self, deadline: &str) -> Vec<(String, String)> {
        let (status, code) = self.run(&["status", "--probe", "--deadline", deadline]);
        assert_eq!(code, 0, "{status:#}");
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let rows = status["workers"].as_array().unwrap();
        rows.iter().map(|r| (text(&r["liveness"]["state"]), text(&r["liveness"]["reason"]))).collect()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.command(&["stop", "--execute", "--kill-after", "10"]).output();
        for child in &mut self.foreign {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process id of a worker's result or row.
pub(crate) fn pid_of(value: &Value) -> u32 {
    u32::try_from(value["pid"].as_u64().unwrap()).unwrap()
}
