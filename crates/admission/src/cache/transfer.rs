//! The bytes of a copy: copied, held against their digest, and proven by one more reading.

use b70_store::{
    Content, Error, Expected, FileIdentity, How, OnExisting, Reason, Receipt, RelPath, Result, Root, Scope, Sha256,
    StagingDir, TempFile, Verdict, admit,
};
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};

use super::entry::{bindings, store_receipt, subject_of};
use super::request::PrepareRequest;
use super::source::ModelSource;
use crate::error::AdmissionError;

/// Copies every file, several shards at once over the pool.
pub(super) fn copy_files(
    request: &PrepareRequest<'_>,
    staged: &StagingDir,
    how: &How<'_>,
) -> Result<Vec<(RelPath, Content)>> {
    let files = &request.source.files;
    // Of one file the model's digest is the file's own, so that wrong bytes are refused before they are read back.
    let expected = if files.len() == 1 { request.sha256 } else { None };
    how.pool.install(|| {
        files
            .par_iter()
            .map(|file| {
                let mut temp = TempFile::create(staged.root(), 0o444)?;
                temp.reserve(file.identity.size)?;
                temp.copy_from(&file.file, &file.path, file.identity.size, &how.progress)?;
                if let (Some(expected), Some(found)) = (expected, temp.sha256_so_far())
                    && expected != found
                {
                    return Err(Error::Sha256 { path: file.path.clone(), expected, found });
                }
                let published = temp.commit(&file.name, OnExisting::Fail, expected, &how.progress)?;
                Ok((file.name.clone(), published.content))
            })
            .collect()
    })
}

/// Without a digest to hold it against, the copy is worth as much as the certainty that nobody wrote meanwhile.
pub(super) fn unchanged(source: &ModelSource) -> Result<()> {
    for file in &source.files {
        let now = FileIdentity::of(&file.file, &file.path)?;
        if let Some(change) = file.identity.differences(&now, Scope::Disk).first() {
            return Err(Error::ChangedWhileReading { path: file.path.clone(), what: change.to_string() });
        }
    }
    Ok(())
}

/// Issues the receipt of a fresh copy. Its SHA-256 was computed while it was written; what the rule wants besides is
/// one reading between two lease probes, for which BLAKE3 over all cores is enough.
pub(super) fn prove_copy(
    folder: &Root,
    key: &Sha256,
    contents: &[(RelPath, Content)],
    how: &How<'_>,
) -> Result<Vec<Reason>, AdmissionError> {
    let files: Vec<Expected> = contents
        .iter()
        .map(|(name, c)| Expected { name: name.clone(), size: c.size, sha256: Some(c.sha256) })
        .collect();
    let bindings = bindings(key);
    let subject = subject_of(folder, &files, &bindings);
    let silent = How { progress: how.progress.silent(), ..*how };
    let contents: Vec<Content> = contents.iter().map(|(_, content)| *content).collect();
    let admission = admit(&subject, Ok(Receipt::stated(&subject, &contents)?), &silent)?;
    if !admission.is_admitted() {
        return Err(Error::Mismatches(admission.changed).into());
    }
    match admission.refreshed {
        Some(receipt) => {
            store_receipt(folder, Verdict::Trusted(receipt))?;
            Ok(Vec::new())
        }
        None => Ok(admission.reasons),
    }
}
