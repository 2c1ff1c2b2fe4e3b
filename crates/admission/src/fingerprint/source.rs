//! The source tree: by commit and difference, or by a digest over its files; and whether it is older than the build.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_store::{DigestKind, Error, Hasher, Job, Progress, Result, Sha256, git_work_tree, hash_many};

use super::git::Git;
use crate::documents::Known;

/// Entries of a tree that are looked at.
const LIMIT: usize = 2_000_000;

/// Files of the list of those newer than the binaries.
const SHOWN: usize = 20;

/// Endings of what a compiler reads (and of what steers the build); other files cannot make a binary stale.
const COMPILED: [&str; 22] = [
    "c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "inc", "inl", "ipp", "cu", "cuh", "cl", "comp", "glsl", "metal",
    "m", "mm", "s", "cmake", "in",
];

/// Seconds and nanoseconds since 1970.
type Stamp = (i64, i64);

/// Object files and when they were written, by the name of their source.
type Objects = HashMap<std::ffi::OsString, Vec<(PathBuf, Stamp)>>;

pub(super) struct Source<'a> {
    tree: &'a Path,
    build: &'a Path,
}

/// The tree's identity, each part as far as it could be determined.
pub(super) struct Identity {
    pub(super) commit: Result<Known<String>, String>,
    pub(super) dirty: Result<Known<bool>, String>,
    pub(super) dirty_patch_sha256: Result<Known<Sha256>, String>,
    pub(super) tree_sha256: Result<Option<Sha256>, String>,
}

impl<'a> Source<'a> {
    pub(super) fn new(tree: &'a Path, build: &'a Path) -> Self {
        Self { tree, build }
    }

    pub(super) fn identify(&self, deadline: Duration, progress: &Progress<'_>) -> Result<Identity> {
        let git = Git { tree: self.tree, deadline };
        if git_work_tree(self.tree)?.is_some() {
            match git.tracks_anything() {
                Ok(true) => {
                    let difference = git.difference(progress);
                    progress.check()?;
                    let (dirty, patch) = match difference {
                        Ok(d) => (Ok(Known::Value(d.dirty)), Ok(d.sha256.map_or(Known::Absent, Known::Value))),
                        Err(why) => (Err(why.clone()), Err(why)),
                    };
                    return Ok(Identity {
                        commit: git.commit().map(Known::Value),
                        dirty,
                        dirty_patch_sha256: patch,
                        tree_sha256: Ok(None),
                    });
                }
                // A tree unpacked in a corner of somebody's repository: as good as without Git.
                Ok(false) => {}
                Err(why) => {
                    return Ok(Identity {
                        commit: Err(why.clone()),
                        dirty: Err(why.clone()),
                        dirty_patch_sha256: Err(why),
                        tree_sha256: Ok(None),
                    });
                }
            }
        }
        let tree_sha256 = match self.tree_digest(progress) {
            Err(e) if e.is_cancelled() => return Err(e),
            other => other.map(Some).map_err(|e| e.to_string()),
        };
        Ok(Identity {
            commit: Ok(Known::Absent),
            dirty: Ok(Known::Absent),
            dirty_patch_sha256: Ok(Known::Absent),
            tree_sha256,
        })
    }

