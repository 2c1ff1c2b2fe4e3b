//! Deep validation of a set or stage, remembered by a receipt: the next look reads inodes instead of payloads.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use b70_manifest::pack::PackSet;
use b70_manifest::{Blake3Hex, Sha256Hex};
use b70_store::{
    Admission, Content, Expected, Extras, HashOptions, HiddenDir, Receipt, ReceiptReason, RelPath, Root, Source,
    StageFile, Standing, Subject, Trust, admit, examine, make_all_immutable, stage,
};

use crate::error::PackError;
use crate::index::payload_table_sha256;
use crate::set::{BESIDE_FILES, MANIFEST_FILE, RECEIPT_BESIDE, RECEIPT_FILE, prefix_of, rel};

/// Upstream's record has one kilobyte.
const MAX_LAB_RECEIPT: u64 = 64 << 10;
/// Name of a stage's own document.
pub(crate) const STAGE_FILE: &str = "ram-stage.json";

/// The payloads and the index of a set as something to admit.
pub(crate) struct SetSubject {
    files: Vec<Expected>,
    /// The BLAKE3 that the manifest states for a file.
    blake3: Vec<Option<Blake3Hex>>,
    format: String,
    bindings: BTreeMap<String, String>,
}

impl SetSubject {
    pub(crate) fn new(document: &PackSet, manifest_sha256: Sha256Hex) -> Result<Self, PackError> {
        let prefix = prefix_of(document);
        let mut files = Vec::with_capacity(document.tensors.len());
        let mut blake3 = Vec::with_capacity(document.tensors.len());
        for tensor in &document.tensors {
            let payload = &tensor.payload;
            files.push(Expected {
                name: RelPath::new(&payload.path)?,
                size: payload.size_bytes,
                sha256: Some(payload.sha256),
            });
            blake3.push(payload.blake3);
        }
        let bindings = [
            ("set_key", document.key.to_string()),
            ("manifest_sha256", manifest_sha256.to_string()),
            ("payload_table_sha256", payload_table_sha256(&document.tensors)?.to_string()),
        ];
        Ok(Self {
            files,
            blake3,
            format: format!("{prefix}-deep-validation-v2"),
            bindings: bindings.map(|(key, value)| (key.to_owned(), value)).into(),
        })
    }

    pub(crate) fn files(&self) -> &[Expected] {
        &self.files
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
    pub(crate) fn admit(&self, root: &Root, how: &HashOptions<'_>) -> Result<Admission, PackError> {
        let receipt = Receipt::load(root, &receipt_name(root));
        let admission = admit(&self.subject(root), receipt, how)?;
        store(&admission, root)?;
        Ok(admission)
    }

    /// Reads every payload by SHA-256 whatever a receipt says. Nothing is stored: see [`store`].
    pub(crate) fn read_all(&self, root: &Root, how: &HashOptions<'_>) -> Result<Admission, PackError> {
        let unasked = ReceiptReason::ReceiptMissing { path: root.join(&receipt_name(root)) };
        Ok(admit(&self.subject(root), Err(unasked), how)?)
    }

    /// The files beneath `root` that the stored receipt lets rest unread, each with its rung, and why others, or all, must be
    /// read.
    pub(crate) fn unread(
        &self,
        root: &Root,
        how: &HashOptions<'_>,
    ) -> Result<(HashMap<RelPath, Trust>, Vec<ReceiptReason>), PackError> {
        let receipt = match Receipt::load(root, &receipt_name(root)) {
            Ok(receipt) => receipt,
            Err(reason) => return Ok((HashMap::new(), vec![reason])),
        };
        let examination = examine(&self.subject(root), &receipt, how)?;
        let reasons = examination.all_reasons();
        if !examination.reasons.is_empty() {
            return Ok((HashMap::new(), reasons));
        }
        let standing = self.files.iter().zip(&examination.files);
        let unread = standing.filter_map(|(file, standing)| match standing {
            Standing::Trusted(rung) => Some((file.name.clone(), *rung)),
            _ => None,
        });
        Ok((unread.collect(), reasons))
    }

    /// Makes the payloads beneath `root` immutable, unless they rest on that already, and proves them once more for the
    /// receipt that says so.
    pub(crate) fn make_immutable(&self, root: &Root, how: &HashOptions<'_>) -> Result<Admission, PackError> {
        let admission = self.admit(root, how)?;
        if !admission.is_admitted() || admission.trust == Trust::Immutable {
            return Ok(admission);
        }
        make_all_immutable(root, &self.files)?;
        let subject = self.subject(root);
        let contents: Vec<Content> = admission.files.iter().map(|(_, content)| *content).collect();
        let admission = admit(&subject, Ok(Receipt::stated(&subject, &contents)?), how)?;
        store(&admission, root)?;
        Ok(admission)
    }

    /// Copies the payloads beneath `from` into a folder that nobody sees yet, and stores the copy's receipt there.
    pub(crate) fn stage(
        &self,
        from: &Root,
        to: &HiddenDir,
        immutable: bool,
        how: &HashOptions<'_>,
    ) -> Result<Admission, PackError> {
        let each = self.files.iter().zip(&self.blake3).map(|(expected, blake3)| StageFile {
            source: Source::Beneath(from, &expected.name),
            expected: expected.clone(),
            blake3: *blake3,
            identity: None,
        });
        let files: Vec<StageFile<'_>> = each.collect();
        let admission = stage(to, &files, &self.format, |_| Ok(self.bindings.clone()), immutable, how)?;
        store(&admission, to.root())?;
        Ok(admission)
    }
}

/// Stores the receipt of an admission, if there is a new one; returns its path.
pub(crate) fn store(admission: &Admission, root: &Root) -> Result<Option<PathBuf>, PackError> {
    let Some(receipt) = admission.refreshed.as_ref().filter(|_| admission.is_admitted()) else { return Ok(None) };
    let name = receipt_name(root);
    match receipt.store(root, &name) {
        Ok(_) => Ok(Some(root.join(&name))),
        // A folder that cannot be written to, or that a prepare is sweeping, keeps no receipt; the bytes were proved all
        // the same.
        Err(b70_store::Error::Io { .. } | b70_store::Error::NoSpace { .. } | b70_store::Error::TempVanished { .. }) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The receipt's name: where upstream's own record has the usual one, ours stands beside it.
fn receipt_name(root: &Root) -> RelPath {
    let found = root.read(&rel(RECEIPT_FILE), MAX_LAB_RECEIPT).unwrap_or_default();
    let labs = String::from_utf8_lossy(&found).contains("-deep-validation-v1\"");
    rel(if labs { RECEIPT_BESIDE } else { RECEIPT_FILE })
}

/// Whether a file that is not a payload belongs into a set's or stage's folder.
fn belongs(name: &RelPath) -> bool {
    let Some(text) = name.as_str() else { return false };
    text == MANIFEST_FILE
        || text == STAGE_FILE
        || BESIDE_FILES.contains(&text)
        || (text.starts_with("tensors/") && name.as_path().extension().is_some_and(|extension| extension == "json"))
        // Unpublished files of a running prepare; a sweep removes orphans.
        || text.rsplit('/').next().is_some_and(|last| last.starts_with(".b70-tmp-"))
}

/// Reasons in words, at most a handful: a void receipt of 187 files has 187 of the same.
pub(crate) fn reasons_text(reasons: &[ReceiptReason]) -> Vec<String> {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = reasons.iter().take(SHOWN).map(ToString::to_string).collect();
    if reasons.len() > SHOWN {
        text.push(format!("and {} more", reasons.len() - SHOWN));
    }
    text
}
