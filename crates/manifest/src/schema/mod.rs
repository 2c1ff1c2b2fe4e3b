//! JSON Schemas of the documents, draft-07, made from the types.
//!
//! A schema file is a pair: its name below `docs/schemas`, and the schema. Libraries that print documents of their own
//! make theirs with [`output`].

mod finish;
mod registry;

pub(crate) use registry::own_required_fields;
#[cfg(feature = "validate")]
pub(crate) use registry::validator;
pub use registry::{SchemaEntry, catalog, documents, of, output, text};
#[cfg(feature = "validate")]
pub use registry::{all, outputs};

/// The base of every `$id`.
pub const BASE: &str = "https://b70kit.dev/schemas/v1/";
/// The meta-schema of every schema, in its canonical form.
pub const DRAFT_07: &str = "http://json-schema.org/draft-07/schema#";
