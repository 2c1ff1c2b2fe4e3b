//! What commands work with: the user, the roots, and the signal that ends a command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use b70_store::{Progress, RootKind};

use crate::{CliError, Ui, interrupt_flag};

/// The effective user.
pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The root of that kind for this user and environment.
pub fn default_root(kind: RootKind) -> Result<PathBuf, CliError> {
    Ok(b70_store::default_root(kind, &|name| std::env::var_os(name), uid())?)
}

/// A root that files may be written to, as an absolute path; refused inside a Git work tree unless allowed.
pub fn usable_root(root: &Path, allow_in_repo: bool) -> Result<PathBuf, CliError> {
    let root = std::path::absolute(root).map_err(|error| CliError::io(root, &error))?;
    b70_store::refuse_in_git(&root, allow_in_repo)?;
    Ok(root)
}

/// The terminal, and a flag that a signal raises.
#[derive(Debug)]
pub struct Context<'a> {
    /// The terminal.
    pub ui: &'a Ui,
    /// Raised by the first signal: see [`interrupt_flag`].
    pub interrupt: Arc<AtomicBool>,
}

impl<'a> Context<'a> {
    /// Watches the signals.
    pub fn new(ui: &'a Ui) -> Result<Self, CliError> {
        Ok(Self { ui, interrupt: interrupt_flag()? })
    }

    /// Progress that a signal ends.
    pub fn progress<'p>(&'p self, on_bytes: &'p (dyn Fn(u64) + Sync)) -> Progress<'p> {
        Progress::new(on_bytes).with_cancel(&self.interrupt)
    }

    /// The same, unseen.
    pub fn quietly(&self) -> Progress<'_> {
        Progress::NONE.with_cancel(&self.interrupt)
    }
}
