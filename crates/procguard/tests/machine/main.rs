//! Guards against real processes, ports, locks and files of this machine.

mod files;
mod leases;
mod ports;
mod processes;
mod rounds;
mod support;
