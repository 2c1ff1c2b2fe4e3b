//! Sealed files, and maps of what the kernel keeps still.

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use b70_store::{Error, Progress, SealedFile, Sha256, StillMap};
use b70_testkit::{bytes, memory};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const ALL: [SealFlags; 4] = [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL];

fn memfd(data: &[u8], seals: impl IntoIterator<Item = SealFlags>) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::io::write(&fd, data).expect("written");
    for seal in seals {
        fcntl_add_seals(&fd, seal).expect("sealed");
    }
    fd
}

#[test]
fn a_sealed_copy_is_what_it_was_copied_from_and_stays_so() {
    let dir = memory();
    for size in [0, 1, 4096, (3 << 20) + 7] {
        let data = bytes(size, 1);
        let path = dir.path().join("f");
        std::fs::write(&path, &data).expect("written");
        let file = File::open(&path).expect("open");
        let copy = |size, sha256| SealedFile::copy_of(&file, &path, size, sha256, &Progress::NONE);
        let sealed = copy(size as u64, Sha256::of(&data)).expect("sealed");
        assert!(sealed.map().expect("mapped")[..] == data[..]);
        let other = copy(size as u64, Sha256::of(b"other"));
        assert!(matches!(other, Err(Error::Sha256 { .. })), "{other:?}");
        assert!(matches!(copy(size as u64 + 1, Sha256::of(&data)), Err(Error::ChangedWhileReading { .. })));
        // Nobody can change it, whatever the descriptor is used for.
        let file = File::from(sealed.into_fd());
        assert!(std::os::unix::fs::FileExt::write_at(&file, b"x", 0).is_err());
        assert!(file.set_len(size as u64 + 1).is_err() && (size == 0 || file.set_len(0).is_err()));
        // Handed over, it is proved once more.
        let fd = OwnedFd::from(file);
        SealedFile::from_fd(fd, Path::new("fd"), size as u64, Sha256::of(&data), &Progress::NONE).expect("sealed");
    }
}

#[test]
fn a_descriptor_that_lacks_a_seal_is_refused_by_its_name() {
    let data = bytes(5000, 1);
    let take = |fd| SealedFile::from_fd(fd, Path::new("fd 7"), 5000, Sha256::of(&data), &Progress::NONE);
    for (lacking, name) in ALL.into_iter().zip(["F_SEAL_WRITE", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL"]) {
        let said = take(memfd(&data, ALL.into_iter().filter(|seal| *seal != lacking))).expect_err(name).to_string();
        assert!(said.contains(name) && said.contains("fd 7"), "{said}");
    }
    // Whoever has it mapped for writing keeps that with the seal for new writers alone.
    let future = [SealFlags::FUTURE_WRITE, SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL];
    assert!(matches!(take(memfd(&data, future)), Err(Error::NotStill { .. })));
    // No memfd at all.
    let dir = memory();
    std::fs::write(dir.path().join("f"), &data).expect("written");
    let ordinary = File::open(dir.path().join("f")).expect("open");
    assert!(matches!(take(ordinary.into()), Err(Error::NotStill { .. })));
    take(memfd(&data, ALL)).expect("sealed for good");
    let wrong = take(memfd(&bytes(5000, 2), ALL));
    assert!(matches!(wrong, Err(Error::Sha256 { .. })), "{wrong:?}");
}

#[test]
fn only_what_is_immutable_is_mapped_without_an_argument() {
    let dir = memory();
    let path = dir.path().join("f");
    std::fs::write(&path, "x").expect("written");
    let refused = StillMap::of_immutable(&File::open(&path).expect("open"), &path);
    assert!(matches!(&refused, Err(Error::NotStill { .. })), "{refused:?}");
}
