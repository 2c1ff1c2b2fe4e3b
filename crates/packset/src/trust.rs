//! Deep validation of a set or stage, remembered by a receipt: the next look reads inodes instead of payloads.

use std::collections::BTreeMap;

use b70_manifest::Sha256Hex;
use b70_manifest::pack::PackSet;
use b70_store::{Admission, Content, Expected, Extras, How, Reason, Receipt, RelPath, Root, Subject, admit};

use crate::error::PackError;
use crate::index::{INDEX_FILE, payload_table_sha256};
use crate::model::cancelled;
use crate::set::{INDEX_FILES, MANIFEST_FILE, rel};
use crate::verify::prefix_of;

/// Name of the receipt below a set's or stage's folder.
pub(crate) const RECEIPT_FILE: &str = "deep-validation.json";
/// Name of a stage's own document.
pub(crate) const STAGE_FILE: &str = "ram-stage.json";

/// The payloads and the index of a set as something to admit.
pub(crate) struct SetSubject {
    files: Vec<Expected>,
    contents: Option<Vec<Content>>,
    format: String,
    bindings: BTreeMap<String, String>,
}

impl SetSubject {
    pub(crate) fn new(document: &PackSet, manifest_sha256: Sha256Hex) -> Result<Self, PackError> {
        let prefix = prefix_of(document);
        let mut files = Vec::with_capacity(document.tensors.len() + 1);
        let mut contents = Some(Vec::with_capacity(document.tensors.len()));
        for tensor in &document.tensors {
            let payload = &tensor.payload;
            files.push(Expected {
                name: RelPath::new(&payload.path)?,
                size: payload.size_bytes,
                sha256: Some(payload.sha256),
            });
            let content =
                payload.blake3.map(|blake3| Content { sha256: payload.sha256, blake3, size: payload.size_bytes });
            contents = contents.zip(content).map(|(mut all, content)| {
                all.push(content);
                all
            });
        }
        let bindings = [
            ("set_key", document.key.to_string()),
            ("manifest_sha256", manifest_sha256.to_string()),
            ("payload_table_sha256", payload_table_sha256(&document.tensors)?.to_string()),
        ];
        Ok(Self {
            files,
            contents,
            format: format!("{prefix}-deep-validation-v2"),
            bindings: bindings.map(|(key, value)| (key.to_owned(), value)).into(),
        })
    }

    pub(crate) fn files(&self) -> &[Expected] {
        &self.files
    }

    /// The BLAKE3 the manifest states for a file, where it states one for each.
    pub(crate) fn contents(&self) -> Option<&[Content]> {
        self.contents.as_deref()
    }

    fn subject<'a>(&'a self, root: &'a Root) -> Subject<'a> {
        Subject {
            root,
            files: &self.files,
            format: &self.format,
            bindings: &self.bindings,
            extras: Extras::Report(&belongs),
        }
    }

    /// Admits the payloads beneath `root`: by the stored receipt where it holds, otherwise by reading them; a new receipt
    /// is stored when the rule allows one.
    pub(crate) fn admit(&self, root: &Root, how: &How<'_>) -> Result<Admission, PackError> {
        let admission = admit(&self.subject(root), Receipt::load(root, &rel(RECEIPT_FILE)), how).map_err(cancelled)?;
        store(&admission, root)?;
        Ok(admission)
    }

    /// Admits payloads that were just copied: every byte is read, against the manifest's BLAKE3 where it states one for
    /// each file and against SHA-256 otherwise.
    pub(crate) fn prove_copies(&self, root: &Root, how: &How<'_>) -> Result<Admission, PackError> {
        let subject = self.subject(root);
        let stated = match &self.contents {
            Some(contents) => Receipt::stated(&subject, contents).map_err(cancelled)?,
            None => return self.admit(root, how),
        };
        let admission = admit(&subject, Ok(stated), how).map_err(cancelled)?;
        store(&admission, root)?;
        Ok(admission)
    }
}

fn store(admission: &Admission, root: &Root) -> Result<(), PackError> {
    if let Some(receipt) = &admission.refreshed
        && admission.is_admitted()
    {
        match receipt.store(root, &rel(RECEIPT_FILE)) {
            // A folder that cannot be written to keeps no receipt; the bytes were proved all the same.
            Ok(_) | Err(b70_store::Error::Io { .. } | b70_store::Error::NoSpace { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a file that is no payload belongs into a set's or stage's folder.
fn belongs(name: &RelPath) -> bool {
    let Some(text) = name.as_str() else { return false };
    text == MANIFEST_FILE
        || text == STAGE_FILE
        || text == INDEX_FILE
        || INDEX_FILES.contains(&text)
        || (text.starts_with("tensors/") && name.as_path().extension().is_some_and(|extension| extension == "json"))
        // Unpublished files of a running prepare; a sweep removes orphans.
        || text.rsplit('/').next().is_some_and(|last| last.starts_with(".b70-tmp-"))
}

/// Reasons in words, at most a handful: a void receipt of 187 files has 187 of the same.
pub(crate) fn reasons_text(reasons: &[Reason]) -> Vec<String> {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = reasons.iter().take(SHOWN).map(ToString::to_string).collect();
    if reasons.len() > SHOWN {
        text.push(format!("and {} more", reasons.len() - SHOWN));
    }
    text
}
