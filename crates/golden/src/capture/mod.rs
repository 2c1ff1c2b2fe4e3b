//! Real captures: read a tensor file, hold it against its mandatory metadata, publish it as diagnostic evidence.

mod document;
mod dtype;
mod import;
mod npy;
mod safetensors;
mod store;

pub use document::{Capture, CaptureKernel, CaptureRole, CaptureRuntime, CaptureTensor};
pub use dtype::Dtype;
pub use import::{ImportReport, import};
pub use store::Found;
pub(crate) use store::captures_of;

use std::path::Path;

/// A tensor taken out of a file: what the file says of it, and its bytes.
#[derive(Debug, PartialEq)]
struct FileTensor {
    /// The name the file gives, if its format has names.
    name: Option<String>,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// The largest tensor file that is read into memory.
const MAX_FILE: u64 = 4 << 30;

/// Takes the tensor `name` out of a `.safetensors` or `.npy` file, told apart by content.
fn read_tensor(path: &Path, name: &str) -> Result<FileTensor, crate::GoldenError> {
    let wrong = |why: String| crate::GoldenError::BadFile { path: path.to_path_buf(), why };
    let io = |e: std::io::Error| crate::GoldenError::Io { action: "read", path: path.to_path_buf(), source: e };
    let mut file = b70_store::open_source(path)?;
    let size = file.metadata().map_err(io)?.len();
    if size > MAX_FILE {
        return Err(wrong(format!("{size} bytes; captures of more than {MAX_FILE} bytes are refused")));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, MAX_FILE), &mut bytes).map_err(io)?;
    if bytes.starts_with(npy::MAGIC) { npy::parse(&bytes) } else { safetensors::parse(&bytes, name) }.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NPY: &[u8] = b"\x93NUMPY\x01\x00\x39\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }1234";
    const SAFETENSORS: &[u8] =
        b"\x36\0\0\0\0\0\0\0{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}1234";

    #[test]
    fn the_two_samples_are_sound() {
        assert_eq!(npy::parse(NPY).expect("sound").bytes, b"1234");
        assert_eq!(safetensors::parse(SAFETENSORS, "x").expect("sound").bytes, b"1234");
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(damage in proptest::collection::vec((0usize..80, any::<u8>()), 1..4), cut in 0usize..80) {
            for sample in [NPY, SAFETENSORS] {
                let mut bytes = sample.to_vec();
                for (at, value) in &damage {
                    let at = at % bytes.len();
                    bytes[at] = *value;
                }
                bytes.truncate(bytes.len().saturating_sub(cut / 8));
                let _ = npy::parse(&bytes);
                let _ = safetensors::parse(&bytes, "x");
            }
        }
    }
}
