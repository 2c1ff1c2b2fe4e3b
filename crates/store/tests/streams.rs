//! Streams hashed side by side against `sha2`, one by one: every length around a block, any lengths, any splits, every
//! kernel of this CPU.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use b70_store::{
    Content, DigestKind, Error, Job, OnExisting, Progress, Sha256, Sha256Streams, StreamKernel, TempFile,
    hash_many_with, pool, read_back,
};
use b70_testkit::{bytes, memory};
use proptest::prelude::*;
use sha2::Digest as _;

mod common;

use common::{disk, name, root};

fn reference(data: &[u8]) -> Sha256 {
    Sha256(sha2::Sha256::digest(data).into())
}

/// Feeds every stream in pieces of `step` bytes, which may differ from stream to stream.
fn side_by_side(kernel: StreamKernel, streams: &[Vec<u8>], step: impl Fn(usize) -> usize) -> Vec<Sha256> {
    let mut lanes = Sha256Streams::new(streams.len(), kernel);
    assert_eq!(lanes.count(), streams.len());
    let mut rest: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    while rest.iter().any(|rest| !rest.is_empty()) {
        let mut pieces = Vec::new();
        for (lane, rest) in rest.iter_mut().enumerate() {
            let (piece, after) = rest.split_at(rest.len().min(step(lane).max(1)));
            pieces.push(piece);
            *rest = after;
        }
        lanes.update(&pieces);
    }
    (0..streams.len()).map(|lane| lanes.take(lane)).collect()
}

fn kernels() -> Vec<StreamKernel> {
    let mut all = StreamKernel::available();
    assert_eq!(all[0], StreamKernel::plain());
    all.push(StreamKernel::best());
    all
}

#[test]
fn every_length_around_five_blocks() {
    let streams: Vec<Vec<u8>> = (0..=300).map(|len| bytes(len, len as u64 + 1)).collect();
    let expected: Vec<Sha256> = streams.iter().map(|data| reference(data)).collect();
    for kernel in kernels() {
        assert!((1..=16).contains(&kernel.width()), "{}", kernel.name());
        for step in [1, 7, 63, 64, 65, 128, 301] {
            assert_eq!(side_by_side(kernel, &streams, |_| step), expected, "{} by {step}", kernel.name());
        }
    }
}

#[test]
fn every_number_of_streams() {
    for count in 0..=40 {
        // Lengths that end at different blocks, some of them empty.
        let streams: Vec<Vec<u8>> = (0..count).map(|i| bytes((i * 977) % 4096, i as u64)).collect();
        let expected: Vec<Sha256> = streams.iter().map(|data| reference(data)).collect();
        for kernel in kernels() {
            assert_eq!(side_by_side(kernel, &streams, |_| 4096), expected, "{} × {count}", kernel.name());
            assert_eq!(side_by_side(kernel, &streams, |lane| 64 + lane * 13), expected, "{} × {count}", kernel.name());
        }
    }
}

#[test]
fn a_stream_that_was_taken_starts_afresh() {
    for kernel in kernels() {
        let mut lanes = Sha256Streams::new(3, kernel);
        lanes.update(&[b"abc", b"", b"left alone"]);
        assert_eq!(lanes.take(0), reference(b"abc"));
        assert_eq!(lanes.take(1), Sha256::EMPTY);
        lanes.update(&[b"def"]);
        assert_eq!(lanes.take(0), reference(b"def"));
        assert_eq!(lanes.take(2), reference(b"left alone"));
    }
}

proptest! {
    #[test]
    fn any_streams_in_any_pieces(
        streams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 1..24),
        steps in prop::collection::vec(1_usize..3000, 24),
    ) {
        let expected: Vec<Sha256> = streams.iter().map(|data| reference(data)).collect();
        for kernel in kernels() {
            prop_assert_eq!(side_by_side(kernel, &streams, |lane| steps[lane]), expected.clone(), "{}", kernel.name());
        }
    }
}

#[test]
fn files_of_unequal_length_by_every_kernel() {
    let dir = memory();
    let lengths = [0, 1, 64, 65_536, 65_537, 1 << 20, (1 << 20) + 3, 300_000];
    let mut paths = Vec::new();
    let mut expected = Vec::new();
    for i in 0..41_usize {
        let data = bytes(lengths[i % lengths.len()] + i, i as u64);
        let path = dir.path().join(i.to_string());
        std::fs::write(&path, &data).expect("written");
        expected.push(Content::of(&data));
        paths.push(path);
    }
    let missing = dir.path().join("missing");
    paths.insert(20, missing.clone());
    let jobs: Vec<Job<'_>> = paths.iter().map(|path| path.as_path().into()).collect();
    for kernel in kernels() {
        for threads in [1, 2, 3] {
            let pool = pool(threads).expect("a pool");
            let mut found = pool.install(|| hash_many_with(&jobs, DigestKind::Both, kernel, &Progress::NONE));
            assert!(matches!(found.remove(20), Err(Error::Missing { path }) if path == missing));
            let found: Vec<_> = found.into_iter().map(|one| one.expect("hashed").content()).collect();
            assert!(
                found.iter().zip(&expected).all(|(found, expected)| *found == Some(*expected)),
                "{}",
                kernel.name()
            );
        }
    }
}

