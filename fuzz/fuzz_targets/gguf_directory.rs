//! Any bytes, as a whole file and as the start of a longer one.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/gguf/tests/common/invariants.rs"]
mod invariants;

fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    let whole = invariants::check(bytes, len);
    // A longer file can only have more room: what is complete stays complete.
    for file_len in [len + 1, len + (1 << 20), u64::MAX] {
        let prefix = invariants::check(bytes, file_len);
        if let (Ok(whole), Ok(prefix)) = (&whole, &prefix) {
            assert_eq!(whole.tensors(), prefix.tensors());
        } else if whole.is_ok() {
            panic!("accepted as a whole file, refused as a prefix: {}", prefix.expect_err("not accepted"));
        }
    }
});
