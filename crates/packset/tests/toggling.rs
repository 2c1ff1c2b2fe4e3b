//! A model on tmpfs that a live mapping changes and changes back while it is prepared: refused or right, never wrong.
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use b70_gguf::GgmlType;
use b70_manifest::Sha256Hex;
use b70_packset::{ModelHash, PrepareOptions, SetDir, prepare_in, unpack};
use b70_store::Progress;
use b70_testkit::writers::SharedMap;
use b70_testkit::{Dice, memory};
use b70_xe2pack::Xe2DpasV2;
use common::{Lab, models, sha256_of};

const SHAPE: [u64; 2] = [2048, 256];

#[test]
fn two_hundred_runs_beside_a_live_toggling_mapping() {
    let folder = memory();
    let path = folder.path().join("model.gguf");
    let names: Vec<String> = (0..8).map(|index| format!("t{index}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_bytes(), GgmlType::Q4_0, &SHAPE[..])).collect();
    models::write_model(&path, &tensors);
    let lab = Lab { folder, path, layout: Xe2DpasV2::new() };
    // A byte in the middle of the last tensor: late enough to change between two readings.
    let (at, file) = (fs::metadata(&lab.path).expect("the model").len() as usize - 100_000, &lab.path);
    let digests = [sha256_of(file), {
        SharedMap::of(file).flip(at, 1);
        let other = sha256_of(file);
        SharedMap::of(file).flip(at, 1);
        other
    }];
    let tensors_of = |other: bool| -> BTreeMap<String, Sha256Hex> {
        let model = lab.model();
        let bytes = fs::read(file).expect("the model");
        let digest = |tensor: &b70_gguf::Tensor| {
            let (start, end) = (tensor.offset as usize, (tensor.offset + tensor.size_bytes) as usize);
            let mut data = bytes[start..end].to_vec();
            if other && (start..end).contains(&at) {
                data[at - start] ^= 1;
            }
            (String::from_utf8_lossy(&tensor.name).into_owned(), Sha256Hex::of(&data))
        };
        model.tensors().iter().map(digest).collect()
    };
    let expected = [tensors_of(false), tensors_of(true)];
    // A receipt of the pristine file, for the runs that may do without SHA-256.
    lab.prepare("with-receipt", 2, None);

    let stop = AtomicBool::new(false);
    let (mut ready, mut refused, mut wrong) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut map, mut dice) = (SharedMap::of(file), Dice(7));
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(dice.below(12_000)));
                map.flip(at, 1);
                std::thread::sleep(Duration::from_micros(dice.below(3_000)));
                map.flip(at, 1);
            }
        });
        for run in 0..200_u32 {
            let root = if run % 4 == 3 { "with-receipt".to_owned() } else { format!("cache-{run}") };
            let root = lab.folder.path().join(root);
            let hash = match run % 3 {
                0 => ModelHash::Unknown,
                _ => ModelHash::Expected { sha256: digests[0], vouched_by: "argument".to_owned() },
            };
            let options =
                PrepareOptions { model_hash: &hash, jobs: 1 + run as usize % 3, ..PrepareOptions::new(&root) };
            // Held whole, or in bands.
            let worker_set = (run % 2 == 1).then_some(100_000);
            let plan = lab.plan();
            match prepare_in(&lab.model(), &plan, &lab.layout, &options, worker_set) {
                Err(_) => refused += 1,
                Ok(prepared) => {
                    ready += 1;
                    let state = digests.iter().position(|digest| *digest == prepared.source_sha256);
                    let state = state.expect("one of the two states of the file");
                    let set = root.join(prepared.set_key.to_string());
                    wrong += u32::from(!is_right(&set, lab.layout, &expected[state], lab.folder.path()));
                    fs::remove_dir_all(&set).expect("our set");
                }
            }
            if run % 4 != 3 {
                fs::remove_dir_all(&root).expect("our root");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("200 runs beside a toggling mapping: {ready} right, {refused} refused, {wrong} wrong");
    assert_eq!(wrong, 0);
    assert!(ready > 0 && refused > 0, "{ready} ready, {refused} refused: the writer met nothing");
}

/// Whether every payload is that of the tensor the model had, and its sidecar says so.
fn is_right(set: &Path, layout: Xe2DpasV2, expected: &BTreeMap<String, Sha256Hex>, scratch: &Path) -> bool {
    let dir = SetDir::open_path(set).expect("a set");
    let (document, _) = dir.read_manifest().expect("a manifest");
    document.tensors.iter().all(|tensor| {
        let name = &tensor.identity.tensor_name;
        let out = scratch.join("unpacked");
        unpack(&dir, name, &layout, &out, &Progress::NONE).expect("a tensor");
        let found = sha256_of(&out);
        fs::remove_file(&out).expect("our file");
        found == expected[name] && tensor.source_tensor.sha256 == found
    })
}
