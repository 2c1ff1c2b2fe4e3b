//! What several test files share.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stdout, reason = "tests name what they skip")]

use b70_packset::{Layout, MatrixShape};
use b70_xe2pack::{Kernel, reference};
use sha2::{Digest, Sha256};

/// The kernels to test; those the CPU lacks are named in the output.
pub(crate) fn kernels() -> Vec<Kernel> {
    for name in Kernel::known() {
        if let Err(error) = Kernel::by_name(name) {
            println!("skipped: {error}");
        }
    }
    Kernel::available()
}

pub(crate) fn packed_by_reference(shape: MatrixShape, source: &[u8]) -> Vec<u8> {
    let mut payload = vec![0; source.len()];
    reference::pack(shape, source, &mut payload).expect("the reference packs valid shapes");
    payload
}

pub(crate) fn len(layout: &impl Layout, shape: MatrixShape) -> usize {
    layout.payload_len(shape).expect("a valid shape") as usize
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
