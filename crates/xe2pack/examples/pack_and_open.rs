//! From a GGUF to a kernel's slice: pack a model's Q4_0 tensors, stage the set in RAM, open it as a loader does.
//!
//!     cargo run --example pack_and_open -- model.gguf CACHE_ROOT RAM_ROOT
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use b70_packset::{
    Expectation, Lookup, Model, ModelHash, PrepareOptions, SetDir, Stage, StageOptions, TensorPlan, prepare, stage_ram,
    tool_record,
};
use b70_store::Progress;
use b70_xe2pack::{ALL_PLAN, Xe2DpasV2};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, cache_root, ram_root] = arguments.as_slice() else {
        return Err("give a GGUF file, a folder for sets and a folder in RAM".into());
    };
    let (cache_root, ram_root) = (Path::new(cache_root), Path::new(ram_root));

    let layout = Xe2DpasV2::new();
    let plan = TensorPlan::built_in(ALL_PLAN, &layout).ok_or("a built-in plan")?;
    let prepared = prepare(
        &Model::open(Path::new(model))?,
        &plan,
        &layout,
        &PrepareOptions {
            cache_root,
            // Better: `ModelHash::Expected` with a digest that somebody vouches for.
            model_hash: &ModelHash::Unknown,
            rehash: false,
            force: false,
            immutable: false,
            jobs: 0,
            lock_timeout: Duration::from_secs(60),
            tool: Some(&tool_record("pack_and_open", "1")),
            progress: Progress::NONE,
        },
    )?;
    println!("set {}: {} packed, {} reused", prepared.set_key, prepared.packed, prepared.reused);

    let set = SetDir::open(cache_root, prepared.set_key)?;
    let staged = stage_ram(
        &set,
        &layout,
        &StageOptions {
            ram_root,
            uid: std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self")?),
            min_free: 1 << 30,
            immutable: false,
            lock_timeout: Duration::from_secs(60),
            progress: Progress::NONE,
        },
    )?;
    println!("staged in {}, admitted by {:?}", staged.stage.display(), staged.trust);

    let expectation = Expectation {
        set_key: Some(prepared.set_key),
        model_sha256: Some(prepared.source_sha256),
        architecture: Some("bmg-g31".to_owned()),
    };
    let stage = Stage::open(&staged.stage, &layout, &expectation)?;
    for entry in &stage.manifest().tensors {
        let identity = &entry.identity;
        let tensor = stage.tensor(&Lookup {
            target_model_sha256: prepared.source_sha256,
            tensor_name: &identity.tensor_name,
            tensor_shape: identity.tensor_shape,
            tensor_type: "GGML_TYPE_Q4_0",
            pack_layout_version: 2,
            target_architecture: "bmg-g31",
        })?;
        println!("{}  {:?}  {} bytes, proved", identity.tensor_name, identity.tensor_shape, tensor.read()?.len());
    }
    Ok(())
}
