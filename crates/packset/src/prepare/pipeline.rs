//! The pipeline of a prepare: one pass over the model feeds its own hash, the tensors' hashes and the packer.
//!
//! The model is cut into *pieces*: the tensors to pack, and what lies between them. A piece is read once, into a buffer that
//! stays until everything that needs it has had it, so that the bytes that are packed are the bytes that were hashed:
//!
//! ```text
//! read ─┬─ model SHA-256 (piece after piece, one thread at a time: it is one stream)
//!       ├─ model BLAKE3  (likewise, for the receipt)
//!       └─ a few tensors together: source SHA-256, pack, write ── many together: payloads read back, SHA-256 and BLAKE3
//! ```
//!
//! A tensor that is too large to be held is packed by itself, in bands that are hashed as they are read; the model's stream
//! reads it in parts. So it is with a tensor that could not be packed when it was read. Then both readings must have the same
//! BLAKE3 before anything of it is published.
//!
//! The threads are all alike. Each takes the most urgent step that can be done, the model's own stream first, since that one
//! cannot be sped up; so none is idle while there is work, whether there are two or sixteen. Memory is bounded by a budget
//! over all buffers: when it is used up, reading waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use b70_manifest::Sha256Hex;
use b70_store::{
    Blake3, Content, DigestKind, Digests, Error, Hasher, Progress, Sha256Streams, StreamKernel, TempFile,
    meminfo_bytes, read_back,
};

use super::pieces::{Piece, Wanted, cut};
use crate::buffer::{Buffer, Growing};
use crate::error::PackError;
use crate::model::Model;

/// Bytes that a hash takes between two looks at the caller's wish to stop.
const STEP: usize = 4 << 20;

/// Pieces in memory for each thread, in bytes: two and a half tensors of 50 MB. With two threads and their payloads, all stays
/// below 512 MiB.
const BUDGET_PER_THREAD: u64 = 128 << 20;
/// As much as two threads have: the limit for the size of a tensor that is held rests on it.
const USUAL_BUDGET: u64 = 2 * BUDGET_PER_THREAD;
const MAX_BUDGET: u64 = 1 << 30;
const MIN_BUDGET: u64 = 128 << 20;

/// Payloads that all threads together may prove at once. Each keeps three file handles, and those that wait for the gate two:
/// together below 1024, a common limit.
const MOST_UNDER_PROOF: usize = 128;

/// Tensors that are hashed side by side before they are packed: as many streams as hide each other's latency.
const TOGETHER: usize = 4;

/// Bytes of model data that may be in memory at once: by threads, but no more than an eighth of what is available.
pub(super) fn budget(jobs: usize) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo_bytes(&meminfo, "MemAvailable").map_or(MAX_BUDGET, |bytes| bytes / 8);
    let wanted = BUDGET_PER_THREAD.saturating_mul(jobs as u64).clamp(USUAL_BUDGET, MAX_BUDGET);
    wanted.min(available).max(MIN_BUDGET)
}

/// What the pipeline leaves to its owner.
pub(super) trait Packer: Sync {
    /// Whether the tensor needs packing; whatever else is to become of it is done here.
    fn needed(&self, tensor: usize) -> Result<bool, PackError>;
    /// Packs a whole tensor into a file without a name.
    fn pack(&self, tensor: usize, source: &[u8], scratch: &mut Growing) -> Result<TempFile, PackError>;
    /// Packs a tensor that is too large to be held from the model itself, if it needs packing; with the digests of what was
    /// read.
    fn pack_oversize(&self, tensor: usize) -> Result<Option<(TempFile, Content)>, PackError>;
    /// Takes a tensor whose payload has been read back.
    fn finished(&self, tensor: usize, file: TempFile, source_sha256: Sha256Hex, seconds: f64);
    /// Whether so much waits for its name that no more should be packed now.
    fn is_full(&self) -> bool;
}

struct Resident {
    bytes: Arc<Buffer>,
    /// Steps that still need it.
    users: u32,
}

