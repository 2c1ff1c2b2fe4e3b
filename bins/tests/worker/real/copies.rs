//! A model's copy in memory and a pack set's stage: used only when admitted, and the reason said either way.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use b70_admission::{ModelCache, ModelSource, PrepareRequest, Reserve};
use b70_packset::{
    Model, ModelHash, PrepareOptions, SetDir, StageOptions, TensorPlan, prepare, stage_ram, tool_record,
};
use b70_procguard::Host;
use b70_store::{HashOptions, Progress, Sha256};
use b70_xe2pack::{ALL_PLAN, Xe2DpasV2};
use serde_json::{Value, json};

use crate::real::support::{Lane, pid_of};
use b70_testkit::in_pid_namespace;

fn in_memory(prefix: &str) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in("/dev/shm")
        .expect("this test needs a tmpfs at /dev/shm: mount -t tmpfs tmpfs /dev/shm")
}

fn notes(plan: &Value) -> String {
    plan["plan"][0]["notes"].to_string()
}

/// The model a running server says it loaded.
fn loaded(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /props HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let body = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
    serde_json::from_str::<Value>(body).unwrap()["model_path"].as_str().unwrap().to_owned()
}

/// Changes one byte in the middle of a file that is read-only.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn an_admitted_copy_in_memory_is_preferred() {
    if !in_pid_namespace("copies::an_admitted_copy_in_memory_is_preferred") {
        return;
    }
    let ram = in_memory("b70-worker-copy-");
    let root = ram.path().join("models");
    let model = std::env::var("B70_TEST_MODEL").unwrap();
    let sha256 = Sha256::of(&fs::read(&model).unwrap());
    let lane = Lane::new(1, 19_500, |document| {
        document["target_model_sha256"] = json!(sha256.to_string());
        document["common"]["prefer_ram_model_cache"] = json!(true);
        document["common"]["ram_model_cache_root"] = json!(root);
    });
    let (plan, code) = lane.run(&["start"]);
    println!("without a copy: {}", notes(&plan));
    assert!(code == 0 && notes(&plan).contains("no RAM copy:"), "{plan:#}");

    let source = ModelSource::open(Path::new(&model)).unwrap();
    let cache = ModelCache::create(&root).unwrap();
    let request = PrepareRequest {
        role: "target",
        source: &source,
        sha256: Some(sha256),
        force: false,
        immutable: false,
        reserve: Reserve::Bytes(0),
        wait: Duration::from_secs(5),
        tool: "test",
        packing_tool: None,
        target_architecture: None,
        build: None,
        host: None,
        measure: false,
    };
    let copy = cache.prepare(&request, &HashOptions::default()).unwrap().path;
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    println!("with a copy: {}", notes(&started));
    assert_eq!(code, 0, "{started:#}");
    assert!(notes(&started).contains("the RAM copy is admitted; trust: blake3"), "{started:#}");
    let record = lane.record("w0");
    assert_eq!(record["target_model"]["copy"], "ram");
    assert_eq!(record["target_model"]["sha256"], sha256.to_string());
    assert_eq!(loaded(lane.ports[0]), copy.to_str().unwrap(), "the server itself says which file it loaded");
    let (status, _) = lane.run(&["status"]);
    assert_eq!(status["workers"][0]["model"]["copy"], "ram");
    assert_eq!(lane.run(&["stop", "--execute"]).1, 0);

    damage(&copy);
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    println!("with a damaged copy: {}", notes(&started));
    assert_eq!(code, 0, "{started:#}");
    assert!(notes(&started).contains("no RAM copy:"), "{started:#}");
    assert_eq!(lane.record("w0")["target_model"]["copy"], "source");
    assert_eq!(loaded(lane.ports[0]), lane.model.to_str().unwrap());
}

#[test]
#[ignore = "needs a llama-server, a model, root and systemd: cargo xtask test --all"]
fn a_pack_set_is_bound_only_by_its_admitted_stage() {
    const VARIABLE: &str = "B70_TEST_PACK_STAGE";
    if !in_pid_namespace("copies::a_pack_set_is_bound_only_by_its_admitted_stage") {
        return;
    }
    let ram = in_memory("b70-worker-stage-");
    let sets = tempfile::tempdir().unwrap();
    let model = std::env::var("B70_TEST_MODEL").unwrap();
    let layout = Xe2DpasV2::new();
    let plan = TensorPlan::built_in(ALL_PLAN, &layout).unwrap();
    let options = PrepareOptions {
        cache_root: sets.path(),
        model_hash: &ModelHash::Unknown,
        rehash: false,
        force: false,
        immutable: false,
        jobs: 0,
        lock_timeout: Duration::from_secs(5),
        tool: Some(&tool_record("test", "0")),
        progress: Progress::NONE,
    };
    let prepared = prepare(&Model::open(Path::new(&model)).unwrap(), &plan, &layout, &options).unwrap();
    let key = prepared.set_key;
    let lane = Lane::new(1, 19_600, |document| {
        document["pack_set"] = json!({"set_key": key.to_string(), "ram_root": ram.path(), "variable": VARIABLE});
        // A value of the configuration's own must not take a stage's place.
        document["common"]["environment"] = json!({VARIABLE: "/nowhere"});
    });
    let variable =
        |pid: u32| b70_procguard::environment(&Host::real(), pid).unwrap().into_iter().find(|(n, _)| n == VARIABLE);

    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    println!("without a stage: {}", notes(&started));
    assert_eq!(code, 0, "{started:#}");
    assert!(notes(&started).contains("left out:"), "{started:#}");
    assert_eq!(variable(pid_of(&started["results"][0])), None, "the server packs for itself");
    assert_eq!(lane.record("w0")["pack_stage"]["bound"], false);
    assert_eq!(lane.run(&["stop", "--execute"]).1, 0);

    let how = StageOptions {
        ram_root: ram.path(),
        uid: Host::real().uid(),
        min_free: 0,
        immutable: false,
        lock_timeout: Duration::from_secs(5),
        progress: Progress::NONE,
    };
    let staged = stage_ram(&SetDir::open(sets.path(), key).unwrap(), &layout, &how).unwrap();
    let (started, code) = lane.run(&["start", "--execute", "--wait", "240"]);
    println!("with a stage of {} tensors: {}", prepared.tensor_count, notes(&started));
    assert_eq!(code, 0, "{started:#}");
    assert!(notes(&started).contains("the stage is admitted"), "{started:#}");
    let path = staged.stage.to_str().unwrap().to_owned();
    assert_eq!(variable(pid_of(&started["results"][0])), Some((VARIABLE.to_owned(), path.clone())));
    let record = lane.record("w0");
    assert_eq!((&record["pack_stage"]["bound"], &record["pack_stage"]["path"]), (&json!(true), &json!(path)));
    assert_eq!(lane.run(&["stop", "--execute"]).1, 0);

    let tensor = fs::read_dir(staged.stage.join("tensors"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.extension().is_some_and(|e| e == "bin"))
        .unwrap();
    damage(&tensor);
    let (plan, code) = lane.run(&["start"]);
    println!("with a damaged stage: {}", notes(&plan));
    assert!(code == 0 && notes(&plan).contains("left out:"), "{plan:#}");
    assert!(plan["plan"][0]["environment"].get(VARIABLE).is_none());
    assert!(plan["plan"][0]["unset"].as_array().unwrap().contains(&json!(VARIABLE)));
}
