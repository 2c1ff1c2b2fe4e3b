//! One run of one process: wall time, CPU time, peak memory.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::Failure;

/// A command as it is run and as it is written down.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

impl Call {
    pub(super) fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Self { program: program.into(), arguments: arguments.iter().map(|&argument| argument.to_owned()).collect() }
    }

    /// Without the place of the checkout, which says nothing to others.
    pub(super) fn line(&self) -> String {
        let root = crate::process::workspace_root().to_string_lossy().into_owned();
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let words: Vec<String> = std::iter::once(name).chain(self.arguments.iter().cloned()).collect();
        words.join(" ").replace(&root, ".")
    }
}

/// What one run took, and what it printed.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) wall: f64,
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) peak_rss: u64,
    pub(super) output: String,
}

impl Sample {
    pub(super) fn json(&self) -> Value {
        json!({ "wall_s": self.wall, "user_s": self.user, "system_s": self.system, "peak_rss_bytes": self.peak_rss })
    }
}

/// Runs a command to its end; anything but success is an error.
pub(super) fn run(call: &Call) -> Result<Sample, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", call.line()), "run the command by hand");
    let (user, system) = children();
    let started = Instant::now();
    let child = Command::new(&call.program)
        .args(&call.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let pid = child.id();
    let (done, end) = std::sync::mpsc::channel::<()>();
    // The kernel keeps the peak; it is read until there is no process any more.
    let watcher = std::thread::spawn(move || {
        let mut peak = 0;
        loop {
            peak = peak_rss(pid).unwrap_or(peak).max(peak);
            if end.recv_timeout(Duration::from_millis(2)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return peak;
            }
        }
    });
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    let wall = started.elapsed().as_secs_f64();
    drop(done);
    let peak_rss = watcher.join().unwrap_or(0);
    if !output.status.success() {
        return Err(failed(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr))));
    }
    let (user_after, system_after) = children();
    Ok(Sample {
        wall,
        user: user_after - user,
        system: system_after - system,
        peak_rss,
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
    })
}

fn peak_rss(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// CPU time of all children that have been waited for, in seconds: user and system, in ticks of 10 ms (proc(5)).
fn children() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // Fields 16 and 17, counted from 1; the third stands first here.
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    (ticks(16), ticks(17))
}

/// The middle of some figures, 0 of none.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Samples of the same call in one document, with the median of the wall times.
pub(super) fn case(name: &str, call: &Call, samples: &[Sample]) -> Value {
    json!({
        "name": name,
        "command": call.line(),
        "median_wall_s": median(samples.iter().map(|sample| sample.wall)),
        "median_cpu_s": median(samples.iter().map(|sample| sample.user + sample.system)),
        "peak_rss_bytes": samples.iter().map(|sample| sample.peak_rss).max(),
        "samples": samples.iter().map(Sample::json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median([]).abs() < 1e-12);
    }

    #[test]
    fn a_run_is_measured_and_a_failing_one_is_an_error() {
        let sample = run(&Call::new("sh", &["-c", "echo out; sleep 0.3"])).expect("runs");
        assert_eq!(sample.output, "out\n");
        assert!(sample.wall > 0.0 && sample.peak_rss > 0);
        let error = run(&Call::new("sh", &["-c", "echo why >&2; exit 3"])).expect_err("fails").to_string();
        assert!(error.contains("why"), "{error}");
    }
}
