//! An artifact's identity: of one file its digest, of a folder a digest over the names and digests of its files.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use b70_store::{
    DigestKind, EntryKind, Error, Hasher, Job, Mismatch, Progress, RelPath, Result, Root, Scope, Sha256, Source,
    hash_many,
};
use serde_json::{Map, Value};

use crate::documents::ArtifactFile;
use crate::error::AdmissionError;

/// Entries of a folder that are looked at.
pub(super) const WALK_LIMIT: usize = 1_000_000;

/// Key of [`ArtifactFile::extra`] with the bytes of a name that is not UTF-8.
const PATH_HEX: &str = "path_hex";

/// SHA-256 over, in path order (compared component by component), each file's relative path in bytes, NUL, and the 32
/// raw bytes of its SHA-256. The order of `files` does not matter.
pub(crate) fn folder_sha256<'a>(files: impl IntoIterator<Item = (&'a RelPath, Sha256)>) -> Sha256 {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|a, b| a.0.cmp(b.0));
    let mut hasher = Hasher::new(DigestKind::Sha256);
    for (name, digest) in files {
        hasher.update(name.as_bytes());
        hasher.update(&[0]);
        hasher.update(digest.as_bytes());
    }
    hasher.finish().sha256.expect("SHA-256 was asked for")
}

/// An artifact whose bytes were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Its path, links resolved.
    pub path: PathBuf,
    /// Its digest.
    pub sha256: Sha256,
    /// Sum of the sizes in bytes.
    pub size_bytes: u64,
    /// Its files in path order: name below the folder (or the file's own name), digest, size.
    pub files: Vec<(RelPath, Sha256, u64)>,
    /// Whether it is one file.
    pub is_file: bool,
}

/// A file, and its digest and size or why they could not be read.
pub(super) type HashedFile = (RelPath, Result<(Sha256, u64), String>);

/// What is at an artifact's place, unjudged.
pub(super) struct Found {
    pub(super) root: Root,
    pub(super) is_file: bool,
    pub(super) files: Vec<RelPath>,
    /// What cannot be identified by bytes: links, sockets, devices, refused names.
    pub(super) faults: Vec<(PathBuf, String)>,
}

impl Found {
    pub(super) fn look(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io("stat", path, e))?;
        if metadata.is_dir() {
            let root = Root::open(path)?;
            let mut found = Self { is_file: false, files: Vec::new(), faults: Vec::new(), root };
            for (name, kind) in found.root.walk_raw(WALK_LIMIT)? {
                match (kind, RelPath::new(&name)) {
                    (EntryKind::Directory, Ok(_)) => {}
                    (EntryKind::File, Ok(name)) => found.files.push(name),
                    (_, Err(e)) => found.faults.push((name, e.to_string())),
                    (kind, Ok(_)) => {
                        found.faults.push((name, format!("it is a {}, expected a regular file", kind.name())));
                    }
                }
            }
            found.files.sort();
            found.faults.sort();
            return Ok(found);
        }
        if !metadata.is_file() {
            let found = "special file";
            return Err(Error::Kind { path: path.to_path_buf(), found, expected: "regular file or directory" });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::Missing { path: path.to_path_buf() });
        };
        Ok(Self { root: Root::open(parent)?, is_file: true, files: vec![RelPath::new(name)?], faults: Vec::new() })
    }

    /// Hashes all files; for each, what was read or why not. A file that changes meanwhile is a fault.
    pub(super) fn hash(&self, progress: &Progress<'_>) -> Result<Vec<HashedFile>> {
        let before: Vec<_> = self.files.iter().map(|name| self.root.stat(name)).collect();
        let jobs: Vec<Job<'_>> = self.files.iter().map(|name| Source::Beneath(&self.root, name).into()).collect();
        let hashed = hash_many(&jobs, DigestKind::Sha256, progress);
        progress.check()?;
        let mut results = Vec::with_capacity(self.files.len());
        for ((name, before), hashed) in self.files.iter().zip(before).zip(hashed) {
            let result = match (before, hashed) {
                (Ok(before), Ok(digests)) => match self.root.stat(name) {
                    Ok(now) => match before.differences(&now, Scope::Memory).first() {
                        None => Ok((digests.sha256.expect("SHA-256 was asked for"), digests.size)),
                        Some(change) => Err(format!("it changed while it was hashed ({change})")),
                    },
                    Err(e) => Err(e.to_string()),
                },
                (_, Err(e)) if e.is_cancelled() => return Err(e),
                (Err(e), _) | (_, Err(e)) => Err(e.to_string()),
            };
            results.push((name.clone(), result));
        }
        Ok(results)
    }
}

