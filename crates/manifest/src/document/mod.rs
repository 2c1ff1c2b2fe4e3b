//! Kinds of documents: their names, files and schemas, how a kind is found from content, and reading one with every
//! error at once.

mod detect;
mod kind;
mod read;

pub use detect::detect;
pub use kind::Kind;
pub(crate) use read::is_readable;
pub use read::{Document, DocumentError, KindEntry, KindList, read, read_text};
