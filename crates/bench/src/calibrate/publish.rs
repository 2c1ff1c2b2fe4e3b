//! Result files: reserved once, never taken from anybody, replaced whole as rows come.

use std::path::Path;

use b70_store::{OnExisting, RelPath, Root, json_bytes, open_or_create, publish_bytes, replace_bytes};
use serde::Serialize;

/// A result file of this run.
#[derive(Debug)]
pub(super) struct ResultFile<'a> {
    root: &'a Root,
    name: RelPath,
}

/// Opens the folder of the results.
pub(super) fn open(out: &Path) -> Result<Root, b70_store::Error> {
    open_or_create(out, 0o755)
}

impl<'a> ResultFile<'a> {
    /// Takes the name with a first document; fails if there is a file of that name.
    pub(super) fn reserve(root: &'a Root, name: &str, document: &impl Serialize) -> Result<Self, b70_store::Error> {
        let name = RelPath::new(name)?;
        publish_bytes(root, &name, &text(document), 0o644, OnExisting::Fail)?;
        Ok(Self { root, name })
    }

    /// Replaces the document; a reader sees the old one or the new one.
    pub(super) fn write(&self, document: &impl Serialize) -> Result<(), b70_store::Error> {
        replace_bytes(self.root, &self.name, &text(document), 0o644).map(drop)
    }
}

/// The bytes of a document as it is written.
pub(super) fn text(document: &impl Serialize) -> Vec<u8> {
    json_bytes(Path::new("the result"), document).expect("maps with text keys, numbers and texts")
}

/// Writes a file beside nothing of its name, or in its place with `replace`: whole or not at all.
///
/// # Errors
/// [`b70_store::Error::Exists`] without `replace`; errors of the file system.
pub fn write_document(path: &Path, bytes: &[u8], replace: bool) -> Result<(), b70_store::Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = open(folder)?;
    let name = RelPath::new(path.file_name().unwrap_or_default())?;
    if replace {
        replace_bytes(&root, &name, bytes, 0o644).map(drop)
    } else {
        publish_bytes(&root, &name, bytes, 0o644, OnExisting::Fail).map(drop)
    }
}
