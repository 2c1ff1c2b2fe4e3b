//! Real captures: read a tensor file, hold it against its mandatory metadata, publish it as diagnostic evidence.

mod document;
mod dtype;
mod import;
mod npy;
mod safetensors;
mod store;

pub use document::{CAPTURE_FORMAT, Capture, CaptureKernel, CaptureRole, CaptureRuntime, CaptureTensor};
pub use dtype::Dtype;
pub use import::{ImportReport, import};
pub use store::{Found, captures_of};

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
    let mut file = b70_admission::open_source(path)?;
    let size = file.metadata().map_err(io)?.len();
    if size > MAX_FILE {
        return Err(wrong(format!("{size} bytes; captures of more than {MAX_FILE} bytes are refused")));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, MAX_FILE), &mut bytes).map_err(io)?;
    if bytes.starts_with(npy::MAGIC) { npy::parse(&bytes) } else { safetensors::parse(&bytes, name) }.map_err(wrong)
}
