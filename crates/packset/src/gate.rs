//! The gate between finished work and its name: it opens when the model's SHA-256 has been found right.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use b70_admission::{Outcome, Progress, Root};
use b70_manifest::Sha256Hex;
use b70_manifest::pack::TensorPack;

use crate::error::PackError;
use crate::import::Import;
use crate::model::{Model, cancelled};
use crate::pack::{PackedTensor, publish_payload};
use crate::source::SourceProof;

/// Finished tensors that may wait at once. Each keeps three file handles; 1024 are a common limit.
const MAX_WAITING: usize = 192;

/// A tensor that is done but for its name.
pub(crate) enum Finished {
    /// Packed into an unnamed file.
    Packed(Box<PackedTensor>),
    /// Found in another set, its bytes checked.
    Import(Box<Import>),
}

impl Finished {
    /// Gives the payload its name; returns the complete entry, how the publish ended, and whether it was imported.
    pub(crate) fn publish(
        self,
        mut entry: TensorPack,
        tensors_dir: &Root,
        progress: &Progress<'_>,
    ) -> Result<(TensorPack, Outcome, bool), PackError> {
        match self {
            Self::Packed(packed) => {
                let packed = *packed;
                let published = publish_payload(packed.temp, entry.key, progress)?;
                entry.source_tensor.sha256 = packed.source_sha256;
                entry.payload.size_bytes = published.content.size;
                entry.payload.sha256 = published.content.sha256;
                entry.payload.blake3 = Some(published.content.blake3);
                entry.pack_seconds = packed.seconds;
                Ok((entry, published.outcome, false))
            }
            Self::Import(import) => {
                let (entry, outcome) = import.publish(entry, tensors_dir, progress)?;
                Ok((entry, outcome, true))
            }
        }
    }
}

enum State {
    /// The hash is still being computed.
    Pending,
    /// The hash is right, or trusted.
    Open,
    /// The hash is wrong, or a worker failed.
    Closed,
}

struct Inner {
    state: State,
    waiting: VecDeque<(usize, Finished)>,
    proof: Option<SourceProof>,
}

/// See the module.
pub(crate) struct HashGate {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl HashGate {
    pub(crate) fn new() -> Self {
        let inner = Inner { state: State::Pending, waiting: VecDeque::new(), proof: None };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A worker that panicked leaves the state consistent: every change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        let mut inner = self.lock();
        if matches!(state, State::Closed) {
            inner.waiting.clear();
        }
        inner.state = state;
        drop(inner);
        self.changed.notify_all();
    }

    /// Opens the gate without a computation.
    pub(crate) fn trust(&self) {
        self.set(State::Open);
    }

    /// Closes the gate: nothing that waits will get a name.
    pub(crate) fn abort(&self) {
        self.set(State::Closed);
    }

    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.lock().state, State::Pending)
    }

    /// How the model was proved, once it was; taken out.
    pub(crate) fn take_proof(&self) -> Option<SourceProof> {
        self.lock().proof.take()
    }

    /// Proves the model's SHA-256 and opens the gate if it is the expected one (or none is expected).
    pub(crate) fn compute(
        &self,
        model: &Model,
        expected: Option<Sha256Hex>,
        prove: impl FnOnce() -> Result<SourceProof, PackError>,
    ) -> Result<Sha256Hex, PackError> {
        let proof = prove().inspect_err(|_| self.abort())?;
        let found = proof.sha256;
        if let Some(expected) = expected
            && found != expected
        {
            self.abort();
            return Err(PackError::ModelHash { path: model.path().to_path_buf(), found, expected });
        }
        let mut inner = self.lock();
        if !matches!(inner.state, State::Closed) {
            inner.state = State::Open;
        }
        inner.proof = Some(proof);
        drop(inner);
        self.changed.notify_all();
        Ok(found)
    }

    /// Something that waits, once the gate is open; none while it is pending.
    pub(crate) fn take_waiting(&self) -> Result<Option<(usize, Finished)>, PackError> {
        let mut inner = self.lock();
        match inner.state {
            State::Open => Ok(inner.waiting.pop_front()),
            State::Pending => Ok(None),
            State::Closed => Err(PackError::Cancelled),
        }
    }

    /// Lets finished work through when the gate is open; otherwise it waits inside, or, when too much waits already, the
    /// caller does.
    pub(crate) fn pass(
        &self,
        index: usize,
        finished: Finished,
        progress: &Progress<'_>,
    ) -> Result<Option<Finished>, PackError> {
        let mut inner = self.lock();
        loop {
            match inner.state {
                State::Open => return Ok(Some(finished)),
                State::Closed => return Err(PackError::Cancelled),
                State::Pending if inner.waiting.len() < MAX_WAITING => {
                    inner.waiting.push_back((index, finished));
                    return Ok(None);
                }
                State::Pending => {}
            }
            inner = self.sleep(inner);
            progress.check().map_err(cancelled)?;
        }
    }

    /// Waits until the gate is no longer pending.
    pub(crate) fn wait(&self, progress: &Progress<'_>) -> Result<(), PackError> {
        let mut inner = self.lock();
        while matches!(inner.state, State::Pending) {
            inner = self.sleep(inner);
            progress.check().map_err(cancelled)?;
        }
        if matches!(inner.state, State::Closed) { Err(PackError::Cancelled) } else { Ok(()) }
    }

    fn sleep<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        // Woken by every change; the time-out is for the caller's cancellation, which does not notify.
        let slept = self.changed.wait_timeout(inner, Duration::from_millis(100));
        slept.unwrap_or_else(PoisonError::into_inner).0
    }
}
