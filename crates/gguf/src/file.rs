//! Opening a GGUF file by path: the directory is read with bounded `pread`s, never mapped.
//!
//! A mapping of a file that somebody truncates kills the reader; a short read is an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::directory::{Directory, Header, Tensor};
use crate::error::GgufError;
use crate::parse::{self, Walked};

/// Longest directory that [`GgufFile::open`] reads, in bytes. The largest vocabularies in use need about 16 MiB.
pub const DEFAULT_DIRECTORY_LIMIT: u64 = 128 << 20;

/// Most files keep a large vocabulary out of the first read, and small ones fit whole.
const FIRST_READ: u64 = 1 << 20;

/// Why a file could not be opened as GGUF. Every variant names the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried: `open`, `examine` or `read`.
        operation: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The path names something other than a regular file.
    #[error("{} is a {found}, expected a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is, for example `directory`.
        found: &'static str,
    },
    /// The file has no bytes.
    #[error("{} is empty, expected a GGUF file (is the download complete?)", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The directory is longer than the limit.
    #[error("the GGUF directory of {} needs {needed} bytes or more, but only {limit} are allowed", path.display())]
    DirectoryTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes the next step of reading would need.
        needed: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file's length changed while it was being read.
    #[error("{} changed while it was read: {before} bytes, then {after} (is it still being written?)", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Length when opened.
        before: u64,
        /// Length, or end of what could be read, afterwards.
        after: u64,
    },
    /// The content is not an acceptable GGUF.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: GgufError,
    },
}

impl OpenError {
    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::NotAFile { path, .. }
            | Self::Empty { path }
            | Self::DirectoryTooLarge { path, .. }
            | Self::Changed { path, .. }
            | Self::Format { path, .. } => path,
        }
    }

    /// The defect of the content, if that is the reason.
    pub fn format_error(&self) -> Option<&GgufError> {
        match self {
            Self::Format { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// An open GGUF file whose directory has been read and checked.
///
/// The file stays open, so that tensor data can be read from the very file that was checked, whatever
/// happens to the path.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    prefix: Vec<u8>,
    walked: Walked,
    header: Header,
    tensors: Vec<Tensor>,
}

impl GgufFile {
    /// Opens a file and reads its directory, of at most [`DEFAULT_DIRECTORY_LIMIT`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with_limit(path, DEFAULT_DIRECTORY_LIMIT)
    }

    /// Opens a file and reads its directory if it needs no more than `limit` bytes.
    pub fn open_with_limit(path: impl AsRef<Path>, limit: u64) -> Result<Self, OpenError> {
        let (file, mut prefix, walked, (header, tensors)) =
            read_directory(path.as_ref(), limit, |bytes, file_len, walked| {
                parse::directory(bytes, file_len, walked).map(|directory| (directory.header, directory.tensors))
            })?;
        // Lossless: the directory was read from the prefix.
        prefix.truncate(header.directory_bytes as usize);
        prefix.shrink_to_fit();
        Ok(Self { path: path.as_ref().to_owned(), file, prefix, walked, header, tensors })
    }

    /// Checks no more of a file than a program needs that copies it: magic, version, that the directory's parts lie in the
    /// file, and that no tensor reaches past its end, as far as sizes are known. Types may be unknown.
    pub fn check_bounds(path: impl AsRef<Path>) -> Result<(), OpenError> {
        read_directory(path.as_ref(), DEFAULT_DIRECTORY_LIMIT, parse::bounds).map(|_| ())
    }
}

/// Opens a file and reads as much of its start as `parse` needs.
fn read_directory<T>(
    path: &Path,
    limit: u64,
    parse: impl Fn(&[u8], u64, &mut Walked) -> Result<T, GgufError>,
) -> Result<(File, Vec<u8>, Walked, T), OpenError> {
    let io = |operation| move |source| OpenError::Io { path: path.to_owned(), operation, source };

    // Non-blocking, so that a FIFO answers at once; regular files do not know the difference.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(io("open"))?;
    let before = file.metadata().map_err(io("examine"))?;
    if let Some(found) = not_a_file(before.file_type()) {
        return Err(OpenError::NotAFile { path: path.to_owned(), found });
    }
    let file_len = before.len();
    if file_len == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }

    let mut prefix = Vec::new();
    let mut target = FIRST_READ;
    let mut walked = Walked::default();
    let parsed = loop {
        extend(&mut prefix, &file, path, target.min(file_len).min(limit), file_len)?;
        match parse(&prefix, file_len, &mut walked) {
            Ok(parsed) => break parsed,
            Err(error) => match error.needed_bytes() {
                None => return Err(OpenError::Format { path: path.to_owned(), source: error }),
                Some(needed) if needed > limit => {
                    return Err(OpenError::DirectoryTooLarge { path: path.to_owned(), needed, limit });
                }
                // By shares of what there is, so that the work of starting over stays below that of some passes, and
                // little is read in vain.
                Some(needed) => {
                    let len = prefix.len() as u64;
                    target = len.saturating_add((len / 4).max(FIRST_READ)).max(needed);
                }
            },
        }
    };

    let after = file.metadata().map_err(io("examine"))?.len();
    if after != file_len {
        return Err(OpenError::Changed { path: path.to_owned(), before: file_len, after });
    }
    Ok((file, prefix, walked, parsed))
}

