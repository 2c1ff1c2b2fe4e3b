//! A source tree under Git: its commit and what differs from it.

use std::ffi::OsStr;
use std::os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_store::{DigestKind, EntryKind, Hasher, Job, Progress, RelPath, Sha256, hash_file};

use super::process::run;

/// The most names of untracked files that are read, in bytes.
const MAX_NAMES: usize = 64 << 20;

/// Settings by which a user or a repository could change the text of a diff, set to one value; and what Git would run
/// by itself, switched off.
const SETTINGS: [&str; 12] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=true",
    "core.excludesFile=/dev/null",
    "core.attributesFile=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.orderFile=/dev/null",
    "diff.suppressBlankEmpty=false",
    "diff.interHunkContext=0",
    "diff.ignoreSubmodules=none",
    "color.ui=false",
];

/// A work tree.
pub(super) struct Git<'a> {
    pub(super) tree: &'a Path,
    pub(super) deadline: Duration,
}

/// What differs from the commit.
pub(super) struct Difference {
    pub(super) dirty: bool,
    pub(super) sha256: Option<Sha256>,
}

impl Git<'_> {
    fn call(&self, arguments: &[&str], consume: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let mut all: Vec<&str> = vec!["--no-pager", "--no-optional-locks", "--literal-pathspecs"];
        for setting in SETTINGS {
            all.extend(["-c", setting]);
        }
        all.extend(arguments);
        run(
            "git",
            &all,
            self.tree,
            &[("GIT_OPTIONAL_LOCKS", "0"), ("GIT_TERMINAL_PROMPT", "0")],
            self.deadline,
            consume,
        )
    }

    fn bytes(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut over = false;
        self.call(arguments, &mut |piece| {
            if bytes.len() + piece.len() > MAX_NAMES { over = true } else { bytes.extend_from_slice(piece) }
        })?;
        if over { Err(format!("git says more than {MAX_NAMES} bytes")) } else { Ok(bytes) }
    }

    /// Whether Git knows any file of this folder: a tree unpacked inside somebody's repository is not its content.
    pub(super) fn tracks_anything(&self) -> Result<bool, String> {
        let mut any = false;
        self.call(&["ls-files", "-z", "--", "."], &mut |piece| any |= !piece.is_empty())?;
        Ok(any)
    }

    pub(super) fn commit(&self) -> Result<String, String> {
        let text = self.bytes(&["rev-parse", "--verify", "HEAD^{commit}"])?;
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        let good = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
        if good { Ok(text) } else { Err(format!("git names no commit but {text:?}")) }
    }

    /// The one definition of `dirty_patch_sha256`: SHA-256 over the binary diff against HEAD, then each untracked
    /// file's path in path order, NUL, and the 32 raw bytes of its SHA-256.
    pub(super) fn difference(&self, progress: &Progress<'_>) -> Result<Difference, String> {
        let mut hasher = Hasher::new(DigestKind::Sha256);
        self.call(
            &[
                "diff",
                "--binary",
                "--full-index",
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--no-renames",
                "--diff-algorithm=myers",
                "--no-indent-heuristic",
                "--unified=3",
                "--src-prefix=a/",
                "--dst-prefix=b/",
                "--submodule=short",
                "--relative",
                "HEAD",
                "--",
                ".",
            ],
            &mut |piece| hasher.update(piece),
        )?;
        let names = self.bytes(&["ls-files", "-z", "--others", "--exclude-standard", "--", "."])?;
        let mut untracked: Vec<PathBuf> = names
            .split(|&b| b == 0)
            .filter(|name| !name.is_empty())
            .map(|name| PathBuf::from(OsStr::from_bytes(name)))
            .collect();
        // `Path` compares component by component.
        untracked.sort();
        for name in &untracked {
            let path = self.tree.join(name);
            let meta = path.symlink_metadata().map_err(|e| format!("{}: {e}", path.display()))?;
            let digest = if meta.is_symlink() {
                let target = std::fs::read_link(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                Sha256::of(target.as_os_str().as_bytes())
            } else if meta.is_file() {
                RelPath::new(name).map_err(|e| e.to_string())?;
                let digests =
                    hash_file(Job::from(path.as_path()), DigestKind::Sha256, progress).map_err(|e| e.to_string())?;
                digests.sha256.expect("SHA-256 was asked for")
            } else {
                // A nested repository is listed as a folder: what is in it cannot be stated here.
                let found = EntryKind::from_mode(meta.mode()).name();
                return Err(format!("the untracked {} is a {found}, expected a file or a link", path.display()));
            };
            hasher.update(name.as_os_str().as_bytes());
            hasher.update(&[0]);
            hasher.update(digest.as_bytes());
        }
        let dirty = hasher.size() > 0;
        Ok(Difference { dirty, sha256: if dirty { hasher.finish().sha256 } else { None } })
    }
}
