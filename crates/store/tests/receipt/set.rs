//! A folder of files with its receipt, as the tests use it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt};
use std::path::Path;

use b70_store::{
    Admission, Expected, Extras, HashOptions, Receipt, ReceiptVerdict, RelPath, Root, Sha256, Subject, Trust, admit,
    file_system_of, issue,
};
use b70_testkit::bytes;
use b70_testkit::writers::open_to_write;

use crate::common::{name, root};
use crate::{FORMAT, RECEIPT, SIZE};

/// Writes a file whatever its mode is, and takes the permission to write from it.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    if path.exists() {
        let file = open_to_write(path);
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).expect("written");
    } else {
        std::fs::write(path, bytes).expect("written");
    }
    if path.metadata().expect("there").mode() & 0o222 != 0 {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o444)).expect("set");
    }
}

/// A folder with files, and the documents' view of it.
pub(crate) struct Set {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) root: Root,
    pub(crate) files: Vec<Expected>,
    pub(crate) bindings: BTreeMap<String, String>,
}

impl Set {
    pub(crate) fn new(dir: tempfile::TempDir, count: usize) -> Self {
        let root = root(dir.path());
        let mut set =
            Self { dir, root, files: Vec::new(), bindings: BTreeMap::from([("set_key".to_owned(), "k".to_owned())]) };
        std::fs::create_dir(set.dir.path().join("tensors")).expect("made");
        for i in 0..count {
            let file = if i % 2 == 0 { format!("tensors/{i}.bin") } else { format!("{i}.bin") };
            let data = bytes(SIZE, i as u64);
            write(&set.dir.path().join(&file), &data);
            let sha256 = Some(Sha256::of(&data));
            set.files.push(Expected { name: name(&file), size: SIZE as u64, sha256 });
        }
        set
    }

    /// What the set is admitted on when nothing changed, and the bytes that this takes.
    pub(crate) fn at_rest(&self) -> (Trust, u64) {
        let file_system = file_system_of(&self.root, self.dir.path()).expect("asked");
        let all = self.files.iter().map(|file| file.size).sum();
        if file_system.kind.in_memory() { (Trust::Blake3, all) } else { (Trust::QuietFile, 0) }
    }

    pub(crate) fn path(&self, i: usize) -> std::path::PathBuf {
        self.root.join(&self.files[i].name)
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        const KNOWN: &(dyn Fn(&RelPath) -> bool + Sync) = &|n| n.as_str() == Some(RECEIPT);
        Subject {
            root: &self.root,
            files: &self.files,
            format: FORMAT,
            bindings: &self.bindings,
            extras: Extras::Report(KNOWN),
        }
    }

    pub(crate) fn issue(&self) -> Receipt {
        match issue(&self.subject(), &HashOptions::default()).expect("verified") {
            ReceiptVerdict::Trusted(receipt) => *receipt,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn issue_and_store(&self) -> Receipt {
        let receipt = self.issue();
        receipt.store(&self.root, &name(RECEIPT)).expect("stored");
        receipt
    }

    pub(crate) fn admit(&self) -> Admission {
        admit(&self.subject(), Receipt::load(&self.root, &name(RECEIPT)), &HashOptions::default()).expect("decided")
    }

    /// The set that a parent made.
    pub(crate) fn opened(path: &Path) -> Self {
        let root = root(path);
        let receipt = Receipt::load(&root, &name(RECEIPT)).expect("stored by the parent");
        let expected = |f: &b70_store::ReceiptFile| Expected {
            name: f.name.clone(),
            size: f.identity.size,
            sha256: Some(f.sha256),
        };
        Self {
            dir: tempfile::tempdir().expect("unused"),
            root,
            files: receipt.files.iter().map(expected).collect(),
            bindings: receipt.0.bindings,
        }
    }
}
