//! The development cache: a folder outside the repository that survives `cargo clean` and serves every checkout.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::failure::{AtPath, Failure};

/// Where the cache is.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// The right to change what one step keeps in the cache, until dropped.
#[must_use = "the step is only protected while this lives"]
#[derive(Debug)]
pub(crate) struct StepLock {
    _file: File,
}

impl Cache {
    /// Finds (and creates) the cache.
    pub(crate) fn open() -> Result<Self, Failure> {
        Self::open_at(root()?)
    }

    fn open_at(root: PathBuf) -> Result<Self, Failure> {
        fs::create_dir_all(&root).at("create the development cache", &root)?;
        Ok(Self { root })
    }

    /// Waits until no other process works on this step: two would build the same thing over each other. Steps have locks
    /// of their own, so that a long build keeps nobody from running the tests that do not need it.
    pub(crate) fn lock(&self, step: &str) -> Result<StepLock, Failure> {
        let path = self.root.join(format!("{step}.lock"));
        let file = File::options().create(true).append(true).open(&path).at("open", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another set-up that holds {}", path.display());
                file.lock().at("lock", &path)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).at("lock", &path),
        }
        Ok(StepLock { _file: file })
    }

    /// A path inside the cache.
    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Whether `folder` was completed by a set-up with exactly this `recipe`.
    pub(crate) fn is_done(folder: &Path, recipe: &str) -> bool {
        fs::read_to_string(folder.join(MARKER)).is_ok_and(|found| found == recipe)
    }

    /// Records that `folder` is complete. The marker is the last thing written, so a killed set-up has none.
    pub(crate) fn mark_done(folder: &Path, recipe: &str) -> Result<(), Failure> {
        let (path, partial) = (folder.join(MARKER), folder.join("set-up-done.part"));
        fs::write(&partial, recipe).at("write", &partial)?;
        fs::rename(&partial, &path).at("write", &path)
    }

    /// An empty folder in the cache for work in progress; what an earlier, killed run left there is removed.
    pub(crate) fn fresh(&self, relative: &str) -> Result<PathBuf, Failure> {
        let path = self.path(relative);
        if path.exists() {
            fs::remove_dir_all(&path).at("clear", &path)?;
        }
        fs::create_dir_all(&path).at("create", &path)?;
        Ok(path)
    }
}

const MARKER: &str = "set-up-done";

/// `$B70_DEV_CACHE`, else `$XDG_CACHE_HOME/b70kit-dev`, else `~/.cache/b70kit-dev`.
fn root() -> Result<PathBuf, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let root = choose(variable("B70_DEV_CACHE"), variable("XDG_CACHE_HOME"), variable("HOME")).ok_or_else(|| {
        Failure::new("no place for the development cache: HOME is not set", "set B70_DEV_CACHE to a folder")
    })?;
    std::path::absolute(&root).at("resolve", &root)
}

fn choose(own: Option<OsString>, xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG specification has relative values ignored.
    let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    own.map(PathBuf::from)
        .or_else(|| xdg.map(|path| path.join("b70kit-dev")))
        .or_else(|| home.map(|path| PathBuf::from(path).join(".cache/b70kit-dev")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_variable_decides() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(choose(some("/own"), some("/xdg"), some("/home/x")), Some("/own".into()));
        assert_eq!(choose(None, some("/xdg"), some("/home/x")), Some("/xdg/b70kit-dev".into()));
        assert_eq!(choose(None, some("relative"), some("/home/x")), Some("/home/x/.cache/b70kit-dev".into()));
        assert_eq!(choose(None, None, None), None);
    }

    #[test]
    fn a_folder_is_done_only_for_the_recipe_it_was_made_with() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!Cache::is_done(folder.path(), "gguf==1"));
        Cache::mark_done(folder.path(), "gguf==1").expect("marked");
        assert!(Cache::is_done(folder.path(), "gguf==1"));
        assert!(!Cache::is_done(folder.path(), "gguf==2"));
    }

    #[test]
    fn work_in_progress_starts_empty() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::open_at(folder.path().join("deep/cache")).expect("opened");
        let work = cache.fresh("work").expect("created");
        fs::write(work.join("left"), "over").expect("written");
        let work = cache.fresh("work").expect("created again");
        assert_eq!(fs::read_dir(work).expect("listed").count(), 0);
    }
}
