//! `prepare`: from a model and a plan to a ready set.
//!
//! The model's SHA-256, which every key names, is computed from the very bytes that are packed into unnamed files meanwhile
//! (see the pipeline); nothing gets a name before the hash has been found right. Each payload is then published on its own (data first, sidecar after), the index
//! and checksum list follow, and the manifest comes last: a set without a manifest is not a set, and a run that was killed
//! is continued by the next.

mod pipeline;
mod publish;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use b70_admission::{
    ClosedFile, LockGuard, Outcome, Progress, Receipt, Root, lock, open_or_create, pool, replace_bytes, sweep_orphans,
};
use b70_manifest::pack::{PackSet, SourceTensor, TensorPack, ToolRecord};
use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex, canonical_sha256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::buffer::Growing;
use crate::error::PackError;
use crate::gate::{Finished, HashGate, Work};
use crate::import::{Donors, find_ready};
use crate::keys::{set_identity, tensor_identity};
use crate::layout::Layout;
use crate::model::{Model, cancelled};
use crate::pack::{PackedTensor, band_set, default_jobs, pack_banded, pack_whole, source_sha256};
use crate::plan::{Plan, SelectedTensor, Selection};
use crate::set::{MANIFEST_FILE, SetDir, TENSORS_DIR, clear_the_way, payload_name, rel, sidecar_name};
use crate::source::{Pass, RECEIPTS_DIR, SourceProof, SourceSubject, SourceTrust};
use pipeline::{Packer, Pipeline, Wanted};

/// Folder of the lock files below a cache root; they are never removed.
pub(crate) const LOCKS_DIR: &str = ".locks";

/// What is known of the model's SHA-256 before it is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelHash {
    /// Somebody vouches for this digest; the bytes must have it.
    Expected {
        /// The digest.
        sha256: Sha256Hex,
        /// Who vouches: `spec` or `argument`.
        vouched_by: String,
    },
    /// A digest recorded earlier for this very path and size is trusted unread, and the set says so.
    Recorded {
        /// The digest.
        sha256: Sha256Hex,
        /// Where it was recorded.
        vouched_by: String,
    },
    /// Nothing is known: the digest is computed and recorded, and nobody vouches for it.
    Unknown,
}

/// Options of [`prepare`].
#[derive(Clone, Copy)]
pub struct PrepareOptions<'a> {
    /// Where sets live.
    pub cache_root: &'a Path,
    /// What is known of the model's hash.
    pub model_hash: &'a ModelHash,
    /// Rehash ready payloads by SHA-256, also where the faster BLAKE3 is recorded.
    pub rehash: bool,
    /// Workers; 0 chooses.
    pub jobs: usize,
    /// How long to wait for another prepare of the same set.
    pub lock_timeout: Duration,
    /// The packer, as documents name it.
    pub tool: &'a ToolRecord,
    /// Progress over source bytes, and cancellation.
    pub progress: Progress<'a>,
}

/// The outcome of a [`prepare`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prepared {
    /// Version of this document's form.
    pub schema_version: u64,
    /// `ready`.
    pub status: String,
    /// Always `development-initialization-cache-only`.
    pub evidence_class: EvidenceClass,
    /// Always false.
    pub promotion_eligible: NeverEligible,
    /// The set key.
    pub set_key: Sha256Hex,
    /// Path of the set's manifest.
    pub manifest: PathBuf,
    /// The plan's name.
    pub plan: String,
    /// Number of tensors.
    pub tensor_count: u64,
    /// Tensors packed in this run.
    pub packed: u64,
    /// Tensors found ready, their bytes checked.
    pub reused: u64,
    /// Tensors imported from another set.
    pub imported: u64,
    /// Names of the tensors whose payload or sidecar was damaged, or gone, and has been replaced; each counts as packed or
    /// imported too.
    pub repaired: Vec<String>,
    /// The set's own documents that were damaged, or gone, and have been replaced.
    #[serde(default)]
    pub repaired_documents: Vec<String>,
    /// Sum of the payloads' sizes in bytes.
    pub payload_size_bytes: u64,
    /// The model's SHA-256.
    pub source_sha256: Sha256Hex,
    /// Whether the file was proved to have it: by reading it, or by the receipt of an earlier full read.
    pub hash_validated: bool,
    /// Who vouches for it: `spec`, `argument`, `nothing`, or where it was recorded.
    pub vouched_by: String,
    /// On what evidence the model has its SHA-256.
    pub source_trust: SourceTrust,
    /// Why the model was read although it has a receipt, or why there is no new one.
    pub source_reasons: Vec<String>,
    /// Seconds spent on the model's SHA-256 (overlaps packing).
    pub model_hash_seconds: f64,
    /// Seconds from the first tensor to the last published one.
    pub pack_seconds: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// Workers.
    pub jobs: u64,
    /// The layout's kernel.
    pub kernel: String,
}

