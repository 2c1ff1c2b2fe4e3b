//! Guards against real processes, ports, locks and files of this machine.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test ends, and speaks, where something is amiss.

mod files;
mod leases;
mod ports;
mod processes;
mod rounds;
mod support;
