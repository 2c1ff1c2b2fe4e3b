//! Files read where the kernel has them: the bytes are the file's, writers wait but never long, and a file that is cut short
//! meanwhile is an error and no signal.

use std::fs::{File, OpenOptions};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use b70_store::{
    DigestKind, Digests, Error, GuardedFile, Hasher, Job, Progress, Source, StreamKernel, hash_file, hash_many_with,
    pool,
};
use b70_testkit::{bytes, memory};

mod common;

use common::disk;

/// Longer than anything here takes, shorter than the 45 s after which the kernel ends a lease by itself.
const SOON: Duration = Duration::from_secs(20);

/// More than is mapped at a time, and no whole number of pages.
const LEN: usize = (9 << 20) + 1234;

fn digests(data: &[u8]) -> Digests {
    let mut hasher = Hasher::new(DigestKind::Both);
    hasher.update(data);
    hasher.finish()
}

#[test]
fn windows_have_the_bytes_of_the_file() {
    for dir in [disk(), memory()] {
        let (path, data) = (dir.path().join("x"), bytes(100_000, 1));
        std::fs::write(&path, &data).expect("written");
        let file = File::open(&path).expect("opens");
        let leased = GuardedFile::of(&file).expect("a lease: nobody has the file open for writing");
        assert_eq!((leased.len(), leased.is_empty(), leased.is_held()), (100_000, false, true));
        for (offset, len) in [(0, 1), (0, 100_000), (1, 4096), (4095, 2), (4096, 4096), (99_999, 1), (50_001, 49_999)] {
            let window = leased.window(offset, len).expect("within the file");
            assert_eq!(*window, data[offset as usize..][..len], "{len} from {offset}");
        }
        for (offset, len) in [(0, 0), (0, 100_001), (100_000, 1), (u64::MAX, 2)] {
            assert!(leased.window(offset, len).is_none(), "{len} from {offset}");
        }
        // A second lease beside it, and its end, change nothing about the first.
        drop(GuardedFile::of(&file).expect("readers may be many"));
        assert!(leased.is_held());
    }
}

#[test]
fn no_lease_beside_a_writer_and_the_digests_are_the_same() {
    for dir in [disk(), memory()] {
        let (path, data) = (dir.path().join("x"), bytes(LEN, 2));
        std::fs::write(&path, &data).expect("written");
        let expected = digests(&data);
        let hash = || hash_file(path.as_path(), DigestKind::Both, &Progress::NONE).expect("hashed");
        assert_eq!(hash(), expected);
        let writer = OpenOptions::new().append(true).open(&path).expect("opens");
        assert!(GuardedFile::of(&File::open(&path).expect("opens")).is_none());
        assert_eq!(hash(), expected);
        drop(writer);
        assert!(GuardedFile::of(&File::open(&path).expect("opens")).is_some());
    }
}

#[test]
fn a_directory_and_a_device_have_no_lease() {
    for path in ["/dev/shm", "/dev/zero"] {
        assert!(GuardedFile::of(&File::open(path).expect("opens")).is_none(), "{path}");
    }
}

#[test]
fn a_writer_waits_until_the_windows_are_gone() {
    let dir = memory();
    let (path, data) = (dir.path().join("x"), bytes(50_000, 3));
    std::fs::write(&path, &data).expect("written");
    let leased = GuardedFile::of(&File::open(&path).expect("opens")).expect("a lease");
    let window = leased.window(0, 50_000).expect("within the file");
    let through = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            File::create(&path).expect("truncated in the end");
            through.store(true, Ordering::SeqCst);
        });
        let started = Instant::now();
        while leased.is_held() {
            assert!(started.elapsed() < SOON, "nobody was seen to wait");
            std::thread::sleep(Duration::from_millis(1));
        }
        // From now on no more, and what is there stays.
        assert!(leased.window(0, 1).is_none());
        assert_eq!(*window, *data);
        assert!(!through.load(Ordering::SeqCst));
        drop(leased);
        assert_eq!(*window, *data);
        assert!(!through.load(Ordering::SeqCst), "a window alone holds it, too");
        drop(window);
        while !through.load(Ordering::SeqCst) {
            assert!(started.elapsed() < SOON, "the writer still waits");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Hashes `path` by `hash`, while another thread cuts it short as soon as the first bytes have been taken.
fn cut_short(
    path: &std::path::Path,
    hash: impl FnOnce(&Progress<'_>) -> Result<Digests, Error>,
) -> Result<Digests, Error> {
    let (begin, wait) = std::sync::mpsc::channel();
    let begin = Mutex::new(Some(begin));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv().is_ok() {
                let started = Instant::now();
                OpenOptions::new().write(true).open(path).expect("opens").set_len(10).expect("cut short");
                assert!(started.elapsed() < SOON, "the writer had to wait for the end of the lease");
            }
        });
        let look = |_| {
            // Gives the writer the time to ask, once.
            if let Some(begin) = begin.lock().expect("no panic").take() {
                begin.send(()).expect("received");
                std::thread::sleep(Duration::from_millis(200));
            }
        };
        hash(&Progress::new(&look))
    })
}

/// What was read before the writer came through is right; what was not is missed.
fn right_or_refused(found: &Result<Digests, Error>, what: DigestKind, data: &[u8]) {
    let expected = digests(data);
    match found {
        Err(Error::ChangedWhileReading { .. }) => {}
        Ok(found) => {
            assert_eq!(found.sha256, expected.sha256.filter(|_| found.sha256.is_some()), "{what:?}");
            assert_eq!(found.blake3, expected.blake3.filter(|_| found.blake3.is_some()), "{what:?}");
            assert_eq!(found.size, expected.size);
        }
        other => panic!("{what:?}: {other:?}"),
    }
}

#[test]
fn a_file_that_is_cut_short_is_an_error_and_no_signal() {
    let (first, second) = (bytes(LEN, 4), bytes(LEN, 5));
    for dir in [disk(), memory()] {
        let path = dir.path().join("x");
        for what in [DigestKind::Sha256, DigestKind::Blake3, DigestKind::Both] {
            std::fs::write(&path, &first).expect("written");
            let cut = cut_short(&path, |progress| hash_file(path.as_path(), what, progress));
            right_or_refused(&cut, what, &first);
            // Side by side with another, and alone over a pool.
            for files in [2, 1] {
                std::fs::write(&path, &first).expect("written");
                let other = dir.path().join("y");
                std::fs::write(&other, &second).expect("written");
                let jobs: Vec<Job<'_>> = [&path, &other].map(|path| Source::Path(path).into())[..files].to_vec();
                let threads = pool(2 / files).expect("a pool");
                let mut found = Vec::new();
                let cut = cut_short(&path, |progress| {
                    found = threads.install(|| hash_many_with(&jobs, what, StreamKernel::best(), progress));
                    found.swap_remove(0)
                });
                right_or_refused(&cut, what, &first);
                for other in found {
                    right_or_refused(&Ok(other.expect("the other one is not to blame")), what, &second);
                }
            }
        }
    }
}
