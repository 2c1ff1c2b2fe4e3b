//! The bounded-memory path: a tensor larger than a worker's set is packed and unpacked in bands, to the same bytes.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use b70_gguf::GgmlType;
use b70_packset::{SetDir, unpack_in};
use b70_store::Progress;
use common::Lab;
use common::models::tensor_bytes;
use proptest::prelude::*;

/// The payloads and the index of a set.
fn fixed(set: &Path) -> BTreeMap<String, Vec<u8>> {
    let folders = [set.to_path_buf(), set.join("tensors")];
    folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder").flatten())
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "bin" || end == "tsv"))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("a file")))
        .collect()
}

fn check(shapes: &[[u64; 2]], worker_set: u64, jobs: usize) {
    let names: Vec<String> = (0..shapes.len()).map(|index| format!("t{index}")).collect();
    let tensors: Vec<_> =
        names.iter().zip(shapes).map(|(name, shape)| (name.as_bytes(), GgmlType::Q4_0, &shape[..])).collect();
    let lab = Lab::with(&tensors);
    let whole = lab.prepare("whole", 1, None);
    let banded = lab.prepare("banded", jobs, Some(worker_set));
    assert_eq!(whole.set_key, banded.set_key);
    let set = lab.set("banded", &banded);
    assert_eq!(fixed(&lab.set("whole", &whole)), fixed(&set), "{shapes:?} in {worker_set} bytes");
    for tensor in tensors {
        let name = std::str::from_utf8(tensor.0).expect("text");
        let out = lab.folder.path().join(name);
        let dir = SetDir::open_path(&set).expect("the set");
        let unpacked = unpack_in(&dir, name, &lab.layout, &out, &Progress::NONE, worker_set).expect("a tensor");
        assert_eq!(fs::read(out).expect("unpacked"), tensor_bytes(tensor), "{tensor:?} in {worker_set} bytes");
        assert_eq!(unpacked.size_bytes, tensor.2[0] / 32 * 18 * tensor.2[1]);
    }
}

#[test]
fn one_row_group_at_a_time() {
    // A set of one byte still takes one row group, the least there is.
    check(&[[32, 16], [64, 48], [512, 272], [4096, 32]], 1, 1);
    check(&[[32, 16], [64, 48], [512, 272], [4096, 32]], 1, 3);
}

#[test]
fn a_last_band_shorter_than_the_others() {
    // Two groups a band, five groups in all.
    let group = 64 / 32 * 18 * 16 * 2;
    check(&[[64, 80]], 2 * group, 1);
    check(&[[64, 80]], 2 * group + group / 2, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn banded_packing_equals_whole_packing(
        shapes in prop::collection::vec((1_u64..24, 1_u64..12), 1..4),
        worker_set in 1_u64..100_000,
        jobs in 1_usize..4,
    ) {
        let shapes: Vec<[u64; 2]> = shapes.into_iter().map(|(blocks, groups)| [blocks * 32, groups * 16]).collect();
        check(&shapes, worker_set, jobs);
    }
}
