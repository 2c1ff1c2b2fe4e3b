//! Whose documents lie in a set's folder. What another tool wrote is used as it is, and never repaired unasked.

use b70_manifest::Sha256Hex;
use b70_store::{EntryKind, Root};
use serde_json::Value;

use crate::error::PackError;
use crate::layout::Layout;
use crate::set::{MANIFEST_FILE, MAX_MANIFEST_BYTES, MAX_SIDECAR_BYTES, SUMS_FILE, SetDir, TENSORS_DIR, rel};
use crate::verify::{Expectation, Failures, check_documents, check_files};

/// The tool that wrote a set's documents, when it is not this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherTool {
    /// As the manifest names it, or what gives it away.
    pub(crate) name: String,
    /// Whether the set has a manifest.
    pub(crate) finished: bool,
}

impl OtherTool {
    /// Looks at the manifest, and where that is gone or cannot be read, at what else tells the writers apart: this crate's
    /// times are whole seconds, and its sets have a checksum list.
    pub(crate) fn of(set: &SetDir) -> Option<Self> {
        let text = |root: &Root, name: &str, limit| {
            root.read(&rel(name), limit).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let manifest = text(set.root(), MANIFEST_FILE, MAX_MANIFEST_BYTES);
        let finished = !matches!(set.root().try_stat(&rel(MANIFEST_FILE)), Ok(None));
        if let Ok(document) = serde_json::from_str::<Value>(&manifest)
            && let Some(path) = document["tool"]["path"].as_str()
        {
            let ours = document["tool"]["version"].is_string();
            return (!ours).then(|| Self { name: path.to_owned(), finished });
        }
        let unnamed = || Self { name: "another tool (times with fractions)".to_owned(), finished };
        if has_fractional_time(&manifest) {
            return Some(unnamed());
        }
        if !matches!(set.root().try_stat(&rel(SUMS_FILE)), Ok(None)) {
            return None;
        }
        let tensors = set.root().dir(&rel(TENSORS_DIR)).ok()?;
        let sidecars = tensors.list().ok()?.into_iter().filter(|entry| entry.kind == EntryKind::File);
        let mut sidecars = sidecars.filter_map(|entry| entry.name.as_str().map(str::to_owned));
        let foreign = sidecars
            .any(|name| name.ends_with(".json") && has_fractional_time(&text(&tensors, &name, MAX_SIDECAR_BYTES)));
        foreign.then(unnamed)
    }

    /// Refuses what this crate would have to repair, before anything is written.
    pub(crate) fn check(&self, set: &SetDir, key: Sha256Hex, layout: &dyn Layout) -> Result<(), PackError> {
        if !self.finished {
            return Ok(());
        }
        let mut failures = Failures::default();
        match set.read_manifest() {
            Ok((document, _)) => {
                let expectation = Expectation { set_key: Some(key), ..Expectation::default() };
                check_documents(&document, layout, &expectation, &mut failures)?;
                check_files(set, &document, layout, &mut failures)?;
            }
            Err(error) => failures.add("set-format", error.to_string()),
        }
        let details = failures.into_details();
        if details.is_empty() {
            return Ok(());
        }
        let found: Vec<_> =
            details.into_iter().map(|failure| format!("{}: {}", failure.code, failure.detail)).collect();
        Err(self.refusal(set, &found.join("; "), &format!("a set {key} that verifies")))
    }

    /// The refusal to replace what this tool wrote.
    pub(crate) fn refusal(&self, set: &SetDir, found: &str, expected: &str) -> PackError {
        PackError::OtherTool {
            path: set.path().to_path_buf(),
            tool: self.name.clone(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }
}

/// Whether a document, damaged or not, has a creation time with a fraction.
fn has_fractional_time(text: &str) -> bool {
    text.split("\"created_unix\":").skip(1).any(|rest| {
        let digits = rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
        digits.len() < rest.trim_start().len() && digits.starts_with('.')
    })
}

#[cfg(test)]
mod tests {
    use super::has_fractional_time;

    #[test]
    fn a_time_with_a_fraction_is_seen_in_whole_and_in_cut_documents() {
        for text in ["{\"created_unix\": 1796078798.06,", "{\"created_unix\": 3, x{\"created_unix\":1.5"] {
            assert!(has_fractional_time(text), "{text}");
        }
        for text in
            ["", "{\"created_unix\": 1796078798, \"pack_seconds\": 0.5", "\"created_unix\": .5", "\"created_unix\":"]
        {
            assert!(!has_fractional_time(text), "{text}");
        }
    }
}
