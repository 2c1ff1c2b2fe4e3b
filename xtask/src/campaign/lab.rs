//! Folders of their own, a generated model, the built executables, and runs of them with a deadline.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use b70_gguf::{GgmlType, GgufWriter};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::failure::{AtPath as _, Failure};
use crate::process;

/// A run that takes longer has hung.
const DEADLINE: Duration = Duration::from_secs(240);

/// Builds the executables; returns their folder.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let mut command = process::cargo();
    command.current_dir(process::workspace_root()).args(["build", "--workspace", "--bins", "--locked"]);
    process::run(&mut command, "mend what the compiler says")?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the running executable: {error}"), "run by cargo xtask"))?;
    let folder = own.parent().map(Path::to_path_buf).unwrap_or_default();
    if folder.join("b70-pack").is_file() {
        return Ok(folder);
    }
    Err(Failure::new(format!("there is no b70-pack in {}", folder.display()), "run by cargo xtask"))
}

/// splitmix64: the same choices each time.
#[derive(Debug, Clone)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    /// One of several.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code, unless a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// It was ended because it hung.
    pub(crate) hung: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The one JSON document on standard output.
    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_str(&self.stdout).ok()
    }

    /// What is wrong with the way it ended, whatever its verdict is.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.hung {
            return Some("it hung".into());
        }
        match self.code {
            None => Some(format!("a signal ended it: {:?}", self.signal)),
            Some(0 | 1 | 2 | 124 | 130) if self.json().is_some() => None,
            code => Some(format!("exit code {code:?} and no document: {} {}", self.stdout.trim(), self.stderr.trim())),
        }
    }

    /// The outcome in short.
    pub(crate) fn brief(&self) -> String {
        let document = self.json().unwrap_or_default();
        let mut text = match (&document["error"]["message"], &document["failures"]) {
            (Value::String(message), _) => format!("{:?} {message}", self.code),
            (_, failures @ Value::Array(_)) => format!("{:?} {failures}", self.code),
            _ => format!("{:?} {} {}", self.code, self.stdout.trim(), self.stderr.trim()),
        };
        if let Some((end, _)) = text.char_indices().nth(400) {
            text.truncate(end);
        }
        text
    }
}

/// A process whose output goes to files, so that nothing blocks it.
pub(crate) struct Running {
    pub(crate) child: Child,
    output: PathBuf,
}

impl Running {
    /// Has it ended?
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, up to the deadline.
    pub(crate) fn finish(mut self) -> Ran {
        let began = Instant::now();
        let mut hung = false;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() < DEADLINE => {
                    let pause = if began.elapsed() < Duration::from_secs(1) { 1 } else { 20 };
                    std::thread::sleep(Duration::from_millis(pause));
                }
                _ => {
                    hung = true;
                    let _ = self.child.kill();
                    break self.child.wait().unwrap_or(ExitStatus::from_raw(9));
                }
            }
        };
        let text = |end: &str| {
            let path = self.output.with_extension(end);
            let text = fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
            let _ = fs::remove_file(path);
            text
        };
        Ran { code: status.code(), signal: status.signal(), hung, stdout: text("out"), stderr: text("err") }
    }
}

/// Every file below a folder with its bytes, by relative path; nothing for a folder that is not there.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(path),
                Ok(kind) if kind.is_file() => {
                    let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                    files.insert(name, fs::read(&path).unwrap_or_default());
                }
                _ => {}
            }
        }
    }
    files
}

/// Whether a relative path is a lock or a temporary, which has no final name.
pub(crate) fn is_working_file(name: &str) -> bool {
    name.split('/').any(|part| part == ".locks" || part.contains(".b70-tmp-") || part.ends_with(".lock"))
        || (name.ends_with(".tmp") && name.rsplit('/').next().is_some_and(|last| last.starts_with('.')))
}

/// The folders and the model of one campaign; all of it is deleted at its end.
pub(crate) struct Lab {
    folder: TempDir,
    ram: TempDir,
    /// What the processes print; not below the others, so that failing calls are not those of printing.
    output: TempDir,
    executables: PathBuf,
    /// The generated model.
    pub(crate) model: PathBuf,
    /// Its SHA-256.
    pub(crate) sha256: String,
    serial: AtomicU64,
    until: Instant,
}

