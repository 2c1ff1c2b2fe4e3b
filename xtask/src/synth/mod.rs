//! `cargo xtask synth`: a model with the tensors of a real one and made-up, reproducible bytes.
//!
//! For trials at full size where the real model cannot be had. The same geometry and seed give the same file everywhere.

mod bytes;
mod geometry;
mod sink;

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use b70_gguf::{GgufWriter, TensorData};
use b70_manifest::Sha256Hex;

use crate::failure::{AtPath, Failure};
use bytes::Stream;
use geometry::{Geometry, Tensor};
use sink::HashingSink;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// qwen27 (187 Q4_0 tensors, 9.8 GB), qwen27-quarter (46, 2.4 GB), tiny (1 MB), or a JSON file like those under xtask/geometries.
    #[arg(long, value_name = "NAME|FILE")]
    geometry: String,
    /// Folder for the model; created if missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Other bytes for another seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A model made for a benchmark.
pub(crate) struct Synthetic {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: Sha256Hex,
    /// Tensors that a plan over all of Q4_0 packs, and their bytes.
    pub(crate) packed_tensors: u64,
    pub(crate) packed_bytes: u64,
}

/// Writes a model into `out`.
pub(crate) fn make(geometry: &str, out: &Path) -> Result<Synthetic, Failure> {
    let geometry = Geometry::load(geometry)?;
    let tensors = geometry.tensors()?;
    let made = write(&geometry, &tensors, 1, out)?;
    let packed = tensors.iter().filter(|tensor| {
        let fits = matches!(tensor.shape[..], [k, n] if k.is_multiple_of(32) && n.is_multiple_of(16));
        tensor.ggml_type.name() == "Q4_0" && fits
    });
    Ok(Synthetic {
        path: made.path,
        size_bytes: made.size_bytes,
        sha256: made.sha256,
        packed_tensors: packed.clone().count() as u64,
        packed_bytes: packed.map(|tensor| tensor.size_bytes).sum(),
    })
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let geometry = Geometry::load(&args.geometry)?;
    let tensors = geometry.tensors()?;
    let made = write(&geometry, &tensors, args.seed, &args.out)?;
    let q4_0 = tensors.iter().filter(|tensor| tensor.ggml_type.name() == "Q4_0");
    let payload: u64 = q4_0.clone().map(|tensor| tensor.size_bytes).sum();
    println!("{}", made.path.display());
    println!("  tensors: {} ({} Q4_0 of {payload} bytes together)", tensors.len(), q4_0.count());
    println!("  size:    {} bytes", made.size_bytes);
    println!("  sha256:  {}", made.sha256);
    Ok(ExitCode::SUCCESS)
}

struct Made {
    path: PathBuf,
    size_bytes: u64,
    sha256: Sha256Hex,
}

/// Writes the model under a temporary name and gives it its own when every byte is on the disk.
fn write(geometry: &Geometry, tensors: &[Tensor], seed: u64, out: &Path) -> Result<Made, Failure> {
    fs::create_dir_all(out).at("create", out)?;
    let path = out.join(format!("{}-synthetic-seed{seed}.gguf", geometry.name));
    // One temporary name per model: what a killed run leaves, the next run takes over.
    let partial = Partial::claim(path.with_extension("gguf.part"))?;

    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", "b70-synthetic")
        .metadata("general.name", format!("{} geometry, made-up weights, seed {seed}", geometry.name).as_str())
        .metadata("general.quantization_version", 2_u32)
        .metadata("b70-synthetic.block_count", geometry.layers());
    for (index, tensor) in tensors.iter().enumerate() {
        let stream = Stream::new(tensor.ggml_type, seed, index as u64)
            .ok_or_else(|| Failure::new(format!("tensor {} cannot be filled", tensor.name), "correct the geometry"))?;
        let size = tensor.size_bytes;
        let data = TensorData::Stream(Box::new(move |sink: &mut dyn Write| pour(stream, size, sink)));
        writer.tensor(&tensor.name, tensor.ggml_type, &tensor.shape, data);
    }

    let mut sink = HashingSink::new(partial.file.try_clone().at("write", &partial.path)?);
    let written = writer.write_to(&mut sink);
    // An error of the disk shows up here first; it explains the writer's own.
    let (_, sha256) = sink.finish().at("write", &partial.path)?;
    let size_bytes = written.map_err(|error| {
        Failure::new(format!("cannot write {}: {error}", partial.path.display()), "correct the geometry")
    })?;
    partial.publish(&path)?;
    let folder = File::open(out).at("open", out)?;
    folder.sync_all().at("flush", out)?;
    Ok(Made { path, size_bytes, sha256 })
}

