//! The executable `b70-pack`.

mod cli;
mod common;
mod faults;
mod inputs;
mod limits;
mod mounts;
mod referee;
mod sets;
mod stage;
mod upstream;
