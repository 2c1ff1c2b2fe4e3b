//! Graph evidence: what the server's log says about recorded and replayed graphs.

use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
};

use b70_store::open_source;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A log is read up to this many bytes.
const MAX_LOG: u64 = 256 << 20;
const MARK: &str = "[SYCL-GRAPH]";

/// What may be said of graphs. A graph that was only requested is never called replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GraphState {
    /// The log has no line about graphs.
    NoEvidence,
    /// Graphs were asked for; nothing shows that one ran.
    RequestedOnly,
    /// The backend refused to record.
    Rejected,
    /// One was recorded; nothing shows that it was replayed.
    RecordedOnly,
    /// One was replayed.
    Replayed,
}

/// Lines of the log about graphs, counted by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEvidence {
    /// What may be said.
    pub state: GraphState,
    /// Lines that ask for graphs.
    pub requested: u64,
    /// Lines that refuse one.
    pub compatibility_rejected: u64,
    /// Lines of a recording that began.
    pub recording_entered: u64,
    /// Lines of a replay.
    pub replayed: u64,
    /// The last summary line, if any.
    pub summary: Option<String>,
}

impl GraphEvidence {
    /// Reads a log from its text.
    pub fn from_text(text: &str) -> Self {
        let mut found = Self::none();
        text.lines().for_each(|line| found.take(line));
        found.judge()
    }

    /// Reads a log file; one that is not there has no evidence.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = match open_source(path) {
            Ok(file) => file,
            Err(b70_store::Error::Missing { .. }) => return Ok(Self::none()),
            Err(e) => return Err(e.into()),
        };
        let mut reader = BufReader::new(file.take(MAX_LOG));
        let mut found = Self::none();
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            found.take(&String::from_utf8_lossy(&line));
            line.clear();
        }
        Ok(found.judge())
    }

    fn none() -> Self {
        Self {
            state: GraphState::NoEvidence,
            requested: 0,
            compatibility_rejected: 0,
            recording_entered: 0,
            replayed: 0,
            summary: None,
        }
    }

    fn take(&mut self, line: &str) {
        let Some(rest) = message(line).strip_prefix(MARK) else { return };
        let rest = rest.trim();
        let word = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        match word {
            "requested" => self.requested += 1,
            "compatibility_rejected" => self.compatibility_rejected += 1,
            "recording_entered" => self.recording_entered += 1,
            "replayed" => self.replayed += 1,
            "summary" => self.summary = Some(rest.chars().take(400).collect()),
            _ => {}
        }
    }

    /// A summary alone proves nothing: only a `replayed` line shows a replay.
    fn judge(mut self) -> Self {
        self.state = if self.replayed > 0 {
            GraphState::Replayed
        } else if self.recording_entered > 0 {
            GraphState::RecordedOnly
        } else if self.compatibility_rejected > 0 {
            GraphState::Rejected
        } else if self.requested > 0 || self.summary.is_some() {
            GraphState::RequestedOnly
        } else {
            GraphState::NoEvidence
        };
        self
    }
}

/// The line without what a log puts before a message: time stamps (`0.01.234.567`, `2026-12-01T10:00:00Z`, also in
/// brackets) and a level (`I`, `[INFO]`). A mark behind any other word is somebody's talk of it, for example the header
/// of a launcher that greps for it.
fn message(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some((word, after)) = rest.split_once(char::is_whitespace) {
        let bare = word.trim_matches(['[', ']', '(', ')', ':', '|', '<', '>']);
        let level = ["D", "I", "W", "E", "DEBUG", "DBG", "INFO", "INF", "WARN", "WRN", "ERROR", "ERR"];
        let is_level = level.iter().any(|level| bare.eq_ignore_ascii_case(level));
        let is_stamp = bare.starts_with(|c: char| c.is_ascii_digit())
            && bare.chars().all(|c| c.is_ascii_digit() || ".,:-+TZ".contains(c));
        if !is_level && !is_stamp {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_graph_is_not_a_replayed_one() {
        for (text, state) in [
            ("", GraphState::NoEvidence),
            ("[SYCL-GRAPH] requested device=0", GraphState::RequestedOnly),
            ("[SYCL-GRAPH] requested\n[SYCL-GRAPH] compatibility_rejected op=MUL_MAT", GraphState::Rejected),
            ("[SYCL-GRAPH] requested\n[SYCL-GRAPH] recording_entered", GraphState::RecordedOnly),
            ("[SYCL-GRAPH] summary replayed=12", GraphState::RequestedOnly),
            ("[SYCL-GRAPH] recording_entered\n0.1 I [SYCL-GRAPH] replayed nodes=900", GraphState::Replayed),
        ] {
            assert_eq!(GraphEvidence::from_text(text).state, state, "{text}");
        }
    }

    #[test]
    fn a_line_is_the_backends_by_its_beginning() {
        // The header that upstream's launcher writes into every log, with capture off.
        let header =
            "sycl_graph_evidence=[SYCL-GRAPH] requested|compatibility_rejected|recording_entered|replayed|summary";
        for line in [
            header,
            "main: looking for [SYCL-GRAPH] replayed",
            "x [SYCL-GRAPH] replayed",
            "grep '[SYCL-GRAPH] replayed' server.log",
            "0.1 I srv  log: [SYCL-GRAPH] replayed",
        ] {
            assert_eq!(GraphEvidence::from_text(line).state, GraphState::NoEvidence, "{line}");
        }
        for line in [
            "[SYCL-GRAPH] replayed nodes=900",
            "  [SYCL-GRAPH] replayed",
            "0.00.123.456 I [SYCL-GRAPH] replayed",
            "2026-12-01T10:00:00.123Z [INFO] [SYCL-GRAPH] replayed",
            "[2026-12-01 10:00:00] INFO: [SYCL-GRAPH] replayed",
        ] {
            assert_eq!(GraphEvidence::from_text(&format!("{header}\n{line}")).state, GraphState::Replayed, "{line}");
        }
    }
}
