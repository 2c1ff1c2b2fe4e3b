//! Any bytes; what must hold is in the crate's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/client/tests/invariants/sse.rs"]
mod invariants;

fuzz_target!(|bytes: &[u8]| invariants::check(bytes));
