//! Models in several files: finding the siblings, and checking that they are one model.
//!
//! llama.cpp names shards `PREFIX-00001-of-0000N.gguf` and puts three keys in each: `split.no` (u16, from
//! 0), `split.count` (u16) and `split.tensors.count` (i32, over all shards). Each shard is a whole GGUF
//! with offsets of its own; the first carries the model's metadata.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::directory::{Directory, Tensor};
use crate::error::label;
use crate::file::{DEFAULT_DIRECTORY_LIMIT, GgufFile, OpenError};
use crate::parse::ALIGNMENT_KEY;
use crate::split_error::SplitError;
use crate::value::{Value, ValueType};

/// Key of the shard's number, from 0.
pub(crate) const SPLIT_NO_KEY: &str = "split.no";
/// Key of the number of shards.
pub(crate) const SPLIT_COUNT_KEY: &str = "split.count";
/// Key of the number of tensors in all shards.
pub(crate) const SPLIT_TENSORS_KEY: &str = "split.tensors.count";

/// A shard's file name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardName {
    /// What comes before the numbers.
    pub prefix: String,
    /// The shard's number, from 1.
    pub number: u16,
    /// The number of shards.
    pub count: u16,
}

impl ShardName {
    /// Takes a file name apart: `PREFIX-NNNNN-of-NNNNN.gguf` with exactly five digits each, and the number
    /// between 1 and the count. `None` for every other name.
    pub fn parse(name: &str) -> Option<Self> {
        let digits = |text: &str| -> Option<u16> {
            (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
        };
        let stem = name.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (digits(number)?, digits(count)?);
        (number >= 1 && number <= count).then(|| Self { prefix: prefix.to_owned(), number, count })
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:05}-of-{:05}.gguf", self.prefix, self.number, self.count)
    }
}

/// One model, whether in one file or in several.
#[derive(Debug)]
pub struct SplitModel {
    files: Vec<GgufFile>,
    tensors: Vec<Tensor>,
}

impl SplitModel {
    /// Opens a model by the path of its file, or of any of its shards.
    ///
    /// Siblings are looked for beside the given path (symbolic links are not resolved first: download
    /// caches keep the names in a folder of links). A file without split keys and without a shard's name is
    /// a model of one file; so is one whose `split.count` is 0 or 1, as merging leaves it.
    ///
    /// # Errors
    /// Any disagreement between names, split keys and contents, any missing shard, and whatever is wrong
    /// with a single file. All directories together may take [`DEFAULT_DIRECTORY_LIMIT`] bytes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SplitError> {
        let path = path.as_ref();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(ShardName::parse);
        match name {
            Some(name) if name.count > 1 => Self::open_shards(path, &name),
            name => Self::open_single(path, name.is_some()),
        }
    }

    /// The files in shard order; the first has the model's metadata.
    pub fn files(&self) -> &[GgufFile] {
        &self.files
    }

    /// The tensors in the order of files and, in each, of the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of a name, compared byte by byte.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Option<&Tensor> {
        let name = name.as_ref();
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The bytes of one of this model's tensors: see [`GgufFile::read_tensor`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// The tensor is of a model of more files.
    pub fn read_tensor(&self, tensor: &Tensor) -> Result<Vec<u8>, OpenError> {
        self.files[tensor.file_index].read_tensor(tensor)
    }

    /// The directory of the first file, with the model's metadata. Parses it again: see [`GgufFile::directory`].
    pub fn directory(&self) -> Directory<'_> {
        self.files.first().expect("a model has at least one file").directory()
    }

    fn open_single(path: &Path, named_as_shard: bool) -> Result<Self, SplitError> {
        let file = GgufFile::open(path)?;
        let keys = SplitKeys::read(path, &file.directory())?;
        if let Some(count) = keys.count.filter(|&count| count > 1) {
            return Err(if named_as_shard {
                SplitError::CountDisagrees { path: path.to_owned(), found: count, expected: 1 }
            } else {
                SplitError::NameNotSplit { path: path.to_owned(), count }
            });
        }
        if let Some(found) = keys.no.filter(|&no| no != 0) {
            return Err(SplitError::NumberDisagrees { path: path.to_owned(), found, expected: 0 });
        }
        let files = vec![file];
        let tensors = join(&files)?;
        if let Some(total) = keys.total {
            check_total(path, total, tensors.len())?;
        }
        Ok(Self { files, tensors })
    }

    fn open_shards(path: &Path, name: &ShardName) -> Result<Self, SplitError> {
        let shard_path = |number| path.with_file_name(ShardName { number, ..name.clone() }.to_string());
        let mut files: Vec<GgufFile> = Vec::new();
        let mut total = 0;
        let mut budget = DEFAULT_DIRECTORY_LIMIT;
        for number in 1..=name.count {
            let path = shard_path(number);
            let file = GgufFile::open_with_limit(&path, budget).map_err(|error| match error {
                OpenError::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
                    SplitError::MissingShard { path, number, count: name.count }
                }
                other => other.into(),
            })?;
            budget = budget.saturating_sub(file.header().directory_bytes);
            let keys = SplitKeys::read(&path, &file.directory())?;
            let shard_total = keys.check_against(&path, number, name.count)?;
            match files.first() {
                None => total = shard_total,
                Some(_) if shard_total != total => {
                    return Err(SplitError::TotalDisagrees { path, found: shard_total, expected: total });
                }
                Some(first) => check_same_model(first, &file)?,
            }
            files.push(file);
        }
        let tensors = join(&files)?;
        check_total(&shard_path(1), total, tensors.len())?;
        Ok(Self { files, tensors })
    }
}

