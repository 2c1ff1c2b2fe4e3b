//! The executable `b70-gpu`.

mod cli;
mod real;
