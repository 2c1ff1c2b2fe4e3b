//! One run of a prepare: what is ready is kept, what another set has is imported, the rest is packed; and every tensor is
//! published once the model's hash allows it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use b70_manifest::pack::{PackSet, SourceTensor, TensorPack, ToolRecord};
use b70_manifest::{Sha256Hex, canonical_sha256};
use b70_store::{
    Content, HashOptions, LockGuard, Progress, PublishOutcome, RelPath, Root, TempFile, Trust, json_bytes, lock,
    replace_bytes, spawn_scoped, sweep_orphans,
};

use super::pieces::Wanted;
use super::pipeline::{self, Packer, Pipeline};
use crate::buffer::Growing;
use crate::error::PackError;
use crate::gate::{Finished, HashGate, Work};
use crate::import::{Donors, NotReady, Reading, find_ready};
use crate::keys::{set_identity, tensor_identity};
use crate::layout::Layout;
use crate::model::Model;
use crate::origin::OtherTool;
use crate::pack::{BAND_SET, PackedTensor, default_jobs, pack_banded, pack_whole, source_sha256};
use crate::plan::{SelectedTensor, TensorPlan, TensorSelection};
use crate::set::{LOCKS_DIR, SetDir, TENSORS_DIR, clear_the_way, payload_name, rel, sidecar_name};
use crate::source::{ModelHash, Prover};
use crate::trust::{SetSubject, reasons_text};

/// Options of [`prepare`](super::prepare).
#[derive(Clone, Copy)]
pub struct PrepareOptions<'a> {
    /// Where sets live.
    pub cache_root: &'a Path,
    /// What is known of the model's hash.
    pub model_hash: &'a ModelHash,
    /// Rehash the model, and ready payloads by SHA-256, also where a receipt stands for them or the faster BLAKE3 is recorded.
    pub rehash: bool,
    /// Repair also a set whose documents another tool wrote.
    pub force: bool,
    /// Whether the payloads become immutable (chattr(1), `+i`) and get a receipt at once, so that they may rest unread. It needs
    /// root, and a file system that knows the flag.
    pub immutable: bool,
    /// Workers; 0 chooses.
    pub jobs: usize,
    /// How long to wait for another prepare of the same set.
    pub lock_timeout: Duration,
    /// The packer, as documents name it; by default this library.
    pub tool: Option<&'a ToolRecord>,
    /// Progress over source bytes, and cancellation.
    pub progress: Progress<'a>,
}

impl<'a> PrepareOptions<'a> {
    /// Of a model whose hash nobody vouches for: rests on receipts, waits a minute for another prepare of the same set.
    pub fn new(cache_root: &'a Path) -> Self {
        Self {
            cache_root,
            model_hash: &ModelHash::Unknown,
            rehash: false,
            force: false,
            immutable: false,
            jobs: 0,
            lock_timeout: Duration::from_secs(60),
            tool: None,
            progress: Progress::NONE,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) packed: u64,
    pub(super) reused: u64,
    pub(super) imported: u64,
    pub(super) repaired: Vec<String>,
    /// Bytes of ready payloads that were read.
    pub(super) checked_bytes: u64,
    /// What the payloads are believed on; none before the first.
    pub(super) trust: Option<Trust>,
}

/// What the manifest says of the run itself.
pub(super) struct Account<'a> {
    pub(super) hash_validated: bool,
    pub(super) vouched_by: &'a str,
    pub(super) model_hash_seconds: f64,
    pub(super) pack_seconds: f64,
}

/// What became of one tensor.
enum Done {
    Reused(TensorPack, Trust),
    Published { entry: TensorPack, imported: bool, repaired: bool },
}

