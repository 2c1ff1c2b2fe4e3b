//! Lanes of stand-in servers on loopback ports of their own.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it; a failed step is a failed test")]

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use b70_procguard::{Host, Signaller};
use b70_worker::{GpuMode, Lane, ResolveOptions, StartChecks, StartOptions, StopOptions, Supervisor, WorkerPlan};
use serde_json::{Value, json};

/// A free port of this moment, below the range of outgoing connections.
pub(crate) fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::SeqCst);
        let port = 18_900 + (std::process::id() as u16 % 97) * 11 % 900 + step % 2000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Path of the Python that `python3` ends in.
fn python() -> String {
    let out = std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let out = out.expect("these tests need Python 3 as python3 in PATH (Debian: apt-get install python3)");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// A lane in a folder of its own.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) document: Value,
    pub(crate) host: Host,
    pub(crate) mode: GpuMode,
    pub(crate) signaller: Signaller,
    pub(crate) checks: StartChecks,
}

impl Bench {
    /// Workers `w0`, `w1`, … on ordinals 0, 1, …; the profile's environment carries `mode`.
    pub(crate) fn new(workers: usize, mode: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model.gguf");
        fs::write(&model, b"GGUF").unwrap();
        // A copy of its own: other processes' names must not matter.
        let binary = dir.path().join("stub-server");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/server.py")).unwrap();
        // The interpreter itself: a shim before it would start helpers of its own.
        fs::write(&binary, text.replacen("/usr/bin/env python3", &python(), 1)).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let list: Vec<Value> = (0..workers)
            .map(|n| json!({"name": format!("w{n}"), "gpu": n, "port": free_port(), "role": "trial", "profile": "p"}))
            .collect();
        let document = json!({
            "schema_version": 2, "lane": "trial", "runtime_root": dir.path().join("state"),
            "binary": binary, "target_model": model, "model_alias": "stub",
            "common": {"host": "127.0.0.1", "ctx_size": 512, "batch_size": 64, "ubatch_size": 64, "n_parallel": 1,
                "flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16", "extra_llama_args": "--cache-ram 0"},
            "profiles": {"p": {"spec_type": "none", "environment": {"STUB_MODE": mode, "MY_SECRET_TOKEN": "hunter2"}}},
            "workers": list,
        });
        // Verdicts about cards come from a recorded host, so that other servers of this machine do not matter.
        let host = Host::recorded(&b70_testkit::recorded_host("four-b70-idle")).unwrap();
        Self { dir, document, host, mode: GpuMode::Absent, signaller: Signaller::new(), checks: StartChecks::default() }
    }

    pub(crate) fn config(&self) -> PathBuf {
        let path = self.dir.path().join("workers.json");
        fs::write(&path, self.document.to_string()).unwrap();
        path
    }

    pub(crate) fn lane(&self) -> Lane {
        Lane::load(&self.config()).unwrap()
    }

    /// Puts a launcher script before the server.
    pub(crate) fn launcher(&mut self, text: &str) {
        let path = self.dir.path().join("serve.sh");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self.document["launcher"] = json!(path);
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&Supervisor<'_>) -> T) -> T {
        let lane = self.lane();
        let resolve = ResolveOptions { layout: None, uid: 0 };
        let lease_root = self.dir.path().join("leases");
        let checks = self.checks.clone();
        act(&Supervisor { lane: &lane, host: &self.host, local: true, mode: self.mode, lease_root, resolve, checks })
    }

    pub(crate) fn start_within(&self, wait: f64) -> WorkerPlan {
        let interrupted = AtomicBool::new(false);
        let options = StartOptions {
            wait: Duration::from_secs_f64(wait),
            interrupted: &interrupted,
            progress: &|_, _| {},
            signaller: &self.signaller,
        };
        self.with(|s| s.start(&[], &options)).unwrap()
    }

    pub(crate) fn start(&self) -> WorkerPlan {
        self.start_within(90.0)
    }

    pub(crate) fn stop_with(&self, wait: f64, kill: Option<f64>) -> WorkerPlan {
        let options = StopOptions {
            wait: Duration::from_secs_f64(wait),
            kill_after: kill.map(Duration::from_secs_f64),
            signaller: &self.signaller,
            progress: &|_, _| {},
        };
        self.with(|s| s.stop(&[], &options)).unwrap()
    }

    pub(crate) fn restart(&self) -> WorkerPlan {
        let interrupted = AtomicBool::new(false);
        let (signaller, progress) = (&self.signaller, &|_: &str, _: &str| {});
        let stop = StopOptions { wait: Duration::from_secs(60), kill_after: None, signaller, progress };
        let start = StartOptions { wait: Duration::from_secs(90), interrupted: &interrupted, progress, signaller };
        self.with(|s| s.restart(&[], &stop, &start)).unwrap()
    }

    pub(crate) fn stop(&self) -> WorkerPlan {
        self.stop_with(60.0, None)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A failed test leaves no server behind.
        let options = StopOptions {
            wait: Duration::from_secs(1),
            kill_after: Some(Duration::from_secs(1)),
            signaller: &self.signaller,
            progress: &|_, _| {},
        };
        let _ = self.with(|s| s.stop(&[], &options));
    }
}

/// All reasons of a plan in one text.
pub(crate) fn reasons(plan: &WorkerPlan) -> String {
    plan.plan.iter().flat_map(|a| a.reasons.clone()).collect::<Vec<_>>().join("\n")
}