impl GgufFile {
    /// The path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for reading tensor data from the file that was checked.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The directory with its metadata. Parses the kept bytes again, all but the vocabulary: take it once, not per
    /// look-up. For header and tensors use [`GgufFile::header`] and [`GgufFile::tensors`].
    pub fn directory(&self) -> Directory<'_> {
        let file_len = self.header.file_size;
        parse::directory(&self.prefix, file_len, &mut self.walked.clone())
            .expect("these bytes were accepted at opening")
    }

    /// The fixed facts.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The tensors in file order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of a name, compared byte by byte.
    pub fn tensor(&self, name: impl AsRef<[u8]>) -> Option<&Tensor> {
        let name = name.as_ref();
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The bytes of one of this file's tensors, as ggml lays them out.
    ///
    /// # Errors
    /// The file cannot be read, has become shorter since it was opened, or never had a tensor there.
    pub fn read_tensor(&self, tensor: &Tensor) -> Result<Vec<u8>, OpenError> {
        let refused = |source| OpenError::Io { path: self.path.clone(), operation: "read a tensor of", source };
        // Before memory is taken: a tensor of another file may be larger than this one.
        let end = tensor.offset.checked_add(tensor.size_bytes);
        if end.is_none_or(|end| end > self.header.file_size) {
            return Err(refused(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut bytes = vec![0; tensor.size_bytes as usize];
        self.file.read_exact_at(&mut bytes, tensor.offset).map_err(refused)?;
        Ok(bytes)
    }
}

fn not_a_file(file_type: std::fs::FileType) -> Option<&'static str> {
    if file_type.is_file() {
        None
    } else if file_type.is_dir() {
        Some("directory")
    } else if file_type.is_fifo() {
        Some("FIFO")
    } else if file_type.is_socket() {
        Some("socket")
    } else if file_type.is_block_device() {
        Some("block device")
    } else if file_type.is_char_device() {
        Some("character device")
    } else {
        Some("special file")
    }
}

/// Reads the file from where the prefix ends until it has `target` bytes.
fn extend(prefix: &mut Vec<u8>, file: &File, path: &Path, target: u64, file_len: u64) -> Result<(), OpenError> {
    let mut filled = prefix.len();
    let target = usize::try_from(target).unwrap_or(usize::MAX).max(filled);
    prefix.reserve_exact(target - filled);
    prefix.resize(target, 0);
    while filled < target {
        match file.read_at(&mut prefix[filled..], filled as u64) {
            Ok(0) => {
                return Err(OpenError::Changed { path: path.to_owned(), before: file_len, after: filled as u64 });
            }
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(OpenError::Io { path: path.to_owned(), operation: "read", source }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_refused() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(&[1; 100], 0).expect("written");
        let mut prefix = Vec::new();
        extend(&mut prefix, &file, Path::new("x"), 100, 200).expect("so many are there");
        // It was 200 bytes long when it was opened, and is 100 now.
        let error = extend(&mut prefix, &file, Path::new("x"), 150, 200).expect_err("no more are there");
        assert!(matches!(error, OpenError::Changed { before: 200, after: 100, .. }), "{error}");
    }
}
