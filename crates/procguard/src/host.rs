//! Where facts are read from: this machine, or a recorded tree of another one.

use std::{
    fmt, fs,
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use b70_store::EntryKind;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The largest file any reader of this crate takes in (16 MiB); a longer one is an error, never a truncated value.
pub const MAX_FILE: u64 = 16 << 20;
/// The major number of DRM character devices.
pub(crate) const DRM_MAJOR: u32 = 226;

/// What a recorded tree says about the machine that no file of `/proc`, `/sys` or `/dev` says: its `record.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordInfo {
    /// Version of the layout; this crate reads 1.
    pub schema_version: u32,
    /// Always `b70-host-record`.
    pub kind: String,
    /// When the tree was recorded, unix seconds.
    #[serde(default)]
    pub recorded_unix: Option<u64>,
    /// Effective user id of the recorder: what it could read is what this user could read.
    pub uid: u32,
    /// Size and free bytes of `/dev/shm`, if it was a mounted tmpfs.
    #[serde(default)]
    pub dev_shm: Option<FsSpace>,
    /// Group id of `/dev/dri/renderD*` nodes, which only `stat` tells.
    #[serde(default)]
    pub render_gid: Option<u32>,
    /// Anything a person wants to say about the tree.
    #[serde(default)]
    pub note: Option<String>,
}

/// Size of a file system in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FsSpace {
    /// All of it.
    pub size_bytes: u64,
    /// What an ordinary user may still fill.
    pub available_bytes: u64,
}

/// A recorded tree that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The directory or a needed file in it cannot be read.
    #[error("cannot read the recorded tree at {}: {source}; expected the directory of a recorded host (record.json, proc/, sys/, dev/)", path.display())]
    Unreadable {
        /// What was opened.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// `record.json` does not say what it must.
    #[error("{} is not the description of a recorded tree: {found}; expected schema_version 1 and kind b70-host-record", path.display())]
    NotARecord {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        found: String,
    },
}

/// Reads paths as a machine's user sees them. Implemented by the real machine, a recorded tree, and tests.
pub(crate) trait Source: Send + Sync + fmt::Debug {
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// The same file at the second sampling time.
    fn read_later(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    fn link(&self, path: &str) -> io::Result<String>;
    fn exists(&self, path: &str) -> io::Result<bool>;
    /// May this user open the node for reading and writing?
    fn access_rw(&self, path: &str) -> io::Result<()>;
    /// Minor number of a process's descriptor if it is an open DRM node, by device number where the kernel can be asked.
    fn drm_minor(&self, fd_path: &str, link: &str) -> Option<u32>;
}

/// A machine to ask: [`Host::real`] or [`Host::recorded`].
///
/// Every function that looks at processes, cards or settings takes one, so that a verdict can be replayed elsewhere.
/// Nothing is ever signalled, locked or bound through a recorded host.
#[derive(Debug, Clone)]
pub struct Host {
    source: Arc<dyn Source>,
    record: Option<Arc<RecordInfo>>,
    root: PathBuf,
}

impl Host {
    /// This machine.
    pub fn real() -> Self {
        Self { source: Arc::new(Real), record: None, root: PathBuf::from("/") }
    }

    /// A tree made by [`crate::record`] or by hand; the layout is in `docs/formats/host-record.md`.
    ///
    /// # Errors
    /// [`HostError`] if the directory cannot be opened or its `record.json` is missing or of another version.
    pub fn recorded(root: &Path) -> Result<Self, HostError> {
        let unreadable = |source: io::Error, path: &Path| HostError::Unreadable { path: path.to_owned(), source };
        let tree = Tree::open(root).map_err(|e| unreadable(e, root))?;
        let info_path = root.join("record.json");
        let raw = tree.read("/record.json").map_err(|e| unreadable(e, &info_path))?;
        let bad = |found: String| HostError::NotARecord { path: info_path.clone(), found };
        let info: RecordInfo = serde_json::from_slice(&raw).map_err(|e| bad(e.to_string()))?;
        if info.schema_version != 1 || info.kind != "b70-host-record" {
            return Err(bad(format!("schema_version {} and kind {:?}", info.schema_version, info.kind)));
        }
        Ok(Self { source: Arc::new(tree), record: Some(Arc::new(info)), root: root.to_owned() })
    }

