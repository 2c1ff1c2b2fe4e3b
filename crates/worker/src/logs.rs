//! Log files: rotated when a worker starts, and read from their end.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use b70_store::open_source;

use crate::{error::WorkerError, trust::open_own};

/// Old logs that are kept: `.1` is the newest.
pub(crate) const KEPT: u32 = 5;

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    PathBuf::from(name)
}

/// Moves a log aside; the oldest of the kept ones is replaced.
pub(crate) fn rotate(path: &Path) -> Result<(), WorkerError> {
    if !path.exists() {
        return Ok(());
    }
    for n in (1..KEPT).rev() {
        let from = numbered(path, n);
        if from.exists() {
            fs::rename(&from, numbered(path, n + 1)).map_err(|e| WorkerError::io(&from, "rotate", e))?;
        }
    }
    fs::rename(path, numbered(path, 1)).map_err(|e| WorkerError::io(path, "rotate", e))
}

/// Opens a log for a server's output.
pub(crate) fn create(path: &Path) -> Result<File, WorkerError> {
    let error = |e: io::Error| WorkerError::io(path, "open", e);
    let file = open_own(path, OpenOptions::new().create(true).append(true)).map_err(error)?;
    if file.metadata().map_err(error)?.is_file() {
        return Ok(file);
    }
    Err(error(io::Error::new(
        io::ErrorKind::InvalidInput,
        "found something else than a regular file, expected a log; move it away",
    )))
}

/// The last lines of a log, at most `bytes` of it, as text that a terminal may show.
pub fn tail(path: &Path, lines: usize, bytes: u64) -> Result<String, WorkerError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open_source(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(bytes)))?;
        let mut text = Vec::new();
        file.take(bytes).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|e| WorkerError::io(path, "read", e))?;
    let text = shown(&String::from_utf8_lossy(&text));
    let all: Vec<&str> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

/// Reads a log from near its end and goes on as it grows, over the rotation by a new start. Only whole lines are given.
#[derive(Debug)]
pub struct LogFollower {
    path: PathBuf,
    file: Option<File>,
    /// The start of a line whose end is not written yet.
    partial: Vec<u8>,
}

/// A line longer than this is given in pieces.
const MAX_LINE: usize = 1 << 20;

impl LogFollower {
    /// Opens a log; the last lines of it, and whoever gives the rest.
    pub fn open(path: &Path, lines: usize) -> Result<(String, Self), WorkerError> {
        let mut follower = Self { path: path.to_owned(), file: None, partial: Vec::new() };
        let mut file = open_source(path)?;
        let end = file.metadata().and_then(|m| file.seek(SeekFrom::Start(m.len().saturating_sub(4 << 20))));
        end.map_err(|e| WorkerError::io(path, "read", e))?;
        follower.file = Some(file);
        let text = follower.take(false)?;
        let all: Vec<&str> = text.lines().collect();
        Ok((all[all.len().saturating_sub(lines)..].join("\n"), follower))
    }

    /// What was written since: of the file that is open, then of the one that has taken its name.
    pub fn more(&mut self) -> Result<String, WorkerError> {
        let error = |e: io::Error| WorkerError::io(&self.path, "read", e);
        let now = match fs::metadata(&self.path) {
            Ok(meta) => Some((meta.dev(), meta.ino())),
            // Between rotation and the new file there is none for a moment.
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(error(e)),
        };
        let open = self.file.as_ref().map(File::metadata).transpose().map_err(error)?;
        if open.is_some_and(|meta| now == Some((meta.dev(), meta.ino()))) {
            return self.take(false);
        }
        // Moved aside: what it got to its end, then the new one from its start.
        let mut text = self.take(true)?;
        self.file = match open_source(&self.path) {
            Ok(file) => Some(file),
            Err(b70_store::Error::Missing { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        text.push_str(&self.take(false)?);
        Ok(text)
    }

    /// Whole lines of the open file from where it stands; with `all` an unfinished one as well.
    fn take(&mut self, all: bool) -> Result<String, WorkerError> {
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.partial).map_err(|e| WorkerError::io(&self.path, "read", e))?;
        }
        let end = if all || self.partial.len() > MAX_LINE {
            self.partial.len()
        } else {
            self.partial.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1)
        };
        let lines: Vec<u8> = self.partial.drain(..end).collect();
        let mut text = shown(&String::from_utf8_lossy(&lines));
        if all && !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}

/// Control characters, which could move the cursor or fake a line, are escaped.
fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn logs_rotate_and_are_read_from_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("server.log");
        for n in 0..8 {
            rotate(&log).unwrap();
            fs::write(&log, format!("a\nb\x1b[2J\nrun {n}\n")).unwrap();
        }
        assert_eq!(tail(&log, 2, 1 << 16).unwrap(), "b\\u{1b}[2J\nrun 7");
        assert_eq!(tail(&numbered(&log, 5), 1, 1 << 16).unwrap(), "run 2");
        assert!(!numbered(&log, 6).exists());
        assert!(tail(&dir.path().join("none"), 1, 10).is_err());
    }

    #[test]
    fn a_follower_loses_nothing_when_a_log_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("server.log");
        fs::write(&log, "one\ntwo\nthr").unwrap();
        let (end, mut follower) = LogFollower::open(&log, 1).unwrap();
        assert_eq!(end, "two");
        let write = |text: &str| create(&log).unwrap().write_all(text.as_bytes()).unwrap();
        assert_eq!(follower.more().unwrap(), "");
        write("ee\nf\u{fc}");
        assert_eq!(follower.more().unwrap(), "three\n");
        write("nf");
        rotate(&log).unwrap();
        assert_eq!(follower.more().unwrap(), "f\u{fc}nf\n", "an unfinished line of a log that ended is given");
        assert_eq!(follower.more().unwrap(), "");
        // The new log is longer than the old one ever was.
        write(&"x\n".repeat(100));
        assert_eq!(follower.more().unwrap(), "x\n".repeat(100));
        assert!(LogFollower::open(&dir.path().join("none"), 1).is_err());
    }
}
