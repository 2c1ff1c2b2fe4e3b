//! Log files: rotated when a worker starts, and read from their end.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use crate::error::WorkerError;

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
    OpenOptions::new().create(true).append(true).open(path).map_err(|e| WorkerError::io(path, "open", e))
}

/// The last lines of a log, at most `bytes` of it, as text that a terminal may show.
pub fn tail(path: &Path, lines: usize, bytes: u64) -> Result<String, WorkerError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
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

/// Reads what a growing log has more than `from` bytes; the new position. A log that shrank was rotated: from its start.
pub fn follow(path: &Path, from: u64) -> Result<(String, u64), WorkerError> {
    let read = || -> io::Result<(Vec<u8>, u64)> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let from = if len < from { 0 } else { from };
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(1 << 20).read_to_end(&mut text)?;
        let read = text.len() as u64;
        Ok((text, from + read))
    };
    let (text, at) = read().map_err(|e| WorkerError::io(path, "read", e))?;
    Ok((shown(&String::from_utf8_lossy(&text)), at))
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
        let (text, at) = follow(&log, 0).unwrap();
        assert_eq!(follow(&log, at).unwrap(), (String::new(), text.replace("\\u{1b}", "\x1b").len() as u64));
        assert!(tail(&dir.path().join("none"), 1, 10).is_err());
    }
}