    #[cfg(test)]
    pub(crate) fn from_source(source: Arc<dyn Source>) -> Self {
        let info = RecordInfo {
            schema_version: 1,
            kind: "b70-host-record".into(),
            recorded_unix: None,
            uid: 0,
            dev_shm: None,
            render_gid: None,
            note: None,
        };
        Self { source, record: Some(Arc::new(info)), root: PathBuf::from("/") }
    }

    /// Is this the machine the program runs on?
    pub fn is_real(&self) -> bool {
        self.record.is_none()
    }

    /// What a recorded tree says of itself.
    pub fn record_info(&self) -> Option<&RecordInfo> {
        self.record.as_deref()
    }

    /// `/` or the root of the recorded tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Effective user id of who looks (or looked).
    pub fn uid(&self) -> u32 {
        self.record.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |r| r.uid)
    }

    /// Bytes of a file, by its absolute path on that machine; at most [`MAX_FILE`].
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.source.read(path)
    }

    /// A file as text, invalid UTF-8 replaced.
    pub fn read_text(&self, path: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.source.read(path)?).into_owned())
    }

    /// Names in a directory, sorted. An absent directory is an error of kind `NotFound`.
    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.source.list(path)?;
        names.sort();
        Ok(names)
    }

    /// Target of a symbolic link, as text.
    pub fn link(&self, path: &str) -> io::Result<String> {
        self.source.link(path)
    }

    /// Does the path exist? An error is neither yes nor no.
    pub fn exists(&self, path: &str) -> io::Result<bool> {
        self.source.exists(path)
    }

    /// May the looking user open a device node for reading and writing?
    pub fn access_rw(&self, path: &str) -> io::Result<()> {
        self.source.access_rw(path)
    }

    pub(crate) fn read_later(&self, path: &str) -> io::Result<Vec<u8>> {
        self.source.read_later(path)
    }

    pub(crate) fn drm_minor(&self, fd_path: &str, link: &str) -> Option<u32> {
        self.source.drm_minor(fd_path, link)
    }

    /// Numeric entries of `/proc`, ascending.
    pub fn pids(&self) -> io::Result<Vec<u32>> {
        let mut pids: Vec<u32> = self.source.list("/proc")?.iter().filter_map(|n| n.parse().ok()).collect();
        pids.sort_unstable();
        Ok(pids)
    }
}

/// Did the process (or file) go away between two looks? Then there is nothing to know.
pub(crate) fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || rustix::io::Errno::from_io_error(e) == Some(rustix::io::Errno::SRCH)
}

fn too_long(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is longer than {MAX_FILE} bytes"))
}

fn read_capped(file: fs::File, path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE { Err(too_long(path)) } else { Ok(bytes) }
}

#[derive(Debug)]
struct Real;

impl Source for Real {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        read_capped(fs::File::open(path)?, path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        fs::read_dir(path)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    }
    fn link(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(path)?.to_string_lossy().into_owned())
    }
    fn exists(&self, path: &str) -> io::Result<bool> {
        Path::new(path).try_exists()
    }
    fn access_rw(&self, path: &str) -> io::Result<()> {
        // Effective ids: a set-group-id caller opens with those, so they decide.
        Ok(rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)?)
    }
    fn drm_minor(&self, fd_path: &str, link: &str) -> Option<u32> {
        // The path may be renamed or belong to another mount namespace; the device number cannot lie.
        if !link.starts_with('/') {
            return None;
        }
        // DONT_SYNC: a descriptor on a dead network file system must not hang the scan.
        let stat = rustix::fs::statx(CWD, fd_path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let device = FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::CharacterDevice;
        (device && stat.stx_rdev_major == DRM_MAJOR).then_some(stat.stx_rdev_minor)
    }
}

/// A recorded tree. All paths are resolved beneath its root by the kernel, so that a link inside a tree made by
/// somebody else can never reach a file of this machine.
#[derive(Debug)]
struct Tree {
    root: OwnedFd,
    unreadable: Vec<String>,
}