/// Makes the set of `plan` over `model` ready under the cache root: reuses what is there, imports what another set has,
/// packs the rest.
pub fn prepare(
    model: &Model,
    plan: &Plan,
    layout: &dyn Layout,
    options: &PrepareOptions<'_>,
) -> Result<Prepared, PackError> {
    prepare_in(model, plan, layout, options, None)
}

/// [`prepare`] with another working set per worker, in bytes: for tests of the path that packs a tensor in bands.
#[doc(hidden)]
pub fn prepare_in(
    model: &Model,
    plan: &Plan,
    layout: &dyn Layout,
    options: &PrepareOptions<'_>,
    worker_set_bytes: Option<u64>,
) -> Result<Prepared, PackError> {
    let started = Instant::now();
    let selection = plan.select(model, layout)?;
    if selection.tensors.is_empty() {
        return Err(PackError::NothingSelected { plan: plan.name().to_owned(), path: model.path().to_path_buf() });
    }
    let gate = HashGate::new();
    let prover = Prover::new(model, options)?;
    let (sha256, vouched_by) = match options.model_hash {
        ModelHash::Expected { sha256, vouched_by } => (*sha256, vouched_by.clone()),
        ModelHash::Recorded { sha256, vouched_by } => {
            gate.trust();
            (*sha256, vouched_by.clone())
        }
        // Without a digest there is no key, so nothing can overlap.
        ModelHash::Unknown => (gate.compute(model, None, || prover.prove(None))?, "nothing".to_owned()),
    };
    let cache = open_or_create(options.cache_root, 0o755)?;
    if let Ok(receipts) = cache.dir(&rel(RECEIPTS_DIR)) {
        sweep_orphans(&receipts)?;
    }
    let mut run = Run::new(model, plan, layout, options, &selection, &cache, sha256, &gate)?;
    run.prover = Some(&prover);
    run.worker_set = worker_set_bytes;
    let result = run.execute();
    if result.is_err() {
        run.leave_no_empty_folders();
    }
    let (entries, counts, pack_seconds) = result?;
    let proof = gate.take_proof();
    if let Some(receipt) = proof.as_ref().and_then(|proof| proof.receipt.as_deref()) {
        prover.store(&cache, receipt)?;
    }
    let hash_validated = proof.is_some();
    let model_hash_seconds = proof.as_ref().map_or(0.0, |proof| proof.seconds);
    let source_trust = proof.as_ref().map_or(SourceTrust::Recorded, |proof| proof.trust);
    let repaired_documents = run.publish_set(
        &entries,
        &counts,
        &Account { hash_validated, vouched_by: &vouched_by, model_hash_seconds, pack_seconds },
    )?;
    Ok(Prepared {
        schema_version: 1,
        status: "ready".to_owned(),
        evidence_class: EvidenceClass::DevelopmentInitializationCacheOnly,
        promotion_eligible: NeverEligible,
        set_key: run.set_key,
        manifest: run.set.path().join(MANIFEST_FILE),
        plan: plan.name().to_owned(),
        tensor_count: entries.len() as u64,
        packed: counts.packed,
        reused: counts.reused,
        imported: counts.imported,
        repaired: counts.repaired,
        repaired_documents,
        payload_size_bytes: entries.iter().map(|entry| entry.payload.size_bytes).sum(),
        source_sha256: sha256,
        hash_validated,
        vouched_by,
        source_trust,
        source_reasons: proof.map(|proof| proof.reasons).unwrap_or_default(),
        model_hash_seconds,
        pack_seconds,
        seconds: started.elapsed().as_secs_f64(),
        jobs: run.jobs as u64,
        kernel: layout.kernel().to_owned(),
    })
}

/// Proves the model, by its receipt where that holds.
struct Prover<'a> {
    model: &'a Model,
    /// None for files that no receipt can be about; they are read each time.
    subject: Option<SourceSubject>,
    receipts: Option<Root>,
    pool: rayon::ThreadPool,
    progress: Progress<'a>,
}

impl<'a> Prover<'a> {
    fn new(model: &'a Model, options: &PrepareOptions<'a>) -> Result<Self, PackError> {
        let receipts = options.cache_root.join(RECEIPTS_DIR);
        let usable = !options.rehash && receipts.is_dir();
        Ok(Self {
            model,
            subject: SourceSubject::new(model).ok(),
            receipts: usable.then(|| Root::open(&receipts)).transpose()?,
            pool: pool(0)?,
            progress: options.progress.silent(),
        })
    }

