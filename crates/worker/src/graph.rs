//! Graph evidence: what the server's log says about recorded and replayed graphs.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
};

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
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::none()),
            Err(e) => return Err(e),
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
        let Some((_, rest)) = line.split_once(MARK) else { return };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_graph_is_not_a_replayed_one() {
        for (text, state) in [
            ("", GraphState::NoEvidence),
            ("[SYCL-GRAPH] requested device=0", GraphState::RequestedOnly),
            ("x [SYCL-GRAPH] requested\n[SYCL-GRAPH] compatibility_rejected op=MUL_MAT", GraphState::Rejected),
            ("[SYCL-GRAPH] requested\n[SYCL-GRAPH] recording_entered", GraphState::RecordedOnly),
            ("[SYCL-GRAPH] summary replayed=12", GraphState::RequestedOnly),
            ("[SYCL-GRAPH] recording_entered\n0.1 I [SYCL-GRAPH] replayed nodes=900", GraphState::Replayed),
        ] {
            assert_eq!(GraphEvidence::from_text(text).state, state, "{text}");
        }
    }
}