/// A prepare under way: everything that does not change while its workers run.
pub(super) struct Run<'a> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a TensorPlan,
    pub(super) layout: &'a dyn Layout,
    pub(super) options: &'a PrepareOptions<'a>,
    pub(super) tensors: &'a [SelectedTensor],
    pub(super) keys: Vec<Sha256Hex>,
    pub(super) sha256: Sha256Hex,
    pub(super) set_key: Sha256Hex,
    pub(super) cache: &'a Root,
    pub(super) set: SetDir,
    pub(super) tensors_dir: Root,
    pub(super) gate: &'a HashGate,
    pub(super) prover: Option<&'a Prover<'a>>,
    /// The set as an earlier run left it, with the manifest's bytes, if that can be read.
    pub(super) recorded: Option<(PackSet, Vec<u8>)>,
    /// The tool that wrote the set's documents, if it is another one.
    pub(super) other_tool: Option<OtherTool>,
    /// The payloads that the set's receipt lets rest unread, each with its rung.
    unread: HashMap<RelPath, Trust>,
    pub(super) donors: Donors,
    pub(super) jobs: usize,
    /// Bytes of a worker's source and payload that make a tensor too large to be held, where a test says so.
    pub(super) worker_set: Option<u64>,
    _lock: Option<LockGuard>,
}

impl<'a> Run<'a> {
    #[expect(clippy::too_many_arguments, reason = "the parts of one run, named once")]
    pub(super) fn new(
        model: &'a Model,
        plan: &'a TensorPlan,
        layout: &'a dyn Layout,
        options: &'a PrepareOptions<'a>,
        selection: &'a TensorSelection,
        cache: &'a Root,
        sha256: Sha256Hex,
        gate: &'a HashGate,
    ) -> Result<Self, PackError> {
        let tensors = &selection.tensors[..];
        let keys = tensors
            .iter()
            .map(|tensor| canonical_sha256(&tensor_identity(layout, sha256, &tensor.name, tensor.shape)))
            .collect::<Result<Vec<_>, _>>()?;
        let set_key = canonical_sha256(&set_identity(layout, sha256, plan.format_prefix(), keys.clone()))?;
        let lock = take_lock(cache, set_key, options)?;
        check_space(cache, set_key, &keys, tensors, layout)?;
        let set_root = cache.create_dir_durable(&rel(&set_key.to_string()), 0o755)?;
        let tensors_dir = set_root.create_dir_durable(&rel(TENSORS_DIR), 0o755)?;
        for dir in [&set_root, &tensors_dir] {
            sweep_orphans(dir)?;
        }
        let jobs = if options.jobs == 0 { default_jobs() } else { options.jobs }.min(tensors.len()).max(1);
        let set = SetDir::from_root(set_root);
        let other_tool = OtherTool::of(&set);
        if let Some(other) = other_tool.as_ref().filter(|_| !options.force) {
            other.check(&set, set_key, layout)?;
        }
        let recorded = set.read_manifest().ok();
        Ok(Self {
            model,
            plan,
            layout,
            options,
            tensors,
            keys,
            sha256,
            set_key,
            cache,
            recorded: recorded.filter(|(document, _)| document.key == set_key),
            other_tool,
            unread: HashMap::new(),
            donors: Donors::find(cache, set_key),
            set,
            tensors_dir,
            gate,
            prover: None,
            jobs,
            worker_set: None,
            _lock: lock,
        })
    }

    /// Finds the payloads of a finished set that its receipt lets rest unread; returns why others must be read.
    pub(super) fn rest_on_receipt(&mut self) -> Result<Vec<String>, PackError> {
        let Some((document, manifest)) = &self.recorded else { return Ok(Vec::new()) };
        if self.options.rehash {
            return Ok(vec!["a rehash was asked for".to_owned()]);
        }
        // A manifest with names that lead elsewhere is repaired or refused by the checks that follow.
        let Ok(subject) = SetSubject::new(document, Sha256Hex::of(manifest)) else { return Ok(Vec::new()) };
        let (unread, reasons) = subject.unread(self.set.root(), &HashOptions::default())?;
        self.unread = unread;
        Ok(reasons_text(&reasons))
    }

