//! The executable `b70-worker`.

mod cli;
mod real;
