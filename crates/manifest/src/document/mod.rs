//! Kinds of documents: their names, files and schemas, how a kind is found from content, and reading one with every
//! error at once.

mod detect;
mod kind;
#[cfg(feature = "validate")]
mod read;

pub use detect::detect;
pub use kind::{Kind, KindEntry, KindList};
#[cfg(feature = "validate")]
pub(crate) use read::is_readable;
#[cfg(feature = "validate")]
pub use read::{Document, DocumentError, MAX_DOCUMENT_BYTES, read, read_bytes, read_text};