    /// Runs the pipeline and, beside it, what waits for the disk. Returns the entries in slot order.
    pub(super) fn execute(&self) -> Result<(Vec<TensorPack>, Counts, f64), PackError> {
        let started = Instant::now();
        let budget = pipeline::budget(self.jobs);
        let wanted = self.wanted_tensors(budget)?;
        let work = Workers { run: self, done: Mutex::new(Vec::new()) };
        let pipeline = Pipeline::new(self.model, &wanted, &work, self.jobs, budget, self.options.progress);
        let stop = || {
            StopOnPanic(|| {
                self.gate.abort();
                pipeline.fail();
            })
        };
        let hash = || {
            let _stop = stop();
            if !self.gate.is_pending() {
                pipeline.start(None);
                return Ok(());
            }
            let prover = self.prover.expect("set before the workers start");
            let pass = |kind| pipeline.digests(kind);
            let proved = self.gate.compute(self.model, Some(self.sha256), || prover.prove(Some(&pass)));
            match proved {
                // By a receipt, or otherwise without the pass: the tensors alone are read.
                Ok(_) => pipeline.start(None),
                Err(_) => pipeline.fail(),
            }
            proved.map(|_| ())
        };
        let pack = || {
            let _stop = stop();
            pipeline.work().inspect_err(|_| self.gate.abort())
        };
        let publish = || {
            let _stop = stop();
            work.publish_all().inspect_err(|_| {
                self.gate.abort();
                pipeline.fail();
            })
        };
        let outcome = std::thread::scope(|scope| {
            let join = |outcome: std::thread::Result<Result<(), PackError>>| {
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let mut first = Ok(());
            let mut refused = None;
            let mut begin = |what, work| spawn_scoped(scope, what, work).map_err(|error| refused = Some(error)).ok();
            let hashing = begin("the model's hash", &hash as Task<'_>);
            let packing: Vec<_> = (0..self.jobs).filter_map(|_| begin("packing", &pack)).collect();
            let publishers = PUBLISHERS.min(self.tensors.len());
            let publishing: Vec<_> = (0..publishers).filter_map(|_| begin("publishing", &publish)).collect();
            if let Some(error) = refused {
                // Those that did start wait for the others.
                self.gate.abort();
                pipeline.fail();
                first = Err(error.into());
            }
            // Whoever found the gate closed or the pipeline stopped only says that something else failed: that counts.
            let mut note = |result: Result<(), PackError>| {
                if let (Ok(()) | Err(PackError::Cancelled), Err(error)) = (&first, result) {
                    first = Err(error);
                }
            };
            for thread in packing {
                note(join(thread.join()));
            }
            self.gate.end();
            for thread in hashing.into_iter().chain(publishing) {
                note(join(thread.join()));
            }
            first
        });
        outcome?;
        let mut done = work.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|(index, _)| *index);
        let mut counts = Counts::default();
        let note_trust = |counts: &mut Counts, trust| {
            counts.trust = Some(counts.trust.map_or(trust, |weakest| weakest.min(trust)));
        };
        let mut entries = Vec::with_capacity(done.len());
        for (_, done) in done {
            match done {
                Done::Reused(entry, trust) => {
                    counts.reused += 1;
                    note_trust(&mut counts, trust);
                    if matches!(trust, Trust::Blake3 | Trust::Sha256) {
                        counts.checked_bytes += entry.payload.size_bytes;
                    }
                    entries.push(entry);
                }
                Done::Published { entry, imported, repaired } => {
                    note_trust(&mut counts, Trust::Sha256);
                    if imported {
                        counts.imported += 1;
                    } else {
                        counts.packed += 1;
                    }
                    if repaired {
                        counts.repaired.push(entry.identity.tensor_name.clone());
                    }
                    entries.push(entry);
                }
            }
        }
        Ok((entries, counts, started.elapsed().as_secs_f64()))
    }

    /// The tensors as the pipeline sees them.
    fn wanted_tensors(&self, budget: u64) -> Result<Vec<Wanted>, PackError> {
        let wanted = self.tensors.iter().map(|tensor| {
            let payload = self.layout.payload_len(tensor.shape)?;
            let oversize = match self.worker_set {
                Some(limit) => tensor.size_bytes.saturating_add(payload) > limit,
                None => tensor.size_bytes > budget / 3,
            };
            Ok(Wanted { file: tensor.file_index, offset: tensor.offset, len: tensor.size_bytes, oversize })
        });
        wanted.collect()
    }

    /// The entry of a tensor that is ready, an import of one that another set has, or nothing for one to be packed.
    fn ready_or_import(&self, index: usize) -> Result<Option<Result<Done, Finished>>, PackError> {
        let (tensor, key) = (&self.tensors[index], self.keys[index]);
        let wanted = self.wanted(index);
        let progress = &self.options.progress;
        // A digest that stands in one document alone may be the damaged part: the model's own bytes decide.
        let source = || source_sha256(self.model, tensor, progress);
        let recorded = self.recorded.as_ref().and_then(|(set, _)| set.tensors.iter().find(|entry| entry.key == key));
        let reading = if self.options.rehash {
            Reading::Sha256
        } else if let Some(rung) = self.unread.get(&rel(&payload_name(key))) {
            Reading::Nothing(*rung)
        } else {
            Reading::Fast
        };
        match find_ready(&self.set, &wanted, recorded, &source, reading, progress)? {
            Ok((entry, trust)) => {
                progress.add(tensor.size_bytes);
                return Ok(Some(Ok(Done::Reused(entry, trust))));
            }
            Err(problem) => self.may_replace(&wanted, &problem)?,
        }
        if let Some(import) = self.donors.import(&wanted, &source, progress)? {
            progress.add(tensor.size_bytes);
            return Ok(Some(Err(Finished::Import(Box::new(import)))));
        }
        Ok(None)
    }

    /// Refuses to replace what another tool wrote, unless that was asked for.
    fn may_replace(&self, wanted: &TensorPack, problem: &NotReady) -> Result<(), PackError> {
        let Some(other) = self.other_tool.as_ref().filter(|_| !self.options.force) else { return Ok(()) };
        let there = |name: String| !matches!(self.set.root().try_stat(&rel(&name)), Ok(None));
        if !other.finished && !there(payload_name(wanted.key)) && !there(sidecar_name(wanted.key)) {
            return Ok(());
        }
        let found = format!("{}: {}", wanted.identity.tensor_name, problem.found);
        Err(other.refusal(&self.set, &found, &problem.expected))
    }

    /// The entry a tensor must have, but for what is only known once it is packed.
    fn wanted(&self, index: usize) -> TensorPack {
        let (tensor, key) = (&self.tensors[index], self.keys[index]);
        crate::import::wanted_entry(
            self.plan.format_prefix(),
            key,
            tensor_identity(self.layout, self.sha256, &tensor.name, tensor.shape),
            SourceTensor {
                gguf_offset: tensor.offset,
                size_bytes: tensor.size_bytes,
                sha256: Sha256Hex::EMPTY,
                file_index: self.model.is_split().then_some(tensor.file_index as u64),
                extra: serde_json::Map::default(),
            },
        )
    }

    /// Gives a finished payload its name, then writes its sidecar.
    fn publish(&self, index: usize, finished: Finished) -> Result<Done, PackError> {
        // Bytes that were read from a file that has changed since are not those whose hash was found right.
        self.model.check_unchanged()?;
        let wanted = self.wanted(index);
        let sidecar = rel(file_name(&sidecar_name(wanted.key)));
        let in_the_way = clear_the_way(&self.tensors_dir, &rel(file_name(&payload_name(wanted.key))))?
            | clear_the_way(&self.tensors_dir, &sidecar)?;
        let (entry, outcome, imported) = finished.publish(wanted, &self.tensors_dir, &self.options.progress)?;
        let written = replace_bytes(&self.tensors_dir, &sidecar, &json_bytes(self.tensors_dir.path(), &entry)?, 0o644)?;
        // The sidecar comes last: where one was, the tensor had been ready once and was not any more.
        let repaired = in_the_way || outcome == PublishOutcome::Repaired || written.outcome == PublishOutcome::Repaired;
        Ok(Done::Published { entry, imported, repaired })
    }

    /// After a failure: folders that this run created and nothing was published in.
    pub(super) fn leave_no_empty_folders(&self) {
        // A folder that has content refuses to go, which is what is wanted.
        let _ = rustix::fs::unlinkat(self.set.root(), TENSORS_DIR, rustix::fs::AtFlags::REMOVEDIR);
        let _ = rustix::fs::unlinkat(self.cache, self.set_key.to_string(), rustix::fs::AtFlags::REMOVEDIR);
    }
}

/// What a thread of a run does.
type Task<'t> = &'t (dyn Fn() -> Result<(), PackError> + Sync);

/// Threads that wait for the disk.
const PUBLISHERS: usize = 4;

/// Lets the other threads end when one panics, so that the panic comes out instead of a standstill.
struct StopOnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for StopOnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// What the pipeline's threads and the publishers share.
struct Workers<'r, 'a> {
    run: &'r Run<'a>,
    done: Mutex<Vec<(usize, Done)>>,
}

impl Workers<'_, '_> {
    fn note(&self, index: usize, done: Done) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((index, done));
    }

