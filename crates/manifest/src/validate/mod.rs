//! All errors of a document at once, each with its place.
//!
//! A document is checked in four steps, and every step reports: keys an object has twice, the kind's schema, rules across
//! fields, and rules across the files that were given together.

mod across;
mod check;
mod nearest;
mod problem;
mod rules;
mod schema_errors;

pub use check::{check_bytes, check_files, check_text};
pub use problem::{FileReport, Problem, ValidateOutput};
