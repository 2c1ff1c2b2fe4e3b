//! Publishing a whole directory.

use std::ffi::OsString;
use std::fmt;

use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;

use super::names::has_name;
use super::{remove_tree_at, temp_name};
use crate::error::{Error, Result};
use crate::fault;
use crate::lock::{Attempt, try_flock};
use crate::path::{RelPath, Root};

/// How the publish of a directory ended.
#[derive(Debug)]
pub enum DirOutcome {
    /// The name is new.
    Created(Root),
    /// The incumbent was verified and kept; what had been built is gone.
    Kept(Root),
    /// The incumbent was damaged, for this reason, and has been replaced.
    Repaired(Root, String),
}

impl DirOutcome {
    /// The directory that now has the name.
    pub fn root(&self) -> &Root {
        match self {
            Self::Created(root) | Self::Kept(root) | Self::Repaired(root, _) => root,
        }
    }
}

/// A hidden directory under construction, locked so that a sweep leaves it alone. Dropping it removes it.
pub struct HiddenDir {
    parent: Root,
    root: Root,
    name: Option<OsString>,
}

impl fmt::Debug for HiddenDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HiddenDir").field("path", &self.root.path()).finish_non_exhaustive()
    }
}

impl HiddenDir {
    /// Creates a hidden directory (0700) in `parent`, on the same file system as the name it will get.
    pub fn create(parent: &Root) -> Result<Self> {
        fault::step("staging.create");
        for _ in 0..16 {
            let name = temp_name()?;
            let path = parent.path().join(&name);
            match rustix::fs::mkdirat(parent, name.as_os_str(), Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(Error::write("create the directory", path, 0, e)),
            }
            fault::step("staging.created");
            let root = match parent.dir(&RelPath::new(&name)?) {
                Ok(root) => root,
                // A sweep came between creation and lock: take another name.
                Err(Error::Missing { .. }) => continue,
                Err(e) => return Err(e),
            };
            match try_flock(&root, true).map_err(|e| Error::io("lock", &path, e))? {
                Attempt::Busy => continue,
                Attempt::Got | Attempt::Unsupported => {}
            }
            if has_name(parent, &name, &root)? {
                return Ok(Self { parent: parent.try_clone()?, root, name: Some(name) });
            }
        }
        Err(Error::io("create a directory in", parent.path(), std::io::Error::other("16 names were taken")))
    }

    /// The directory to build in.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Gives the directory its final `name` (one component) and `mode`.
    ///
    /// When the name is taken, `verify` says of the incumbent whether it is good (`Ok(None)`), damaged (`Ok(Some(why))`)
    /// or cannot be judged (an error, which leaves everything as it was). A good one is kept and what was built is
    /// removed; a damaged one changes places with the new one in one step and is then removed.
    ///
    /// The files within must have been published with this crate (they are durable already).
    pub fn commit(
        mut self,
        name: &RelPath,
        mode: u32,
        verify: impl FnOnce(&Root) -> Result<Option<String>>,
    ) -> Result<DirOutcome> {
        let target = name.single()?.to_os_string();
        let path = self.parent.join(name);
        fault::step("staging.chmod");
        rustix::fs::fchmod(&self.root, Mode::from_raw_mode(mode))
            .map_err(|e| Error::io("set the mode of", &path, e))?;
        fault::step("staging.fsync");
        self.root.sync()?;
        let temp = self.name.clone().expect("set until commit, which consumes the directory");
        if !has_name(&self.parent, &temp, &self.root)? {
            self.name = None;
            return Err(Error::TempVanished { path: self.root.path().to_path_buf() });
        }
        fault::step("staging.rename");
        match rustix::fs::renameat_with(
            &self.parent,
            temp.as_os_str(),
            &self.parent,
            target.as_os_str(),
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {
                self.name = None;
                fault::step("staging.fsync-parent");
                self.parent.sync()?;
                return Ok(DirOutcome::Created(self.parent.dir(name)?));
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(e) => return Err(Error::write("publish", path, 0, e)),
        }
        fault::step("staging.incumbent");
        let incumbent = self.parent.dir(name)?;
        let Some(why) = verify(&incumbent)? else {
            self.parent.sync()?;
            return Ok(DirOutcome::Kept(incumbent));
        };
        // The incumbent gets the hidden name: `self` removes it on drop, or a sweep after a kill.
        fault::step("staging.exchange");
        rustix::fs::renameat_with(
            &self.parent,
            temp.as_os_str(),
            &self.parent,
            target.as_os_str(),
            RenameFlags::EXCHANGE,
        )
        .map_err(|e| Error::write("replace the damaged", &path, 0, e))?;
        fault::step("staging.fsync-exchange");
        self.parent.sync()?;
        self.root = incumbent;
        fault::step("staging.remove-damaged");
        remove_tree_at(&self.parent, &temp)?;
        self.name = None;
        self.parent.sync()?;
        Ok(DirOutcome::Repaired(self.parent.dir(name)?, why))
    }
}

impl Drop for HiddenDir {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && has_name(&self.parent, name, &self.root).unwrap_or(false)
        {
            let _ = remove_tree_at(&self.parent, name);
        }
    }
}
