//! The executable `b70-manifest`.

mod cli;
