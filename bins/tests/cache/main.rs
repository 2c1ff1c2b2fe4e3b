//! The executable `b70-cache`.

mod cache;
mod escape;
