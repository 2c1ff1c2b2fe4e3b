//! Recording the part of a machine that verdicts rest on, for others to replay.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use b70_store::{Error, HiddenDir, RelPath, Root};

use crate::{
    affinity::llama_program,
    cards::{Card, Cards},
    host::{FsSpace, Host, RecordInfo, is_gone},
    klog,
    process::{ProcStat, command_line, environment},
    secrets::{redact_arguments, redact_variable},
    usage::scan::{config_paths, seen_from_outside},
};

/// Why a tree was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The target exists; a record is never mixed with another.
    #[error("{} exists already; choose a directory that does not", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// Writing failed. What was written so far has been removed.
    #[error("cannot write the record at {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The bus could not be read.
    #[error("cannot read the machine's cards: {0}")]
    Cards(io::Error),
}

/// What a record holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct RecordSummary {
    /// Version of this document.
    pub schema_version: u32,
    /// Where it was written.
    pub path: PathBuf,
    /// Processes in it.
    pub processes: usize,
    /// Cards in it.
    pub cards: usize,
    /// Paths that could not be read, listed in the tree's `unreadable.txt`.
    pub unreadable: Vec<String>,
}

/// Environment variables that verdicts rest on; every other one is left out, whatever its name.
fn is_relevant_variable(name: &str) -> bool {
    let prefixes = [
        "ZE_", "ZEL_", "NEO_", "ZES_", "ONEAPI_", "SYCL_", "GGML_", "LLAMA_", "MTMD_", "OLLAMA_", "UR_", "B70_", "VK_",
        "MESA_VK_",
    ];
    prefixes.iter().any(|p| name.starts_with(p)) || matches!(name, "FilterBdfPath" | "XDG_CONFIG_HOME" | "HOME")
}

/// Writes a tree to a new directory.
///
/// Kept of each process: stat, status, name, command line, the environment variables that choose devices, DRM and socket
/// descriptors with the DRM ones' fdinfo (twice, `sample` apart) and the mapped GPU libraries. Secrets are replaced by a
/// placeholder, in values of variables by name and in arguments by flag. A record still names users' programs and paths.
pub fn record(host: &Host, out: &Path, sample: Duration) -> Result<RecordSummary, RecordError> {
    let cards = Cards::scan(host).map_err(RecordError::Cards)?;
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if out.symlink_metadata().is_ok() {
        return Err(RecordError::Exists { path: out.to_owned() });
    }
    let failed = |e: Error| match e {
        Error::Exists { path } => RecordError::Exists { path },
        e => RecordError::Write { path: out.to_owned(), source: e.into() },
    };
    let name = RelPath::new(out.file_name().unwrap_or_default()).map_err(failed)?;
    let staging = Root::open(parent).and_then(|parent| HiddenDir::create(&parent)).map_err(failed)?;
    let mut writer = Writer { host, root: staging.root().path().to_owned(), unreadable: BTreeSet::new() };
    let processes = writer
        .everything(&cards, sample)
        .and_then(|processes| {
            // Thousands of small files: made durable together.
            rustix::fs::syncfs(staging.root())?;
            Ok(processes)
        })
        .map_err(|source| RecordError::Write { path: out.to_owned(), source })?;
    // The whole tree gets its name, or none of it does.
    staging.commit(&name, 0o700, |_| Err(Error::Exists { path: out.to_owned() })).map_err(failed)?;
    Ok(RecordSummary {
        schema_version: 1,
        path: out.to_owned(),
        processes,
        cards: cards.cards.len(),
        unreadable: writer.unreadable.into_iter().collect(),
    })
}

struct Writer<'a> {
    host: &'a Host,
    root: PathBuf,
    unreadable: BTreeSet<String>,
}

