//! The command lines of b70kit, a module each: parse, one library call, print, exit code.
//!
//! Each module has `Cli`, the clap definition from which help, man pages and completions are made, and `run`.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cache;
pub mod golden;
pub mod gpu;
pub mod manifest;
pub mod pack;
pub mod registry;
pub mod tour;
pub mod worker;
