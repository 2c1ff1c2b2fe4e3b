//! What must hold for a set one of whose documents holds anything: the readers never panic, agree with each other, and
//! admit nothing but the same set. The replay test and the fuzz target share it.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use b70_manifest::pack::PackSet;
use b70_packset::{Depth, Expectation, SetDir, Stage, VerifyOptions, VerifyStatus, gc, list, verify};
use b70_store::{Progress, Receipt};

use super::common::Lab;
use super::common::models::STANDARD;

struct Base {
    lab: Lab,
    root: PathBuf,
    set: PathBuf,
    /// Every document of the set with its good bytes, the manifest first.
    documents: Vec<(PathBuf, Vec<u8>)>,
}

thread_local! {
    static BASE: RefCell<Base> = RefCell::new(base());
}

fn base() -> Base {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let set = lab.set("cache", &prepared);
    let mut paths = vec![set.join("manifest.json"), set.join("runtime-index.tsv"), set.join("SHA256SUMS")];
    let mut sidecars: Vec<PathBuf> = fs::read_dir(set.join("tensors"))
        .expect("a set")
        .map(|entry| entry.expect("a set").path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    sidecars.sort();
    paths.extend(sidecars);
    let documents = paths
        .into_iter()
        .map(|path| {
            fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("our file");
            let bytes = fs::read(&path).expect("our file");
            (path, bytes)
        })
        .collect();
    let root = set.parent().expect("a set lies in a root").to_path_buf();
    Base { lab, root, set, documents }
}

/// The first byte chooses a document, the second how the rest changes it: as its whole content, or as edits of four bytes
/// each (two of a place, a kind, a value).
pub(crate) fn check(bytes: &[u8]) {
    BASE.with_borrow(|base| {
        let [which, how, rest @ ..] = bytes else { return };
        let index = usize::from(*which) % base.documents.len();
        let (path, good) = &base.documents[index];
        let content = if how % 2 == 0 { rest.to_vec() } else { edited(good, rest) };
        fs::write(path, &content).expect("our file");
        let admitted = judged(base);
        if admitted {
            must_be_the_same(index, good, &content);
        }
        if let Ok(receipt) = Receipt::from_bytes(&content, path.clone()) {
            assert!(Receipt::from_bytes(&receipt.to_bytes(), path.clone()).is_ok_and(|again| again == receipt));
        }
        let _ = list(&base.root).expect("a root can be listed whatever is in its sets");
        let _ = SetDir::newest(&base.root);
        let collected = gc(&base.root, false).expect("a plan needs no good documents");
        assert!(!collected.executed);
        fs::write(path, good).expect("our file");
    });
}

fn edited(good: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut content = good.to_vec();
    for edit in edits.chunks_exact(4) {
        if content.is_empty() {
            break;
        }
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % content.len();
        match edit[2] % 4 {
            0 => content[at] = edit[3],
            1 => content[at] ^= 1 << (edit[3] % 8),
            2 => content.insert(at, edit[3]),
            _ => {
                content.remove(at);
            }
        }
    }
    content
}

/// Whether the set is admitted; both readers say the same.
fn judged(base: &Base) -> bool {
    let expectation = Expectation::default();
    let set = SetDir::open_path(&base.set).expect("the folder is there");
    let options = VerifyOptions {
        depth: Depth::Shallow,
        expectation: &expectation,
        against: None,
        spec: None,
        progress: Progress::NONE,
    };
    let verified = match verify(&set, &base.lab.layout, &options) {
        Ok(verification) => {
            let ready = verification.status == VerifyStatus::Ready;
            assert_eq!(ready, verification.failures.is_empty());
            assert_eq!(verification.failures.is_empty(), verification.details.is_empty());
            ready
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    };
    let opened = Stage::open(&base.set, &base.lab.layout, &expectation).is_ok();
    assert_eq!(opened, verified, "the consumer's view and the verification agree");
    verified
}

/// What was admitted says of the tensors what the good document says.
fn must_be_the_same(index: usize, good: &[u8], content: &[u8]) {
    match index {
        0 => {
            let read = |bytes| serde_json::from_slice::<PackSet>(bytes).expect("it was admitted");
            let (good, found) = (read(good), read(content));
            assert_eq!((good.key, good.identity), (found.key, found.identity));
            assert_eq!(good.layout.name, found.layout.name);
            assert_eq!(good.source_model.sha256, found.source_model.sha256);
            for (good, found) in good.tensors.iter().zip(&found.tensors) {
                assert_eq!((good.key, &good.identity, &good.payload), (found.key, &found.identity, &found.payload));
            }
        }
        1 => assert_eq!(good, content, "the index is checked byte for byte"),
        _ => {}
    }
}
