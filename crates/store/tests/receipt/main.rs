//! Trust receipts: issue and honour against real files, real writers, and more than a thousand tamperings.

#![allow(clippy::match_wildcard_for_single_variants, reason = "a panic shows whatever it was")]
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

#[path = "../common/mod.rs"]
mod common;
mod set;
mod tampering;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use b70_store::{
    Content, Error, Expected, HashOptions, LeaseEvidence, Progress, Quiet, Receipt, ReceiptReason, ReceiptVerdict,
    Sha256, Standing, Trust, admit, examine, issue,
};
use b70_testkit::writers::open_to_write;
use b70_testkit::{bytes, memory};

use common::{Talker, answer, child, disk, job, name, tree};
use set::{Set, write};

const RECEIPT: &str = "receipt.json";
const FORMAT: &str = "test-receipt-v2";
const SIZE: usize = 5000;

#[test]
fn a_receipt_lets_quiet_files_rest_unread_and_saves_the_sha256_of_others() {
    for dir in [disk(), memory()] {
        let set = Set::new(dir, 7);
        let receipt = set.issue_and_store();
        assert_eq!(Receipt::load(&set.root, &name(RECEIPT)).expect("loads"), receipt);
        assert_eq!(receipt.validated_bytes, 7 * SIZE as u64);
        assert!(receipt.files.iter().all(|f| f.evidence == LeaseEvidence::Lease
            && Content::from(f) == Content::of(&bytes(SIZE, seed(f.name.as_str())))));
        let outcome = set.admit();
        assert!(outcome.is_admitted());
        let (trust, bytes) = set.at_rest();
        assert_eq!((outcome.trust, outcome.bytes_read, outcome.refreshed.is_some()), (trust, bytes, false));
        let in_memory = |r: &ReceiptReason| matches!(r, ReceiptReason::MutableInMemory { .. });
        assert!(outcome.reasons.iter().all(in_memory) && (bytes > 0 || outcome.reasons.is_empty()), "{outcome:?}");
        assert_eq!((outcome.extra.as_slice(), outcome.files.len()), (&[][..], 7));
        // Reading the files and looking at them changes nothing.
        drop(tree(set.dir.path()));
        assert_eq!(set.admit().trust, trust);
    }
}