struct Packed {
    tensor: usize,
    file: TempFile,
    source_sha256: Sha256Hex,
    seconds: f64,
}

/// How far a stream over all pieces, in their order, has come.
#[derive(Default)]
struct Chain {
    next: usize,
    busy: bool,
}

#[derive(Default)]
struct State {
    /// Whether the model's hashes are wanted; unknown until the prover has looked for a receipt.
    started: bool,
    pieces: Vec<Piece>,
    /// How many of them, from the first, the model's own hashes need.
    hashed: usize,
    /// Whether SHA-256 is among those.
    sha256_wanted: bool,
    /// Digests of tensors that are read twice, of whichever reading was first.
    read_twice: HashMap<usize, Blake3>,
    next_read: usize,
    reading: usize,
    resident: HashMap<usize, Resident>,
    free: Vec<Buffer>,
    in_use: u64,
    sha256: Chain,
    blake3: Chain,
    oversize: VecDeque<usize>,
    to_pack: VecDeque<usize>,
    packing: usize,
    packed: Vec<Packed>,
    /// Tensors that may still need a proof.
    unproved: usize,
    /// How many are proved together at the end, once that is known.
    last_share: Option<usize>,
    /// Steps under way.
    running: usize,
    failed: bool,
}

impl State {
    fn sha256_is_done(&self) -> bool {
        !self.sha256_wanted || self.sha256.next >= self.hashed
    }

    /// Whether a piece that is packed was read by the model's stream in another reading.
    fn read_twice_by_stream(&self, piece: &Piece) -> bool {
        piece.part_of.is_some() && self.hashed > 0
    }
}

enum Step {
    Read(usize, Option<Buffer>),
    Sha256(usize, Arc<Buffer>),
    Blake3(usize, Arc<Buffer>),
    Pack(Vec<(usize, Arc<Buffer>)>),
    Oversize(usize),
    Prove(Vec<Packed>),
}

/// See the module.
pub(super) struct Pipeline<'a> {
    model: &'a Model,
    wanted: &'a [Wanted],
    packer: &'a dyn Packer,
    jobs: usize,
    /// Tensors that are proved together.
    batch: usize,
    budget: u64,
    kernel: StreamKernel,
    progress: Progress<'a>,
    state: Mutex<State>,
    changed: Condvar,
    sha256: Mutex<Stream>,
    blake3: Mutex<Stream>,
}

/// A hash over the model's files, one after the other.
struct Stream {
    what: DigestKind,
    hasher: Hasher,
    files: Vec<Digests>,
    /// The tensor whose parts go by, and their digest so far.
    parts: Option<(usize, Hasher)>,
}

