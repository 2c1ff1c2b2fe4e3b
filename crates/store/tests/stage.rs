//! A copy in RAM: proved by one reading, and refused for every byte that is not the expected one.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use b70_store::{
    Admission, Blake3, Content, Error, Expected, HashOptions, HiddenDir, Result, Root, Sha256, Source, StageFile,
    Trust, admit, identity_at, stage,
};
use b70_testkit::memory;
use common::{disk, name, root, tree};

const BYTES: &[u8] = &[7; 300_000];

/// Copies `a` and `sub/b` of one folder into a new folder of another; `change` is made to what is asked of `a`.
fn staged(to: &Root, change: &dyn Fn(&mut StageFile<'_>)) -> Result<(Admission, HiddenDir)> {
    let from = disk();
    std::fs::write(from.path().join("a"), BYTES).expect("written");
    std::fs::write(from.path().join("b"), b"b").expect("written");
    let (beneath, a) = (root(from.path()), name("a"));
    let file = |source, to, bytes: &[u8]| {
        let expected = Expected { name: name(to), size: bytes.len() as u64, sha256: Some(Sha256::of(bytes)) };
        StageFile { source, expected, blake3: Some(Content::of(bytes).blake3), identity: None }
    };
    let path = from.path().join("b");
    let open = std::fs::File::open(&path).expect("open");
    let mut files = [file(Source::Beneath(&beneath, &a), "a", BYTES), file(Source::File(&open, &path), "sub/b", b"b")];
    change(&mut files[0]);
    let folder = HiddenDir::create(to)?;
    folder.root().create_dir_durable(&name("sub"), 0o700)?;
    let bindings = |contents: &[Content]| {
        assert_eq!(contents, [Content::of(BYTES), Content::of(b"b")]);
        Ok(BTreeMap::from([("key".to_owned(), contents[0].sha256.to_string())]))
    };
    let admission = stage(&folder, &files, "example-v2", bindings, false, &HashOptions::default())?;
    Ok((admission, folder))
}

#[test]
fn a_copy_is_read_back_once_and_its_receipt_holds() {
    for (sha256_alone, trust) in [(false, Trust::Blake3), (true, Trust::Sha256)] {
        let dir = memory();
        let top = root(dir.path());
        let (copy, folder) = staged(&top, &|file| {
            if sha256_alone {
                file.blake3 = None;
            }
        })
        .expect("staged");
        assert!(copy.is_admitted() && copy.reasons.is_empty(), "{copy:?}");
        assert_eq!((copy.trust, copy.bytes_read), (trust, BYTES.len() as u64 + 1));
        assert_eq!(copy.files, [(name("a"), Content::of(BYTES)), (name("sub/b"), Content::of(b"b"))]);
        let receipt = *copy.refreshed.expect("a receipt");
        assert_eq!(receipt.bindings["key"], Sha256::of(BYTES).to_string());
        let made = folder.commit(&name("copy"), 0o755, |_| unreachable!("the name is new")).expect("published");
        let mode = std::fs::metadata(dir.path().join("copy/sub/b")).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o444);
        let files: Vec<Expected> =
            copy.files.iter().map(|(name, c)| Expected { name: name.clone(), size: c.size, sha256: None }).collect();
        let subject = b70_store::Subject {
            root: made.root(),
            files: &files,
            format: "example-v2",
            bindings: &receipt.bindings.clone(),
            extras: b70_store::Extras::Ignore,
        };
        let again = admit(&subject, Ok(receipt), &HashOptions::default()).expect("decided");
        assert_eq!((again.trust, again.bytes_read), (Trust::Blake3, BYTES.len() as u64 + 1), "in memory: {again:?}");
    }
}

#[test]
fn what_is_not_the_expected_file_is_refused_and_leaves_nothing() {
    type Change = fn(&mut StageFile<'_>);
    type Refused = fn(&Error) -> bool;
    let cases: [(Change, Refused); 5] = [
        (|file| file.blake3 = Some(Blake3([0; 32])), |e| matches!(e, Error::Damaged { .. })),
        (
            |file| (file.expected.sha256, file.blake3) = (Some(Sha256::EMPTY), None),
            |e| matches!(e, Error::Sha256 { expected: Sha256::EMPTY, .. }),
        ),
        (|file| file.expected.size -= 1, |e| matches!(e, Error::ChangedWhileReading { .. })),
        (|file| file.expected.size += 1, |e| matches!(e, Error::ChangedWhileReading { .. })),
        (
            |file| file.identity = Some(identity_at("/".as_ref()).expect("looked")),
            |e| matches!(e, Error::ChangedWhileReading { .. }),
        ),
    ];
    for (i, (change, refused)) in cases.into_iter().enumerate() {
        let dir = memory();
        let error = staged(&root(dir.path()), &change).expect_err("refused");
        assert!(refused(&error), "{i}: {error:?}");
        assert_eq!(tree(dir.path()), [], "{i}");
    }
}