    /// One publisher: makes finished payloads durable, and names them once the gate is open.
    fn publish_all(&self) -> Result<(), PackError> {
        let (run, gate) = (self.run, self.run.gate);
        while let Some(work) = gate.next(&run.options.progress)? {
            match work {
                Work::Sync(index, mut finished) => {
                    finished.sync()?;
                    gate.synced(index, finished);
                }
                Work::Publish(index, finished) => {
                    let done = run.publish(index, finished)?;
                    self.note(index, done);
                    gate.published();
                }
            }
        }
        Ok(())
    }
}

impl Packer for Workers<'_, '_> {
    fn needed(&self, tensor: usize) -> Result<bool, PackError> {
        match self.run.ready_or_import(tensor)? {
            None => return Ok(true),
            Some(Ok(done)) => self.note(tensor, done),
            Some(Err(import)) => self.run.gate.submit(tensor, import),
        }
        Ok(false)
    }

    fn pack(&self, tensor: usize, source: &[u8], scratch: &mut Growing) -> Result<TempFile, PackError> {
        let run = self.run;
        let file = pack_whole(&run.tensors[tensor], source, run.layout, &run.tensors_dir, scratch)?;
        run.options.progress.add(source.len() as u64);
        Ok(file)
    }

    fn pack_oversize(&self, tensor: usize) -> Result<Option<(TempFile, Content)>, PackError> {
        if !self.needed(tensor)? {
            return Ok(None);
        }
        let run = self.run;
        let limit = run.worker_set.unwrap_or(BAND_SET);
        let (selected, progress) = (&run.tensors[tensor], &run.options.progress);
        pack_banded(run.model, selected, run.layout, &run.tensors_dir, limit, progress).map(Some)
    }