/// The split keys of one file.
struct SplitKeys {
    no: Option<u16>,
    count: Option<u16>,
    total: Option<i32>,
}

impl SplitKeys {
    fn read(path: &Path, directory: &Directory<'_>) -> Result<Self, SplitError> {
        let u16_key = |key| match directory.get(key) {
            None => Ok(None),
            Some(Value::U16(value)) => Ok(Some(*value)),
            Some(other) => Err(key_type(path, key, other, ValueType::U16)),
        };
        let total = match directory.get(SPLIT_TENSORS_KEY) {
            None => None,
            Some(Value::I32(value)) => Some(*value),
            Some(other) => return Err(key_type(path, SPLIT_TENSORS_KEY, other, ValueType::I32)),
        };
        Ok(Self { no: u16_key(SPLIT_NO_KEY)?, count: u16_key(SPLIT_COUNT_KEY)?, total })
    }

    /// Compares with the numbers of the file's name; returns the announced number of tensors.
    fn check_against(&self, path: &Path, number: u16, name_count: u16) -> Result<i32, SplitError> {
        let missing = |key| SplitError::MissingKey { path: path.to_owned(), key };
        let count = self.count.ok_or_else(|| missing(SPLIT_COUNT_KEY))?;
        if count != name_count {
            return Err(SplitError::CountDisagrees { path: path.to_owned(), found: count, expected: name_count });
        }
        let no = self.no.ok_or_else(|| missing(SPLIT_NO_KEY))?;
        if no != number - 1 {
            return Err(SplitError::NumberDisagrees { path: path.to_owned(), found: no, expected: number - 1 });
        }
        self.total.ok_or_else(|| missing(SPLIT_TENSORS_KEY))
    }
}

fn key_type(path: &Path, key: &'static str, value: &Value<'_>, expected: ValueType) -> SplitError {
    SplitError::KeyType { path: path.to_owned(), key, found: value.value_type(), expected }
}

/// Splitters write no model metadata to later shards; what is there all the same must be the first's.
/// The alignment is each file's own.
fn check_same_model(first: &GgufFile, later: &GgufFile) -> Result<(), SplitError> {
    let paths = || (later.path().to_owned(), first.path().to_owned());
    let (expected, found) = (first.header().version, later.header().version);
    if found != expected {
        let (path, first) = paths();
        return Err(SplitError::VersionDisagrees { path, first, found, expected });
    }
    let own_keys = [SPLIT_NO_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY, ALIGNMENT_KEY];
    let later_directory = later.directory();
    let mut repeated = later_directory
        .metadata()
        .iter()
        .filter(|entry| own_keys.iter().all(|key| entry.key != key.as_bytes()))
        .peekable();
    if repeated.peek().is_none() {
        return Ok(());
    }
    let first_directory = first.directory();
    let values: HashMap<_, _> = first_directory.metadata().iter().map(|entry| (entry.key, entry.value)).collect();
    for entry in repeated {
        if values.get(entry.key).is_some_and(|value| !value.same(&entry.value)) {
            let (path, first) = paths();
            return Err(SplitError::MetadataDisagrees { path, first, key: label(entry.key) });
        }
    }
    Ok(())
}

/// All tensors in order, each name once.
fn join(files: &[GgufFile]) -> Result<Vec<Tensor>, SplitError> {
    let mut seen: HashMap<&[u8], &GgufFile> = HashMap::new();
    let mut tensors = Vec::new();
    for (file_index, file) in files.iter().enumerate() {
        for tensor in file.tensors() {
            if let Some(first) = seen.insert(&tensor.name, file) {
                return Err(SplitError::DuplicateTensor {
                    path: file.path().to_owned(),
                    first: first.path().to_owned(),
                    name: label(&tensor.name),
                });
            }
            tensors.push(Tensor { file_index, ..tensor.clone() });
        }
    }
    Ok(tensors)
}

fn check_total(path: &Path, announced: i32, found: usize) -> Result<(), SplitError> {
    if u64::try_from(announced).is_ok_and(|announced| announced == found as u64) {
        return Ok(());
    }
    Err(SplitError::TensorTotal { path: PathBuf::from(path), found: found as u64, expected: announced })
}
