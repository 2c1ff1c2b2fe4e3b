//! The model's SHA-256, computed once and then remembered by a receipt: a file that the kernel keeps still is not read again, any
//! other with BLAKE3 alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use b70_manifest::Sha256Hex;
use b70_store::{
    Blake3, Content, DigestKind, Digests, Expected, Extras, HashOptions, Job, Progress, Receipt, ReceiptReason,
    RelPath, Root, Source, Subject, Trust, admit, admit_with, examine, hash_many, identity_of,
};

use crate::error::PackError;
use crate::model::Model;
use crate::set::rel;
use crate::trust::reasons_text;

/// Folder of the source receipts below a cache root.
pub(crate) const RECEIPTS_DIR: &str = ".receipts";
const FORMAT: &str = "b70-source-model-receipt-v2";

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

/// The outcome of proving a model.
#[derive(Debug)]
pub(crate) struct SourceProof {
    pub(crate) sha256: Sha256Hex,
    pub(crate) trust: Trust,
    /// BLAKE3 of each file.
    pub(crate) blake3: Vec<Blake3>,
    /// Why the file was read although there is a receipt, or why there is no new one.
    pub(crate) reasons: Vec<String>,
    /// Seconds it took.
    pub(crate) seconds: f64,
    /// A new receipt for the next run.
    pub(crate) receipt: Option<Box<Receipt>>,
}

/// Digests of that kind of each of the model's files, from a pass over it that serves another purpose, too; none when that was
/// stopped. It can be had once.
pub(crate) type Pass<'p> = &'p dyn Fn(DigestKind) -> Option<Vec<Digests>>;

/// Proves the model: unread where its receipt holds and the kernel keeps it still, else by reading it.
pub(crate) struct Prover<'a> {
    model: &'a Model,
    /// None for files that no receipt can be about; they are read each time.
    subject: Option<SourceSubject>,
    receipts: Option<Root>,
    /// A proof made earlier in this run, which the bytes that are packed must meet.
    earlier: Mutex<Option<SourceProof>>,
    progress: Progress<'a>,
}

impl<'a> Prover<'a> {
    /// With `rehash` no receipt below the cache root counts.
    pub(crate) fn new(
        model: &'a Model,
        cache_root: &Path,
        rehash: bool,
        progress: &Progress<'a>,
    ) -> Result<Self, PackError> {
        let receipts = cache_root.join(RECEIPTS_DIR);
        let usable = !rehash && receipts.is_dir();
        Ok(Self {
            model,
            subject: SourceSubject::new(model).ok(),
            receipts: usable.then(|| Root::open(&receipts)).transpose()?,
            earlier: Mutex::default(),
            progress: progress.silent(),
        })
    }

    /// Lets the next [`prove`](Self::prove) be satisfied with the bytes of this proof alone.
    pub(crate) fn expect(&mut self, proof: SourceProof) {
        *self.earlier.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(proof);
    }

    /// `pass` reads the whole model for a purpose of its own and hashes it on the way.
    pub(crate) fn prove(&self, pass: Option<Pass<'_>>) -> Result<SourceProof, PackError> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (earlier, pass, &self.subject) {
            (Some(proof), Some(pass), _) => {
                let digests = pass(DigestKind::Blake3).ok_or(PackError::Cancelled)?;
                let same = digests.iter().map(|file| file.blake3).eq(proof.blake3.iter().copied().map(Some));
                if same {
                    Ok(proof)
                } else {
                    Err(changed(self.model.path(), "its bytes are not those of a moment ago").into())
                }
            }
            (_, pass, Some(subject)) => subject.prove(self.model, self.receipts.as_ref(), pass, &self.progress),
            (_, pass, None) => {
                read_open_files(self.model, pass, &self.progress, vec!["no receipt can name these files".to_owned()])
            }
        }
    }

    pub(crate) fn store(&self, cache: &Root, receipt: &Receipt) -> Result<(), PackError> {
        self.subject.as_ref().map_or(Ok(()), |subject| subject.store(cache, receipt))
    }
}

/// The files of a model as something a receipt can be about.
pub(crate) struct SourceSubject {
    root: Root,
    files: Vec<Expected>,
    bindings: BTreeMap<String, String>,
    name: RelPath,
}