/// As on a large machine.
const WORKERS: usize = 64;

#[test]
fn many_workers_hold_no_more_files_open_than_a_process_may() {
    let dir = memory();
    let paths: Vec<_> = (0..1600).map(|i| dir.path().join(i.to_string())).collect();
    for path in &paths {
        std::fs::write(path, vec![7; 70_000]).expect("written");
    }
    let jobs: Vec<Job<'_>> = paths.iter().map(|path| path.as_path().into()).collect();
    let pool = pool(WORKERS).expect("a pool");
    for kernel in kernels() {
        let (calls, open, all_have_begun) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(WORKERS));
        // The first call of each worker, with its files open, waits for those of the others.
        let look = |_| {
            if calls.fetch_add(1, Ordering::Relaxed) < WORKERS && all_have_begun.wait().is_leader() {
                let fds = std::fs::read_dir("/proc/self/fd").expect("one more descriptor can be had").flatten();
                let ours = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(dir.path())));
                open.store(ours.count(), Ordering::Relaxed);
            }
        };
        let found = pool.install(|| hash_many_with(&jobs, DigestKind::Sha256, kernel, &Progress::new(&look)));
        assert!(found.iter().all(Result::is_ok), "{}", kernel.name());
        assert!((1..=768).contains(&open.into_inner()), "{}", kernel.name());
    }
}

#[test]
fn files_read_back_together_have_what_was_written() {
    for dir in [disk(), memory()] {
        let top = root(dir.path());
        for kernel in kernels() {
            let data: Vec<Vec<u8>> = (0..5).map(|i| bytes(70_000 * i + i, i as u64)).collect();
            let mut files = Vec::new();
            for (i, data) in data.iter().enumerate() {
                let mut temp = TempFile::create(&top, 0o444).expect("made");
                temp.reserve(data.len() as u64 + 5000).expect("reserved");
                if i != 1 {
                    temp.without_sha256();
                }
                // Out of order: nothing is known of what was written, and the file itself is believed.
                if i == 3 {
                    temp.write_at(0, data).expect("written");
                } else {
                    temp.write_all(data).expect("written");
                }
                temp.close().expect("closed");
                let file = temp;
                file.start_writeback();
                assert_eq!((file.len(), file.is_empty()), (data.len() as u64, data.is_empty()));
                assert_eq!(file.content(), None);
                files.push(file);
            }
            let mut all: Vec<_> = files.iter_mut().take(4).collect();
            read_back(&mut all, kernel, &Progress::NONE).expect("they hold what was written");
            // The last one is read back by its commit.
            for (i, (mut file, data)) in files.into_iter().zip(&data).enumerate() {
                assert_eq!(file.content(), (i < 4).then(|| Content::of(data)));
                if i < 2 {
                    file.sync().expect("on the disk");
                }
                let as_named = name(&format!("{}-{i}", kernel.name()));
                let published = file.commit(&as_named, OnExisting::Fail, None, &Progress::NONE).expect("published");
                assert_eq!(published.content, Content::of(data));
                assert_eq!(std::fs::read(&published.path).expect("read"), *data);
            }
        }
        let hidden = common::tree(dir.path()).into_iter().filter(|(path, _)| path.to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0);
    }
}

#[test]
fn bytes_that_changed_in_the_file_are_found_and_nothing_gets_a_name() {
    let dir = memory();
    let top = root(dir.path());
    let data = bytes(200_000, 3);
    let mut temp = TempFile::create(&top, 0o444).expect("made");
    temp.write_all(&data).expect("written");
    // Another handle on the same inode, as a fault below us would have it.
    let fds = std::fs::read_dir("/proc/self/fd").expect("listed");
    let own = fds
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|fd| {
            std::fs::read_link(fd)
                .is_ok_and(|to| to.starts_with(dir.path()) && to.to_string_lossy().ends_with("(deleted)"))
        })
        .expect("the unnamed file is open");
    let writer = std::fs::File::options().write(true).open(own).expect("opens");
    temp.close().expect("closed");
    let mut file = temp;
    std::os::unix::fs::FileExt::write_at(&writer, &[data[150_000] ^ 1], 150_000).expect("damaged");
    match read_back(&mut [&mut file], StreamKernel::best(), &Progress::NONE) {
        Err(Error::ReadBack { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(file.commit(&name("x"), OnExisting::Fail, None, &Progress::NONE), Err(Error::ReadBack { .. })));
    assert_eq!(common::tree(dir.path()), []);
}
