//! The RAM stage through the library: a thousand random tamperings, none of which may be trusted.
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use b70_packset::{Depth, Expectation, Lookup, SetDir, Stage, StageOptions, VerifyStatus, stage_ram, stage_validate};
use b70_store::Trust;
use b70_testkit::writers::{SharedMap, StalledWrite, flip_through_map};
use b70_testkit::{Dice, memory};
use common::Lab;
use common::models::STANDARD;

/// Changes one byte of a file in place and puts its times back.
fn tamper(path: &Path, at: u64, numbers: &mut Dice) {
    let metadata = fs::metadata(path).expect("our file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("our file");
    let file = fs::File::options().read(true).write(true).open(path).expect("our file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("inside the file");
    byte[0] ^= 1 << numbers.below(8);
    file.write_all_at(&byte, at).expect("our file");
    let times = fs::FileTimes::new()
        .set_modified(metadata.modified().expect("a time"))
        .set_accessed(UNIX_EPOCH + Duration::from_secs(1));
    file.set_times(times).expect("our file");
    fs::set_permissions(path, metadata.permissions()).expect("our file");
}

#[test]
fn a_thousand_tamperings_and_not_one_is_trusted() {
    tamperings(1000, false);
}

#[test]
#[ignore = "needs root (userfaultfd) and a minute: cargo xtask test --all"]
fn ten_thousand_tamperings_and_not_one_is_trusted() {
    tamperings(10_000, true);
}

/// `stalled`: every sixteenth is a write that stalls over a proof of the stage.
fn tamperings(rounds: u32, stalled: bool) {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let set = SetDir::open_path(&lab.set("cache", &prepared)).expect("a set");
    let ram = memory();
    let options = StageOptions { min_free: 1 << 20, ..StageOptions::new(ram.path()) };
    let staged = stage_ram(&set, &lab.layout, &options).expect("it can be staged");
    let names: Vec<_> = fs::read_dir(staged.stage.join("tensors"))
        .expect("a stage")
        .map(|entry| entry.expect("a stage").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    let mut numbers = Dice(20_261_129);
    let (mut refused, mut unread) = (0, 0);
    for round in 0..rounds {
        let victim = &names[numbers.below(names.len() as u64) as usize];
        let at = numbers.below(fs::metadata(victim).expect("our file").len());
        let original = fs::read(victim).expect("our file");
        let validate =
            || stage_validate(prepared.set_key, Some(&set), &lab.layout, Depth::Shallow, &options).expect("checked");
        if round % 16 == 2 && stalled {
            let mut page = original.clone();
            for byte in &mut page {
                *byte ^= 1 << numbers.below(8);
            }
            let write = StalledWrite::begin(victim, &page[..page.len().min(4096)]).expect("userfaultfd needs root");
            // Still as it was: admitted, and no receipt of it can stand.
            assert_eq!(validate().status, VerifyStatus::Ready);
            write.release().expect("written");
        } else if round % 4 == 3 {
            // Mapped before a proof, stored to after it.
            let mut map = SharedMap::of(victim);
            assert_eq!(validate().status, VerifyStatus::Ready);
            map.flip(at as usize, 1 << numbers.below(8));
        } else if round % 2 == 0 {
            tamper(victim, at, &mut numbers);
        } else {
            // No time moves, so there is none to put back.
            flip_through_map(victim, at as usize, 1 << numbers.below(8));
        }
        let report = validate();
        unread += u64::from(report.checked_bytes == 0);
        refused += u64::from(report.status == VerifyStatus::Failed);
        // The bytes come back in place, and the next look proves them.
        fs::set_permissions(victim, fs::Permissions::from_mode(0o644)).expect("our file");
        fs::write(victim, original).expect("our file");
        fs::set_permissions(victim, fs::Permissions::from_mode(0o444)).expect("our file");
        let mended = validate();
        assert_eq!((mended.status, mended.trust), (VerifyStatus::Ready, Some(Trust::Blake3)), "{mended:#?}");
    }
    println!("{rounds} tamperings: {refused} refused, {unread} not read");
    assert_eq!((refused, unread), (u64::from(rounds), 0));
}

#[test]
fn a_consumer_takes_slices_from_a_stage() {
    let lab = Lab::with(&STANDARD);
    let prepared = lab.prepare("cache", 1, None);
    let set = SetDir::open_path(&lab.set("cache", &prepared)).expect("a set");
    let ram = memory();
    let options = StageOptions { min_free: 1 << 20, ..StageOptions::new(ram.path()) };
    let staged = stage_ram(&set, &lab.layout, &options).expect("it can be staged");
    let stage = Stage::open(&staged.stage, &lab.layout, &Expectation::default()).expect("a stage is a set");
    for entry in &stage.manifest().tensors {
        let identity = &entry.identity;
        let lookup = Lookup {
            target_model_sha256: identity.target_model_sha256,
            tensor_name: &identity.tensor_name,
            tensor_shape: identity.tensor_shape,
            tensor_type: &identity.tensor_type,
            pack_layout_version: identity.pack_layout_version,
            target_architecture: &identity.target_architecture,
        };
        let tensor = stage.tensor(&lookup).expect("the set's own fields");
        assert_eq!(tensor.read().expect("the recorded digest").len() as u64, entry.payload.size_bytes);
        stage.tensor(&Lookup { pack_layout_version: 3, ..lookup }).expect_err("another layout version");
    }
}
