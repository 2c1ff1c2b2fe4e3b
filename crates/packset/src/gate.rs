//! The gate between finished work and its name: it opens when the model's SHA-256 has been found right.
//!
//! Packed payloads are made durable while the gate is still shut, and named once it is open, both by threads that do
//! nothing else: they wait for the disk, and cost no core.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use b70_manifest::Sha256Hex;
use b70_manifest::pack::TensorPack;
use b70_store::{OnExisting, Progress, PublishOutcome, Root};

use crate::error::PackError;
use crate::import::Import;
use crate::model::Model;
use crate::pack::{PackedTensor, payload_file_name};
use crate::set::rel;
use crate::source::SourceProof;

/// Finished tensors that may wait at once. Each keeps two file handles; 1024 are a common limit.
pub(crate) const MAX_WAITING: usize = 256;

/// A tensor that is done but for its name.
pub(crate) enum Finished {
    /// Packed into an unnamed file, which has been read back.
    Packed(Box<PackedTensor>),
    /// Found in another set, its bytes checked.
    Import(Box<Import>),
}

impl Finished {
    /// Waits until the payload is on the disk.
    pub(crate) fn sync(&mut self) -> Result<(), PackError> {
        match self {
            Self::Packed(packed) => Ok(packed.file.sync()?),
            Self::Import(_) => Ok(()),
        }
    }

    /// Gives the payload its name; returns the complete entry, how the publish ended, and whether it was imported.
    pub(crate) fn publish(
        self,
        mut entry: TensorPack,
        tensors_dir: &Root,
        progress: &Progress<'_>,
    ) -> Result<(TensorPack, PublishOutcome, bool), PackError> {
        match self {
            Self::Packed(packed) => {
                let packed = *packed;
                let name = rel(&payload_file_name(entry.key));
                let published = packed.file.commit(&name, OnExisting::ReplaceDamaged, None, &progress.silent())?;
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

/// What a publisher is to do with a finished tensor.
pub(crate) enum Work {
    /// Make it durable and give it back to [`HashGate::synced`].
    Sync(usize, Finished),
    /// Give it its name and say so to [`HashGate::published`].
    Publish(usize, Finished),
}

struct Inner {
    state: State,
    unsynced: VecDeque<(usize, Finished)>,
    waiting: VecDeque<(usize, Finished)>,
    /// Handed out to publishers.
    out: usize,
    /// Whether more may still be submitted.
    producing: bool,
    proof: Option<SourceProof>,
}

/// See the module.
pub(crate) struct HashGate {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl HashGate {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            state: State::Pending,
            unsynced: VecDeque::new(),
            waiting: VecDeque::new(),
            out: 0,
            producing: true,
            proof: None,
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A worker that panicked leaves the state consistent: every change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        let mut inner = self.lock();
        if matches!(state, State::Closed) {
            inner.unsynced.clear();
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

    /// Whether so much waits that no more should be made.
    pub(crate) fn is_full(&self) -> bool {
        let inner = self.lock();
        inner.unsynced.len() + inner.waiting.len() + inner.out >= MAX_WAITING
    }

    /// Takes finished work in.
    pub(crate) fn submit(&self, index: usize, finished: Finished) {
        let mut inner = self.lock();
        if !matches!(inner.state, State::Closed) {
            inner.unsynced.push_back((index, finished));
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// Nothing more will be submitted.
    pub(crate) fn end(&self) {
        self.lock().producing = false;
        self.changed.notify_all();
    }

    /// What a publisher does next; none when everything has its name.
    pub(crate) fn next(&self, progress: &Progress<'_>) -> Result<Option<Work>, PackError> {
        let mut inner = self.lock();
        loop {
            progress.check()?;
            if matches!(inner.state, State::Closed) {
                return Err(PackError::Cancelled);
            }
            let open = matches!(inner.state, State::Open);
            if let Some((index, finished)) = if open { inner.waiting.pop_front() } else { None } {
                inner.out += 1;
                return Ok(Some(Work::Publish(index, finished)));
            }
            if let Some((index, finished)) = inner.unsynced.pop_front() {
                inner.out += 1;
                return Ok(Some(Work::Sync(index, finished)));
            }
            if !inner.producing && inner.out == 0 && inner.waiting.is_empty() {
                return Ok(None);
            }
            inner = self.sleep(inner);
        }
    }

    /// Takes back what was made durable.
    pub(crate) fn synced(&self, index: usize, finished: Finished) {
        let mut inner = self.lock();
        inner.out -= 1;
        if !matches!(inner.state, State::Closed) {
            inner.waiting.push_back((index, finished));
        }
        drop(inner);
        self.changed.notify_all();
    }

    /// Something has its name.
    pub(crate) fn published(&self) {
        self.lock().out -= 1;
        self.changed.notify_all();
    }

    fn sleep<'a>(&self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        // Woken by every change; the time-out is for the caller's cancellation, which does not notify.
        let slept = self.changed.wait_timeout(inner, Duration::from_millis(100));
        slept.unwrap_or_else(PoisonError::into_inner).0
    }
}
