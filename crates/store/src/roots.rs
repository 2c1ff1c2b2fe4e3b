//! Where things live by default, and which roots are refused. Pure functions: the caller hands in the environment.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::exposure::{Exposure, Owners};
use crate::path::Root;

/// A look-up in an environment; `&|name| std::env::var_os(name)` for the real one.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The kinds of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RootKind {
    /// Pack sets: `$B70_CACHE_ROOT`, else `$XDG_CACHE_HOME/b70kit`, else `~/.cache/b70kit`.
    Cache,
    /// Copies in memory: `$B70_RAM_ROOT`, else `/dev/shm/b70kit-<uid>`.
    Ram,
    /// Records of servers and runs: `$B70_STATE_ROOT`, else `$XDG_STATE_HOME/b70kit`, else `~/.local/state/b70kit`.
    State,
    /// Fixtures and results: `$B70_ARTIFACT_ROOT`, else `artifacts` in the state root.
    Artifact,
}

impl RootKind {
    /// The variable that sets it.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Cache => "B70_CACHE_ROOT",
            Self::Ram => "B70_RAM_ROOT",
            Self::State => "B70_STATE_ROOT",
            Self::Artifact => "B70_ARTIFACT_ROOT",
        }
    }
}

/// The root of this kind that `env` (and, for RAM, the user id) implies. Empty variables count as unset; as the XDG
/// base directory specification demands, relative XDG paths are ignored.
pub fn default_root(kind: RootKind, env: Env<'_>, uid: u32) -> Result<PathBuf> {
    let set = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = set(kind.variable()) {
        return Ok(path);
    }
    let xdg = |variable: &str, below_home: &str| {
        set(variable)
            .filter(|p| p.is_absolute())
            .or_else(|| set("HOME").filter(|p| p.is_absolute()).map(|home| home.join(below_home)))
            .map(|p| p.join("b70kit"))
            .ok_or_else(|| {
                Error::NoRoot(format!("neither {}, {variable} nor an absolute HOME is set", kind.variable()))
            })
    };
    match kind {
        RootKind::Cache => xdg("XDG_CACHE_HOME", ".cache"),
        RootKind::State => xdg("XDG_STATE_HOME", ".local/state"),
        RootKind::Artifact => default_root(RootKind::State, env, uid).map(|state| state.join("artifacts")),
        RootKind::Ram => Ok(PathBuf::from(format!("/dev/shm/b70kit-{uid}"))),
    }
}

/// The Git work tree that `path` (which need not exist) lies in: the nearest directory at or above it with a `.git`.
pub fn git_work_tree(path: &Path) -> Result<Option<PathBuf>> {
    let absolute = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
    // Links are resolved as far as the path exists: a link into a work tree is in the work tree.
    let existing = absolute.ancestors().find_map(|a| a.canonicalize().ok().map(|real| (a, real)));
    let Some((prefix, real)) = existing else { return Ok(None) };
    let whole = absolute.strip_prefix(prefix).map_or_else(|_| real.clone(), |rest| real.join(rest));
    Ok(whole.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_path_buf))
}

/// Refuses a root inside a Git work tree ([`Error::RootInGit`]) unless that is allowed: gigabytes of payload in a
/// repository are an accident.
pub fn refuse_in_git(path: &Path, allow: bool) -> Result<()> {
    match git_work_tree(path)? {
        Some(repository) if !allow => Err(Error::RootInGit { path: path.to_path_buf(), repository }),
        _ => Ok(()),
    }
}

/// Opens a root, creating it with `mode` and the missing directories above it with 0755. The umask does not apply.
pub fn open_or_create(path: &Path, mode: u32) -> Result<Root> {
    match Root::open(path) {
        Err(Error::Missing { .. }) => {}
        other => return other,
    }
    let absolute = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Root::open(path) };
    let parent = open_or_create(parent, 0o755)?;
    let made = parent.create_dir_durable(&crate::path::RelPath::new(name)?, mode)?;
    Ok(Root::from_parts(
        made.as_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate the handle of", path, e))?,
        path.to_path_buf(),
    ))
}

/// Opens the RAM root, creating it 0700. In `/dev/shm` anybody can create the name first, so what is opened must be a
/// directory (not a link) that belongs to `uid` or root and that no one else can write to, or it is refused.
pub fn open_ram_root(path: &Path, uid: u32) -> Result<Root> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(Error::write("create the directory", path, 0, e)),
    }
    let unsafe_root = |why: String| Error::RootUnsafe { path: path.to_path_buf(), why };
    let root = Root::open_nofollow(path).map_err(|e| match e {
        Error::Escapes { .. } => {
            unsafe_root("found a link, expected a directory; remove it or choose another root".to_owned())
        }
        Error::Kind { found, .. } => {
            unsafe_root(format!("found a {found}, expected a directory; remove it or choose another root"))
        }
        e => e,
    })?;
    match Owners::only(uid).or_root(true).exposure(&root.identity()?) {
        None => Ok(root),
        Some(Exposure::Owner(found)) => {
            Err(unsafe_root(format!("it belongs to user {found}, expected {uid} or root; choose another root")))
        }
        Some(Exposure::Writers(mode)) => Err(unsafe_root(format!(
            "others can write to it (mode {mode:04o}); run chmod go-w on it after looking at what is in it"
        ))),
    }
}