    /// Every file and link of the tree, sorted, without `.git` and without build folders (those with `CMakeCache.txt`).
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut pending = vec![self.tree.to_path_buf()];
        while let Some(folder) = pending.pop() {
            let error = |e| Error::io("list", &folder, e);
            for entry in std::fs::read_dir(&folder).map_err(error)? {
                let entry = entry.map_err(error)?;
                let path = entry.path();
                if entry.file_type().map_err(error)?.is_dir() {
                    let skipped =
                        entry.file_name() == ".git" || path == self.build || path.join("CMakeCache.txt").exists();
                    if !skipped {
                        pending.push(path);
                    }
                } else if entry.file_name() != ".git" {
                    files.push(path);
                }
                if files.len() > LIMIT {
                    let why = format!("it holds more than {LIMIT} files; name the source tree itself");
                    return Err(Error::RootUnsafe { path: self.tree.to_path_buf(), why });
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// SHA-256 over, in path order, each file's relative path, NUL, and the 32 raw bytes of its SHA-256; of a link, the
    /// digest of its target's text.
    fn tree_digest(&self, progress: &Progress<'_>) -> Result<Sha256> {
        let files = self.files()?;
        let is_link: Vec<bool> = files
            .iter()
            .map(|p| p.symlink_metadata().map(|m| m.is_symlink()).map_err(|e| Error::io("stat", p, e)))
            .collect::<Result<_>>()?;
        let jobs: Vec<Job<'_>> =
            files.iter().zip(&is_link).filter(|(_, link)| !**link).map(|(p, _)| Job::from(p.as_path())).collect();
        let mut digests = hash_many(&jobs, DigestKind::Sha256, progress).into_iter();
        progress.check()?;
        let mut hasher = Hasher::new(DigestKind::Sha256);
        for (path, link) in files.iter().zip(is_link) {
            let digest = if link {
                Sha256::of(std::fs::read_link(path).map_err(|e| Error::io("read", path, e))?.as_os_str().as_bytes())
            } else {
                let digest = digests.next().unwrap_or(Err(Error::Cancelled))?;
                digest.sha256.expect("SHA-256 was asked for")
            };
            let name = path.strip_prefix(self.tree).unwrap_or(path);
            hasher.update(name.as_os_str().as_bytes());
            hasher.update(&[0]);
            hasher.update(digest.as_bytes());
        }
        Ok(hasher.finish().sha256.expect("SHA-256 was asked for"))
    }

    /// Source files that the binaries cannot contain, and what to say of it.
    ///
    /// Two rules: a file newer than every one of the binaries was edited after the last link; a translation unit newer
    /// than its own object file (`NAME.cpp.o` in the build folder) was edited after it was compiled, whatever was linked
    /// since. A header edited in the middle of a build that went on is beyond both.
    pub(super) fn newer_than(&self, binaries: &[PathBuf]) -> Result<(Vec<PathBuf>, Vec<String>)> {
        let stamp = |path: &Path| path.metadata().map(|m| (m.mtime(), m.mtime_nsec())).ok();
        let Some(newest) = binaries.iter().filter_map(|p| stamp(p)).max() else { return Ok((Vec::new(), Vec::new())) };
        let objects = self.objects();
        let mut newer = Vec::new();
        for path in self.files()? {
            let name = path.file_name().unwrap_or_default();
            let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase());
            if name != "CMakeLists.txt" && !ending.is_some_and(|e| COMPILED.contains(&e.as_str())) {
                continue;
            }
            let Some(edited) = stamp(&path) else { continue };
            let relative = path.strip_prefix(self.tree).unwrap_or(&path).to_path_buf();
            // Objects lie at `<target>.dir/<path below the target's folder>.o`: the longest common tail names its source.
            let stale = objects.get(name).is_some_and(|objects| {
                objects.iter().any(|(object, built)| edited > *built && object_is_of(object, &relative))
            });
            if edited > newest || stale {
                newer.push(relative);
            }
        }
        let warnings = if newer.is_empty() {
            Vec::new()
        } else {
            let first = newer[0].display();
            vec![format!(
                "{} source file(s) are newer than the binaries ({first} …): a pass would be for code that never ran; \
                 build again",
                newer.len()
            )]
        };
        newer.truncate(SHOWN);
        Ok((newer, warnings))
    }

    /// Object files of the build folder by the name of their source.
    fn objects(&self) -> Objects {
        let mut objects = Objects::new();
        let mut pending = vec![self.build.to_path_buf()];
        let mut seen = 0;
        while let Some(folder) = pending.pop() {
            // A folder that cannot be listed only means fewer objects to compare with.
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                seen += 1;
                if seen > LIMIT {
                    return objects;
                }
                let path = entry.path();
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    pending.push(path);
                } else if kind.is_file() && path.extension().is_some_and(|e| e == "o") {
                    let (Some(stem), Ok(meta)) = (path.file_stem(), entry.metadata()) else { continue };
                    objects.entry(stem.to_owned()).or_default().push((path, (meta.mtime(), meta.mtime_nsec())));
                }
            }
        }
        objects
    }
}

/// `…/ggml/src/CMakeFiles/ggml-base.dir/sub/ggml.c.o` is of `ggml/src/sub/ggml.c`: the folder of the target in the
/// build tree is its folder in the source tree.
fn object_is_of(object: &Path, source: &Path) -> bool {
    let parts: Vec<_> = object.components().map(|c| c.as_os_str().to_owned()).collect();
    let Some(at) = parts.iter().rposition(|p| p == "CMakeFiles") else { return false };
    let Some(inner) = parts.get(at + 2..) else { return false };
    let mut inside: PathBuf = inner.iter().collect();
    inside.set_extension("");
    let Ok(below) = source.strip_prefix("") else { return false };
    // The target's folder, relative to the tree, is what remains of the source path before `inside`.
    let Some(prefix) = below.to_str().zip(inside.to_str()).and_then(|(s, i)| s.strip_suffix(i)) else { return false };
    let prefix = Path::new(prefix.trim_end_matches('/'));
    let target: PathBuf = parts[..at].iter().collect();
    prefix.as_os_str().is_empty() || target.ends_with(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_name_their_sources() {
        let of = |object: &str, source: &str| object_is_of(Path::new(object), Path::new(source));
        assert!(of("/b/ggml/src/CMakeFiles/ggml-base.dir/ggml.c.o", "ggml/src/ggml.c"));
        assert!(of("/b/ggml/src/CMakeFiles/ggml-cpu.dir/ggml-cpu/ops.cpp.o", "ggml/src/ggml-cpu/ops.cpp"));
        assert!(of("/b/CMakeFiles/x.dir/a.c.o", "a.c"));
        assert!(!of("/b/tools/server/CMakeFiles/s.dir/main.cpp.o", "tools/cli/main.cpp"));
        assert!(!of("/b/src/main.cpp.o", "src/main.cpp"));
    }
}
