//! Real full and read-only file systems. They need root and mounts.
#![allow(clippy::print_stdout, reason = "a test says what it counted or skipped")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Lab, string, text, walk};
use b70_gguf::GgmlType;

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &[&str], at: &Path) -> Self {
        fs::create_dir_all(at).expect("a folder");
        let status = Command::new("mount").args(arguments).arg(at).status().expect("mount of util-linux");
        assert!(status.success(), "mount {arguments:?} failed: run the tests as root, with the right to mount");
        Self(at.to_path_buf())
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount").args(["-o", options]).arg(&self.0).status().expect("mount of util-linux");
        assert!(status.success(), "remounting failed");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
#[ignore = "needs root and mounts: cargo xtask test --all"]
fn a_full_root_is_one_clear_error_and_nothing_is_left() {
    let lab = Lab::with(&[(b"big", GgmlType::Q4_0, &[4096, 2048])]);
    let _mount = Mount::new(&["-t", "tmpfs", "-o", "size=2m", "tmpfs"], &lab.root);
    let error = lab.pack("prepare", &["--model", text(&lab.model)]).exits(1).json()["error"].clone();
    assert_eq!(error["kind"], "headroom", "{error:#}");
    assert!(error["expected"].is_string() && !string(&error["message"]).is_empty(), "{error:#}");
    assert!(lab.files().is_empty(), "{:?}", lab.files());
    // A root that has room for the data but not for one more file.
    let other = Lab::new();
    let _inodes = Mount::new(&["-t", "tmpfs", "-o", "nr_inodes=5", "tmpfs"], &other.root);
    let ran = other.pack("prepare", &other.mini());
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:#?}");
    assert_ne!(ran.json()["error"]["kind"], "interrupted", "{ran:#?}");
    assert!(walk(&other.root).keys().all(|name| !name.ends_with("manifest.json")));
}

#[test]
#[ignore = "needs root and mounts: cargo xtask test --all"]
fn a_read_only_root_is_read_but_not_written() {
    let lab = Lab::new();
    let mount = Mount::new(&["-t", "tmpfs", "-o", "size=8m", "tmpfs"], &lab.root);
    mount.remount("remount,ro");
    let error = lab.pack("prepare", &lab.mini()).exits(2).json()["error"].clone();
    assert!(string(&error["message"]).to_lowercase().contains("read-only"), "{error:#}");
    assert!(walk(&lab.root).is_empty());
    mount.remount("remount,rw");
    lab.prepare();
    mount.remount("remount,ro");
    let before = walk(&lab.root);
    assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty());
    let out = lab.at("out.bin");
    lab.pack("unpack", &["--tensor", "blk.0.ffn_up.weight", "--out", text(&out)]).exits(0);
    lab.pack("list", &[]).exits(0);
    lab.pack("gc", &[]).exits(0);
    assert_eq!(walk(&lab.root), before);
}
