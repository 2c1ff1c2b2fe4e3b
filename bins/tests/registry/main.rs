//! The executable `b70-registry`.

mod escape;
mod registry;
