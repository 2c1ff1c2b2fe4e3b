//! The rung *quiet file*: what may be believed unread of an ordinary file on a local disk.

use std::collections::HashMap;

use super::document::{check_folders, check_identity, check_owner};
use super::{Examination, HashOptions, LeaseEvidence, Receipt, ReceiptFile, ReceiptReason, Standing, Subject, examine};
use crate::error::Result;
use crate::identity::FileSystem;
use crate::path::RelPath;

/// [`examine`] by a stricter rule: a file stays trusted only if it lies on a disk, belongs to this user or root, nobody else
/// can write to it or its folders, and both lease probes around its hashing were granted. Everything else must be read.
///
/// This holds against accidents and other users; the owner's own ioctls that exchange a file's blocks it does not see.
pub fn examine_quiet(subject: &Subject<'_>, receipt: &Receipt, how: &HashOptions<'_>) -> Result<Examination> {
    let mut examination = examine(subject, receipt, how)?;
    if let Err(reason) = check_folders(subject.root) {
        examination.reasons.push(reason);
    }
    let listed: HashMap<&RelPath, &ReceiptFile> = receipt.files.iter().map(|file| (&file.name, file)).collect();
    let mut folders: HashMap<RelPath, Option<ReceiptReason>> = HashMap::new();
    for (expected, standing) in subject.files.iter().zip(&mut examination.files) {
        let Some(file) = listed.get(&expected.name).filter(|_| *standing == Standing::Trusted) else { continue };
        let (name, path) = (expected.name.to_string(), subject.root.join(&expected.name));
        let mut against = Vec::new();
        if receipt.filesystem.kind.in_memory() {
            let FileSystem { kind, f_type, .. } = receipt.filesystem;
            against.push(ReceiptReason::FileSystemDenied { name: name.clone(), kind, f_type });
        }
        if file.evidence != LeaseEvidence::Lease {
            let why = "no lease was granted while it was hashed".to_owned();
            against.push(ReceiptReason::NoLeaseEvidence { name, why });
        }
        against.extend(check_identity(&file.identity, path, false).err());
        if let Some(parent) = expected.name.parent() {
            let found = if let Some(found) = folders.get(&parent) {
                found.clone()
            } else {
                let folder = subject.root.dir(&parent)?;
                let found = check_owner(&folder, folder.path().to_path_buf(), false).err();
                folders.insert(parent, found.clone());
                found
            };
            against.extend(found);
        }
        if !against.is_empty() {
            *standing = Standing::Void(against);
        }
    }
    Ok(examination)
}
