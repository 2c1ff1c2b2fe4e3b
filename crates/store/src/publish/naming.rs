//! How a finished file gets its name: by a link that replaces nothing, or by a rename over what is damaged.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rustix::io::Errno;

use super::file::{OnExisting, Outcome, Place, Published, TempFile};
use super::names::{Incumbent, has_name, incumbent, link_unnamed, rename_noreplace};
use super::{fsync, temp_name};
use crate::digest::Content;
use crate::error::{Error, Result};
use crate::fault;
use crate::lock::try_flock;
use crate::path::RelPath;
use crate::progress::Progress;

impl TempFile {
    /// Gives finished and proven content its name.
    pub(super) fn name(
        mut self,
        name: &RelPath,
        on_existing: OnExisting,
        content: Content,
        progress: &Progress<'_>,
    ) -> Result<Published> {
        let path = self.dir.join(name);
        fault::step("file.link");
        match self.link(name.single()?) {
            Ok(()) => {
                fault::step("file.linked");
                return self.published(path, Outcome::Created, content);
            }
            Err(Error::Exists { .. }) if on_existing != OnExisting::Fail => {}
            Err(e) => return Err(e),
        }
        match incumbent(&self.dir, name, &content, progress)? {
            Incumbent::Good(file) => {
                // The incumbent may have been linked an instant ago by a process that has not reached its fsync.
                fsync(&file, &path)?;
                self.dir.sync()?;
                Ok(Published { path, outcome: Outcome::Kept, content, file })
            }
            Incumbent::Damaged(what) if on_existing == OnExisting::KeepIfVerified => Err(Error::Damaged { path, what }),
            Incumbent::Damaged(_) | Incumbent::Gone => {
                self.rename_over(name.single()?)?;
                self.published(path, Outcome::Repaired, content)
            }
        }
    }

    pub(super) fn published(&self, path: PathBuf, outcome: Outcome, content: Content) -> Result<Published> {
        fault::step("file.fsync-dir");
        self.dir.sync()?;
        let file = self.reader.try_clone().map_err(|e| Error::io("duplicate the handle of", &path, e))?;
        // The lock was for the sweep, and the file is no longer temporary.
        if matches!(self.place, Place::Named(_)) {
            let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
        }
        Ok(Published { path, outcome, content, file })
    }

    /// Gives the file its name without ever replacing another.
    pub(super) fn link(&mut self, name: &OsStr) -> Result<()> {
        let path = self.dir.path().join(name);
        let linked = match &self.place {
            Place::Unnamed => link_unnamed(&self.reader, &self.dir, name),
            Place::Named(temp) => {
                self.check_temp_name(temp)?;
                rename_noreplace(&self.dir, temp, name)
            }
        };
        match linked {
            Ok(()) => {
                if let Place::Named(temp) = &mut self.place {
                    // No longer ours to remove on drop.
                    *temp = OsString::new();
                }
                Ok(())
            }
            Err(Errno::EXIST) => Err(Error::Exists { path }),
            Err(e) => Err(Error::write("publish", path, self.end, e)),
        }
    }

    /// Replaces whatever has this name by rename.
    pub(super) fn rename_over(&mut self, name: &OsStr) -> Result<()> {
        if matches!(self.place, Place::Unnamed) {
            // A rename needs a name to start from; locked first, so that no sweep takes it for an orphan.
            let _ = try_flock(&self.reader, true).map_err(|e| Error::io("lock", self.shown(), e))?;
            let temp = temp_name(self.dir.path())?;
            fault::step("file.link-temp");
            link_unnamed(&self.reader, &self.dir, &temp)
                .map_err(|e| Error::write("name a temporary file in", self.dir.path(), self.end, e))?;
            self.place = Place::Named(temp);
        }
        let Place::Named(temp) = &mut self.place else { unreachable!("named above") };
        let temp = std::mem::take(temp);
        fault::step("file.rename");
        let renamed = if has_name(&self.dir, &temp, &self.reader)? {
            rustix::fs::renameat(&self.dir, temp.as_os_str(), &self.dir, name)
                .map_err(|e| Error::write("replace", self.dir.path().join(name), self.end, e))
        } else {
            Err(Error::TempVanished { path: self.dir.path().join(&temp) })
        };
        if renamed.is_err() {
            self.place = Place::Named(temp);
        }
        fault::step("file.renamed");
        renamed
    }

    /// The hidden name must still be this very file: someone may have removed or replaced it.
    fn check_temp_name(&self, temp: &OsStr) -> Result<()> {
        if has_name(&self.dir, temp, &self.reader)? {
            Ok(())
        } else {
            Err(Error::TempVanished { path: self.dir.path().join(temp) })
        }
    }
}
