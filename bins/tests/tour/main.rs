//! The executable `b70-tour`.

mod migration;
mod tour;