impl Stream {
    fn new(what: DigestKind) -> Mutex<Self> {
        Mutex::new(Self { what, hasher: Hasher::new(what), files: Vec::new(), parts: None })
    }
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(
        model: &'a Model,
        wanted: &'a [Wanted],
        packer: &'a dyn Packer,
        jobs: usize,
        budget: u64,
        progress: Progress<'a>,
    ) -> Self {
        let kernel = StreamKernel::best();
        Self {
            model,
            wanted,
            packer,
            jobs,
            batch: kernel.width().min(MOST_UNDER_PROOF / jobs.max(1)).max(1),
            budget,
            kernel,
            progress,
            state: Mutex::default(),
            changed: Condvar::new(),
            sha256: Stream::new(DigestKind::Sha256),
            blake3: Stream::new(DigestKind::Blake3),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the scope ends with it; until then nobody waits for ever, since `failed` is set.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the threads begin: with the model's hashes of this kind, or without.
    pub(super) fn start(&self, hash: Option<DigestKind>) {
        let mut state = self.lock();
        if state.started {
            return;
        }
        state.started = true;
        state.pieces = cut(self.model, self.wanted, hash.is_some());
        state.hashed = if hash.is_some() { state.pieces.len() } else { 0 };
        state.sha256_wanted = hash.is_some_and(DigestKind::sha256);
        state.unproved = self.wanted.len();
        state.oversize = (0..self.wanted.len()).filter(|&tensor| self.wanted[tensor].oversize).collect();
        drop(state);
        self.changed.notify_all();
    }

    /// Stops everything.
    pub(super) fn fail(&self) {
        let mut state = self.lock();
        state.started = true;
        state.failed = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Digests of this kind of every file of the model, once the pass over it is done; none when it was stopped. BLAKE3 is always
    /// among them.
    pub(super) fn digests(&self, kind: DigestKind) -> Option<Vec<Digests>> {
        self.start(Some(kind));
        let mut state = self.lock();
        while !state.failed && (state.blake3.next < state.hashed || !state.sha256_is_done()) {
            state = self.sleep(state);
        }
        if state.failed {
            return None;
        }
        drop(state);
        let streams = [&self.sha256, &self.blake3].map(|stream| stream.lock().unwrap_or_else(PoisonError::into_inner));
        let [sha256, blake3] = &streams;
        let both = |(index, blake3): (usize, &Digests)| {
            let sha256 = sha256.files.get(index).and_then(|digests| digests.sha256);
            Digests { sha256, ..*blake3 }
        };
        Some(blake3.files.iter().enumerate().map(both).collect())
    }

    /// One thread: takes steps until everything is done.
    pub(super) fn work(&self) -> Result<(), PackError> {
        let result = self.work_until_done();
        if result.is_err() {
            self.fail();
        }
        result
    }

    fn work_until_done(&self) -> Result<(), PackError> {
        let mut scratch = Growing::default();
        loop {
            self.progress.check()?;
            let mut state = self.lock();
            if state.failed {
                return Err(PackError::Cancelled);
            }
            let Some(step) = self.take(&mut state) else {
                if Self::is_done(&state) {
                    drop(state);
                    self.changed.notify_all();
                    return Ok(());
                }
                drop(self.sleep(state));
                continue;
            };
            state.running += 1;
            drop(state);
            self.carry_out(step, &mut scratch)?;
            self.lock().running -= 1;
            self.changed.notify_all();
        }
    }

    fn is_done(state: &State) -> bool {
        state.started
            && state.running == 0
            && state.next_read == state.pieces.len()
            && state.resident.is_empty()
            && state.packed.is_empty()
            && state.oversize.is_empty()
    }

    /// The most urgent step that can be taken now.
    fn take(&self, state: &mut State) -> Option<Step> {
        if !state.started {
            return None;
        }
        if state.sha256_wanted
            && let Some((piece, bytes)) = next_of_chain(&state.sha256, state)
        {
            state.sha256.busy = true;
            return Some(Step::Sha256(piece, bytes));
        }
        // The last ones wait until all of them are packed, and are then shared out: sixteen streams take a thread no longer
        // than nine do.
        if state.packed.len() >= self.batch && state.unproved > self.batch * self.jobs {
            return Some(Self::prove(state, self.batch));
        }
        if let Some((piece, bytes)) = next_of_chain(&state.blake3, state) {
            state.blake3.busy = true;
            return Some(Step::Blake3(piece, bytes));
        }
        // One tensor alone is worth a look for company.
        if state.to_pack.len() >= TOGETHER / 2 {
            return Some(Self::pack(state));
        }
        if let Some((piece, buffer)) = self.next_read(state) {
            return Some(Step::Read(piece, buffer));
        }
        if !state.to_pack.is_empty() {
            return Some(Self::pack(state));
        }
        if !self.packer.is_full()
            && let Some(tensor) = state.oversize.pop_front()
        {
            state.packing += 1;
            return Some(Step::Oversize(tensor));
        }
        // Fewer than a full batch: when no more come, shared out to all threads; when everything stands still, as many as
        // there are.
        let last = state.next_read == state.pieces.len()
            && state.reading == 0
            && state.packing == 0
            && state.oversize.is_empty();
        if !state.packed.is_empty() && (last || state.running == 0) {
            let all = state.packed.len();
            let share = if last { *state.last_share.get_or_insert(all.div_ceil(self.jobs)) } else { all };
            return Some(Self::prove(state, share.min(self.batch).min(all)));
        }
        None
    }

    fn pack(state: &mut State) -> Step {
        let count = state.to_pack.len().min(TOGETHER);
        let pieces: Vec<usize> = state.to_pack.drain(..count).collect();
        state.packing += count;
        Step::Pack(pieces.into_iter().map(|piece| (piece, Arc::clone(&state.resident[&piece].bytes))).collect())
    }

    fn prove(state: &mut State, count: usize) -> Step {
        state.unproved = state.unproved.saturating_sub(count);
        Step::Prove(state.packed.drain(..count).collect())
    }

    /// Claims the next piece and a buffer for it, if there is room.
    fn next_read(&self, state: &mut State) -> Option<(usize, Option<Buffer>)> {
        let piece = *state.pieces.get(state.next_read)?;
        let len = piece.len as u64;
        if state.in_use > 0 && state.in_use + len > self.budget {
            return None;
        }
        // What the model's own hash needs must go on; it is packed later.
        if !piece.hashed && self.packer.is_full() {
            return None;
        }
        let fits = |buffer: &Buffer| buffer.len() >= piece.len && buffer.len() / 2 <= piece.len;
        let buffer = state.free.iter().position(fits).map(|at| state.free.swap_remove(at));
        if buffer.is_none() {
            // Idle buffers count, too.
            let idle = |free: &[Buffer]| free.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
            while !state.free.is_empty() && state.in_use + idle(&state.free) + len > self.budget {
                state.free.remove(0);
            }
        }
        state.in_use += buffer.as_ref().map_or(len, |buffer| buffer.len() as u64);
        let index = state.next_read;
        state.next_read += 1;
        state.reading += 1;
        Some((index, buffer))
    }

    fn carry_out(&self, step: Step, scratch: &mut Growing) -> Result<(), PackError> {
        match step {
            Step::Read(piece, buffer) => self.read(piece, buffer),
            Step::Sha256(piece, bytes) => {
                self.hash(&self.sha256, piece, bytes)?;
                let mut state = self.lock();
                state.sha256.busy = false;
                state.sha256.next += 1;
                release(&mut state, piece);
                Ok(())
            }
            Step::Blake3(piece, bytes) => {
                self.hash(&self.blake3, piece, bytes)?;
                let mut state = self.lock();
                state.blake3.busy = false;
                state.blake3.next += 1;
                release(&mut state, piece);
                Ok(())
            }
            Step::Pack(pieces) => self.pack_together(pieces, scratch),
            Step::Oversize(tensor) => {
                let started = Instant::now();
                let packed = self.packer.pack_oversize(tensor)?;
                if let Some((_, source)) = &packed {
                    self.meet(tensor, source.blake3)?;
                }
                let mut state = self.lock();
                state.packing -= 1;
                match packed {
                    Some((file, source)) => {
                        let (source_sha256, seconds) = (source.sha256, started.elapsed().as_secs_f64());
                        state.packed.push(Packed { tensor, file, source_sha256, seconds });
                    }
                    None => state.unproved = state.unproved.saturating_sub(1),
                }
                Ok(())
            }
            Step::Prove(packed) => self.carry_out_proof(packed),
        }
    }

    /// Hashes some tensors that are in memory side by side, and packs one after the other.
    fn pack_together(&self, pieces: Vec<(usize, Arc<Buffer>)>, scratch: &mut Growing) -> Result<(), PackError> {
        let started = Instant::now();
        let of = |index: usize| self.lock().pieces[index];
        let pieces: Vec<(usize, Piece, Arc<Buffer>)> =
            pieces.into_iter().map(|(index, bytes)| (index, of(index), bytes)).collect();
        let mut lanes = Sha256Streams::new(pieces.len(), self.kernel);
        let longest = pieces.iter().map(|(_, piece, _)| piece.len).max().unwrap_or(0);
        for from in (0..longest).step_by(STEP) {
            self.progress.check()?;
            let slices: Vec<&[u8]> = pieces
                .iter()
                .map(|(_, piece, bytes)| &bytes.get(piece.len)[from.min(piece.len)..(from + STEP).min(piece.len)])
                .collect();
            lanes.update(&slices);
        }
        let hashing = started.elapsed().as_secs_f64() / pieces.len().max(1) as f64;
        for (lane, (index, piece, bytes)) in pieces.into_iter().enumerate() {
            let started = Instant::now();
            let tensor = piece.tensor.expect("only pieces with a tensor are packed");
            let source = bytes.get(piece.len);
            let source_sha256 = lanes.take(lane);
            if self.lock().read_twice_by_stream(&piece) {
                let mut hasher = Hasher::new(DigestKind::Blake3);
                hasher.update(source);
                self.meet(tensor, hasher.finish().blake3.expect("it was asked for"))?;
            }
            let file = self.packer.pack(tensor, source, scratch)?;
            drop(bytes);
            let seconds = hashing + started.elapsed().as_secs_f64();
            let mut state = self.lock();
            state.packing -= 1;
            state.packed.push(Packed { tensor, file, source_sha256, seconds });
            release(&mut state, index);
            drop(state);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Holds one reading of a tensor against the other, if there was one already. Where the model's stream does not read it,
    /// there is none.
    fn meet(&self, tensor: usize, found: Blake3) -> Result<(), PackError> {
        let mut state = self.lock();
        match state.read_twice.get(&tensor) {
            Some(other) if *other != found => {
                let (_, path) = self.model.file(self.wanted[tensor].file);
                let what = "two readings of one tensor differ".to_owned();
                Err(Error::ChangedWhileReading { path: path.to_path_buf(), what }.into())
            }
            Some(_) => Ok(()),
            None => {
                state.read_twice.insert(tensor, found);
                Ok(())
            }
        }
    }

    fn read(&self, index: usize, buffer: Option<Buffer>) -> Result<(), PackError> {
        let piece = self.lock().pieces[index];
        let (mut pack, mut postponed) = (None, false);
        if let Some(tensor) = piece.tensor {
            if piece.hashed && self.packer.is_full() {
                // Packed later, from another read: once more for some tensors of a model with very many.
                postponed = true;
                let mut state = self.lock();
                state.pieces[index].part_of = Some(tensor);
                state.pieces.push(Piece { hashed: false, ends_file: false, part_of: Some(tensor), ..piece });
            } else if self.packer.needed(tensor)? {
                pack = Some(tensor);
            }
        }
        let streams = if self.lock().sha256_wanted { 2 } else { 1 };
        let users = u32::from(piece.hashed) * streams + u32::from(pack.is_some());
        let claimed = buffer.as_ref().map_or(piece.len, Buffer::len) as u64;
        let fetched = if users > 0 { Ok(self.fetch(&piece, buffer)?) } else { Err(buffer) };
        let mut state = self.lock();
        state.reading -= 1;
        state.in_use -= claimed;
        let bytes = match fetched {
            Ok(bytes) => bytes,
            Err(buffer) => {
                state.free.extend(buffer);
                state.unproved = state.unproved.saturating_sub(1);
                return Ok(());
            }
        };
        state.in_use += bytes.len() as u64;
        if pack.is_some() {
            state.to_pack.push_back(index);
        } else if piece.tensor.is_some() && !postponed {
            state.unproved = state.unproved.saturating_sub(1);
        }
        state.resident.insert(index, Resident { bytes: Arc::new(bytes), users });
        Ok(())
    }

    /// The bytes of a piece.
    fn fetch(&self, piece: &Piece, buffer: Option<Buffer>) -> Result<Buffer, PackError> {
        let mut buffer = match buffer {
            Some(buffer) => buffer,
            None => Buffer::new(piece.len).map_err(PackError::io("get memory for", self.model.path()))?,
        };
        self.model.read_at(piece.file, piece.offset, buffer.get_mut(piece.len))?;
        Ok(buffer)
    }

    fn hash(&self, stream: &Mutex<Stream>, index: usize, bytes: Arc<Buffer>) -> Result<(), PackError> {
        let piece = self.lock().pieces[index];
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let part_of = piece.part_of.filter(|_| stream.what == DigestKind::Blake3);
        if let Some(tensor) = part_of
            && stream.parts.as_ref().is_none_or(|(current, _)| *current != tensor)
        {
            stream.parts = Some((tensor, Hasher::new(DigestKind::Blake3)));
        }
        for part in bytes.get(piece.len).chunks(STEP) {
            self.progress.check()?;
            stream.hasher.update(part);
            if let (Some(_), Some((_, hasher))) = (part_of, &mut stream.parts) {
                hasher.update(part);
            }
        }
        if let Some(tensor) = part_of
            && stream.parts.as_ref().is_some_and(|(_, hasher)| hasher.size() == self.wanted[tensor].len)
            && let Some((_, hasher)) = stream.parts.take()
        {
            self.meet(tensor, hasher.finish().blake3.expect("it was asked for"))?;
        }
        if piece.ends_file {
            let fresh = Hasher::new(stream.what);
            let digests = std::mem::replace(&mut stream.hasher, fresh).finish();
            stream.files.push(digests);
        }
        Ok(())
    }

    /// Reads the payloads of some tensors back.
    fn carry_out_proof(&self, mut packed: Vec<Packed>) -> Result<(), PackError> {
        let started = Instant::now();
        let mut files: Vec<&mut TempFile> = packed.iter_mut().map(|packed| &mut packed.file).collect();
        read_back(&mut files, self.kernel, &self.progress.silent())?;
        let seconds = started.elapsed().as_secs_f64() / packed.len().max(1) as f64;
        for Packed { tensor, file, source_sha256, seconds: packing } in packed {
            self.packer.finished(tensor, file, source_sha256, packing + seconds);
        }
        Ok(())
    }

    fn sleep<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        // Woken by every step; the time-out is for what does not notify: the gate's room, and the caller's
        // cancellation.
        self.changed.wait_timeout(state, Duration::from_millis(20)).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The next piece of a stream, if it is in memory and nobody is at it.
fn next_of_chain(chain: &Chain, state: &State) -> Option<(usize, Arc<Buffer>)> {
    if chain.busy || chain.next >= state.hashed {
        return None;
    }
    let bytes = &state.resident.get(&chain.next)?.bytes;
    Some((chain.next, Arc::clone(bytes)))
}

/// One user less; a buffer without users is free again.
fn release(state: &mut State, piece: usize) {
    let Some(resident) = state.resident.get_mut(&piece) else { return };
    resident.users -= 1;
    if resident.users == 0
        && let Some(Resident { bytes, .. }) = state.resident.remove(&piece)
    {
        state.in_use -= bytes.len() as u64;
        // The last handle: every step drops its own before it releases the piece.
        if let Some(buffer) = Arc::into_inner(bytes) {
            state.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use b70_gguf::{GgmlType, GgufWriter};
    use b70_store::{Job, OnExisting, RelPath, Root, Source, hash_file};

    use super::*;

    /// A model of tensors of so many blocks; all of them are wanted, the last one first.
    fn model(folder: &Path, blocks: &[u64]) -> (Model, Vec<Wanted>) {
        let path = folder.join("model.gguf");
        let mut writer = GgufWriter::new();
        for (index, blocks) in blocks.iter().enumerate() {
            let bytes: Vec<u8> = (0..blocks * 18).map(|at| (at * 31 + index as u64 * 7) as u8).collect();
            writer.tensor(format!("t{index}"), GgmlType::Q4_0, &[32, *blocks], bytes);
        }
        writer.write_file(&path).unwrap();
        let model = Model::open(&path).unwrap();
        let wanted = model.tensors().iter().rev().map(|tensor| Wanted {
            file: tensor.file_index,
            offset: tensor.offset,
            len: tensor.size_bytes,
            oversize: false,
        });
        let wanted = wanted.collect();
        (model, wanted)
    }

    /// "Packs" a tensor by copying it.
    struct Copier<'a> {
        model: &'a Model,
        wanted: &'a [Wanted],
        dir: Root,
        unneeded: Option<usize>,
        failing: Option<usize>,
        /// How many times it still says that it is full.
        full: AtomicU32,
        /// A byte of the file that changes once, between the two readings of what is read twice.
        changing: Option<u64>,
        finished: Mutex<BTreeMap<usize, Sha256Hex>>,
    }

    impl Copier<'_> {
        fn change(&self) {
            use std::os::unix::fs::FileExt as _;
            let Some(at) = self.changing else { return };
            let file = std::fs::File::options().write(true).open(self.model.path()).unwrap();
            file.write_all_at(&[0xee], at).unwrap();
        }

        fn source(&self, tensor: usize) -> Vec<u8> {
            let Wanted { file, offset, len, .. } = self.wanted[tensor];
            let mut bytes = vec![0; len as usize];
            self.model.read_at(file, offset, &mut bytes).unwrap();
            bytes
        }
    }

    impl Packer for Copier<'_> {
        fn needed(&self, tensor: usize) -> Result<bool, PackError> {
            Ok(self.unneeded != Some(tensor))
        }

        fn pack(&self, tensor: usize, source: &[u8], _: &mut Growing) -> Result<TempFile, PackError> {
            if self.failing == Some(tensor) {
                return Err(PackError::document(self.model.path(), "failing"));
            }
            let mut file = TempFile::create(&self.dir, 0o444)?;
            file.without_sha256();
            file.write_all(source)?;
            file.close()?;
            Ok(file)
        }

        fn pack_oversize(&self, tensor: usize) -> Result<Option<(TempFile, Content)>, PackError> {
            self.change();
            let source = self.source(tensor);
            let file = self.pack(tensor, &source, &mut Growing::default())?;
            Ok(Some((file, Content::of(&source))))
        }

        fn finished(&self, tensor: usize, file: TempFile, source_sha256: Sha256Hex, _: f64) {
            let name = RelPath::new(format!("t{tensor}")).unwrap();
            file.commit(&name, OnExisting::Fail, None, &Progress::NONE).unwrap();
            assert_eq!(self.finished.lock().unwrap().insert(tensor, source_sha256), None, "once each");
        }

        fn is_full(&self) -> bool {
            let less = |left: u32| left.checked_sub(1);
            if self.full.load(Ordering::SeqCst) == 1 {
                self.change();
            }
            self.full.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
        }
    }

    /// What the threads say, and the model's digests where they were asked for.
    type Ran = (Vec<Result<(), PackError>>, Option<Vec<Digests>>);

    fn run(copier: &Copier<'_>, jobs: usize, budget: u64, hash: bool) -> Ran {
        let pipeline = Pipeline::new(copier.model, copier.wanted, copier, jobs, budget, Progress::NONE);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| pipeline.work())).collect();
            let digests = if hash { pipeline.digests(DigestKind::Both) } else { None };
            pipeline.start(None);
            (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), digests)
        })
    }