impl SourceSubject {
    /// Fails where a receipt cannot be about these files, for example when their names are not ones a document may carry.
    pub(crate) fn new(model: &Model) -> Result<Self, PackError> {
        let mut folder: Option<PathBuf> = None;
        let mut files = Vec::new();
        for (index, path) in model.paths().enumerate() {
            // Links are resolved once: a receipt is about the file itself, not about what points to it.
            let real = path.canonicalize().map_err(PackError::io("resolve", path))?;
            let name = RelPath::new(real.file_name().unwrap_or_default())?;
            let parent = real.parent().unwrap_or(Path::new("/")).to_path_buf();
            if folder.get_or_insert_with(|| parent.clone()) != &parent {
                return Err(PackError::document(path, "the shards of the model are in different folders"));
            }
            let (file, path) = model.file(index);
            let size = file.metadata().map_err(PackError::io("stat", path))?.len();
            files.push(Expected { name, size, sha256: None });
        }
        let folder = folder.unwrap_or_default();
        let joined: Vec<String> =
            files.iter().map(|file| folder.join(file.name.as_path()).display().to_string()).collect();
        let text = joined.join("\n");
        let name = rel(&format!("{}.json", Sha256Hex::of(text.as_bytes())));
        let bindings = [("paths".to_owned(), text)].into();
        Ok(Self { root: Root::open(folder)?, files, bindings, name })
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            root: &self.root,
            files: &self.files,
            format: FORMAT,
            bindings: &self.bindings,
            extras: Extras::Ignore,
        }
    }

    /// Whether the names still lead to the files the model has open.
    fn same_files(&self, model: &Model) -> Result<bool, PackError> {
        for (index, expected) in self.files.iter().enumerate() {
            let (file, path) = model.file(index);
            if !self.root.stat(&expected.name)?.same_file(&identity_of(file, path)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Proves the model: unread where its receipt holds and the kernel keeps the bytes still, otherwise by reading every byte,
    /// in `pass` where there is one; by BLAKE3 where the receipt still stands for the file's digests.
    pub(crate) fn prove(
        &self,
        model: &Model,
        receipts: Option<&Root>,
        pass: Option<Pass<'_>>,
        progress: &Progress<'_>,
    ) -> Result<SourceProof, PackError> {
        let started = Instant::now();
        // A model is somebody's download: what its owner may write to at any time is read again.
        let how = HashOptions { read_only: true, progress: *progress, ..HashOptions::default() };
        let mut reasons = Vec::new();
        if !self.same_files(model)? {
            return read_open_files(model, pass, progress, vec!["another file took the model's name".to_owned()]);
        }
        let subject = self.subject();
        let unasked = || ReceiptReason::ReceiptMissing { path: self.name.as_path().to_path_buf() };
        let mut receipt = receipts.map_or_else(|| Err(unasked()), |folder| Receipt::load(folder, &self.name));
        if let Ok(found) = &receipt {
            let examination = examine(&subject, found, &how)?;
            if !examination.is_unchanged() {
                reasons = reasons_text(&examination.all_reasons());
                receipt = Err(unasked());
            }
        }
        let admission = match pass {
            None => admit(&subject, receipt, &how)?,
            Some(pass) => {
                let (mut all, mut surprise) = (None, None);
                let admission = admit_with(&subject, receipt, &how, &mut |jobs, kind| {
                    let again = all.as_ref().is_some_and(|(had, _)| *had != kind);
                    let (_, all) = all.get_or_insert_with(|| (kind, pass(kind)));
                    let mut digest = |job: &Job<'_>| {
                        let Source::File(_, path) = job.source else { return Err(b70_store::Error::Cancelled) };
                        if again {
                            surprise = Some(path.to_path_buf());
                            return Err(b70_store::Error::Cancelled);
                        }
                        let index = self.files.iter().position(|file| self.root.join(&file.name) == *path);
                        let digests = index.and_then(|index| all.as_ref()?.get(index).copied());
                        digests.ok_or(b70_store::Error::Cancelled)
                    };
                    jobs.iter().map(&mut digest).collect()
                });
                if let Some(path) = surprise {
                    let what = "its bytes are not those of its receipt, though no time stamp moved";
                    return Err(changed(&path, what).into());
                }
                admission?
            }
        };
        if !admission.is_admitted() {
            return Err(b70_store::Error::Mismatches(admission.changed).into());
        }
        let aside = |reason: &&ReceiptReason| {
            !matches!(reason, ReceiptReason::ReceiptMissing { .. } | ReceiptReason::Unvouched { .. })
        };
        let against: Vec<ReceiptReason> = admission.reasons.iter().filter(aside).cloned().collect();
        reasons.extend(reasons_text(&against));
        if !self.same_files(model)? {
            return Err(changed(model.path(), "another file took its name").into());
        }
        Ok(SourceProof {
            sha256: model
                .sha256_of_files(&admission.files.iter().map(|(_, content)| content.sha256).collect::<Vec<_>>()),
            trust: admission.trust,
            blake3: admission.files.iter().map(|(_, content)| content.blake3).collect(),
            reasons,
            seconds: started.elapsed().as_secs_f64(),
            receipt: admission.refreshed,
        })
    }

    /// Stores a receipt for the next run; a root that cannot be written to keeps none.
    pub(crate) fn store(&self, cache: &Root, receipt: &Receipt) -> Result<(), PackError> {
        let folder = cache.create_dir_durable(&rel(RECEIPTS_DIR), 0o755)?;
        receipt.store(&folder, &self.name)?;
        Ok(())
    }
}

/// Reads the very files that are open, for a model about whose files there can be no receipt.
fn read_open_files(
    model: &Model,
    pass: Option<Pass<'_>>,
    progress: &Progress<'_>,
    reasons: Vec<String>,
) -> Result<SourceProof, PackError> {
    let started = Instant::now();
    let files = if let Some(pass) = pass {
        pass(DigestKind::Both).ok_or(PackError::Cancelled)?
    } else {
        let files = (0..model.paths().count()).map(|index| model.file(index));
        let jobs: Vec<Job<'_>> =
            files.map(|(file, path)| Job { source: Source::File(file, path), size: None }).collect();
        hash_many(&jobs, DigestKind::Both, progress).into_iter().collect::<Result<_, _>>()?
    };
    let contents: Option<Vec<Content>> = files.iter().map(Digests::content).collect();
    let contents = contents.ok_or(PackError::Cancelled)?;
    Ok(SourceProof {
        sha256: model.sha256_of_files(&contents.iter().map(|content| content.sha256).collect::<Vec<_>>()),
        trust: Trust::Sha256,
        blake3: contents.iter().map(|content| content.blake3).collect(),
        reasons,
        seconds: started.elapsed().as_secs_f64(),
        receipt: None,
    })
}

fn changed(path: &Path, what: &str) -> b70_store::Error {
    b70_store::Error::ChangedWhileReading { path: path.to_path_buf(), what: what.to_owned() }
}