    /// `pass` reads the whole model for a purpose of its own and hashes it on the way.
    fn prove(&self, pass: Option<Pass<'_>>) -> Result<SourceProof, PackError> {
        if let Some(subject) = &self.subject {
            return subject.prove(self.model, self.receipts.as_ref(), &self.pool, pass, &self.progress);
        }
        let started = Instant::now();
        let sha256 = match pass {
            None => self.model.sha256(&self.progress)?,
            Some(pass) => {
                let files = pass().ok_or(PackError::Cancelled)?;
                let digests: Option<Vec<_>> = files.iter().map(|file| file.sha256).collect();
                self.model.sha256_of_files(&digests.ok_or(PackError::Cancelled)?)
            }
        };
        Ok(SourceProof {
            sha256,
            trust: SourceTrust::Sha256,
            reasons: vec!["no receipt can name these files".to_owned()],
            seconds: started.elapsed().as_secs_f64(),
            receipt: None,
        })
    }

    fn store(&self, cache: &Root, receipt: &Receipt) -> Result<(), PackError> {
        self.subject.as_ref().map_or(Ok(()), |subject| subject.store(cache, receipt))
    }
}

#[derive(Debug, Default)]
struct Counts {
    packed: u64,
    reused: u64,
    imported: u64,
    repaired: Vec<String>,
}

/// What the manifest says of the run itself.
struct Account<'a> {
    hash_validated: bool,
    vouched_by: &'a str,
    model_hash_seconds: f64,
    pack_seconds: f64,
}

/// What became of one tensor.
enum Done {
    Reused(TensorPack),
    Published { entry: TensorPack, imported: bool, repaired: bool },
}

/// A prepare under way: everything that does not change while its workers run.
struct Run<'a> {
    model: &'a Model,
    plan: &'a Plan,
    layout: &'a dyn Layout,
    options: &'a PrepareOptions<'a>,
    tensors: &'a [SelectedTensor],
    keys: Vec<Sha256Hex>,
    sha256: Sha256Hex,
    set_key: Sha256Hex,
    cache: &'a Root,
    set: SetDir,
    tensors_dir: Root,
    gate: &'a HashGate,
    prover: Option<&'a Prover<'a>>,
    /// The set as an earlier run left it, if its manifest can be read.
    recorded: Option<PackSet>,
    donors: Donors,
    jobs: usize,
    /// Bytes of a worker's source and payload that make a tensor too large to be held, where a test says so.
    worker_set: Option<u64>,
    _lock: Option<LockGuard>,
}