    fn copier<'a>(model: &'a Model, wanted: &'a [Wanted], folder: &Path, full: u32) -> Copier<'a> {
        std::fs::create_dir(folder).unwrap();
        let dir = Root::open(folder).unwrap();
        let full = AtomicU32::new(full);
        Copier { model, wanted, dir, unneeded: None, failing: None, full, changing: None, finished: Mutex::default() }
    }

    #[test]
    fn each_tensor_is_packed_once_whatever_the_threads_the_memory_and_the_room() {
        let folder = tempfile::tempdir().unwrap();
        let (model, mut wanted) = model(folder.path(), &[16, 700, 1, 33, 5000, 2, 9]);
        wanted[2].oversize = true;
        let (file, path) = model.file(0);
        let job = Job { source: Source::File(file, path), size: None };
        let expected = vec![hash_file(job, DigestKind::Both, &Progress::NONE).unwrap()];
        for case in 0..16_u32 {
            let [hash, many, narrow, full] = [1, 2, 4, 8].map(|bit| case & bit != 0);
            let dir = folder.path().join(format!("{case}"));
            let mut copier = copier(&model, &wanted, &dir, if full { 20 } else { 0 });
            copier.unneeded = Some(1);
            let budget = if narrow { 1 } else { MIN_BUDGET };
            let (threads, digests) = run(&copier, if many { 3 } else { 1 }, budget, hash);
            assert!(threads.iter().all(Result::is_ok), "case {case}: {threads:?}");
            assert_eq!(digests, hash.then(|| expected.clone()), "case {case}");
            let finished = copier.finished.lock().unwrap();
            assert_eq!(finished.keys().copied().collect::<Vec<_>>(), [0, 2, 3, 4, 5, 6], "case {case}");
            for (tensor, sha256) in &*finished {
                let source = copier.source(*tensor);
                assert_eq!(*sha256, Sha256Hex::of(&source), "case {case}: {tensor}");
                assert_eq!(std::fs::read(dir.join(format!("t{tensor}"))).unwrap(), source, "case {case}: {tensor}");
            }
        }
    }

