//! A good set, one of whose documents is changed; what must hold is in the crate's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/packset/tests/common/mod.rs"]
mod common;
#[path = "../../crates/packset/tests/invariants/set_directory.rs"]
mod invariants;

fuzz_target!(|bytes: &[u8]| invariants::check(bytes));