fn seed(name: Option<&str>) -> u64 {
    let digits: String = name.expect("utf-8").chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn without_a_receipt_everything_is_hashed_and_one_is_offered() {
    let set = Set::new(memory(), 3);
    let outcome = set.admit();
    assert_eq!((outcome.trust, outcome.bytes_read), (Trust::Sha256, 3 * SIZE as u64));
    assert!(matches!(outcome.reasons.as_slice(), [ReceiptReason::ReceiptMissing { .. }]));
    outcome.refreshed.expect("offered").store(&set.root, &name(RECEIPT)).expect("stored");
    assert_eq!(set.admit().trust, Trust::Blake3);
}

#[test]
fn metadata_changes_are_reproved_by_blake3_and_refreshed() {
    for dir in [disk(), memory()] {
        let set = Set::new(dir, 4);
        let changes: [&dyn Fn(&Path); 5] = [
            &|p| std::fs::hard_link(p, p.with_extension("link")).expect("linked"),
            &|p| std::fs::set_permissions(p, PermissionsExt::from_mode(0o600)).expect("set"),
            &|p| {
                std::fs::rename(p, p.with_extension("x")).expect("renamed");
                std::fs::rename(p.with_extension("x"), p).expect("renamed");
            },
            &|p| {
                std::fs::copy(p, p.with_extension("x")).expect("copied");
                std::fs::rename(p.with_extension("x"), p).expect("renamed");
            },
            &|p| {
                open_to_write(p).set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
            },
        ];
        for change in changes {
            set.issue_and_store();
            change(&set.path(2));
            let outcome = set.admit();
            assert!(outcome.is_admitted());
            let (at_rest, all) = set.at_rest();
            let read = if all == 0 { SIZE as u64 } else { all };
            let weakest = at_rest.min(Trust::Blake3);
            assert_eq!((outcome.trust, outcome.bytes_read), (weakest, read), "on a disk only that file was read");
            let changed = |r: &&ReceiptReason| matches!(r, ReceiptReason::IdentityChanged { .. });
            assert_eq!(outcome.reasons.iter().filter(changed).count(), 1, "{:?}", outcome.reasons);
            outcome.refreshed.expect("refreshed").store(&set.root, &name(RECEIPT)).expect("stored");
            assert_eq!(set.admit().trust, at_rest);
            if set.path(2).metadata().expect("there").permissions().mode() & 0o222 != 0 && all == 0 {
                let how = HashOptions { read_only: true, ..HashOptions::default() };
                let again = admit(&set.subject(), Receipt::load(&set.root, &name(RECEIPT)), &how).expect("decided");
                let said = matches!(again.reasons.as_slice(), [ReceiptReason::Writable { .. }]);
                assert!(said && again.bytes_read == SIZE as u64, "{again:?}");
                std::fs::set_permissions(set.path(2), PermissionsExt::from_mode(0o444)).expect("set");
            }
        }
    }
}

#[test]
fn changed_missing_and_extra_files_are_all_named() {
    let set = Set::new(memory(), 6);
    set.issue_and_store();
    write(&set.path(0), &bytes(SIZE, 99));
    write(&set.path(1), b"short");
    std::fs::remove_file(set.path(2)).expect("removed");
    std::fs::remove_file(set.path(3)).expect("removed");
    symlink("0.bin", set.path(3)).expect("linked");
    std::fs::write(set.dir.path().join("tensors/new\nname"), "").expect("written");
    let outcome = set.admit();
    assert!(!outcome.is_admitted() && outcome.refreshed.is_none());
    let mut named: Vec<_> = outcome.changed.iter().map(|m| m.path.clone()).collect();
    named.sort();
    let mut expected: Vec<_> = (0..4).map(|i| set.path(i)).collect();
    expected.sort();
    assert_eq!(named, expected);
    assert_eq!(outcome.extra, [Path::new("tensors/new\nname")]);
    // Issue refuses, naming all that it can see.
    match issue(&set.subject(), &HashOptions::default()) {
        Err(Error::Mismatches(all)) => assert_eq!(all.len(), 4),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_binding_format_or_expectation_voids_the_receipt() {
    let mut set = Set::new(disk(), 3);
    let receipt = set.issue_and_store();
    let void = |set: &Set| {
        let examination = examine(&set.subject(), &receipt, &HashOptions::default()).expect("looked");
        assert!(!examination.is_trusted());
        let outcome = set.admit();
        assert!(outcome.is_admitted() && outcome.bytes_read > 0, "{outcome:?}");
        outcome.reasons
    };
    set.bindings.insert("set_key".to_owned(), "other".to_owned());
    assert!(matches!(void(&set).as_slice(), [ReceiptReason::BindingChanged { .. }]));
    set.bindings.clear();
    assert!(matches!(void(&set).as_slice(), [ReceiptReason::BindingChanged { expected: None, .. }]));
    set.bindings.clone_from(&receipt.bindings);

    let dropped = set.files.pop().expect("three");
    assert!(matches!(void(&set).as_slice(), [ReceiptReason::ListedButNotExpected { .. }]));
    set.files.push(dropped);

    write(&set.dir.path().join("another"), b"another");
    set.files.push(Expected { name: name("another"), size: 7, sha256: Some(Sha256::of(b"another")) });
    assert!(matches!(void(&set).as_slice(), [ReceiptReason::NotListed { .. }]));
    set.files.pop();

    // The manifest now wants other bytes: the receipt must not vouch for the old ones.
    set.files[0].sha256 = Some(Sha256::EMPTY);
    let outcome = set.admit();
    assert_eq!(outcome.changed.len(), 1, "{outcome:?}");
}

#[test]
fn a_file_nobody_vouches_for_is_said_to_be_so() {
    let mut set = Set::new(memory(), 1);
    set.files[0].sha256 = None;
    let outcome = set.admit();
    assert!(outcome.is_admitted() && outcome.reasons.iter().any(|r| matches!(r, ReceiptReason::Unvouched { .. })));
    outcome.refreshed.expect("offered").store(&set.root, &name(RECEIPT)).expect("stored");
    assert_eq!(set.admit().trust, Trust::Blake3);
    // From then on the receipt says what it must be.
    write(&set.path(0), &bytes(SIZE, 5));
    assert!(!set.admit().is_admitted());
}

#[test]
fn damaged_forged_and_foreign_receipts_are_not_believed() {
    let set = Set::new(memory(), 2);
    let receipt = set.issue_and_store();
    let path = set.dir.path().join(RECEIPT);
    let text = std::fs::read_to_string(&path).expect("there");
    let hex = receipt.files[0].blake3.to_string();
    let zeros = "0".repeat(64);
    for (what, forged) in [
        ("empty", String::new()),
        ("torn", text[..text.len() / 2].to_owned()),
        ("not JSON", "receipt".to_owned()),
        ("other digest", text.replace(&hex, &zeros)),
        ("other size", text.replace("\"size\": 5000", "\"size\": 5001")),
        ("unknown field", text.replacen('{', "{\"x\": 1,", 1)),
        ("other rule", text.replace("\"rule\": \"v2\"", "\"rule\": \"v3\"")),
        (
            "the older format",
            r#"{"schema_version":1,"format":"qwen27-xe2-m6-deep-validation-v1","status":"ready"}"#.to_owned(),
        ),
    ] {
        assert_ne!(forged, text, "{what}");
        std::fs::write(&path, forged).expect("written");
        let outcome = set.admit();
        assert!(outcome.is_admitted(), "a bad receipt is not a bad set");
        assert_eq!(outcome.trust, Trust::Sha256, "{what}");
        assert!(
            matches!(
                outcome.reasons.as_slice(),
                [ReceiptReason::ReceiptDamaged { .. } | ReceiptReason::OtherRule { .. }]
            ),
            "{what}"
        );
    }
    // A receipt with a wrong BLAKE3 but a right checksum: only someone with our rights can make one; SHA-256 decides.
    let mut wrong = receipt.clone();
    wrong.0.files[0].blake3 = b70_store::Blake3([7; 32]);
    assert!(Receipt::from_bytes(&wrong.to_bytes(), path.clone()).is_err());

    std::fs::write(&path, &text).expect("written");
    for (mode, believed) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        assert_eq!(Receipt::load(&set.root, &name(RECEIPT)).is_ok(), believed, "{mode:o}");
    }
    for (mode, believed) in [(0o777, false), (0o1777, false), (0o775, false), (0o755, true)] {
        std::fs::set_permissions(set.dir.path(), PermissionsExt::from_mode(mode)).expect("set");
        let loaded = Receipt::load(&set.root, &name(RECEIPT));
        assert_eq!(loaded.is_ok(), believed, "{mode:o}: {loaded:?}");
    }
    // The folders above count as well, save those in which the sticky bit protects what is ours, like /dev/shm.
    let deep = set.root.create_dir_durable(&name("a/b"), 0o755).expect("made");
    receipt.store(&deep, &name(RECEIPT)).expect("stored");
    assert!(Receipt::load(&deep, &name(RECEIPT)).is_ok());
    std::fs::set_permissions(set.dir.path().join("a"), PermissionsExt::from_mode(0o777)).expect("set");
    assert!(matches!(Receipt::load(&deep, &name(RECEIPT)), Err(ReceiptReason::ReceiptUnsafe { .. })));
    assert!(matches!(Receipt::load(&set.root, &name("a/b/receipt.json")), Err(ReceiptReason::ReceiptUnsafe { .. })));
    std::fs::remove_file(&path).expect("removed");
    symlink("a/b/receipt.json", &path).expect("linked");
    assert!(matches!(Receipt::load(&set.root, &name(RECEIPT)), Err(ReceiptReason::ReceiptUnreadable { .. })));
}

#[test]
fn old_receipts_and_other_boots() {
    let set = Set::new(memory(), 2);
    set.issue_and_store();
    let receipt = |edit: &dyn Fn(&mut serde_json::Value)| {
        // Made through the document, then signed again by a round trip through the crate's own checksum error.
        let mut value: serde_json::Value = serde_json::from_slice(&set.issue().to_bytes()).expect("JSON");
        edit(&mut value);
        resign(&value)
    };
    // In memory each file is read anyway; what concerns the receipt is said besides.
    let admit_with = |receipt| {
        let mut outcome = admit(&set.subject(), Ok(receipt), &HashOptions::default()).expect("decided");
        outcome.reasons.retain(|r| !matches!(r, ReceiptReason::MutableInMemory { .. }));
        outcome
    };
    let other = receipt(&|v| v["boot"]["boot_id"] = "another".into());
    assert_eq!(admit_with(other).reasons, [ReceiptReason::OtherBoot]);
    let other = receipt(&|v| v["files"][0]["identity"]["mnt_id"] = 1.into());
    assert!(matches!(admit_with(other).reasons.as_slice(), [ReceiptReason::IdentityChanged { .. }]));
    let other = receipt(&|v| v["filesystem"]["fsid"] = 1.into());
    assert!(admit_with(other).reasons.iter().all(|r| matches!(r, ReceiptReason::OtherFileSystem { .. })));
    let stepped = receipt(&|v| {
        v["fine_stamps"] = false.into();
        v["boot"]["realtime_ns"] = (v["boot"]["realtime_ns"].as_i64().expect("a number") + 2_000_000_000).into();
    });
    assert!(matches!(admit_with(stepped).reasons.as_slice(), [ReceiptReason::ClockStepped { by_ms: -2100..=-1900 }]));
    let how = HashOptions { max_age: Some(Duration::from_secs(3600)), ..HashOptions::default() };
    let day_old = receipt(&|v| {
        v["boot"]["realtime_ns"] = (v["boot"]["realtime_ns"].as_i64().expect("a number") - 86_400_000_000_000).into();
    });
    let outcome = admit(&set.subject(), Ok(day_old), &how).expect("decided");
    assert!(matches!(outcome.reasons.as_slice(), [ReceiptReason::TooOld { .. }, ..]), "{:?}", outcome.reasons);
    assert_eq!(outcome.trust, Trust::Blake3);

    // On a disk, device number and mount id may change over a reboot; what stays is the rest.
    let set = Set::new(disk(), 2);
    let mut value: serde_json::Value = serde_json::from_slice(&set.issue().to_bytes()).expect("JSON");
    value["boot"]["boot_id"] = "another".into();
    for file in value["files"].as_array_mut().expect("a list") {
        file["identity"]["mnt_id"] = 1.into();
        file["identity"]["dev"] = 1.into();
    }
    let outcome = admit(&set.subject(), Ok(resign(&value)), &HashOptions::default()).expect("decided");
    let fine = value["fine_stamps"].as_bool().expect("a flag");
    assert_eq!(outcome.trust, if fine { Trust::QuietFile } else { Trust::Blake3 }, "{:?}", outcome.reasons);
}

/// Gives an edited document the checksum it needs, as the message about the wrong one states it.
fn resign(value: &serde_json::Value) -> Receipt {
    match Receipt::from_bytes(&serde_json::to_vec(value).expect("JSON"), "edited".into()) {
        Ok(receipt) => receipt,
        Err(ReceiptReason::ReceiptDamaged { why, .. }) => {
            let mut value = value.clone();
            value["checksum_blake3"] = why.rsplit(' ').next().expect("a word").into();
            Receipt::from_bytes(&serde_json::to_vec(&value).expect("JSON"), "edited".into()).expect("signed")
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_file_open_for_writing_gets_no_receipt() {
    for dir in [disk(), memory()] {
        let set = Set::new(dir, 2);
        let writer = open_to_write(&set.path(1));
        match issue(&set.subject(), &HashOptions::default()).expect("the bytes are right") {
            ReceiptVerdict::VerifiedUntrusted { files, reasons } => {
                assert_eq!(files.len(), 2);
                assert!(reasons.iter().all(
                    |r| matches!(r, ReceiptReason::OpenForWriting { name } if *name == set.files[1].name.to_string())
                ));
                assert!(!reasons.is_empty());
            }
            other => panic!("{other:?}"),
        }
        let outcome = set.admit();
        assert!(outcome.is_admitted() && outcome.refreshed.is_none());
        drop(writer);
        set.issue();
    }
}

/// The child maps a file shared and writable, dirties it, closes its handle, and stores on command.
#[test]
#[expect(unsafe_code, reason = "the point of the test is a mapping")]
fn child_entry() {
    let Some((what, path)) = job() else { return };
    match what.as_str() {
        "map" => {
            let file = open_to_write(&path);
            // SAFETY: the test keeps the file's length as it is while the child lives.
            let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.expect("mapped");
            drop(file);
            map[0] = map[0].wrapping_add(0);
            answer(|command| match command {
                "store" => map[100] ^= 0xff,
                "flush" => map.flush().expect("flushed"),
                other => panic!("{other}"),
            });
        }
        "honour" => {
            // Only looks: whatever this process reads beyond start-up and the receipt would be payload.
            let set = Set::opened(&path);
            let before = read_chars();
            let started = std::time::Instant::now();
            let outcome = set.admit();
            let took = started.elapsed();
            let read = read_chars() - before;
            println!("\n{:?} {} {read} {}", outcome.trust, outcome.bytes_read, took.as_micros());
        }
        other => panic!("{other}"),
    }
}

/// Bytes this process has read by any call, from /proc/self/io.
fn read_chars() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("/proc/self/io");
    io.lines().find_map(|l| l.strip_prefix("rchar: ")).expect("a line").parse().expect("a number")
}

#[test]
fn honouring_187_files_reads_no_payload() {
    {
        let set = Set::new(disk(), 187);
        set.issue_and_store();
        let receipt_size = set.dir.path().join(RECEIPT).metadata().expect("there").len();
        let output = common::run(&mut child("child_entry", "honour", set.dir.path()));
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = out.lines().find(|l| l.starts_with("QuietFile 0 ")).unwrap_or_else(|| panic!("{out}"));
        let read: u64 = line.split(' ').nth(2).expect("a number").parse().expect("a number");
        // The receipt, the boot id, and this measurement's own look at /proc.
        assert!(read < receipt_size + 4096, "{read} bytes read, the receipt has {receipt_size}");
        println!("honour of 187 files: {line} (tier, payload bytes, all bytes, microseconds)");
    }
}

#[test]
fn a_writer_with_a_dirty_mapping_is_never_trusted() {
    for dir in [disk(), memory()] {
        let set = Set::new(dir, 2);
        let mut writer = Talker::start(&mut child("child_entry", "map", &set.path(0)));
        for prelude in [None, Some("flush"), None] {
            if let Some(command) = prelude {
                writer.ask(command);
            }
            match issue(&set.subject(), &HashOptions::default()).expect("the bytes are right") {
                ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
                    assert!(reasons.iter().any(|r| matches!(r, ReceiptReason::OpenForWriting { .. })), "{reasons:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        // A store in the middle of the hashing: whatever the digest came out as, there is no trust.
        let writer = std::sync::Mutex::new(writer);
        let once = AtomicBool::new(false);
        let store = |_| {
            if !once.swap(true, Ordering::SeqCst) {
                writer.lock().expect("one thread at a time").ask("store");
            }
        };
        let how = HashOptions { progress: Progress::new(&store), ..HashOptions::default() };
        assert!(!matches!(issue(&set.subject(), &how), Ok(ReceiptVerdict::Trusted(_))));
        writer.into_inner().expect("no panic").kill();
        // Now the bytes differ, or were stored twice; either way the truth comes out.
        let good = std::fs::read(set.path(0)).expect("there") == bytes(SIZE, 0);
        assert_eq!(issue(&set.subject(), &HashOptions::default()).is_ok(), good);
    }
}

#[test]
fn a_file_replaced_while_it_is_hashed_gets_no_receipt() {
    let set = Set::new(disk(), 1);
    let once = AtomicBool::new(false);
    let path = set.path(0);
    let replace = |_| {
        if !once.swap(true, Ordering::SeqCst) {
            let twin = path.with_extension("twin");
            std::fs::write(&twin, bytes(SIZE, 50)).expect("written");
            std::fs::rename(&twin, &path).expect("renamed");
        }
    };
    let how = HashOptions { progress: Progress::new(&replace), ..HashOptions::default() };
    match issue(&set.subject(), &how).expect("our handle kept the right bytes") {
        ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
            assert!(reasons.iter().any(|r| matches!(r, ReceiptReason::NameMoved { .. })), "{reasons:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn cancellation_is_not_a_verdict() {
    let set = Set::new(memory(), 3);
    let cancel = AtomicBool::new(true);
    let how = HashOptions { progress: Progress::NONE.with_cancel(&cancel), ..HashOptions::default() };
    assert!(issue(&set.subject(), &how).is_err_and(|e| e.is_cancelled()));
    let missing = Receipt::load(&set.root, &name(RECEIPT));
    assert!(admit(&set.subject(), missing, &how).is_err_and(|e| e.is_cancelled()));
}

/// A file whose last change lies in the future (a clock that was set back) gets no receipt. The stamp cannot be set by
/// a program, so the check is on what the rule does with a file as young as can be where stamps are coarse.
#[test]
fn without_waiting_a_fresh_file_is_trusted_only_where_stamps_are_fine() {
    let set = Set::new(memory(), 2);
    let how = HashOptions { quiet: Quiet::GiveUp, ..HashOptions::default() };
    match issue(&set.subject(), &how).expect("verified") {
        ReceiptVerdict::Trusted(receipt) => assert!(receipt.fine_stamps),
        ReceiptVerdict::VerifiedUntrusted { reasons, .. } => {
            assert!(reasons.iter().all(|r| matches!(r, ReceiptReason::NotQuiet { .. })), "{reasons:?}");
        }
    }
}

#[test]
fn standings_of_single_files() {
    let set = Set::new(disk(), 3);
    let receipt = set.issue();
    write(&set.path(0), b"x");
    std::fs::set_permissions(set.path(1), PermissionsExt::from_mode(0o600)).expect("set");
    let examination = examine(&set.subject(), &receipt, &HashOptions::default()).expect("looked");
    assert!(matches!(
        examination.files.as_slice(),
        [Standing::Changed(_), Standing::Void(_), Standing::Trusted(Trust::QuietFile)]
    ));
    assert_eq!((examination.changed().len(), examination.all_reasons().len()), (1, 1));
}