    #[test]
    fn two_readings_of_one_tensor_that_differ_are_refused_whichever_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for (oversize, full) in [(true, 0), (false, 3)] {
            let dir = folder.path().join(format!("{full}"));
            std::fs::create_dir(&dir).unwrap();
            // One thread, so that the model's stream has read the tensor before it is packed.
            let (model, mut wanted) = model(&dir, &[64; 3]);
            for tensor in &mut wanted {
                tensor.oversize = oversize;
            }
            let mut copier = copier(&model, &wanted, &dir.join("out"), full);
            // The file's first tensor, which is the last that is wanted.
            copier.changing = Some(wanted[2].offset + 5);
            let (threads, _) = run(&copier, 1, MIN_BUDGET, true);
            let said = threads.iter().map(|ended| ended.as_ref().err().map(ToString::to_string).unwrap_or_default());
            let said: Vec<String> = said.collect();
            assert!(said[0].contains("two readings of one tensor differ"), "oversize {oversize}: {said:?}");
            assert!(!copier.finished.lock().unwrap().contains_key(&2));
        }
    }

    #[test]
    fn one_failure_ends_all_threads_and_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let (model, wanted) = model(folder.path(), &[40; 12]);
        let mut copier = copier(&model, &wanted, &folder.path().join("out"), 0);
        copier.failing = Some(5);
        let (threads, digests) = run(&copier, 3, MIN_BUDGET, true);
        let failures = threads.iter().filter(|ended| matches!(ended, Err(PackError::Document { .. }))).count();
        let stopped = threads.iter().filter(|ended| matches!(ended, Err(PackError::Cancelled))).count();
        assert_eq!((failures, stopped, digests.is_some()), (1, 2, false), "{threads:?}");
        assert!(!copier.finished.lock().unwrap().contains_key(&5));
    }

    #[test]
    fn the_pieces_of_a_hashed_model_are_its_bytes_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (model, mut wanted) = model(folder.path(), &[3, 1_200_000, 7]);
        wanted[1].oversize = true;
        let pieces = cut(&model, &wanted, true);
        let mut at = 0;
        for piece in &pieces {
            assert_eq!(piece.offset, at);
            at += piece.len as u64;
        }
        assert_eq!(at, model.file_size(0));
        assert!(pieces.len() > 4, "what is too large to be held is read in parts: {pieces:?}");
        let ends: Vec<bool> = pieces.iter().map(|piece| piece.ends_file).collect();
        assert_eq!(ends.iter().position(|ends| *ends), Some(pieces.len() - 1));
        let tensors = |pieces: &[Piece]| pieces.iter().filter_map(|piece| piece.tensor).collect::<Vec<_>>();
        assert_eq!(tensors(&pieces), [2, 0], "in the file's order");
        let alone = cut(&model, &wanted, false);
        assert_eq!((tensors(&alone), alone.len()), (vec![2, 0], 2));
    }
}