impl Tree {
    fn open(root: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut tree = Self { root: fd, unreadable: Vec::new() };
        tree.unreadable = match tree.read("/unreadable.txt") {
            Ok(raw) => parse_unreadable(&String::from_utf8_lossy(&raw)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        Ok(tree)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        self.permitted(path)?;
        let relative = path.trim_start_matches('/');
        let relative = if relative.is_empty() { "." } else { relative };
        Ok(rustix::fs::openat2(
            &self.root,
            relative,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )?)
    }

    fn permitted(&self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        let hit = self
            .unreadable
            .iter()
            .any(|u| path.strip_prefix(u.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/')));
        if hit { Err(rustix::io::Errno::ACCESS.into()) } else { Ok(()) }
    }
}

fn parse_unreadable(text: &str) -> Vec<String> {
    text.lines()
        .map(|l| l.trim().trim_matches('/'))
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

impl Source for Tree {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        // NONBLOCK: a pipe in a tree must not hold the reader up.
        let fd = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mode = rustix::fs::fstat(&fd)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            let found = EntryKind::from_mode(mode).name();
            let why = format!("{path} is a {found}, expected a regular file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        read_capped(fs::File::from(fd), path)
    }

    fn read_later(&self, path: &str) -> io::Result<Vec<u8>> {
        self.permitted(path)?;
        match self.read(&format!("/later{path}")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.read(path),
            other => other,
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let fd = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd)? {
            let entry = entry?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.permitted(path)?;
        let (parent, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or(("", path));
        let dir = self.resolve(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let target = rustix::fs::readlinkat(&dir, name, Vec::new())?;
        Ok(String::from_utf8_lossy(target.as_bytes()).into_owned())
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        match self.resolve(path, OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn access_rw(&self, path: &str) -> io::Result<()> {
        if self.exists(path)? { Ok(()) } else { Err(rustix::io::Errno::NOENT.into()) }
    }

    fn drm_minor(&self, _fd_path: &str, link: &str) -> Option<u32> {
        let name = link.strip_prefix("/dev/dri/")?;
        let name = name.split(' ').next().unwrap_or(name);
        name.strip_prefix("renderD").or_else(|| name.strip_prefix("card"))?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("record.json"), r#"{"schema_version":1,"kind":"b70-host-record","uid":1000}"#)
            .unwrap();
        fs::create_dir_all(dir.path().join("proc/7/fd")).unwrap();
        fs::write(dir.path().join("proc/7/comm"), "x\n").unwrap();
        symlink("socket:[5]", dir.path().join("proc/7/fd/3")).unwrap();
        symlink("/etc/passwd", dir.path().join("proc/7/cmdline")).unwrap();
        fs::write(dir.path().join("unreadable.txt"), "# comment\nproc/9\n/proc/7/environ\n").unwrap();
        let host = Host::recorded(dir.path()).expect("a valid tree");
        (dir, host)
    }

    #[test]
    fn links_are_read_and_never_followed_out_of_the_tree() {
        let (_dir, host) = tree();
        assert_eq!(host.link("/proc/7/fd/3").unwrap(), "socket:[5]");
        let e = host.read("/proc/7/cmdline").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound, "an absolute link resolves inside the tree");
        assert_eq!(host.uid(), 1000);
    }

    #[test]
    fn the_sidecar_list_makes_paths_unreadable() {
        let (_dir, host) = tree();
        for path in ["/proc/9", "/proc/9/fd", "/proc/7/environ"] {
            assert_eq!(host.read(path).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert_eq!(host.read_text("/proc/7/comm").unwrap(), "x\n");
        assert!(!host.exists("/proc/99").unwrap());
    }

    #[test]
    fn a_pipe_in_a_tree_does_not_hang_the_reader() {
        let (dir, host) = tree();
        let path = dir.path().join("proc/7/status");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(host.read("/proc/7/status").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_directory_that_is_no_record_is_refused_with_what_was_expected() {
        let dir = tempfile::tempdir().unwrap();
        let e = Host::recorded(dir.path()).unwrap_err().to_string();
        assert!(e.contains("record.json"), "{e}");
        fs::write(dir.path().join("record.json"), r#"{"schema_version":2,"kind":"b70-host-record","uid":0}"#).unwrap();
        let e = Host::recorded(dir.path()).unwrap_err().to_string();
        assert!(e.contains("schema_version 2"), "{e}");
    }
}
