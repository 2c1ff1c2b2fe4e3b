//! The model's SHA-256, computed once and then remembered by a receipt: an unchanged 16 GB file is not read twice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use b70_manifest::Sha256Hex;
use b70_store::{
    Content, Digests, Expected, Extras, HashOptions, Progress, Receipt, ReceiptVerdict, RelPath, Root, Subject,
    examine, identity_of, issue, issue_with,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// On what evidence the model has its SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceTrust {
    /// The file's inode is as a receipt of an earlier full read says; no byte was read.
    Receipt,
    /// Every byte was read.
    Sha256,
    /// Nothing was checked: `--skip-source-hash` trusts what is recorded.
    Recorded,
}

/// The outcome of proving a model.
#[derive(Debug)]
pub(crate) struct SourceProof {
    pub(crate) sha256: Sha256Hex,
    pub(crate) trust: SourceTrust,
    /// Why the file was read although there is a receipt, or why there is no new one.
    pub(crate) reasons: Vec<String>,
    /// Seconds it took.
    pub(crate) seconds: f64,
    /// A new receipt for the next run.
    pub(crate) receipt: Option<Box<Receipt>>,
}

/// Both digests of each of the model's files, from a pass over it that serves another purpose, too; none when that was
/// stopped.
pub(crate) type Pass<'p> = &'p dyn Fn() -> Option<Vec<Digests>>;

/// Proves the model, by its receipt where that holds.
pub(crate) struct Prover<'a> {
    model: &'a Model,
    /// None for files that no receipt can be about; they are read each time.
    subject: Option<SourceSubject>,
    receipts: Option<Root>,
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
            progress: progress.silent(),
        })
    }

    /// `pass` reads the whole model for a purpose of its own and hashes it on the way.
    pub(crate) fn prove(&self, pass: Option<Pass<'_>>) -> Result<SourceProof, PackError> {
        if let Some(subject) = &self.subject {
            return subject.prove(self.model, self.receipts.as_ref(), pass, &self.progress);
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

    /// Proves the model: by a stored receipt where one holds, otherwise by reading every byte, in `pass` where there is one.
    pub(crate) fn prove(
        &self,
        model: &Model,
        receipts: Option<&Root>,
        pass: Option<Pass<'_>>,
        progress: &Progress<'_>,
    ) -> Result<SourceProof, PackError> {
        let started = Instant::now();
        let how = HashOptions { progress: *progress, ..HashOptions::default() };
        let mut reasons = Vec::new();
        if !self.same_files(model)? {
            return read_open_files(model, progress, started, vec!["another file took the model's name".to_owned()]);
        }
        if let Some(folder) = receipts {
            match Receipt::load(folder, &self.name) {
                Ok(receipt) => {
                    let examination = examine(&self.subject(), &receipt, &how)?;
                    if examination.is_trusted()
                        && let Some(contents) = self.listed(&receipt)
                        && self.same_files(model)?
                    {
                        let sha256 = model_sha256(model, &contents);
                        let seconds = started.elapsed().as_secs_f64();
                        return Ok(SourceProof {
                            sha256,
                            trust: SourceTrust::Receipt,
                            reasons,
                            seconds,
                            receipt: None,
                        });
                    }
                    reasons = reasons_text(&examination.all_reasons());
                }
                Err(b70_store::ReceiptReason::ReceiptMissing { .. }) => {}
                Err(reason) => reasons.push(reason.to_string()),
            }
        }
        let verdict = match pass {
            None => issue(&self.subject(), &how),
            Some(pass) => {
                let mut all = None;
                let mut taken = 0;
                issue_with(&self.subject(), &how, &mut |jobs| {
                    let all: &mut Option<Vec<Digests>> = all.get_or_insert_with(pass);
                    let from = taken;
                    taken += jobs.len();
                    let digest = |index| all.as_ref().and_then(|all| all.get(index)).copied();
                    (from..taken).map(|index| digest(index).ok_or(b70_store::Error::Cancelled)).collect()
                })
            }
        };
        let (contents, receipt) = match verdict? {
            ReceiptVerdict::Trusted(receipt) => (self.listed(&receipt).unwrap_or_default(), Some(receipt)),
            ReceiptVerdict::VerifiedUntrusted { files, reasons: against } => {
                reasons.extend(reasons_text(&against));
                (files.into_iter().map(|(_, content)| content).collect(), None)
            }
        };
        if contents.len() != self.files.len() || !self.same_files(model)? {
            return read_open_files(model, progress, started, reasons);
        }
        let sha256 = model_sha256(model, &contents);
        let seconds = started.elapsed().as_secs_f64();
        Ok(SourceProof { sha256, trust: SourceTrust::Sha256, reasons, seconds, receipt })
    }

    /// The contents a receipt lists, in the order of the model's files.
    fn listed(&self, receipt: &Receipt) -> Option<Vec<Content>> {
        self.files
            .iter()
            .map(|expected| receipt.files.iter().find(|file| file.name == expected.name).map(Content::from))
            .collect()
    }

    /// Stores a receipt for the next run; a root that cannot be written to keeps none.
    pub(crate) fn store(&self, cache: &Root, receipt: &Receipt) -> Result<(), PackError> {
        let folder = cache.create_dir_durable(&rel(RECEIPTS_DIR), 0o755)?;
        receipt.store(&folder, &self.name)?;
        Ok(())
    }
}

/// Reads the very files that are open, for a model whose names lead elsewhere by now.
fn read_open_files(
    model: &Model,
    progress: &Progress<'_>,
    started: Instant,
    reasons: Vec<String>,
) -> Result<SourceProof, PackError> {
    let sha256 = model.sha256(progress)?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(SourceProof { sha256, trust: SourceTrust::Sha256, reasons, seconds, receipt: None })
}

fn model_sha256(model: &Model, contents: &[Content]) -> Sha256Hex {
    let digests: Vec<Sha256Hex> = contents.iter().map(|content| content.sha256).collect();
    model.sha256_of_files(&digests)
}