impl<'a> Run<'a> {
    #[expect(clippy::too_many_arguments, reason = "the parts of one run, named once")]
    fn new(
        model: &'a Model,
        plan: &'a Plan,
        layout: &'a dyn Layout,
        options: &'a PrepareOptions<'a>,
        selection: &'a Selection,
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
        let recorded = set.read_manifest().ok().map(|(document, _)| document);
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
            recorded: recorded.filter(|document| document.key == set_key),
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

    /// Runs the pipeline and, beside it, what waits for the disk. Returns the entries in slot order.
    fn execute(&self) -> Result<(Vec<TensorPack>, Counts, f64), PackError> {
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
        let outcome = std::thread::scope(|scope| {
            let join = |outcome: std::thread::Result<Result<(), PackError>>| {
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let hashing = scope.spawn(|| {
                let _stop = stop();
                if !self.gate.is_pending() {
                    pipeline.start(false);
                    return Ok(());
                }
                let prover = self.prover.expect("set before the workers start");
                let pass = || pipeline.digests();
                let proved = self.gate.compute(self.model, Some(self.sha256), || prover.prove(Some(&pass)));
                match proved {
                    // By a receipt, or otherwise without the pass: the tensors alone are read.
                    Ok(_) => pipeline.start(false),
                    Err(_) => pipeline.fail(),
                }
                proved.map(|_| ())
            });
            let packing: Vec<_> = (0..self.jobs)
                .map(|_| {
                    scope.spawn(|| {
                        let _stop = stop();
                        pipeline.work().inspect_err(|_| self.gate.abort())
                    })
                })
                .collect();
            let publishing: Vec<_> = (0..PUBLISHERS.min(self.tensors.len()))
                .map(|_| {
                    scope.spawn(|| {
                        let _stop = stop();
                        work.publish_all().inspect_err(|_| {
                            self.gate.abort();
                            pipeline.fail();
                        })
                    })
                })
                .collect();
            let mut first = Ok(());
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
            note(join(hashing.join()));
            for thread in publishing {
                note(join(thread.join()));
            }
            first
        });
        outcome?;
        let mut done = work.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|(index, _)| *index);
        let mut counts = Counts::default();
        let mut entries = Vec::with_capacity(done.len());
        for (_, done) in done {
            match done {
                Done::Reused(entry) => {
                    counts.reused += 1;
                    entries.push(entry);
                }
                Done::Published { entry, imported, repaired } => {
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
                None => tensor.size_bytes > budget / 4,
            };
            Ok(Wanted { file: tensor.file_index, offset: tensor.offset, len: tensor.size_bytes, oversize })
        });
        wanted.collect()
    }

    /// The entry of a tensor that is ready, an import of one that another set has, or nothing for one to be packed.
    fn ready_or_import(&self, index: usize) -> Result<Option<Result<TensorPack, Finished>>, PackError> {
        let (tensor, key) = (&self.tensors[index], self.keys[index]);
        let wanted = self.wanted(index);
        let progress = &self.options.progress;
        // A digest that stands in one document alone may be the damaged part: the model's own bytes decide.
        let source = || source_sha256(self.model, tensor, progress);
        let recorded = self.recorded.as_ref().and_then(|set| set.tensors.iter().find(|entry| entry.key == key));
        if let Some(entry) = find_ready(&self.set, &wanted, recorded, &source, self.options.rehash, progress)? {
            progress.add(tensor.size_bytes);
            return Ok(Some(Ok(entry)));
        }
        if let Some(import) = self.donors.import(&wanted, &source, progress)? {
            progress.add(tensor.size_bytes);
            return Ok(Some(Err(Finished::Import(Box::new(import)))));
        }
        Ok(None)
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
        let written = replace_bytes(&self.tensors_dir, &sidecar, &json_bytes(&entry), 0o644)?;
        // The sidecar comes last: where one was, the tensor had been ready once and was not any more.
        let repaired = in_the_way || outcome == Outcome::Repaired || written.outcome == Outcome::Repaired;
        Ok(Done::Published { entry, imported, repaired })
    }

    /// After a failure: folders that this run created and nothing was published in.
    fn leave_no_empty_folders(&self) {
        // A folder that has content refuses to go, which is what is wanted.
        let _ = rustix::fs::unlinkat(self.set.root(), TENSORS_DIR, rustix::fs::AtFlags::REMOVEDIR);
        let _ = rustix::fs::unlinkat(self.cache, self.set_key.to_string(), rustix::fs::AtFlags::REMOVEDIR);
    }
}

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
            Some(Ok(entry)) => self.note(tensor, Done::Reused(entry)),
            Some(Err(import)) => self.run.gate.submit(tensor, import),
        }
        Ok(false)
    }

    fn pack(&self, tensor: usize, source: &[u8], scratch: &mut Growing) -> Result<ClosedFile, PackError> {
        let run = self.run;
        let file = pack_whole(&run.tensors[tensor], source, run.layout, &run.tensors_dir, scratch)?;
        run.options.progress.add(source.len() as u64);
        Ok(file)
    }

    fn pack_oversize(&self, tensor: usize) -> Result<(), PackError> {
        if !self.needed(tensor)? {
            return Ok(());
        }
        let run = self.run;
        let limit = run.worker_set.unwrap_or_else(|| band_set(run.jobs));
        let (selected, progress) = (&run.tensors[tensor], &run.options.progress);
        let packed = pack_banded(run.model, selected, run.layout, &run.tensors_dir, limit, progress)?;
        run.gate.submit(tensor, Finished::Packed(Box::new(packed)));
        Ok(())
    }

    fn finished(&self, tensor: usize, file: ClosedFile, source_sha256: Sha256Hex, seconds: f64) {
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

fn json_bytes<T: Serialize>(document: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document).expect("documents have string keys and finite numbers");
    bytes.push(b'\n');
    bytes
}

fn take_lock(cache: &Root, set_key: Sha256Hex, options: &PrepareOptions<'_>) -> Result<Option<LockGuard>, PackError> {
    let locks = cache.create_dir_durable(&rel(LOCKS_DIR), 0o755)?;
    let name = rel(&format!("{set_key}.lock"));
    match lock(&locks, &name, "b70-pack prepare", options.lock_timeout, &options.progress) {
        Ok(guard) => Ok(Some(guard)),
        // Two unlocked runs do the same work twice and publish the same bytes; nothing is lost.
        Err(b70_admission::Error::LockUnsupported { .. }) => Ok(None),
        Err(error) => Err(cancelled(error)),
    }
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
        return Err(b70_admission::Error::Headroom {
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
