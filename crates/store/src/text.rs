//! What is written in one form everywhere: documents, and marks that nobody else has.

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// A document as it is written: indented JSON with a newline at its end. `path` is where it goes, for the error.
pub fn json_bytes(path: &Path, document: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(document).map_err(|e| Error::io("write as JSON", path, e))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// 128 random bits of the kernel's as hexadecimal digits.
pub fn random_token() -> Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("read", Path::new("/dev/urandom"), e))?;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}
