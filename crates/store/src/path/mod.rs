//! Safe paths: a strict grammar for names that come from documents, and directory handles beneath which they open.
//!
//! A name is data. It is checked twice: by [`RelPath`]'s grammar, and by the kernel, through `openat2` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`.

mod name;
mod root;

pub use name::{NameFault, RelPath};
pub use root::{DirEntry, EntryKind, Root, open_source, read_bounded};

pub(crate) use root::open_regular;
