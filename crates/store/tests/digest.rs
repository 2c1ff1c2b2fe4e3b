//! The digest engine against the reference implementations, and its answers to files that misbehave.

#![allow(clippy::match_wildcard_for_single_variants, reason = "a panic shows whatever it was")]
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

mod common;

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use b70_store::{
    Blake3, Content, DigestKind, Error, Hasher, Job, Progress, Sha256, Source, hash_file, hash_many, open_source,
};
use b70_testkit::bytes;
use proptest::prelude::*;
use sha2::Digest as _;

use common::{disk, name, root};

fn reference(data: &[u8]) -> (Sha256, Blake3) {
    (Sha256(sha2::Sha256::digest(data).into()), Blake3(*blake3::hash(data).as_bytes()))
}

#[test]
fn known_answers() {
    // FIPS 180-4 example and the BLAKE3 paper's empty input.
    assert_eq!(Sha256::of(b"abc").to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(Sha256::of(b""), Sha256::EMPTY);
    assert_eq!(Content::of(b"").blake3.to_string(), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
}

#[test]
fn digests_parse_strictly() {
    let text = Sha256::EMPTY.to_string();
    assert_eq!(text.parse::<Sha256>().expect("a digest"), Sha256::EMPTY);
    for bad in
        ["", "e3b0", &text.to_uppercase(), &format!("{text}0"), &text.replace('e', "g"), &text.replace("e3", "é")]
    {
        assert!(bad.parse::<Sha256>().is_err(), "{bad}");
    }
    let json = serde_json::to_string(&Sha256::EMPTY).expect("serializes");
    assert_eq!(json, format!("\"{text}\""));
    assert!(serde_json::from_str::<Sha256>("\"00\"").is_err());
}

proptest! {
    #[test]
    fn any_split_gives_the_same_digests(data in prop::collection::vec(any::<u8>(), 0..200_000), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), parallel: bool) {
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(data.len() + 1)).collect();
        cuts.sort_unstable();
        let mut hasher = Hasher::new(DigestKind::Both);
        let mut from = 0;
        for to in cuts.into_iter().chain([data.len()]) {
            if parallel { hasher.update_parallel(&data[from..to]) } else { hasher.update(&data[from..to]) }
            from = to;
        }
        let found = hasher.finish();
        let (sha256, blake3) = reference(&data);
        prop_assert_eq!(found.content(), Some(Content { sha256, blake3, size: data.len() as u64 }));
    }
}

#[test]
fn files_of_every_awkward_length() {
    let dir = disk();
    let lengths =
        [0, 1, 63, 64, 65, 1023, 1024, 4095, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 1, (8 << 20) + 3];
    let mut paths = Vec::new();
    let mut expected = Vec::new();
    for len in lengths {
        let data = bytes(len, len as u64);
        let path = dir.path().join(format!("f{len}"));
        std::fs::write(&path, &data).expect("written");
        expected.push(reference(&data));
        paths.push(path);
    }
    for what in [DigestKind::Sha256, DigestKind::Blake3, DigestKind::Both] {
        let jobs: Vec<Job<'_>> = paths.iter().map(|p| p.as_path().into()).collect();
        let counted = AtomicU64::new(0);
        let count = |n| {
            counted.fetch_add(n, Ordering::Relaxed);
        };
        let many = hash_many(&jobs, what, &Progress::new(&count));
        assert_eq!(counted.into_inner(), lengths.iter().sum::<usize>() as u64);
        for (i, found) in many.into_iter().enumerate() {
            let found = found.expect("hashed");
            let alone = hash_file(paths[i].as_path(), what, &Progress::NONE).expect("hashed");
            let piped = hash_many(&jobs[i..=i], what, &Progress::NONE).remove(0).expect("hashed");
            assert_eq!((found, found), (alone, piped));
            assert_eq!(found.sha256, (what != DigestKind::Blake3).then_some(expected[i].0));
            assert_eq!(found.blake3, (what != DigestKind::Sha256).then_some(expected[i].1));
        }
    }
}

/// SHA-256 of 2³² zero bytes, computed with CPython's hashlib.
const FOUR_GIB_OF_ZEROS: &str = "8479e43911dc45e89f934fe48d01297e16f51d17aa561d4d1c216b1ae0fcddca";

const LARGE: [u64; 4] = [(1 << 31) - 1, (1 << 31) + 1, 1 << 32, (1 << 32) + 1];

fn sparse(path: &Path, size: u64) {
    File::create(path).and_then(|f| f.set_len(size)).expect("a sparse file");
}

#[test]
fn another_size_is_refused_before_a_byte_is_read_also_beyond_32_bits() {
    let dir = disk();
    let path = dir.path().join("sparse");
    let never = |_| panic!("a byte was read");
    for size in LARGE {
        sparse(&path, size);
        // Sizes that are equal modulo 2³¹ or 2³² are other sizes.
        for other in [size ^ (1 << 32), size ^ (1 << 31), size + 1, 0] {
            let job = Job { source: Source::Path(&path), size: Some(other) };
            match hash_file(job, DigestKind::Blake3, &Progress::new(&never)) {
                Err(Error::Size { expected, found, .. }) => assert_eq!((expected, found), (other, size)),
                result => panic!("{result:?}"),
            }
        }
    }
}