impl Artifact {
    /// Reads every byte of the file or folder at `path`, files in parallel.
    ///
    /// A link, a socket, a device, a refused name, an unreadable or changing file, and a folder without any file are
    /// [`AdmissionError::Unfit`], all of them named.
    pub fn read(path: &Path, progress: &Progress<'_>) -> Result<Self, AdmissionError> {
        let path = path.canonicalize().map_err(|e| Error::io("resolve", path, e))?;
        let found = Found::look(&path)?;
        let at = |name: &Path| if found.is_file { path.clone() } else { path.join(name) };
        let mut faults: Vec<Mismatch> =
            found.faults.iter().map(|(name, what)| Mismatch { path: at(name), what: what.clone() }).collect();
        if faults.is_empty() && found.files.is_empty() {
            faults.push(Mismatch { path: path.clone(), what: "the folder holds no regular file".to_owned() });
        }
        // Reading gigabytes to end in a refusal helps nobody.
        if !faults.is_empty() {
            return Err(AdmissionError::Unfit(faults));
        }
        let mut files = Vec::with_capacity(found.files.len());
        for (name, result) in found.hash(progress)? {
            match result {
                Ok((sha256, size)) => files.push((name, sha256, size)),
                Err(what) => faults.push(Mismatch { path: at(name.as_path()), what }),
            }
        }
        if !faults.is_empty() {
            return Err(AdmissionError::Unfit(faults));
        }
        let sha256 = match files[..] {
            [(_, only, _)] if found.is_file => only,
            _ => folder_sha256(files.iter().map(|(name, sha256, _)| (name, *sha256))),
        };
        let size_bytes = files.iter().map(|f| f.2).sum();
        Ok(Self { path, sha256, size_bytes, files, is_file: found.is_file })
    }

    pub(super) fn documents(&self) -> Vec<ArtifactFile> {
        self.files
            .iter()
            .map(|(name, sha256, size_bytes)| {
                let mut extra = Map::new();
                if name.as_str().is_none() {
                    let hex = name.as_bytes().iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
                    extra.insert(PATH_HEX.to_owned(), Value::String(hex));
                }
                ArtifactFile { path: name.to_string(), sha256: *sha256, size_bytes: *size_bytes, extra }
            })
            .collect()
    }
}

/// The name of a recorded file, whatever its bytes.
pub(super) fn recorded_name(file: &ArtifactFile) -> Result<RelPath, String> {
    let name = match file.extra.get(PATH_HEX).and_then(Value::as_str) {
        None => OsString::from(&file.path),
        Some(hex) => {
            let bytes: Option<Vec<u8>> = (hex.len() % 2 == 0 && hex.is_ascii())
                .then(|| (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).ok()).collect())
                .flatten();
            OsString::from_vec(bytes.ok_or_else(|| {
                format!("{}: its {PATH_HEX} is {hex:?}, expected pairs of hexadecimal digits", file.path)
            })?)
        }
    };
    RelPath::new(name.as_os_str()).map_err(|e| e.to_string()).and_then(|name| {
        if name.as_path().as_os_str().as_bytes().is_empty() { Err("an empty name".to_owned()) } else { Ok(name) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_order_is_by_component() {
        let name = |text: &str| RelPath::new(text).expect("a good name");
        let (a, b) = (name("a/z"), name("a-b"));
        let (x, y) = (Sha256::of(b"x"), Sha256::of(b"y"));
        // Bytewise `a-b` sorts before `a/z`; by component `a` sorts before `a-b`.
        let mut text = b"a/z\0".to_vec();
        text.extend_from_slice(x.as_bytes());
        text.extend_from_slice(b"a-b\0");
        text.extend_from_slice(y.as_bytes());
        assert_eq!(folder_sha256([(&b, y), (&a, x)]), Sha256::of(&text));
    }
}
