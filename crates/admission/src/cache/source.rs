//! A model as its owner keeps it: one file, or the shards of one.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use b70_store::{Error, FileIdentity, RelPath, Result, Sha256, open_source};

use crate::error::AdmissionError;

/// Names that the cache keeps for itself beside the model's files.
pub(super) const RESERVED: [&str; 2] = [super::ENTRY_NAME, super::RECEIPT_NAME];

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
    let identity = FileIdentity::of(&file, &path)?;
    if identity.size == 0 {
        return Err(Error::Size { path, expected: 1, found: 0 }.into());
    }
    Ok(ModelSourceFile { path, name, identity, file })
}

/// `PREFIX-%05d-of-%05d.gguf`, 1-based, as llama.cpp names shards; anything else is a file on its own.
fn parse_shard(name: &[u8]) -> Option<(&[u8], u32, u32)> {
    let stem = name.strip_suffix(b".gguf")?;
    let number = |digits: &[u8]| -> Option<u32> {
        (digits.len() == 5 && digits.iter().all(u8::is_ascii_digit))
            .then(|| digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')))
    };
    let (head, count) = stem.split_at_checked(stem.len().checked_sub(5)?)?;
    let head = head.strip_suffix(b"-of-")?;
    let (prefix, no) = head.split_at_checked(head.len().checked_sub(5)?)?;
    let prefix = prefix.strip_suffix(b"-")?;
    Some((prefix, number(no)?, number(count)?))
}

fn shard_names(path: &Path) -> Result<Vec<PathBuf>, AdmissionError> {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let Some((prefix, no, count)) = parse_shard(name) else { return Ok(vec![path.to_path_buf()]) };
    let broken = |why: String| AdmissionError::Split { path: path.to_path_buf(), why };
    if no == 0 || no > count {
        return Err(broken(format!("its name says shard {no} of {count}")));
    }
    let sibling = |no: u32| {
        let mut name = prefix.to_vec();
        name.extend_from_slice(format!("-{no:05}-of-{count:05}.gguf").as_bytes());
        path.with_file_name(OsStr::from_bytes(&name))
    };
    let paths: Vec<PathBuf> = (1..=count).map(sibling).collect();
    let missing: Vec<String> =
        paths.iter().filter(|p| !p.exists()).filter_map(|p| Some(p.file_name()?.display().to_string())).collect();
    if missing.is_empty() { Ok(paths) } else { Err(broken(format!("missing beside it: {}", missing.join(", ")))) }
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
    fn only_the_exact_form_names_a_shard() {
        assert_eq!(parse_shard(b"m-00002-of-00003.gguf"), Some((&b"m"[..], 2, 3)));
        assert_eq!(parse_shard(b"a-b-00001-of-00001.gguf"), Some((&b"a-b"[..], 1, 1)));
        for other in [
            "m.gguf",
            "m-0001-of-00003.gguf",
            "m-00001-of-0003.gguf",
            "m-00001-of-00003.bin",
            "m00001-of-00003.gguf",
            "-of-00003.gguf",
            ".gguf",
            "",
        ] {
            assert_eq!(parse_shard(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn names_are_part_of_a_split_models_digest() {
        let name = |text: &str| RelPath::new(text).expect("a good name");
        let (a, b, x, y) = (Sha256::of(b"a"), Sha256::of(b"b"), name("x"), name("y"));
        assert_eq!(model_sha256([(&x, a)]), a, "one file is identified by its own digest");
        assert_ne!(model_sha256([(&x, a), (&y, b)]), model_sha256([(&x, b), (&y, a)]), "swapped contents");
        assert_ne!(model_sha256([(&x, a), (&y, b)]), model_sha256([(&y, b), (&x, a)]), "another order");
    }
}
