//! What the integration tests share: scratch folders on disk and in memory, and children that are this very test.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::print_stdout, reason = "children answer on stdout, and skipped tests say so")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use b70_store::{RelPath, Root};

/// A scratch folder in the build's own temporary directory: a real disk file system in most checkouts.
pub(crate) fn disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("store-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a scratch folder")
}

pub(crate) fn root(dir: impl AsRef<Path>) -> Root {
    Root::open(dir).expect("the scratch folder opens")
}

pub(crate) fn name(text: &str) -> RelPath {
    RelPath::new(text).expect("a good name")
}

/// Paths and, for regular files, their content.
pub(crate) type Tree = Vec<(PathBuf, Option<Vec<u8>>)>;

/// Every path beneath `dir` with its content, found by an ordinary walk: what is really there.
pub(crate) fn tree(dir: &Path) -> Tree {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(current) = pending.pop() {
        for entry in std::fs::read_dir(&current).expect("readable") {
            let path = entry.expect("readable").path();
            let meta = path.symlink_metadata().expect("there");
            let relative = path.strip_prefix(dir).expect("beneath").to_path_buf();
            if meta.is_dir() {
                found.push((relative, None));
                pending.push(path);
            } else {
                found.push((
                    relative,
                    Some(if meta.is_file() { std::fs::read(&path).expect("readable") } else { vec![] }),
                ));
            }
        }
    }
    found.sort();
    found
}

/// A command that runs the test `entry` of this very executable as a child; `entry` returns at once without `job`.
pub(crate) fn child(entry: &str, job: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test's own path"));
    command
        .args([entry, "--exact", "--nocapture", "--test-threads=1"])
        .env("B70_TEST_JOB", job)
        .env("B70_TEST_DIR", dir);
    command
}

/// The job of a child, or `None` in the parent.
pub(crate) fn job() -> Option<(String, PathBuf)> {
    Some((std::env::var("B70_TEST_JOB").ok()?, std::env::var_os("B70_TEST_DIR")?.into()))
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().expect("the child starts")
}

pub(crate) fn killed(output: &Output) -> bool {
    output.status.signal() == Some(9)
}

/// A child that answers each line with a line.
pub(crate) struct Talker {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Talker {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the child starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut talker = Self { child, out };
        talker.expect("ready");
        talker
    }

    pub(crate) fn expect(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).expect("readable"), 0, "the child ended before {word:?}");
            // The test harness prints its own lines, and starts one with the test's name before ours.
            if line.trim_end().ends_with(word) {
                return;
            }
        }
    }

    pub(crate) fn ask(&mut self, word: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{word}").expect("the child listens");
        self.expect("done");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other half of a [`Talker`], in the child.
pub(crate) fn answer(mut act: impl FnMut(&str)) {
    println!("\nready");
    for line in std::io::stdin().lines() {
        act(&line.expect("utf-8"));
        println!("\ndone");
    }
}
