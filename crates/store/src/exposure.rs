//! Who besides its owner could change a file or a folder: asked before what it says is believed.

use crate::identity::FileIdentity;

/// Which users may own a file or folder, and who else may write to it. The strictest is [`Owners::only`].
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    uid: u32,
    root: bool,
    group: bool,
    sticky: bool,
}

impl Owners {
    /// This user alone may own it, and nobody else may write to it.
    pub fn only(uid: u32) -> Self {
        Self { uid, root: false, group: false, sticky: false }
    }

    /// Root may own it, too.
    #[must_use]
    pub fn or_root(self, root: bool) -> Self {
        Self { root, ..self }
    }

    /// The members of its group may write to it.
    #[must_use]
    pub fn or_group(self) -> Self {
        Self { group: true, ..self }
    }

    /// Others may write to a folder whose sticky bit keeps them from changing what is not theirs.
    #[must_use]
    pub fn or_sticky(self, sticky: bool) -> Self {
        Self { sticky, ..self }
    }

    /// Why somebody whom these do not name could change what has this identity; `None` if nobody can.
    pub fn exposure(self, of: &FileIdentity) -> Option<Exposure> {
        let writers = if self.group { 0o002 } else { 0o022 };
        if of.uid != self.uid && !(self.root && of.uid == 0) {
            Some(Exposure::Owner(of.uid))
        } else if of.mode & writers != 0 && !(self.sticky && of.mode & 0o1000 != 0) {
            Some(Exposure::Writers(of.mode & 0o7777))
        } else {
            None
        }
    }
}

/// Why a file or folder is not to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// It belongs to this user.
    Owner(u32),
    /// Others can write to it; its permission bits.
    Writers(u32),
}
