//! Cancellation from another thread.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ends the calls of every endpoint it was given to, from any thread.
///
/// A call that waits for bytes returns at once with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), since its
/// socket is shut down; a call that is still connecting returns when the connection stands or its deadline passes.
/// A cancelled token stays cancelled.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    cancelled: AtomicBool,
    next: AtomicU64,
    sockets: Mutex<BTreeMap<u64, TcpStream>>,
}

impl CancelToken {
    /// A token nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels: now running and all later calls fail.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let sockets = self.inner.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.values() {
            // A socket that is already closed by the peer needs no shutdown.
            drop(socket.shutdown(Shutdown::Both));
        }
    }

    /// True once cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// Watches a socket until the guard is dropped. The flag is to be read after this call: a cancel before it set the
    /// flag, a cancel after it shuts the socket down.
    pub(crate) fn watch(&self, socket: &TcpStream) -> std::io::Result<WatchGuard> {
        let key = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let clone = socket.try_clone()?;
        self.inner.sockets.lock().unwrap_or_else(PoisonError::into_inner).insert(key, clone);
        Ok(WatchGuard { inner: Arc::clone(&self.inner), key })
    }
}

/// Removes the watched socket, and with it the second descriptor that would keep the connection open.
#[derive(Debug)]
pub(crate) struct WatchGuard {
    inner: Arc<Inner>,
    key: u64,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.inner.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
