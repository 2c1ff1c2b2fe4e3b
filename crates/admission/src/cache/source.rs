//! A model as its owner keeps it: one file, or the shards of one.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use b70_gguf::{GgufFile, Impostor, OpenError, ShardName, SplitError, SplitModel};
use b70_store::{Error, FileIdentity, RelPath, Result, Sha256, identity_of, open_source};

use super::folder::{ENTRY_NAME, RECEIPT_NAME};
use crate::error::AdmissionError;

/// Names that the cache keeps for itself beside the model's files.
pub(super) const RESERVED: [&str; 2] = [ENTRY_NAME, RECEIPT_NAME];

/// One file of a model, open.
#[derive(Debug)]
pub struct ModelSourceFile {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its own name, under which the cache keeps it.
    pub name: RelPath,
    /// Its identity when it was opened.
    pub identity: FileIdentity,
    pub(super) file: File,
}

/// A model's files in shard order: one, or all N of a split GGUF (`NAME-00001-of-0000N.gguf`).
#[derive(Debug)]
pub struct ModelSource {
    /// The files.
    pub files: Vec<ModelSourceFile>,
}

impl ModelSource {
    /// Opens the model at `path`: any shard stands for the whole set, whose other shards must lie beside it.
    pub fn open(path: &Path) -> Result<Self, AdmissionError> {
        let absolute = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
        let files = shard_names(&absolute)?.into_iter().map(open_one).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { files })
    }

    /// Looks at the directories of the files. The bytes are copied as they are, so what concerns tensors alone (a type of
    /// a newer ggml or of a fork, five dimensions) is a remark; what is not a GGUF file, or not whole, is refused.
    pub fn inspect(&self) -> Result<Option<String>, AdmissionError> {
        match SplitModel::open(self.path()) {
            Ok(model) => {
                let missing: u64 = model.files().iter().map(|file| file.header().missing_padding_bytes()).sum();
                Ok((missing > 0).then(|| {
                    format!("{missing} bytes of padding after the last tensor are missing; servers do without")
                }))
            }
            Err(SplitError::Open(OpenError::Format { path, source })) if source.defect().concerns_tensors() => {
                for file in &self.files {
                    GgufFile::check_bounds(&file.path)
                        .map_err(|error| AdmissionError::Gguf { path: file.path.clone(), why: error.to_string() })?;
                }
                Ok(Some(format!("{} is copied as it is, its tensors unchecked: {source}", path.display())))
            }
            Err(error) => Err(AdmissionError::Gguf { path: self.path().to_owned(), why: error.to_string() }),
        }
    }

    /// Sum of the sizes in bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|f| f.identity.size).sum()
    }

    /// The path by which documents name the model: its file, or the first shard.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), |f| &f.path)
    }
}

fn open_one(path: PathBuf) -> Result<ModelSourceFile, AdmissionError> {
    let name = RelPath::new(path.file_name().unwrap_or(OsStr::new("")))?;
    if RESERVED.iter().any(|r| name.as_bytes() == r.as_bytes()) {
        let why = format!("the cache keeps the name {name} for itself; give the model another name");
        return Err(Error::RootUnsafe { path, why }.into());
    }
    let file = open_source(&path)?;
    let identity = identity_of(&file, &path)?;
    if identity.size == 0 {
        return Err(Error::Size { path, expected: 1, found: 0 }.into());
    }
    Ok(ModelSourceFile { path, name, identity, file })
}

/// The files of the model: the one, or all shards beside it.
fn shard_names(path: &Path) -> Result<Vec<PathBuf>, AdmissionError> {
    let name = path.file_name().and_then(OsStr::to_str).and_then(ShardName::parse);
    let Some(name) = name.filter(|name| name.count > 1) else { return Ok(vec![path.to_path_buf()]) };
    let shard = |number| path.with_file_name(ShardName { number, ..name.clone() }.to_string());
    let paths: Vec<PathBuf> = (1..=name.count).map(shard).collect();
    let missing: Vec<String> =
        paths.iter().filter(|p| !p.exists()).filter_map(|p| Some(p.file_name()?.display().to_string())).collect();
    if missing.is_empty() {
        Ok(paths)
    } else {
        let why = format!("missing beside it: {}", missing.join(", "));
        Err(AdmissionError::Split { path: path.to_path_buf(), why })
    }
}

/// What makes a file unfit to be named as a server's model, by its name and its first bytes alone: a later shard, or
/// something else in a model's place.
pub fn model_fault(path: &Path) -> Option<String> {
    let shard = path.file_name().and_then(OsStr::to_str).and_then(ShardName::parse);
    if let Some(shard) = shard.filter(|shard| shard.number > 1) {
        let first = ShardName { number: 1, ..shard.clone() };
        return Some(format!("it is shard {} of {}; a server is given the first, {first}", shard.number, shard.count));
    }
    let mut start = Vec::new();
    open_source(path).ok()?.take(64).read_to_end(&mut start).ok()?;
    if start.starts_with(b"GGUF") {
        return None;
    }
    Some(match Impostor::of(&start) {
        Some(what) => format!("it is {}, expected a GGUF model ({})", what.name(), what.remedy()),
        None => format!(
            "it begins with '{}', expected 'GGUF'",
            start.iter().take(4).map(|byte| byte.escape_ascii().to_string()).collect::<String>()
        ),
    })
}

/// The digest that identifies a model: of one file its own; of shards SHA-256 over, in shard order, file name, NUL and
/// the 32 raw bytes of the file's SHA-256.
pub fn model_sha256<'a>(files: impl IntoIterator<Item = (&'a RelPath, Sha256)>) -> Sha256 {
    let files: Vec<_> = files.into_iter().collect();
    if let [(_, only)] = files[..] {
        return only;
    }
    let mut text = Vec::new();
    for (name, digest) in files {
        text.extend_from_slice(name.as_bytes());
        text.push(0);
        text.extend_from_slice(digest.as_bytes());
    }
    Sha256::of(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_part_of_a_split_models_digest() {
        let name = |text: &str| RelPath::new(text).expect("a good name");
        let (a, b, x, y) = (Sha256::of(b"a"), Sha256::of(b"b"), name("x"), name("y"));
        assert_eq!(model_sha256([(&x, a)]), a, "one file is identified by its own digest");
        assert_ne!(model_sha256([(&x, a), (&y, b)]), model_sha256([(&x, b), (&y, a)]), "swapped contents");
        assert_ne!(model_sha256([(&x, a), (&y, b)]), model_sha256([(&y, b), (&x, a)]), "another order");
    }
}
