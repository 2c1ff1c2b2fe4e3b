//! Who vouches for a model, and a model that changes while it is read.

mod common;

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use b70_gguf::GgmlType;
use b70_manifest::model_pack::ModelPackManifest;
use b70_manifest::{Explain as _, Sha256Hex};
use b70_packset::{Model, ModelHash, PackError, PrepareOptions, PreparedSet, model_hash, prepare};
use b70_store::Progress;
use common::models::{MINI_NAMES, STANDARD, mini_plan, write_json};
use common::{Lab, sha256_of, tool};
use serde_json::json;

fn spec(lab: &Lab, sha256: Sha256Hex) -> ModelPackManifest {
    let path = b70_testkit::fixture("documents/lab/model-pack-manifest.json");
    let mut spec = b70_packset::read_spec(&path).expect("the fixture is a spec");
    spec.source.path = lab.path.display().to_string();
    spec.source.sha256 = sha256;
    spec.source.size_bytes = Some(fs::metadata(&lab.path).expect("the model").len());
    spec
}

#[test]
fn a_spec_and_an_argument_that_disagree_are_refused() {
    let lab = Lab::with(&STANDARD);
    let (right, other) = (sha256_of(&lab.path), Sha256Hex::of(b"other"));
    let root = lab.folder.path().join("cache");
    for skip in [false, true] {
        let error =
            model_hash(&lab.model(), Some(&spec(&lab, right)), Some(other), skip, &root).expect_err("a refusal");
        assert!(
            matches!(&error, PackError::ModelHash { found, expected, .. } if (*found, *expected) == (other, right))
        );
        assert_eq!(error.exit_code(), 1);
    }
    let agreed = model_hash(&lab.model(), Some(&spec(&lab, right)), Some(right), false, &root).expect("they agree");
    assert_eq!(agreed, ModelHash::Expected { sha256: right, vouched_by: "spec".to_owned() });
    let trusted = model_hash(&lab.model(), Some(&spec(&lab, right)), Some(right), true, &root).expect("a record");
    assert_eq!(trusted, ModelHash::Recorded { sha256: right, vouched_by: "spec".to_owned() });
    assert_eq!(model_hash(&lab.model(), None, None, false, &root).expect("unknown"), ModelHash::Unknown);
}

/// Eight tensors, so that some are read after others have been packed.
fn eight() -> Lab {
    let names: Vec<String> = (0..8).map(|index| format!("t{index}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_bytes(), GgmlType::Q4_0, &[512_u64, 64][..])).collect();
    Lab::with(&tensors)
}

fn change(file: &mut fs::File) {
    file.seek(SeekFrom::End(-100)).expect("a position");
    file.write_all(b"changed").expect("the model");
}

/// The ways in which the expected digest may be known before the model is read.
fn expectations(sha256: Sha256Hex) -> [ModelHash; 2] {
    [
        ModelHash::Expected { sha256, vouched_by: "argument".to_owned() },
        ModelHash::Recorded { sha256, vouched_by: "spec".to_owned() },
    ]
}

fn prepare_telling(
    lab: &Lab,
    model: &Model,
    model_hash: &ModelHash,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<PreparedSet, PackError> {
    let options = PrepareOptions {
        cache_root: &lab.folder.path().join("cache"),
        model_hash,
        rehash: false,
        force: false,
        immutable: false,
        jobs: 2,
        lock_timeout: Duration::from_secs(60),
        tool: Some(&tool()),
        progress: Progress::new(on_bytes),
    };
    prepare(model, &lab.plan(), &lab.layout, &options)
}

#[test]
fn a_model_that_is_written_to_while_it_is_read_makes_no_set() {
    let lab = eight();
    let model = lab.model();
    let hashes = expectations(sha256_of(&lab.path));
    // Open beforehand, so that the model is copied and the writer waits for nobody.
    let writer = fs::OpenOptions::new().write(true).open(&lab.path).expect("the model");
    let (writer, written) = (Mutex::new(writer), AtomicBool::new(false));
    // As soon as the first tensor was read, another program changes the last one: the hash was right, or will be wrong.
    let on_bytes = |_| {
        if !written.swap(true, Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
            change(&mut writer.lock().expect("no panic"));
        }
    };
    for model_hash in hashes {
        written.store(false, Ordering::SeqCst);
        let error = prepare_telling(&lab, &model, &model_hash, &on_bytes).expect_err("the model changed");
        assert!(!matches!(error, PackError::Cancelled), "{error}");
        let sets = b70_packset::list(&lab.folder.path().join("cache")).expect("a root").sets;
        assert!(sets.iter().all(|set| set.tensor_count.is_none()), "no set is ready: {sets:?}");
    }
}

#[test]
fn whoever_opens_the_model_for_writing_meanwhile_does_not_wait_for_long() {
    for (turn, model_hash) in expectations(sha256_of(&eight().path)).into_iter().enumerate() {
        let lab = eight();
        let model = lab.model();
        let (begin, wait) = std::sync::mpsc::channel();
        let begin = Mutex::new(Some(begin));
        let on_bytes = |_| {
            if let Some(begin) = begin.lock().expect("no panic").take() {
                begin.send(()).expect("received");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        let path = &lab.path;
        let prepared = std::thread::scope(|scope| {
            scope.spawn(move || {
                wait.recv().expect("prepare reads something");
                let started = Instant::now();
                change(&mut fs::OpenOptions::new().write(true).open(path).expect("the model"));
                // The kernel would have let it through after 45 s.
                assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
            });
            prepare_telling(&lab, &model, &model_hash, &on_bytes)
        });
        // It was either done before or saw the change.
        match prepared {
            Ok(prepared) => assert_eq!(prepared.tensor_count, 8, "turn {turn}"),
            Err(error) => assert!(!matches!(error, PackError::Cancelled), "turn {turn}: {error}"),
        }
    }
}

#[test]
fn a_plan_files_keys_are_those_of_its_set() {
    let lab = Lab::with(&STANDARD);
    let path = lab.folder.path().join("mini.json");
    write_json(&path, &mini_plan("mini"));
    let plan = b70_packset::TensorPlan::named_or_file(path.to_str().expect("text"), &lab.layout).expect("a plan");
    let table = b70_packset::plan_keys(&plan, &lab.layout, sha256_of(&lab.path)).expect("exact shapes");
    let names: Vec<&str> = table.tensors.iter().map(|row| &*row.name).collect();
    assert_eq!(names, MINI_NAMES);
    // The same tensors under another prefix: the same tensor keys, another set key.
    write_json(&path, &mini_plan("other"));
    let other = b70_packset::TensorPlan::from_file(&path).expect("a plan");
    let other = b70_packset::plan_keys(&other, &lab.layout, sha256_of(&lab.path)).expect("exact shapes");
    assert_eq!(table.tensors, other.tensors);
    assert_ne!(table.set_key, other.set_key);
    // Another layout is refused before anything is computed.
    let mut document = mini_plan("mini");
    document["layout"]["architecture"] = json!("bmg-g21");
    write_json(&path, &document);
    let wrong = b70_packset::TensorPlan::from_file(&path).expect("a plan");
    assert!(matches!(
        b70_packset::plan_keys(&wrong, &lab.layout, sha256_of(&lab.path)),
        Err(PackError::PlanLayout { .. })
    ));
}