impl Writer<'_> {
    fn everything(&mut self, cards: &Cards, sample: Duration) -> io::Result<usize> {
        for path in [
            "/proc/sys/kernel/random/boot_id",
            "/proc/sys/kernel/osrelease",
            "/proc/meminfo",
            "/proc/net/tcp",
            "/proc/net/tcp6",
            "/proc/self/status",
            "/proc/self/limits",
            "/etc/systemd/logind.conf",
        ] {
            self.copy(path)?;
        }
        self.filtered("/proc/self/mountinfo", |l| l.contains(" - proc ") || l.contains(" /dev/shm "))?;
        self.filtered("/etc/group", |l| l.starts_with("render:") || l.starts_with("video:"))?;
        self.link("/proc/self/ns/pid")?;
        for name in self.host.list("/etc/systemd/logind.conf.d").unwrap_or_default() {
            self.copy(&format!("/etc/systemd/logind.conf.d/{name}"))?;
        }
        for card in &cards.cards {
            self.card(card)?;
        }
        for name in self.host.list("/dev/dri/by-path").unwrap_or_default() {
            self.link(&format!("/dev/dri/by-path/{name}"))?;
        }
        let log = if self.host.is_real() { klog::read_kmsg() } else { self.host.read_text(klog::RECORDED_LOG) };
        match log {
            Ok(text) => {
                let lines: Vec<&str> = text.lines().filter(|l| klog::concerns_gpu(l)).collect();
                self.write(klog::RECORDED_LOG, (lines.join("\n") + "\n").as_bytes())?;
            }
            Err(_) => drop(self.unreadable.insert(klog::RECORDED_LOG.trim_start_matches('/').into())),
        }
        let mut fdinfos = Vec::new();
        let mut processes = 0;
        for pid in self.host.pids()? {
            processes += usize::from(self.process(pid, &mut fdinfos)?);
        }
        if !fdinfos.is_empty() && self.host.is_real() {
            thread::sleep(sample);
        }
        for path in fdinfos {
            if let Ok(bytes) = self.host.read_later(&path) {
                self.write(&format!("/later{path}"), &bytes)?;
            }
        }
        self.description(cards)?;
        if !self.unreadable.is_empty() {
            let list: Vec<String> = self.unreadable.iter().cloned().collect();
            self.write("/unreadable.txt", (list.join("\n") + "\n").as_bytes())?;
        }
        Ok(processes)
    }

    fn description(&mut self, cards: &Cards) -> io::Result<()> {
        let info = match self.host.record_info() {
            Some(info) => info.clone(),
            None => RecordInfo {
                schema_version: 1,
                kind: "b70-host-record".into(),
                recorded_unix: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs()),
                uid: self.host.uid(),
                dev_shm: shm_space(),
                render_gid: cards.cards.iter().find_map(|c| Some(fs::metadata(c.render_node.as_ref()?).ok()?.gid())),
                note: None,
            },
        };
        self.write("/record.json", &b70_store::json_bytes(Path::new("record.json"), &info)?)
    }

    fn card(&mut self, card: &Card) -> io::Result<()> {
        let dir = format!("/sys/bus/pci/devices/{}", card.pci);
        for name in ["vendor", "device", "class", "mem_info_vram_total", "mem_info_vram_used"] {
            self.copy(&format!("{dir}/{name}"))?;
        }
        self.copy(&format!("/sys/kernel/debug/dri/{}/tile0/vram_mm", card.pci))?;
        self.link(&format!("{dir}/driver"))?;
        if klog::has_devcoredump(self.host, card.pci).unwrap_or(false) {
            self.write(&format!("{dir}/devcoredump/name"), b"recorded\n")?;
        }
        for node in [&card.card_node, &card.render_node].into_iter().flatten() {
            let name = node.rsplit('/').next().unwrap_or(node);
            // `dev` holds major:minor; it also keeps the directory in version control.
            let dev = self.host.read(&format!("{dir}/drm/{name}/dev")).unwrap_or_default();
            self.write(&format!("{dir}/drm/{name}/dev"), &dev)?;
            self.write(node, b"")?;
        }
        if !card.is_openable()
            && let Some(node) = &card.render_node
        {
            self.unreadable.insert(node.trim_start_matches('/').into());
        }
        Ok(())
    }

    fn process(&mut self, pid: u32, fdinfos: &mut Vec<String>) -> io::Result<bool> {
        let base = format!("/proc/{pid}");
        let stat = match ProcStat::read(self.host, pid) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(false),
            Err(_) => {
                self.unreadable.insert(base.trim_start_matches('/').into());
                return Ok(false);
            }
        };
        if stat.is_kernel_thread() {
            return Ok(false);
        }
        for name in ["stat", "status", "comm"] {
            self.copy(&format!("{base}/{name}"))?;
        }
        match command_line(self.host, pid) {
            Ok(argv) => {
                let joined: Vec<u8> =
                    redact_arguments(&argv).into_iter().flat_map(|a| [a.into_bytes(), vec![0]].concat()).collect();
                self.write(&format!("{base}/cmdline"), &joined)?;
            }
            Err(e) => self.note(&format!("{base}/cmdline"), &e),
        }
        match environment(self.host, pid) {
            Ok(env) => {
                let mut kept = Vec::new();
                for (name, value) in env.iter().filter(|(n, _)| is_relevant_variable(n)) {
                    kept.extend_from_slice(format!("{name}={}\0", redact_variable(name, value)).as_bytes());
                }
                self.write(&format!("{base}/environ"), &kept)?;
                let argv = command_line(self.host, pid).unwrap_or_default();
                if llama_program(&stat.comm, &argv, None).is_some() {
                    self.settings(pid, &env)?;
                }
            }
            Err(e) => self.note(&format!("{base}/environ"), &e),
        }
        self.link(&format!("{base}/exe"))?;
        match self.host.read_text(&format!("{base}/maps")) {
            Ok(maps) => {
                let keep = |l: &&str| {
                    ["/libvulkan", "/libggml", "/libze_", "/libsycl", "/libOpenCL", "/libpi_", "/libur_"]
                        .iter()
                        .any(|w| l.contains(w))
                };
                let lines: Vec<&str> = maps.lines().filter(keep).collect();
                if !lines.is_empty() {
                    self.write(&format!("{base}/maps"), (lines.join("\n") + "\n").as_bytes())?;
                }
            }
            Err(e) => self.note(&format!("{base}/maps"), &e),
        }
        match self.host.list(&format!("{base}/fd")) {
            Ok(names) => {
                for name in names {
                    let path = format!("{base}/fd/{name}");
                    let Ok(target) = self.host.link(&path) else { continue };
                    let drm = self.host.drm_minor(&path, &target).is_some();
                    if drm || target.starts_with("socket:[") {
                        self.link(&path)?;
                    }
                    if drm {
                        let info = format!("{base}/fdinfo/{name}");
                        self.copy(&info)?;
                        fdinfos.push(info);
                    }
                }
            }
            Err(e) => self.note(&format!("{base}/fd"), &e),
        }
        Ok(true)
    }

    /// A ggml program's configuration files, without lines whose key sounds secret.
    fn settings(&mut self, pid: u32, env: &[(String, String)]) -> io::Result<()> {
        for path in config_paths(env) {
            match self.host.read_text(&seen_from_outside(self.host, pid, &path)) {
                Ok(text) => {
                    let safe = |l: &&str| {
                        l.split_once('=').is_none_or(|(k, v)| redact_variable(k, v) == v && !k.contains("hft"))
                    };
                    let lines: Vec<&str> = text.lines().filter(safe).collect();
                    self.write(&path, (lines.join("\n") + "\n").as_bytes())?;
                }
                Err(e) => self.note(&path, &e),
            }
        }
        Ok(())
    }

    /// Remembers a path that could not be read; one that is not there is simply left out.
    fn note(&mut self, path: &str, e: &io::Error) {
        if !is_gone(e) {
            self.unreadable.insert(path.trim_start_matches('/').to_owned());
        }
    }

    fn copy(&mut self, path: &str) -> io::Result<()> {
        match self.host.read(path) {
            Ok(bytes) => self.write(path, &bytes),
            Err(e) => {
                self.note(path, &e);
                Ok(())
            }
        }
    }

    fn filtered(&mut self, path: &str, keep: impl Fn(&str) -> bool) -> io::Result<()> {
        match self.host.read_text(path) {
            Ok(text) => {
                let lines: Vec<&str> = text.lines().filter(|l| keep(l)).collect();
                self.write(path, (lines.join("\n") + "\n").as_bytes())
            }
            Err(e) => {
                self.note(path, &e);
                Ok(())
            }
        }
    }

    fn link(&mut self, path: &str) -> io::Result<()> {
        match self.host.link(path) {
            Ok(target) => {
                let out = self.place(path)?;
                symlink(target, out)
            }
            Err(e) => {
                // Not a link (a device directory's driver is absent when none is bound).
                if e.kind() != io::ErrorKind::InvalidInput {
                    self.note(path, &e);
                }
                Ok(())
            }
        }
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let out = self.place(path)?;
        fs::OpenOptions::new().write(true).create(true).truncate(true).open(out)?.write_all(bytes)
    }

    fn place(&self, path: &str) -> io::Result<PathBuf> {
        let out = self.root.join(path.trim_start_matches('/'));
        if let Some(dir) = out.parent() {
            fs::create_dir_all(dir)?;
        }
        Ok(out)
    }
}

/// Size of `/dev/shm`, if there is one.
pub(crate) fn shm_space() -> Option<FsSpace> {
    let stat = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(FsSpace {
        size_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}