/// Makes `size` bytes of a tensor piece by piece.
fn pour(stream: Stream, size: u64, sink: &mut dyn Write) -> io::Result<()> {
    let unit = stream.unit() as u64;
    let mut piece = vec![0; 16_384 * stream.unit()];
    let mut done = 0;
    while done < size {
        let length = (size - done).min(piece.len() as u64) as usize;
        stream.fill(done / unit, &mut piece[..length]);
        sink.write_all(&piece[..length])?;
        done += length as u64;
    }
    Ok(())
}

/// The file while it grows; removed unless published.
struct Partial {
    path: PathBuf,
    file: File,
    published: bool,
}

impl Partial {
    fn claim(path: PathBuf) -> Result<Self, Failure> {
        let file = File::options().create(true).append(true).open(&path).at("create", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(
                    format!("{} is being written by another run", path.display()),
                    "wait for it, or choose another folder",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error).at("lock", &path),
        }
        file.set_len(0).at("empty", &path)?;
        Ok(Self { path, file, published: false })
    }

    fn publish(mut self, path: &Path) -> Result<(), Failure> {
        fs::rename(&self.path, path).at("publish", path)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.published {
            // The error that brought us here matters more than a failure to clean up.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use b70_gguf::Directory;
    use sha2::{Digest, Sha256};

    fn tiny(seed: u64, out: &Path) -> Made {
        let geometry = Geometry::load("tiny").expect("built in");
        let tensors = geometry.tensors().expect("expands");
        write(&geometry, &tensors, seed, out).expect("written")
    }

    #[test]
    fn the_strict_reader_accepts_what_was_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = tiny(1, folder.path());
        let data = fs::read(&made.path).expect("read");
        assert_eq!(data.len() as u64, made.size_bytes);
        assert_eq!(Sha256Hex::from_bytes(Sha256::digest(&data).into()), made.sha256);
        let directory = Directory::from_bytes(&data, made.size_bytes).expect("valid");
        assert_eq!(directory.tensors().len(), 15);
        let names: Vec<_> =
            fs::read_dir(folder.path()).expect("listed").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["tiny-synthetic-seed1.gguf"], "no temporary file is left");
    }

    #[test]
    fn the_same_seed_gives_the_same_file_and_another_seed_another() {
        let (a, b) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        assert_eq!(tiny(1, a.path()).sha256, tiny(1, b.path()).sha256);
        assert_ne!(tiny(1, a.path()).sha256, tiny(2, a.path()).sha256);
        // Pinned: results on the synthetic model are only comparable while its bytes stay the same.
        assert_eq!(
            tiny(1, a.path()).sha256.to_string(),
            "a5693c0182dfdbee8e72d1e3afb9932d8b1872154fca34a59e3a78f6dc781fb6"
        );
    }

    #[test]
    fn a_run_in_progress_is_not_disturbed_and_a_dead_one_is_taken_over() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.gguf.part");
        let first = Partial::claim(path.clone()).expect("claimed");
        let refused = Partial::claim(path.clone()).err().expect("refused").to_string();
        assert!(refused.contains("another run"), "{refused}");
        drop(first);
        assert!(!path.exists());
        fs::write(&path, "left by a killed run").expect("written");
        let taken = Partial::claim(path.clone()).expect("taken over");
        assert_eq!(taken.file.metadata().expect("metadata").len(), 0);
    }
}
