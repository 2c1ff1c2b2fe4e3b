//! Directory handles beneath which names open, and nothing else does.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::name::RelPath;
use crate::error::{Error, Result};
use crate::fault;
use crate::identity::{FileIdentity, identity_of};
use crate::immutable::{Unlink, unlink};

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a FIFO, a socket or something unknown.
    Other(&'static str),
}

impl EntryKind {
    /// The kind that the mode of a `stat` names.
    pub fn from_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Other("FIFO"),
            FileType::Socket => Self::Other("socket"),
            FileType::CharacterDevice => Self::Other("character device"),
            FileType::BlockDevice => Self::Other("block device"),
            FileType::Unknown => Self::Other("file of unknown kind"),
        }
    }

    /// The kind in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Other(name) => name,
        }
    }
}

/// An entry of a directory. A name that breaks [`RelPath`]'s grammar is an error of the listing, so that nothing in a
/// directory is passed over in silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Name relative to the listed root.
    pub name: RelPath,
    /// What it is; links are not followed.
    pub kind: EntryKind,
}

/// An open directory beneath which names are opened.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

impl Root {
    /// Opens the directory `path`. Links in it are followed: where the root lies is its owner's choice; what is opened
    /// beneath it never follows one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), OFlags::empty())
    }

    /// Like [`Root::open`], but refuses a `path` whose last component is a link.
    pub fn open_nofollow(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), OFlags::NOFOLLOW)
    }

    fn open_with(path: &Path, flags: OFlags) -> Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | DIRECTORY | flags, Mode::empty())
            .map_err(|e| directory_error(path, e, flags.contains(OFlags::NOFOLLOW)))?;
        Ok(Self { fd, path: path.to_path_buf() })
    }

    pub(crate) fn from_parts(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// The path it was opened by, for messages and documents.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the kernel says of the directory itself.
    pub fn identity(&self) -> Result<FileIdentity> {
        identity_of(&self.fd, &self.path)
    }

    /// The full path of a name beneath it, for messages; opening it again by path would lose the protection.
    pub fn join(&self, name: &RelPath) -> PathBuf {
        self.path.join(name.as_path())
    }

    /// A second handle on the same directory.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone().map_err(|e| Error::io("duplicate the handle of", &self.path, e))?;
        Ok(Self { fd, path: self.path.clone() })
    }

    /// `openat2` beneath this root, without links; the caller says what the file must be.
    pub(crate) fn open_beneath(&self, name: &RelPath, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat2_beneath(&self.fd, name.as_path(), flags, mode, &self.join(name))
    }

    /// A handle that can be examined but neither read nor written, without the side effects of opening a device.
    fn open_path(&self, name: &RelPath) -> Result<(OwnedFd, FileIdentity)> {
        let fd = self.open_beneath(name, OFlags::PATH, Mode::empty())?;
        let identity = identity_of(&fd, &self.join(name))?;
        Ok((fd, identity))
    }

    /// Opens a regular file for reading. Directories, links, devices, FIFOs and sockets are refused by name, and never
    /// opened in a way that has effects on them.
    pub fn open_file(&self, name: &RelPath) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = self.join(name);
        as_seen(&path, || self.stat_kind(name, EntryKind::File), || self.open_beneath(name, flags, Mode::empty()))
    }

    fn stat_kind(&self, name: &RelPath, expected: EntryKind) -> Result<(OwnedFd, FileIdentity)> {
        let (fd, identity) = self.open_path(name)?;
        match EntryKind::from_mode(identity.mode) {
            found if found == expected => Ok((fd, identity)),
            EntryKind::Symlink => Err(Error::Escapes { path: self.join(name) }),
            found => Err(Error::Kind { path: self.join(name), found: found.name(), expected: expected.name() }),
        }
    }

    /// The identity of whatever has this name; a link is refused.
    pub fn stat(&self, name: &RelPath) -> Result<FileIdentity> {
        self.stat_handle(name).map(|(_, identity)| identity)
    }

    pub(crate) fn stat_handle(&self, name: &RelPath) -> Result<(OwnedFd, FileIdentity)> {
        let (fd, identity) = self.open_path(name)?;
        if EntryKind::from_mode(identity.mode) == EntryKind::Symlink {
            return Err(Error::Escapes { path: self.join(name) });
        }
        Ok((fd, identity))
    }

    /// Like [`Root::stat`], but `None` when there is no such file.
    pub fn try_stat(&self, name: &RelPath) -> Result<Option<FileIdentity>> {
        match self.stat(name) {
            Ok(identity) => Ok(Some(identity)),
            Err(Error::Missing { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The directory `name` beneath this one, as a root of its own.
    pub fn dir(&self, name: &RelPath) -> Result<Root> {
        let fd = match self.open_beneath(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => {
                // A link in the last place is "not a directory", too: say which it is.
                self.stat_kind(name, EntryKind::Directory)?;
                return Err(Error::Kind { path: self.join(name), found: "file", expected: "directory" });
            }
            other => other?,
        };
        Ok(Root { fd, path: self.join(name) })
    }

    /// Reads a whole regular file of at most `limit` bytes.
    pub fn read(&self, name: &RelPath, limit: u64) -> Result<Vec<u8>> {
        let file = self.open_file(name)?;
        read_bounded(&file, &self.join(name), limit)
    }

    /// Creates the directory `name` and the missing ones above it with `mode` (the umask does not apply), and makes
    /// each durable. An existing directory is left as it is.
    pub fn create_dir_durable(&self, name: &RelPath, mode: u32) -> Result<Root> {
        let mut root = self.try_clone()?;
        for component in name.components() {
            let component = RelPath::new(component)?;
            fault::step("dir.mkdir");
            let path = root.join(&component);
            let created = match rustix::fs::mkdirat(&root.fd, component.as_path(), Mode::from_raw_mode(mode)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(e) => return Err(Error::write("create the directory", path, 0, e)),
            };
            let dir = root.dir(&component)?;
            if created {
                rustix::fs::fchmod(&dir.fd, Mode::from_raw_mode(mode))
                    .map_err(|e| Error::io("set the mode of", &dir.path, e))?;
                fault::step("dir.fsync");
                dir.sync()?;
                root.sync()?;
            }
            root = dir;
        }
        Ok(root)
    }

    /// Makes the directory's entries durable.
    pub fn sync(&self) -> Result<()> {
        crate::publish::fsync(&self.fd, &self.path)
    }

    /// The entries of this directory alone, sorted by name.
    pub fn list(&self) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for (name, kind) in self.raw_entries()? {
            entries.push(DirEntry { name: RelPath::new(name)?, kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Names and kinds without the grammar: also what a sweep must be able to remove.
    pub fn raw_entries(&self) -> Result<Vec<(OsString, EntryKind)>> {
        let error = |e: Errno| Error::io("list", &self.path, e);
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let name = OsStr::from_bytes(name).to_os_string();
            // The kind in the listing may be missing, and a file system may lie: ask the file.
            let stat = match rustix::fs::statat(&self.fd, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(Error::io("stat", self.path.join(&name), e)),
            };
            entries.push((name, EntryKind::from_mode(stat.st_mode)));
        }
        Ok(entries)
    }

    /// All entries beneath this directory, sorted, directories before what is in them; at most `limit` of them.
    /// Nothing is followed; what to do about links, sockets and devices is the caller's decision.
    pub fn walk(&self, limit: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for (path, kind) in self.walk_raw(limit)? {
            entries.push(DirEntry { name: RelPath::new(path)?, kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Like [`Root::walk`], whatever the names, unsorted. One directory is open at a time.
    pub fn walk_raw(&self, limit: usize) -> Result<Vec<(PathBuf, EntryKind)>> {
        let mut entries = Vec::new();
        let mut pending = vec![None::<PathBuf>];
        while let Some(prefix) = pending.pop() {
            let dir = match &prefix {
                None => self.try_clone()?,
                Some(prefix) => {
                    let (path, flags) = (self.path.join(prefix), OFlags::RDONLY | DIRECTORY | OFlags::NOFOLLOW);
                    let fd = openat2_beneath(&self.fd, prefix, flags, Mode::empty(), &path)?;
                    Root { fd, path }
                }
            };
            for (name, kind) in dir.raw_entries()? {
                let path = prefix.as_ref().map_or_else(|| PathBuf::from(&name), |prefix| prefix.join(&name));
                if kind == EntryKind::Directory {
                    pending.push(Some(path.clone()));
                }
                entries.push((path, kind));
            }
            if entries.len() > limit {
                return Err(Error::RootUnsafe {
                    path: self.path.clone(),
                    why: format!("it holds more than {limit} entries; name the folder that is meant"),
                });
            }
        }
        Ok(entries)
    }

    /// Sets the directory's own permission bits.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        let set = rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode));
        set.map_err(|e| Error::io("set the mode of", &self.path, e))
    }

    /// Removes the file `name` (one component), also one that is immutable where this process may clear that; a directory is
    /// refused. `false` when there was none.
    pub fn remove_file(&self, name: &RelPath) -> Result<bool> {
        fault::step("remove.unlink");
        match unlink(&self.fd, name.single()?, &self.path) {
            Ok(()) => {
                self.sync()?;
                Ok(true)
            }
            Err(Unlink::System(Errno::NOENT)) => Ok(false),
            Err(Unlink::System(Errno::ISDIR)) => {
                Err(Error::Kind { path: self.join(name), found: "directory", expected: "regular file" })
            }
            Err(e) => Err(e.error(&self.join(name))),
        }
    }

    /// Removes the directory `name` (one component) with all that is in it, following nothing.
    pub fn remove_tree(&self, name: &RelPath) -> Result<()> {
        crate::publish::remove_tree_at(self, name.single()?)?;
        self.sync()
    }
}

/// How long a name is tried again while the kernel says to try again.
const RACED: Duration = Duration::from_secs(2);

fn openat2_beneath(dir: &OwnedFd, name: &Path, flags: OFlags, mode: Mode, shown: &Path) -> Result<OwnedFd> {
    let path = || shown.to_path_buf();
    let until = Instant::now() + RACED;
    loop {
        return match rustix::fs::openat2(dir, name, flags, mode, BENEATH) {
            Ok(fd) => Ok(fd),
            Err(Errno::INTR) => continue,
            // Somebody holds a lease on the file, or a rename raced with the walk beneath the root: the kernel asks to try again.
            Err(Errno::AGAIN) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Err(Errno::AGAIN) => {
                let why = format!(
                    "another process holds a lease on it and does not give it back; gave up after {} s",
                    RACED.as_secs()
                );
                Err(Error::io("open", shown, std::io::Error::new(std::io::ErrorKind::WouldBlock, why)))
            }
            Err(Errno::LOOP | Errno::XDEV) => Err(Error::Escapes { path: path() }),
            Err(Errno::NOSYS) => Err(Error::NoOpenat2 { path: path() }),
            Err(e) => Err(Error::write("open", shown, 0, e)),
        };
    }
}

fn directory_error(path: &Path, errno: Errno, nofollow: bool) -> Error {
    match errno {
        Errno::LOOP => Error::Escapes { path: path.to_path_buf() },
        // With O_DIRECTORY|O_NOFOLLOW a link is "not a directory".
        Errno::NOTDIR => {
            let found = std::fs::symlink_metadata(path)
                .map_or("file", |m| if m.is_symlink() { "symbolic link" } else { "file" });
            if nofollow && found == "symbolic link" {
                Error::Escapes { path: path.to_path_buf() }
            } else {
                Error::Kind { path: path.to_path_buf(), found: "file", expected: "directory" }
            }
        }
        e => Error::io("open the directory", path, e),
    }
}

/// Opens a path of the user's own choice for reading; anything but a regular file is refused without being opened.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let open =
        |flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|e| Error::io("open", path, e));
    let look = || {
        let handle = open(OFlags::PATH)?;
        let seen = identity_of(&handle, path)?;
        match EntryKind::from_mode(seen.mode) {
            EntryKind::File => Ok((handle, seen)),
            kind => Err(Error::Kind { path: path.to_path_buf(), found: kind.name(), expected: "regular file" }),
        }
    };
    as_seen(path, look, || open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY))
}

/// Opens a file after a look at what it is, and makes sure that it is the one that was looked at. When another one took its name
/// in between, as whoever publishes does, it is looked for again.
fn as_seen(
    path: &Path,
    look: impl Fn() -> Result<(OwnedFd, FileIdentity)>,
    open: impl Fn() -> Result<OwnedFd>,
) -> Result<File> {
    let until = Instant::now() + RACED;
    loop {
        // The handle keeps the inode's number from being given to another file.
        let (_handle, seen) = look()?;
        let fd = open()?;
        if identity_of(&fd, path)?.same_file(&seen) {
            return Ok(File::from(fd));
        }
        if Instant::now() >= until {
            let what = format!("other files took its name while it was opened, for {} s", RACED.as_secs());
            return Err(Error::ChangedWhileReading { path: path.to_path_buf(), what });
        }
    }
}

/// Opens the file at a path of the user's own choice for reading (links are followed), regular files only.
pub fn open_source(path: impl AsRef<Path>) -> Result<File> {
    open_regular(path.as_ref())
}

/// All of an open file of at most `limit` bytes, as [`Root::read`] does it; `path` is the one to name in errors.
pub fn read_bounded(file: &File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let len = file.metadata().map_err(|e| Error::io("stat", path, e))?.len();
    if len > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), limit, found: len });
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, limit + 1), &mut bytes)
        .map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge { path: path.to_path_buf(), limit, found: bytes.len() as u64 });
    }
    Ok(bytes)
}
