//! Safe paths: a strict grammar for names that come from documents, and directory handles beneath which they open.
//!
//! A name is data. It is checked twice: by [`RelPath`]'s grammar, and by the kernel, through `openat2` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::error::{Error, Result};
use crate::fault;
use crate::identity::FileIdentity;

/// The rule a name breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameFault {
    /// The empty name.
    #[error("it is empty")]
    Empty,
    /// A leading slash.
    #[error("it is absolute")]
    Absolute,
    /// Two slashes in a row, or a slash at the end.
    #[error("it has an empty component")]
    EmptyComponent,
    /// A component `.` or `..`.
    #[error("it has a component `.` or `..`")]
    Dots,
    /// A control character (U+0000 to U+001F, U+007F to U+009F).
    #[error("it has a control character")]
    Control,
    /// A backslash: a separator elsewhere, an escape in checksum lists.
    #[error("it has a backslash")]
    Backslash,
    /// A component over 255 bytes or a name over 4095.
    #[error("it is too long")]
    TooLong,
    /// A directory where a single component is needed.
    #[error("it must be a single component")]
    NotOneComponent,
}

/// A relative path that cannot leave the directory it is opened beneath.
///
/// Grammar: one or more components separated by single slashes; none is empty, `.` or `..`; no control characters, no
/// backslash; at most 255 bytes each and 4095 in all. Any other bytes are allowed, also such as are not UTF-8.
///
/// Serde form: a string; a name that is not UTF-8 becomes `{"hex": "…"}`. Order: component by component, bytewise.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RelPath(OsString);

impl RelPath {
    /// Checks `name` against the grammar.
    pub fn new(name: impl AsRef<OsStr>) -> Result<Self> {
        let name = name.as_ref();
        match Self::fault(name.as_bytes()) {
            None => Ok(Self(name.to_os_string())),
            Some(fault) => Err(Error::Name { name: name.to_string_lossy().into_owned(), fault }),
        }
    }

    fn fault(name: &[u8]) -> Option<NameFault> {
        if name.is_empty() {
            return Some(NameFault::Empty);
        }
        if name[0] == b'/' {
            return Some(NameFault::Absolute);
        }
        if name.len() > 4095 {
            return Some(NameFault::TooLong);
        }
        for component in name.split(|&b| b == b'/') {
            match component {
                b"" => return Some(NameFault::EmptyComponent),
                b"." | b".." => return Some(NameFault::Dots),
                c if c.len() > 255 => return Some(NameFault::TooLong),
                _ => {}
            }
        }
        // `utf8_chunks` finds the control characters of the C1 range in names that are only partly UTF-8, too.
        if name.iter().any(|&b| b < 0x20 || b == 0x7f)
            || name.utf8_chunks().any(|chunk| chunk.valid().chars().any(char::is_control))
        {
            return Some(NameFault::Control);
        }
        name.contains(&b'\\').then_some(NameFault::Backslash)
    }

    /// The path as the system takes it.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The name as text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        self.0.to_str()
    }

    /// The components in order.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &OsStr> {
        self.0.as_bytes().split(|&b| b == b'/').map(OsStr::from_bytes)
    }

    /// The last component.
    pub fn file_name(&self) -> &OsStr {
        self.components().next_back().expect("a name has at least one component")
    }

    /// All but the last component; `None` for a single component.
    pub fn parent(&self) -> Option<RelPath> {
        let at = self.0.as_bytes().iter().rposition(|&b| b == b'/')?;
        Some(Self(OsStr::from_bytes(&self.0.as_bytes()[..at]).to_os_string()))
    }

    /// `self/name`.
    pub fn join(&self, name: &RelPath) -> Result<RelPath> {
        let mut joined = self.0.clone();
        joined.push("/");
        joined.push(&name.0);
        Self::new(joined)
    }

    pub(crate) fn single(&self) -> Result<&OsStr> {
        if self.as_bytes().contains(&b'/') {
            return Err(Error::Name { name: self.to_string(), fault: NameFault::NotOneComponent });
        }
        Ok(&self.0)
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_path().display().fmt(f)
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.components().cmp(other.components())
    }
}

