//! More than a thousand tamperings, from numbered seeds, and what each must lead to.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

use b70_testkit::writers::{flip_through_map, open_to_write};
use b70_testkit::{Dice, bytes, memory};

use crate::common::{disk, name};
use crate::set::{Set, write};
use crate::{RECEIPT, SIZE};

/// What a tampering must lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Must {
    /// Bytes differ: refused.
    Refuse,
    /// Bytes are the same, identity or receipt is not: admitted, but not unread.
    Reprove,
}

fn restore_times(path: &Path, meta: &std::fs::Metadata) {
    let times = std::fs::FileTimes::new()
        .set_accessed(meta.accessed().expect("there"))
        .set_modified(meta.modified().expect("there"));
    File::open(path).and_then(|f| f.set_times(times)).expect("restored");
}

#[expect(unsafe_code, reason = "one way to tamper is through a mapping")]
fn tamper(set: &Set, dice: &mut Dice) -> (&'static str, Must) {
    let victim = dice.below(set.files.len() as u64) as usize;
    let other = (victim + 1) % set.files.len();
    let path = set.path(victim);
    let meta = path.metadata().expect("there");
    let at = dice.below(SIZE as u64) as usize;
    let flip = || {
        let file = open_to_write(&path);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at as u64).expect("written");
    };
    let other_bytes = || bytes(SIZE, 1000 + at as u64);
    match dice.below(20) {
        0 => {
            flip();
            ("one bit", Must::Refuse)
        }
        1 => {
            flip();
            restore_times(&path, &meta);
            ("one bit, times restored", Must::Refuse)
        }
        2 => {
            write(&path, &other_bytes());
            restore_times(&path, &meta);
            ("rewritten in place, times restored", Must::Refuse)
        }
        3 => {
            let twin = path.with_extension("twin");
            write(&twin, &other_bytes());
            restore_times(&twin, &meta);
            std::fs::rename(&twin, &path).expect("renamed");
            ("replaced by rename, times restored", Must::Refuse)
        }
        4 => {
            std::fs::remove_file(&path).expect("removed");
            write(&path, &other_bytes());
            restore_times(&path, &meta);
            ("removed and made again (perhaps the same inode)", Must::Refuse)
        }
        5 => {
            open_to_write(&path).set_len(at as u64).expect("cut");
            ("truncated", Must::Refuse)
        }
        6 => {
            let file = open_to_write(&path);
            file.set_len(at as u64).and_then(|()| file.set_len(SIZE as u64)).expect("cut and grown");
            drop(file);
            restore_times(&path, &meta);
            ("truncated and grown back", Must::Refuse)
        }
        7 => {
            open_to_write(&path).set_len((SIZE + 1 + at) as u64).expect("grown");
            ("extended", Must::Refuse)
        }
        8 => {
            let file = open_to_write(&path);
            // SAFETY: nobody changes the file's length while the map lives.
            let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.expect("mapped");
            map[at] ^= 1;
            drop((map, file));
            restore_times(&path, &meta);
            ("stored through a mapping, times restored", Must::Refuse)
        }
        9 => {
            let middle = path.with_extension("middle");
            std::fs::rename(&path, &middle).expect("renamed");
            std::fs::rename(set.path(other), &path).expect("renamed");
            std::fs::rename(&middle, set.path(other)).expect("renamed");
            ("two files swapped", Must::Refuse)
        }
        10 => {
            std::fs::remove_file(&path).expect("removed");
            ("removed", Must::Refuse)
        }
        11 => {
            let aside = set.dir.path().join("aside");
            std::fs::rename(&path, &aside).expect("renamed");
            symlink(&aside, &path).expect("linked");
            ("replaced by a link to itself", Must::Refuse)
        }
        12 => {
            std::fs::hard_link(&path, set.dir.path().join("hard")).expect("linked");
            ("hard link", Must::Reprove)
        }
        13 => {
            let mode = if meta.mode() & 0o7777 == 0o640 { 0o600 } else { 0o640 };
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            ("chmod", Must::Reprove)
        }
        14 => {
            let twin = path.with_extension("twin");
            std::fs::copy(&path, &twin).expect("copied");
            restore_times(&twin, &meta);
            std::fs::rename(&twin, &path).expect("renamed");
            ("replaced by an exact copy", Must::Reprove)
        }
        15 => {
            flip();
            flip();
            restore_times(&path, &meta);
            ("a bit flipped and back", Must::Reprove)
        }
        16 => {
            let file = set.dir.path().join(RECEIPT);
            let mut receipt = std::fs::read(&file).expect("there");
            let at = dice.below(receipt.len() as u64) as usize;
            // Any other printable character; inside a string or a number it is a forgery, elsewhere it is damage.
            let old = receipt[at];
            receipt[at] = b'!' + ((usize::from(old) + 1 + dice.below(90) as usize) % 93) as u8;
            if receipt[at] == old || old.is_ascii_whitespace() {
                receipt.truncate(at);
            }
            std::fs::write(&file, receipt).expect("written");
            ("receipt edited", Must::Reprove)
        }
        17 => {
            // The whole receipt brought over from an identical set elsewhere.
            let twin = Set::new(memory(), set.files.len());
            let receipt = twin.issue();
            receipt.store(&set.root, &name(RECEIPT)).expect("stored");
            ("receipt of another copy", Must::Reprove)
        }
        18 => {
            flip_through_map(&path, at, 1);
            ("stored through a mapping that read first", Must::Refuse)
        }
        _ => {
            flip();
            flip();
            std::fs::remove_file(set.dir.path().join(RECEIPT)).expect("removed");
            ("receipt removed", Must::Reprove)
        }
    }
}

fn tamper_many(make: fn() -> tempfile::TempDir, rounds: u64) {
    let (mut refused, mut reproved) = (0, 0);
    for round in 0..rounds {
        let set = Set::new(make(), 3);
        set.issue_and_store();
        let (what, must) = tamper(&set, &mut Dice(round));
        let outcome = set.admit();
        match must {
            Must::Refuse => {
                assert!(!outcome.is_admitted(), "round {round}, {what}: admitted by {:?}", outcome.trust);
                assert!(outcome.refreshed.is_none());
                refused += 1;
            }
            Must::Reprove => {
                assert!(outcome.is_admitted(), "round {round}, {what}: {:?}", outcome.changed);
                assert!(outcome.bytes_read > 0, "round {round}, {what}: trusted by receipt");
                assert!(!outcome.reasons.is_empty(), "round {round}, {what}: no reason");
                reproved += 1;
            }
        }
    }
    println!("{rounds} tamperings: {refused} refused, {reproved} re-proved, 0 trusted");
}

#[test]
fn a_thousand_tamperings_in_memory_and_no_false_trust() {
    tamper_many(memory, 1000);
}

#[test]
fn two_hundred_tamperings_on_disk_and_no_false_trust() {
    tamper_many(disk, 200);
}