#[test]
#[ignore = "about 20 s of hashing: cargo xtask test --all"]
fn sizes_beyond_32_bits() {
    let dir = disk();
    let path = dir.path().join("sparse");
    for size in LARGE {
        sparse(&path, size);
        let what = if size == 1 << 32 { DigestKind::Sha256 } else { DigestKind::Blake3 };
        let job = Job { source: Source::Path(&path), size: Some(size) };
        let found = hash_many(&[job], what, &Progress::NONE).remove(0).expect("hashed");
        assert_eq!(found.size, size);
        match what {
            DigestKind::Sha256 => assert_eq!(found.sha256.expect("asked for").to_string(), FOUR_GIB_OF_ZEROS),
            _ => assert_eq!(found.blake3, Some(blake3_of_zeros(size))),
        }
    }
}

/// The reference implementation, fed from memory.
fn blake3_of_zeros(size: u64) -> Blake3 {
    let zeros = vec![0; 1 << 24];
    let mut hasher = blake3::Hasher::new();
    let mut rest = size;
    while rest > 0 {
        let n = rest.min(zeros.len() as u64);
        hasher.update(&zeros[..n as usize]);
        rest -= n;
    }
    Blake3(*hasher.finalize().as_bytes())
}

#[test]
fn a_file_that_grows_or_shrinks_meanwhile_is_an_error() {
    let dir = disk();
    let path = dir.path().join("f");
    for delta in [-(6_i64 << 20), 5 << 20] {
        for many in [false, true] {
            std::fs::write(&path, bytes(12 << 20, 1)).expect("written");
            let once = AtomicBool::new(false);
            // Open beforehand, so that there is no lease for which it would have to wait.
            let file = File::options().write(true).open(&path).expect("opens");
            let resize = |_| {
                if !once.swap(true, Ordering::SeqCst) {
                    file.set_len(((12 << 20) + delta) as u64).expect("resized");
                }
            };
            let progress = Progress::new(&resize);
            let result = if many {
                hash_many(&[path.as_path().into()], DigestKind::Both, &progress).remove(0)
            } else {
                hash_file(path.as_path(), DigestKind::Both, &progress)
            };
            assert!(matches!(result, Err(Error::ChangedWhileReading { .. })), "{result:?}");
        }
    }
}

#[test]
fn cancellation_ends_every_file() {
    let dir = disk();
    let paths: Vec<_> = (0..8).map(|i| dir.path().join(format!("f{i}"))).collect();
    for path in &paths {
        std::fs::write(path, bytes(3 << 20, 7)).expect("written");
    }
    let jobs: Vec<Job<'_>> = paths.iter().map(|p| p.as_path().into()).collect();
    let cancel = AtomicBool::new(false);
    let stop = |_| cancel.store(true, Ordering::Relaxed);
    let results = hash_many(&jobs, DigestKind::Sha256, &Progress::new(&stop).with_cancel(&cancel));
    assert_eq!(results.len(), 8);
    assert!(results.iter().all(|r| matches!(r, Err(Error::Cancelled))), "{results:?}");
}

#[test]
fn special_files_are_refused_by_name_and_never_block() {
    let dir = disk();
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("a FIFO");
    for (path, kind) in
        [(fifo.as_path(), "FIFO"), (dir.path(), "directory"), (Path::new("/dev/zero"), "character device")]
    {
        match hash_file(path, DigestKind::Sha256, &Progress::NONE) {
            Err(Error::Kind { path: named, found, .. }) => assert_eq!((named.as_path(), found), (path, kind)),
            other => panic!("{other:?}"),
        }
        assert!(open_source(path).is_err());
    }
    assert!(matches!(
        hash_file(dir.path().join("no").as_path(), DigestKind::Both, &Progress::NONE),
        Err(Error::Missing { .. })
    ));
}

#[test]
fn names_need_not_be_utf8() {
    let dir = disk();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe mod\xe8l");
    std::fs::write(dir.path().join(odd), b"abc").expect("written");
    let rel = b70_store::RelPath::new(odd).expect("allowed");
    let top = root(dir.path());
    let found = hash_file(Source::Beneath(&top, &rel), DigestKind::Sha256, &Progress::NONE).expect("hashed");
    assert_eq!(found.sha256, Some(Sha256::of(b"abc")));
    let json = serde_json::to_string(&rel).expect("serializes");
    assert_eq!(json, r#"{"hex":"fffe206d6f64e86c"}"#);
    assert_eq!(serde_json::from_str::<b70_store::RelPath>(&json).expect("parses"), rel);
}

#[test]
fn the_empty_file_is_recognised_in_messages() {
    let dir = disk();
    std::fs::write(dir.path().join("e"), b"").expect("written");
    let top = root(dir.path());
    let rel = name("e");
    let job = Job { source: Source::Beneath(&top, &rel), size: Some(10) };
    let message = hash_file(job, DigestKind::Sha256, &Progress::NONE).expect_err("another size").to_string();
    assert!(message.contains("the file is empty"), "{message}");
}