impl FromStr for RelPath {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NameForm<'a> {
    Text(std::borrow::Cow<'a, str>),
    Hex { hex: String },
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        match self.as_str() {
            Some(text) => NameForm::Text(text.into()),
            None => NameForm::Hex {
                hex: self.as_bytes().iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                }),
            },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        let name = match NameForm::deserialize(deserializer)? {
            NameForm::Text(text) => OsString::from(text.into_owned()),
            NameForm::Hex { hex } => {
                let digits: Option<Vec<u32>> = hex.chars().map(|c| c.to_digit(16)).collect();
                let digits = digits.filter(|d| d.len() % 2 == 0).ok_or_else(|| D::Error::custom("odd hex name"))?;
                OsString::from_vec(digits.chunks_exact(2).map(|p| (p[0] << 4 | p[1]) as u8).collect())
            }
        };
        Self::new(name).map_err(D::Error::custom)
    }
}

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
    pub(crate) fn from_mode(mode: u32) -> Self {
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
pub struct Entry {
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
        let identity = FileIdentity::of(&fd, &self.join(name))?;
        Ok((fd, identity))
    }

    /// Opens a regular file for reading. Directories, links, devices, FIFOs and sockets are refused by name, and never
    /// opened in a way that has effects on them.
    pub fn open_file(&self, name: &RelPath) -> Result<File> {
        let (_, seen) = self.stat_kind(name, EntryKind::File)?;
        let fd = self.open_beneath(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        let opened = FileIdentity::of(&fd, &self.join(name))?;
        if !opened.same_file(&seen) {
            return Err(Error::ChangedWhileReading {
                path: self.join(name),
                what: "another file took its name while it was opened".to_owned(),
            });
        }
        Ok(File::from(fd))
    }

    fn stat_kind(&self, name: &RelPath, expected: EntryKind) -> Result<(OwnedFd, FileIdentity)> {
        let (fd, identity) = self.open_path(name)?;
        match identity.kind() {
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
        if identity.kind() == EntryKind::Symlink {
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
            let component = RelPath(component.to_os_string());
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
    pub fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (name, kind) in self.raw_entries()? {
            entries.push(Entry { name: RelPath::new(name)?, kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Names and kinds without the grammar: also what a sweep must be able to remove.
    pub(crate) fn raw_entries(&self) -> Result<Vec<(OsString, EntryKind)>> {
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
    pub fn walk(&self, limit: usize) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (path, kind) in self.walk_raw(limit)? {
            entries.push(Entry { name: RelPath::new(path)?, kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Like [`Root::walk`], whatever the names, unsorted. One directory is open at a time.
    pub(crate) fn walk_raw(&self, limit: usize) -> Result<Vec<(PathBuf, EntryKind)>> {
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

    /// Removes the file `name` (one component); a directory is refused. `false` when there was none.
    pub fn remove_file(&self, name: &RelPath) -> Result<bool> {
        fault::step("remove.unlink");
        match rustix::fs::unlinkat(&self.fd, name.single()?, AtFlags::empty()) {
            Ok(()) => {
                self.sync()?;
                Ok(true)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::ISDIR) => {
                Err(Error::Kind { path: self.join(name), found: "directory", expected: "regular file" })
            }
            Err(e) => Err(Error::io("remove", self.join(name), e)),
        }
    }

    /// Removes the directory `name` (one component) with all that is in it, following nothing.
    pub fn remove_tree(&self, name: &RelPath) -> Result<()> {
        crate::publish::remove_tree_at(self, name.single()?)?;
        self.sync()
    }
}

fn openat2_beneath(dir: &OwnedFd, name: &Path, flags: OFlags, mode: Mode, shown: &Path) -> Result<OwnedFd> {
    let path = || shown.to_path_buf();
    loop {
        return match rustix::fs::openat2(dir, name, flags, mode, BENEATH) {
            Ok(fd) => Ok(fd),
            // EAGAIN: a rename elsewhere raced with the walk beneath the root; the kernel asks to try again.
            Err(Errno::INTR | Errno::AGAIN) => continue,
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
    let handle = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::io("open", path, e))?;
    let seen = FileIdentity::of(&handle, path)?;
    if seen.kind() != EntryKind::File {
        return Err(Error::Kind { path: path.to_path_buf(), found: seen.kind().name(), expected: "regular file" });
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::io("open", path, e))?;
    if !FileIdentity::of(&fd, path)?.same_file(&seen) {
        return Err(Error::ChangedWhileReading {
            path: path.to_path_buf(),
            what: "another file took its name while it was opened".to_owned(),
        });
    }
    Ok(File::from(fd))
}

/// Opens the file at a path of the user's own choice for reading (links are followed), regular files only.
pub fn open_source(path: impl AsRef<Path>) -> Result<File> {
    open_regular(path.as_ref())
}

pub(crate) fn read_bounded(file: &File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let len = file.metadata().map_err(|e| Error::io("stat", path, e))?.len();
    if len > limit {
        return Err(Error::Size { path: path.to_path_buf(), expected: limit, found: len });
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, limit + 1), &mut bytes)
        .map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::Size { path: path.to_path_buf(), expected: limit, found: bytes.len() as u64 });
    }
    Ok(bytes)
}
