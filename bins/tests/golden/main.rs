//! The executable `b70-golden`.

mod cli;
mod real;