const TENSORS: [(&[u8], GgmlType, &[u64]); 6] = [
    (b"token_embd.weight", GgmlType::Q4_0, &[256, 128]),
    (b"blk.0.ffn_up.weight", GgmlType::Q4_0, &[256, 512]),
    (b"blk.0.ffn_down.weight", GgmlType::Q4_0, &[512, 256]),
    (b"blk.0.attn_norm.weight", GgmlType::F32, &[256]),
    (b"blk.1.ffn_up.weight", GgmlType::Q4_0, &[256, 512]),
    (b"output.weight", GgmlType::F16, &[64, 16]),
];

impl Lab {
    pub(crate) fn new(executables: &Path, time: Duration) -> Result<Self, Failure> {
        let scratch = |folder: &Path| {
            tempfile::Builder::new().prefix("b70-campaign-").tempdir_in(folder).at("make a folder in", folder)
        };
        let shared = std::env::temp_dir();
        let (folder, ram, output) = (scratch(&shared)?, scratch(Path::new("/dev/shm"))?, scratch(&shared)?);
        let model = folder.path().join("model.gguf");
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", "llama");
        let mut numbers = Numbers(7);
        for (name, kind, shape) in TENSORS {
            let size = kind.tensor_bytes(shape).unwrap_or(0);
            let bytes: Vec<u8> = (0..size).map(|_| numbers.next().to_le_bytes()[0]).collect();
            writer.tensor(name, kind, shape, bytes);
        }
        writer
            .write_file(&model)
            .map_err(|error| Failure::new(format!("cannot write the model: {error}"), "check free space"))?;
        let bytes = fs::read(&model).at("read", &model)?;
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            folder,
            ram,
            output,
            executables: executables.to_path_buf(),
            model,
            sha256,
            serial: AtomicU64::new(0),
            until: Instant::now() + time,
        })
    }

    /// Is the time up?
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// A path on disk.
    pub(crate) fn disk(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in memory.
    pub(crate) fn memory(&self, name: &str) -> PathBuf {
        self.ram.path().join(name)
    }

    /// An executable of the kit, without anything of this environment that changes what it does.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(self.executables.join(program));
        self.clean(&mut command).arg("--json").args(args);
        command
    }

    /// Another program that ends in one of the kit, in the same environment.
    pub(crate) fn clean<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("B70_") {
                command.env_remove(name);
            }
        }
        command
            .env("NO_COLOR", "1")
            .env("XDG_CACHE_HOME", self.disk("xdg-cache"))
            .env("XDG_STATE_HOME", self.disk("xdg-state"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
    }

    /// Path of an executable of the kit.
    pub(crate) fn executable(&self, program: &str) -> PathBuf {
        self.executables.join(program)
    }

    /// Starts a command.
    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Running, Failure> {
        let output = self.output.path().join(format!("run-{}", self.serial.fetch_add(1, Ordering::Relaxed)));
        let file = |end: &str| {
            let path = output.with_extension(end);
            File::create(&path).at("create", &path)
        };
        let child = command
            .stdout(file("out")?)
            .stderr(file("err")?)
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {command:?}: {error}"), "build the workspace"))?;
        Ok(Running { child, output })
    }

    /// Runs an executable of the kit to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Ran, Failure> {
        Ok(self.spawn(&mut self.command(program, args))?.finish())
    }

    /// Runs one that must succeed, because the campaign rests on it.
    pub(crate) fn must<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Value, Failure> {
        let ran = self.run(program, args)?;
        match (ran.code, ran.json()) {
            (Some(0), Some(document)) => Ok(document),
            _ => Err(Failure::check(format!("{program} failed in a healthy lab: {}", ran.brief()), "run it by hand")),
        }
    }

    /// Compiles one of the campaign's C sources with `cc`.
    pub(crate) fn compile(&self, name: &str, source: &str, flags: &[&str]) -> Result<PathBuf, Failure> {
        let (input, output) = (self.disk(&format!("{name}.c")), self.disk(name));
        fs::write(&input, source).at("write", &input)?;
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-o"]).arg(&output).arg(&input).args(flags);
        process::run(&mut command, "install a C compiler (Debian: apt-get install gcc libc6-dev)")?;
        Ok(output)
    }
}

/// The text of a path of ours, which is UTF-8.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Removes a folder or a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match gone {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at("remove", path),
        _ => Ok(()),
    }
}
