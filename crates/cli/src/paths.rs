use std::path::PathBuf;

use crate::CliError;

/// The roots of files the kit keeps, each with a flag and an environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKind {
    /// Pack sets: `--cache-root`, `B70_CACHE_ROOT`, `$XDG_CACHE_HOME/b70kit`.
    Cache,
    /// RAM copies and stages: `--ram-root`, `B70_RAM_ROOT`, `/dev/shm/b70kit-<uid>`.
    Ram,
    /// Identities, receipts, logs: `B70_STATE_ROOT`, `$XDG_STATE_HOME/b70kit`.
    State,
    /// Golden fixtures and registered artifacts: `B70_ARTIFACT_ROOT`, below the state root.
    Artifact,
    /// Leases of physical cards, shared by all users: `B70_LEASE_ROOT`, `/run/lock/b70kit`.
    Lease,
}

/// A root as it was asked for: by flag, by environment (clap reads both), or not at all.
pub type RootFlag = Option<PathBuf>;

impl RootKind {
    /// The root to use: what was asked for, else the default.
    pub fn resolve(self, asked: &RootFlag) -> Result<PathBuf, CliError> {
        if let Some(path) = asked {
            if path.as_os_str().is_empty() {
                return Err(CliError::usage("root", format!("the {} root is empty", self.name()))
                    .hint("name a folder, or leave the flag and its environment variable out"));
            }
            return std::path::absolute(path).map_err(|error| CliError::io(path, &error));
        }
        match self {
            Self::Cache => Ok(xdg("XDG_CACHE_HOME", ".cache")?.join("b70kit")),
            Self::State => Ok(xdg("XDG_STATE_HOME", ".local/state")?.join("b70kit")),
            Self::Artifact => Ok(xdg("XDG_STATE_HOME", ".local/state")?.join("b70kit/artifacts")),
            Self::Ram => Ok(PathBuf::from(format!("/dev/shm/b70kit-{}", effective_uid()?))),
            Self::Lease => Ok(PathBuf::from("/run/lock/b70kit")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Ram => "RAM",
            Self::State => "state",
            Self::Artifact => "artifact",
            Self::Lease => "lease",
        }
    }
}

fn xdg(variable: &str, below_home: &str) -> Result<PathBuf, CliError> {
    // The XDG rule: a relative path in the variable is ignored.
    if let Some(path) = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute()) {
        return Ok(path);
    }
    std::env::var_os("HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .map(|home| home.join(below_home))
        .ok_or_else(|| {
            CliError::usage("root", format!("neither {variable} nor HOME names an absolute folder"))
                .hint("pass the root by its flag")
        })
}

/// The user's id, from the owner of this process's own `/proc` entry.
fn effective_uid() -> Result<u32, CliError> {
    use std::os::unix::fs::MetadataExt as _;
    let path = std::path::Path::new("/proc/self");
    std::fs::metadata(path).map(|metadata| metadata.uid()).map_err(|error| CliError::io(path, &error))
}
