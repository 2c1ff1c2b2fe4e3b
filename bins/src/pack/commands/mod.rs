//! One function a command: parse what is left, one library call, say it.

mod manage;
mod prepare;
mod read;
mod stage;
mod verify;

pub(crate) use manage::{gc, list};
pub(crate) use prepare::{PrepareArgs, prepare};
pub(crate) use read::{inspect, keys, self_test, unpack};
pub(crate) use stage::{StageArgs, stage_ram, stage_validate};
pub(crate) use verify::verify;
