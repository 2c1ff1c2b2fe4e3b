//! From the lab's version 1 documents to the current version, without loss.
//!
//! Version 2 differs from version 1 in three ways: `schema_version` is 2; extra arguments of workers may be a list of
//! words; keys the kit does not know live below `extensions`, `lab-v1`, each under its JSON pointer. [`revert`] goes the
//! other way. Documents that tools wrote are bound by hashes and are never rewritten: their readers take every version.

mod forward;
mod revert;

pub use forward::{Change, MigrateError, MigrateOutput, Migration, migrate, migrate_file};
pub use revert::revert;

/// Where `extensions` keeps the keys of version 1 that the kit does not know.
pub const LAB_EXTENSION: &str = "lab-v1";
