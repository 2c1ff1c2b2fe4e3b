//! Reading JSON documents: bounded, and with errors that name file, line and column.

use std::io::Read as _;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::PackError;

/// The text of a document of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, PackError> {
    // A FIFO or a device is refused without being opened, which could wait for ever.
    let file = b70_store::open_source(path)?;
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(PackError::io("read", path))?;
    if text.len() as u64 > limit {
        return Err(PackError::document(path, format!("larger than the {limit} bytes such a document may have")));
    }
    Ok(text)
}

/// `text` as a `T`; what is not JSON is told apart from JSON of another form.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, PackError> {
    serde_json::from_str(text).map_err(|error| PackError::Document {
        path: path.to_path_buf(),
        problem: error.to_string(),
        not_json: matches!(error.classify(), serde_json::error::Category::Syntax | serde_json::error::Category::Eof),
    })
}
