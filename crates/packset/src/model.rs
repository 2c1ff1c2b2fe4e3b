//! A model on disk: one GGUF, or the shards of one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use b70_gguf::{GgufFile, OpenError, SplitError, SplitModel, Tensor};
use b70_manifest::Sha256Hex;
use b70_manifest::pack::GgufFacts;
use b70_store::{DigestKind, FileIdentity, Job, Progress, Source, hash_file, identity_of};
use serde_json::json;

use crate::error::PackError;

/// An open model whose directory (of every shard) was read and checked.
///
/// The files stay open: tensor data and hashes come from the very files that were checked, whatever happens to their names.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    split: SplitModel,
    opened: Vec<FileIdentity>,
}

impl Model {
    /// Opens a model by the path of its file, or of any of its shards. The data section must be complete.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let split = SplitModel::open(path).map_err(|error| refusal(error, path))?;
        let opened = split.files().iter().map(|file| identity_of(file.file(), file.path()));
        let opened = opened.collect::<Result<_, _>>()?;
        Ok(Self { path: path.to_path_buf(), split, opened })
    }

    /// The path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of every file, in shard order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.split.files().iter().map(GgufFile::path)
    }

    /// Whether the model has more than one file.
    pub fn is_split(&self) -> bool {
        self.split.files().len() > 1
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> &[Tensor] {
        self.split.tensors()
    }

    /// Bytes of all files.
    pub fn size_bytes(&self) -> u64 {
        self.split.files().iter().map(|file| file.header().file_size).sum()
    }

    /// Facts of the directory: those of the first file, with tensors and sizes of all.
    pub fn facts(&self) -> GgufFacts {
        let mut facts = self.split.files().first().map_or_else(GgufFacts::default, file_facts);
        if self.is_split() {
            facts.tensor_count = self.tensors().len() as u64;
            facts.file_size = self.size_bytes();
            let files: Vec<_> = self
                .split
                .files()
                .iter()
                .map(|file| json!({ "path": file.path().display().to_string(), "facts": file_facts(file) }))
                .collect();
            facts.extra.insert("files".to_owned(), json!(files));
        }
        facts
    }

    /// What is unusual about the files and does not matter here.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let missing = self.split.files().iter().map(|file| (file.path(), file.header().missing_padding_bytes()));
        missing
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(path, bytes)| {
                format!(
                    "{}: {bytes} bytes of padding after the last tensor are missing; servers do without",
                    path.display()
                )
            })
            .collect()
    }

    /// Refuses when a file was written to since it was opened: what was read is then of no known model.
    pub(crate) fn check_unchanged(&self) -> Result<(), PackError> {
        for (file, opened) in self.split.files().iter().zip(&self.opened) {
            let now = identity_of(file.file(), file.path())?;
            if (now.size, now.mtime_ns, now.ctime_ns) != (opened.size, opened.mtime_ns, opened.ctime_ns) {
                return Err(b70_store::Error::ChangedWhileReading {
                    path: file.path().to_path_buf(),
                    what: "its size or time stamps are not what they were when it was opened".to_owned(),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Bytes of a file when it was opened.
    pub(crate) fn file_size(&self, index: usize) -> u64 {
        self.split.files()[index].header().file_size
    }

    pub(crate) fn file(&self, index: usize) -> (&File, &Path) {
        let file = &self.split.files()[index];
        (file.file(), file.path())
    }

    /// Reads `buffer` from the data of a file.
    pub(crate) fn read_at(&self, file_index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), PackError> {
        let (file, path) = self.file(file_index);
        file.read_exact_at(buffer, offset).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                let end = offset + buffer.len() as u64;
                PackError::Model(
                    format!("{} became shorter than {end} bytes while it was read", path.display()),
                    path.to_path_buf(),
                )
            } else {
                PackError::io("read", path)(error)
            }
        })
    }

    /// The SHA-256 that identifies the model.
    ///
    /// Of one file it is the file's own. Of a split model it is SHA-256 over, shard by shard in order, the shard's file
    /// name, a NUL byte and the 32 raw bytes of its SHA-256: the rule by which a folder of files is identified.
    pub fn sha256(&self, progress: &Progress<'_>) -> Result<Sha256Hex, PackError> {
        let one = |file: &GgufFile| {
            let job = Job { source: Source::File(file.file(), file.path()), size: Some(file.header().file_size) };
            let digests = hash_file(job, DigestKind::Sha256, progress)?;
            Ok::<_, PackError>(digests.sha256.expect("SHA-256 was asked for"))
        };
        let digests = self.split.files().iter().map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(self.sha256_of_files(&digests))
    }

    /// The model's SHA-256 from those of its files, in shard order.
    pub(crate) fn sha256_of_files(&self, digests: &[Sha256Hex]) -> Sha256Hex {
        if let [only] = digests {
            return *only;
        }
        let mut text = Vec::new();
        for (file, digest) in self.split.files().iter().zip(digests) {
            let name = file.path().file_name().unwrap_or_default();
            text.extend_from_slice(name.as_encoded_bytes());
            text.push(0);
            text.extend_from_slice(digest.as_bytes());
        }
        Sha256Hex::of(&text)
    }
}

/// What cannot be opened is told apart from what is not a GGUF file.
fn refusal(error: SplitError, path: &Path) -> PackError {
    match error {
        SplitError::Open(OpenError::Io { path, operation, source }) => {
            PackError::Io { action: operation, path, source }
        }
        SplitError::Open(OpenError::NotAFile { path, found }) => {
            b70_store::Error::Kind { path, found, expected: "regular file" }.into()
        }
        error => PackError::Model(error.to_string(), path.to_path_buf()),
    }
}

fn file_facts(file: &GgufFile) -> GgufFacts {
    let header = file.header();
    GgufFacts {
        version: u64::from(header.version),
        tensor_count: header.tensor_count,
        metadata_count: header.metadata_count,
        alignment: u64::from(header.alignment),
        data_offset: header.data_offset,
        file_size: header.file_size,
        extra: serde_json::Map::default(),
    }
}
