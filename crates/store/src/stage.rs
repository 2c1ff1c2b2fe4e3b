//! A copy in RAM, of a model or of a set: every file copied once and read back once, in a folder that nobody sees yet.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use crate::digest::{Blake3, Content, Job, Source, on_threads};
use crate::error::{Error, Result};
use crate::identity::{FileIdentity, Scope, identity_of};
use crate::immutable::make_immutable;
use crate::path::{RelPath, Root};
use crate::progress::Progress;
use crate::publish::{HiddenDir, TempFile};
use crate::receipt::{Admission, Expected, Extras, HashOptions, Receipt, Subject, Trust, admit};

/// A file that [`stage`] copies.
#[derive(Debug, Clone)]
pub struct StageFile<'a> {
    /// The file to read.
    pub source: Source<'a>,
    /// Name of the copy, in a folder that is there; its size, and its SHA-256 where a document states it.
    pub expected: Expected,
    /// Its BLAKE3, where a document states it beside the SHA-256: then no SHA-256 is computed.
    pub blake3: Option<Blake3>,
    /// What the source was when it was opened, where nothing states its digest: the copy is worth as much as the certainty that
    /// nobody wrote meanwhile.
    pub identity: Option<FileIdentity>,
}

/// Copies `files` into `folder`, mode 0444, several at once, and issues the receipt of the copy.
///
/// What is read is held against its digest on the way, so that wrong bytes are refused before anything is read back. Then one
/// reading of the copy proves it, between two lease probes; BLAKE3 over all cores is enough for that. `bindings` is given
/// what was copied, in the order of `files`, and says what the receipt of that `format` is bound to; its error is the outcome.
///
/// With `immutable` the copies are made so between the two, and the receipt lets them rest unread from then on ([`Trust`]).
///
/// The [`Admission`] lists the copied files; its trust is [`Trust::Sha256`] when SHA-256 was computed of one of them. It
/// carries the receipt for the caller to store, or the reasons why none can stand. After an error drop the folder.
///
/// Errors: [`Error::Sha256`] and [`Error::Damaged`] for a source that is not what was expected,
/// [`Error::ChangedWhileReading`] (a short read among them), [`Error::Mismatches`] for a copy that reads back
/// differently, [`Error::Immutable`], [`Error::NoSpace`], [`Error::Cancelled`].
pub fn stage(
    folder: &HiddenDir,
    files: &[StageFile<'_>],
    format: &str,
    bindings: impl FnOnce(&[Content]) -> Result<BTreeMap<String, String>>,
    immutable: bool,
    how: &HashOptions<'_>,
) -> Result<Admission> {
    let root = folder.root();
    let copies = || files.par_iter().map(|file| copy(root, file, &how.progress)).collect::<Result<Vec<Content>>>();
    let contents = on_threads(copies)??;
    for parent in files.iter().filter_map(|file| file.expected.name.parent()).collect::<BTreeSet<_>>() {
        root.dir(&parent)?.sync()?;
    }
    root.sync()?;
    let bindings = bindings(&contents)?;
    let expected = files.iter().zip(&contents).map(|(file, content)| {
        let name: RelPath = file.expected.name.clone();
        Expected { name, size: content.size, sha256: Some(content.sha256) }
    });
    let expected: Vec<Expected> = expected.collect();
    if immutable {
        make_all_immutable(root, &expected)?;
    }
    let subject = Subject { root, files: &expected, format, bindings: &bindings, extras: Extras::Ignore };
    let silent = HashOptions { progress: how.progress.silent(), ..*how };
    let mut admission = admit(&subject, Ok(Receipt::stated(&subject, &contents)?), &silent)?;
    if !admission.is_admitted() {
        return Err(Error::Mismatches(admission.changed));
    }
    if files.iter().any(|file| file.blake3.is_none()) {
        admission.trust = Trust::Sha256;
    }
    if admission.refreshed.is_some() {
        admission.reasons.clear();
    }
    Ok(admission)
}

/// Makes files immutable; those that are so already stay as they are.
///
/// Errors: [`Error::Immutable`] for the first that cannot be.
pub fn make_all_immutable(root: &Root, files: &[Expected]) -> Result<()> {
    files.iter().try_for_each(|file| make_immutable(root.open_file(&file.name)?, &root.join(&file.name)))
}

fn copy(root: &Root, file: &StageFile<'_>, progress: &Progress<'_>) -> Result<Content> {
    let Expected { name, size, sha256 } = &file.expected;
    let (source, path, _) = Job::from(file.source).open()?;
    let folder = name.parent().map_or_else(|| root.try_clone(), |parent| root.dir(&parent))?;
    let mut temp = TempFile::create(&folder, 0o444)?;
    let stated = sha256.filter(|_| file.blake3.is_some());
    if stated.is_some() {
        temp.without_sha256();
    }
    temp.reserve(*size)?;
    temp.copy_from(source.file(), &path, *size, progress)?;
    temp.close()?;
    let blake3 = temp.written().blake3.expect("computed of whatever is written in order");
    if let Some(expected) = file.blake3.filter(|expected| *expected != blake3) {
        return Err(Error::Damaged { path, what: format!("its BLAKE3 is {blake3}, expected {expected}") });
    }
    let found = temp.written().sha256.or(stated).expect("computed where it is not stated");
    if let Some(expected) = sha256.filter(|expected| *expected != found) {
        return Err(Error::Sha256 { path, expected, found });
    }
    if let Some(was) = &file.identity {
        let now = identity_of(source.file(), &path)?;
        if let Some(change) = was.differences(&now, Scope::Disk).first() {
            return Err(Error::ChangedWhileReading { path, what: change.to_string() });
        }
    }
    temp.place(name.file_name())?;
    Ok(Content { sha256: found, blake3, size: *size })
}
