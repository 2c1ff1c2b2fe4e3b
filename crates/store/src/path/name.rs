//! The grammar of names that come from documents.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::str::FromStr;

use b70_manifest::artifact::FileName;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::error::{Error, Result};

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

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        match self.as_str() {
            Some(text) => FileName::Text(text.to_owned()),
            None => FileName::Hex {
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
        let name = match FileName::deserialize(deserializer)? {
            FileName::Text(text) => text.into(),
            FileName::Hex { hex } => {
                let digits: Option<Vec<u32>> = hex.chars().map(|c| c.to_digit(16)).collect();
                let digits = digits.filter(|d| d.len() % 2 == 0).ok_or_else(|| D::Error::custom("odd hex name"))?;
                OsString::from_vec(digits.chunks_exact(2).map(|p| (p[0] << 4 | p[1]) as u8).collect())
            }
        };
        Self::new(name).map_err(D::Error::custom)
    }
}