    fn finished(&self, tensor: usize, file: TempFile, source_sha256: Sha256Hex, seconds: f64) {
        self.run.gate.submit(tensor, Finished::Packed(Box::new(PackedTensor { file, source_sha256, seconds })));
    }

    fn is_full(&self) -> bool {
        self.run.gate.is_full()
    }
}

/// The last component of a name below the set's folder.
fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

fn take_lock(cache: &Root, set_key: Sha256Hex, options: &PrepareOptions<'_>) -> Result<Option<LockGuard>, PackError> {
    let locks = cache.create_dir_durable(&rel(LOCKS_DIR), 0o755)?;
    let name = rel(&format!("{set_key}.lock"));
    Ok(lock(&locks, &name, "b70-pack prepare", options.lock_timeout, &options.progress)?)
}

/// Refuses before a byte is written when the payloads that are missing cannot fit.
fn check_space(
    cache: &Root,
    set_key: Sha256Hex,
    keys: &[Sha256Hex],
    tensors: &[SelectedTensor],
    layout: &dyn Layout,
) -> Result<(), PackError> {
    let set = cache.dir(&rel(&set_key.to_string())).ok();
    let mut needed = 1_u64 << 20;
    for (key, tensor) in keys.iter().zip(tensors) {
        let size = layout.payload_len(tensor.shape)?;
        let there = set.as_ref().is_some_and(|set| {
            set.stat(&rel(&crate::set::payload_name(*key))).is_ok_and(|identity| identity.size == size)
        });
        if !there {
            needed = needed.saturating_add(size.next_multiple_of(4096) + 4096);
        }
    }
    let stat = rustix::fs::fstatvfs(cache)
        .map_err(|error| PackError::io("ask for free space in", cache.path())(error.into()))?;
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    // A file system that states no size (an unlimited tmpfs) says nothing here; writes are checked anyway.
    if stat.f_blocks > 0 && available < needed {
        return Err(b70_store::Error::Headroom {
            path: cache.path().to_path_buf(),
            needed,
            reserve: 0,
            available,
            source_name: "statvfs".to_owned(),
        }
        .into());
    }
    Ok(())
}
