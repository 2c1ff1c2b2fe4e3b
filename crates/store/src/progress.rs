//! The handle through which a caller watches a long operation and ends it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Reports bytes as they are done and carries the caller's wish to stop.
///
/// The callback may run on several threads at once. A set cancel flag ends the operation within about one buffer
/// (1 MiB) with [`Error::Cancelled`]; a binary sets it from its signal handler.
#[derive(Clone, Copy, Default)]
pub struct Progress<'a> {
    on_bytes: Option<&'a (dyn Fn(u64) + Sync)>,
    cancel: Option<&'a AtomicBool>,
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("on_bytes", &self.on_bytes.is_some()).field("cancel", &self.cancel).finish()
    }
}

impl<'a> Progress<'a> {
    /// Watches nothing and never cancels.
    pub const NONE: Progress<'static> = Progress { on_bytes: None, cancel: None };

    /// Calls `on_bytes` with the number of bytes done since the last call.
    pub fn new(on_bytes: &'a (dyn Fn(u64) + Sync)) -> Self {
        Self { on_bytes: Some(on_bytes), cancel: None }
    }

    /// Adds a flag that ends the operation once it is true.
    #[must_use]
    pub fn with_cancel(self, cancel: &'a AtomicBool) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// The same cancel flag without the byte count: for passes that the caller's total does not include.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { on_bytes: None, ..self }
    }

    /// Reports `bytes` more as done.
    pub fn add(&self, bytes: u64) {
        if let Some(on_bytes) = self.on_bytes {
            on_bytes(bytes);
        }
    }

    /// [`Error::Cancelled`] once the flag is set.
    pub fn check(&self) -> Result<()> {
        match self.cancel {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }
}
