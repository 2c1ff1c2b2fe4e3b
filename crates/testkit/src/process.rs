//! Real processes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const INSIDE: &str = "B70_TEST_INSIDE_NAMESPACE";

/// Runs a command that must succeed; returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Should this process run the test itself? The outer call runs it in a pid namespace of its own with its own `/proc`, where
/// no other process of the machine is seen, and returns false.
pub fn in_pid_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut inner = Command::new("unshare");
    inner.args(["--pid", "--fork", "--mount-proc", "--"]).arg(std::env::current_exe().expect("the test's own path"));
    inner.args([test, "--exact", "--include-ignored", "--nocapture"]).env(INSIDE, "1");
    let status = inner.status().expect("unshare (util-linux) is needed by this test: install it");
    assert!(
        status.success(),
        "{test} in its own pid namespace failed, or unshare was refused (it takes root): {status}"
    );
    false
}

/// Makes the next process of this pid namespace get exactly that number.
pub fn spawn_as(pid: u32, program: &str, args: &[&str]) -> Child {
    for _ in 0..200 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("ns_last_pid can be written");
        let mut child =
            Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        if child.id() == pid {
            return child;
        }
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }
    panic!("pid {pid} was not given again");
}

/// A port of this moment among the hundred from `first` on: below the range of outgoing connections, if `first` is.
pub fn port_from(first: u16) -> u16 {
    (first..first + 100).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// A real llama-server on loopback, which does not outlive its test.
#[derive(Debug)]
pub struct LlamaServer {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub url: String,
}

impl LlamaServer {
    /// One that loads the model on that port; nobody waited for it.
    pub fn spawn(port: u16, context: u32, args: &[&str]) -> Self {
        let mut command = Command::new(super::llama_server());
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "-c", &context.to_string(), "-t", "1"]);
        command.args(args).arg("-m").arg(super::chat_model());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("B70_TEST_LLAMA_SERVER can be started");
        Self { child, url: format!("http://127.0.0.1:{port}") }
    }

    /// One slot, prompt reuse off, ready.
    pub fn start(context: u32) -> Self {
        // Free at this moment; the server's own bind decides, and a clash ends it before it loads anything.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let mut server = Self::spawn(port, context, &["-np", "1", "--cache-ram", "0"]);
        let begun = Instant::now();
        while !is_ready(port) {
            let ended = server.child.try_wait().expect("it is ours");
            assert!(ended.is_none(), "llama-server ended while starting: {ended:?}");
            assert!(begun.elapsed() < Duration::from_secs(120), "llama-server was not ready within 120 s");
            sleep(Duration::from_millis(100));
        }
        server
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn is_ready(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut status = [0; 12];
    stream.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
        && stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").is_ok()
        && stream.read_exact(&mut status).is_ok()
        && status.ends_with(b" 200")
}
