//! What `test-backend-ops` says, as of llama.cpp b11434.
//!
//! For each device it prints `  N/M tests passed`, M being the cases that were executed (not those that the filter or the
//! backend left out), and at the end `N/M backends passed`. An unknown operation gives `0/0 tests passed` and an unknown
//! backend `Skipping`, both with exit code 0: the count decides, not the code.

/// Counts of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Whether any count was printed.
    pub(super) counted: bool,
    /// Cases that were executed, over all devices.
    pub(super) executed: u64,
    /// Cases that passed.
    pub(super) passed: u64,
    /// Cases that a backend does not support.
    pub(super) not_supported: u64,
    /// Devices that were skipped.
    pub(super) skipped_devices: u64,
    /// Whether anything but blanks was printed.
    pub(super) said_something: bool,
}

/// Reads counts line by line; lines may come in pieces.
#[derive(Debug, Default)]
pub(super) struct Counter {
    counts: Counts,
    line: Vec<u8>,
}

/// Longest line that is looked at; the rest of a longer one is dropped.
const MAX_LINE: usize = 64 << 10;

impl Counter {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line();
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            }
        }
    }

    pub(super) fn finish(mut self) -> Counts {
        self.end_line();
        self.counts
    }

    fn end_line(&mut self) {
        let line = plain(&self.line);
        self.line.clear();
        let line = line.trim();
        self.counts.said_something |= !line.is_empty();
        if let Some(count) = line.strip_suffix(" tests passed")
            && let Some((passed, executed)) = count.split_once('/')
            && let (Ok(passed), Ok(executed)) = (passed.parse::<u64>(), executed.parse::<u64>())
        {
            self.counts.counted = true;
            self.counts.passed = self.counts.passed.saturating_add(passed);
            self.counts.executed = self.counts.executed.saturating_add(executed);
        } else if line.contains("): not supported") {
            self.counts.not_supported += 1;
        } else if line.starts_with("Skipping") {
            self.counts.skipped_devices += 1;
        }
    }
}

/// The text without colours: escape sequences `ESC [ … letter` are dropped.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            if chars.next() == Some('[') {
                chars.by_ref().find(char::is_ascii_alphabetic);
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Counts {
        let mut counter = Counter::default();
        // In pieces of three bytes, as a pipe may give them.
        text.as_bytes().chunks(3).for_each(|piece| counter.take(piece));
        counter.finish()
    }

    #[test]
    fn real_outputs() {
        let run = counts(
            "Testing 1 devices\n\nBackend 1/1: CPU\n  SILU(type=f16): \u{1b}[1;32mOK\u{1b}[0m\n  X(a=1): not supported [CPU]\n  \
             12/12 tests passed\n  Backend CPU: \u{1b}[1;32mOK\u{1b}[0m\n1/1 backends passed\nOK\n",
        );
        assert_eq!((run.counted, run.passed, run.executed, run.not_supported), (true, 12, 12, 1));
        let none = counts("Backend 1/1: CPU\n\n  0/0 tests passed\n  Backend CPU: OK\n1/1 backends passed\nOK\n");
        assert_eq!((none.counted, none.executed), (true, 0));
        let skipped = counts("Testing 1 devices\n\nBackend 1/1: CPU\n  Skipping\n1/1 backends passed\nOK\n");
        assert_eq!((skipped.counted, skipped.skipped_devices, skipped.executed), (false, 1, 0));
        let two = counts("  5/5 tests passed\n\u{1b}[1;31m  3/4 tests passed\u{1b}[0m");
        assert_eq!((two.passed, two.executed), (8, 9));
    }

    #[test]
    fn what_is_no_count() {
        for text in [
            "",
            " \n\t\n",
            "tests passed",
            "1/2/3 tests passed",
            "-1/2 tests passed",
            "99999999999999999999/1 tests passed",
        ] {
            assert!(!counts(text).counted, "{text}");
        }
        assert!(!counts(" \n\t\n").said_something);
        assert!(counts("x").said_something);
    }
}
