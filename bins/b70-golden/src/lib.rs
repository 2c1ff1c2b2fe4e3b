//! The command line of `b70-golden`.
