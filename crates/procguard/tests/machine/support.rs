//! Helper programs that misbehave, and waiting for them.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use b70_procguard::{Host, ProcStat, ProcessIdentity, SESSION_TOKEN_VARIABLE, Session};

/// A child that is ended and collected with the test, come what may.
pub(crate) struct Helper(pub(crate) Child);

impl Helper {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::of(&Host::real(), self.pid())
            .expect("/proc is readable")
            .expect("the child has not been collected")
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Not collected yet, so the number is still this child's.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn shell(script: &str) -> Helper {
    let child = Command::new("sh")
        .arg("-c")
        .arg(script)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Helper(child.expect("sh starts"))
}

pub(crate) fn python(script: &str, args: &[&str]) -> Helper {
    let child =
        Command::new("python3").arg("-c").arg(script).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    Helper(child.expect("python3 is needed by this test: install it"))
}

/// Starts a script as leader of its own session, as a worker is started.
pub(crate) fn session(script: &str, token: &str) -> (Helper, Session) {
    let child = Command::new("setsid")
        .args(["sh", "-c", script])
        .env(SESSION_TOKEN_VARIABLE, token)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("setsid (util-linux) is needed by this test: install it");
    let helper = Helper(child);
    let pid = helper.pid();
    wait_for("the child's own session", || {
        ProcStat::read(&Host::real(), pid).ok().flatten().is_none_or(|s| s.session == pid || s.is_dead())
    });
    let leader = helper.identity();
    (helper, Session { leader, token: Some(token.to_owned()) })
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Numbers that a helper wrote to a file, one a line, once there are `count`.
pub(crate) fn numbers(path: &Path, count: usize) -> Vec<u32> {
    let read = || -> Vec<u32> {
        let text = fs::read_to_string(path).unwrap_or_default();
        // A line without its end is still being written.
        text.split_inclusive('\n').filter(|l| l.ends_with('\n')).filter_map(|l| l.trim().parse().ok()).collect()
    };
    wait_for("a helper's numbers", || read().len() >= count);
    read()
}

pub(crate) fn alive(pid: u32) -> bool {
    ProcStat::read(&Host::real(), pid).ok().flatten().is_some_and(|s| !s.is_dead())
}
