//! The tensors of a model, whether it is one file or several.
//!
//!     cargo run --example tensors -- model.gguf
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use b70_gguf::{SplitModel, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("give a GGUF file, or any shard of a split one")?;
    let model = SplitModel::open(path)?;
    let directory = model.directory();
    let architecture = directory.get("general.architecture").and_then(Value::as_str).unwrap_or("not stated");
    println!("{architecture}: {} tensors in {} file(s)", model.tensors().len(), model.files().len());
    for tensor in model.tensors() {
        println!(
            "{}  {}  {:?}  file {}, byte {}, {} bytes",
            tensor.name_lossy().escape_debug(),
            tensor.ggml_type.name(),
            tensor.shape,
            tensor.file_index,
            tensor.offset,
            tensor.size_bytes
        );
    }
    Ok(())
}
