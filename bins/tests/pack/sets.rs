//! From a model to a set and back: prepare, reuse, import, the documents, unpack, and who vouches for the model.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::models::{MINI_NAMES, STANDARD, tensor_bytes, write_json, write_model};
use crate::common::{Lab, edit, ends, flip, overwrite, payload, run, sets, sha256_of, string, text, walk};
use b70_gguf::GgmlType;
use b70_manifest::Sha256Hex;
use serde_json::{Value, json};

fn counts(prepared: &Value) -> [u64; 3] {
    ["packed", "reused", "imported"].map(|name| prepared[name].as_u64().expect("a count"))
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a readable file")).expect("JSON")
}

#[test]
fn a_second_prepare_reuses_everything_and_changes_nothing() {
    let lab = Lab::new();
    let first = lab.prepare();
    assert_eq!(counts(&first), [4, 0, 0]);
    assert_eq!(first["status"], "ready");
    assert_eq!(first["evidence_class"], "development-initialization-cache-only");
    assert_eq!(first["promotion_eligible"], false);
    assert_eq!(first["vouched_by"], "argument");
    assert_eq!(first["hash_validated"], true);
    assert_eq!(first["payload_size_bytes"], 4 * 64 * 32 * 18 / 32);
    let before = sets(&lab.root);
    for more in [&[][..], &["--rehash"], &["--jobs", "1"], &["--kernel", "scalar"]] {
        let again = lab.pack("prepare", &[&lab.mini()[..], more].concat()).exits(0).json();
        assert_eq!(counts(&again), [0, 4, 0]);
        assert_eq!(again["repaired"], json!([]));
        assert_eq!(again["repaired_documents"], json!([]));
        assert_eq!(sets(&lab.root), before);
    }
    for more in [&[][..], &["--deep"], &["--against", text(&lab.model)], &["--set-key", &lab.set_key(), "--deep"]] {
        assert!(lab.verify(more).is_empty());
    }
    assert_eq!(sets(&lab.root), before, "verify writes a receipt and nothing else");
}

#[test]
fn every_kernel_and_number_of_workers_makes_the_same_bytes() {
    let lab = Lab::new();
    let tested = run(["self-test", "--json"]).exits(0).json();
    let kernels: Vec<String> =
        tested["kernels"].as_array().expect("a list").iter().map(|kernel| string(&kernel["kernel"])).collect();
    let payloads = |root: &Path| {
        walk(root).into_iter().filter(|(name, _)| ends(name, ".bin") || ends(name, ".tsv")).collect::<Vec<_>>()
    };
    lab.prepare();
    let expected = payloads(&lab.root);
    for kernel in &kernels {
        for jobs in ["1", "3", "1000"] {
            fs::remove_dir_all(&lab.root).expect("the cache root");
            lab.pack("prepare", &[&lab.mini()[..], &["--kernel", kernel, "--jobs", jobs]].concat()).exits(0);
            assert_eq!(payloads(&lab.root), expected, "{kernel} {jobs}");
        }
    }
    lab.pack("prepare", &[&lab.mini()[..], &["--kernel", "abacus"]].concat()).fails(2, "kernel");
}

#[test]
fn the_documents_are_those_of_the_contract() {
    let lab = Lab::new();
    let prepared = lab.prepare();
    let set = lab.set();
    let mut names = lab.files();
    names.retain(|name| !name.contains("/tensors/"));
    let key = lab.set_key();
    assert_eq!(names, ["SHA256SUMS", "manifest.json", "runtime-index.tsv"].map(|name| format!("{key}/{name}")));
    assert_eq!(prepared["manifest"], text(&set.join("manifest.json")));

    let manifest = json_file(&set.join("manifest.json"));
    assert_eq!(manifest["format"], "mini-pack-set-v2");
    assert_eq!(manifest["identity"]["format_prefix"], "mini");
    assert_eq!(manifest["identity"]["layout_name"], "q4_0-xe2-dpas-v2");
    assert_eq!(manifest["source_model"]["path"], text(&lab.model));
    assert_eq!(manifest["gguf"]["tensor_count"], STANDARD.len());
    assert_eq!(manifest["tool"]["path"], "b70-pack");
    // The index, byte for byte, from the manifest's own figures by the published rule.
    let tensors = manifest["tensors"].as_array().expect("a list");
    let mut rows = Vec::new();
    let mut lines = String::new();
    for (slot, (tensor, name)) in tensors.iter().zip(MINI_NAMES).enumerate() {
        let bytes = fs::read(payload(&set, slot)).expect("a payload");
        let (sha256, key) = (Sha256Hex::of(&bytes).to_string(), string(&tensor["key"]));
        let [k, n] = if name.contains("ffn_up") { [64, 32] } else { [32, 64] };
        lines += &format!(
            "tensor\t{slot}\t{name}\t{k}\t{n}\tGGML_TYPE_Q4_0\t2\t{}\t{sha256}\ttensors/{key}.bin\n",
            bytes.len()
        );
        // Canonical JSON written by hand: sorted keys, no spaces.
        rows.push(format!(
            r#"{{"key":"{key}","path":"tensors/{key}.bin","sha256":"{sha256}","size_bytes":{}}}"#,
            bytes.len()
        ));
        let identity = format!(
            r#"{{"pack_layout_version":2,"target_architecture":"bmg-g31","target_model_sha256":"{}","tensor_name":"{name}","tensor_shape":[{k},{n}],"tensor_type":"GGML_TYPE_Q4_0"}}"#,
            lab.sha256
        );
        assert_eq!(Sha256Hex::of(identity.as_bytes()).to_string(), key);
        let sidecar = json_file(&set.join(format!("tensors/{key}.json")));
        assert_eq!(sidecar["format"], "mini-tensor-pack-v2");
        assert_eq!(sidecar["payload"], tensor["payload"]);
    }
    let table = Sha256Hex::of(format!("[{}]", rows.join(",")).as_bytes());
    let expected = format!(
        "mini-runtime-index-v1\nset_key\t{key}\nmodel_sha256\t{}\narchitecture\tbmg-g31\nlayout\tq4_0-xe2-dpas-v2\t2\n\
         tensor_count\t4\npayload_table_sha256\t{table}\n{lines}",
        lab.sha256
    );
    assert_eq!(fs::read_to_string(set.join("runtime-index.tsv")).expect("the index"), expected);

    let sums = Command::new("sha256sum").args(["--strict", "-c", "SHA256SUMS"]).current_dir(&set).output();
    let sums = sums.expect("sha256sum of coreutils");
    assert!(sums.status.success(), "{}", String::from_utf8_lossy(&sums.stderr));
    assert_eq!(String::from_utf8_lossy(&sums.stdout).lines().count(), 6);
    // Payloads and the index are shared between sets and mapped by loaders: nobody writes to them.
    for name in lab.files().iter().filter(|name| ends(name, ".bin")) {
        let mode = fs::metadata(lab.root.join(name)).expect("a payload").permissions().mode();
        assert_eq!(mode & 0o777, 0o444, "{name}");
    }
}

#[test]
fn unpack_gives_the_blocks_back_and_overwrites_nothing() {
    let lab = Lab::new();
    lab.pack("prepare", &["--model", text(&lab.model)]).exits(0);
    for tensor in
        STANDARD.iter().filter(|tensor| tensor.1 == GgmlType::Q4_0 && tensor.2.len() == 2 && tensor.2[1] % 16 == 0)
    {
        let (name, out) = (std::str::from_utf8(tensor.0).expect("text"), lab.at("out.bin"));
        let unpacked = lab.pack("unpack", &["--tensor", name, "--out", text(&out)]).exits(0).json();
        assert_eq!(fs::read(&out).expect("unpacked"), tensor_bytes(*tensor), "{name}");
        assert_eq!(unpacked["sha256"], sha256_of(&out));
        fs::remove_file(&out).expect("unpacked");
    }
    let name = "token_embd.weight";
    let out = lab.at("kept");
    fs::write(&out, "mine").expect("a file");
    lab.pack("unpack", &["--tensor", name, "--out", text(&out)]).fails(1, "exists");
    assert_eq!(fs::read(&out).expect("kept"), b"mine");
    let dangling = lab.at("dangling");
    std::os::unix::fs::symlink(lab.at("target"), &dangling).expect("a link");
    lab.pack("unpack", &["--tensor", name, "--out", text(&dangling)]).fails(1, "exists");
    lab.pack("unpack", &["--tensor", name, "--out", text(lab.folder.path())]).fails(1, "exists");
    assert!(!lab.at("target").exists());
    let absent = lab.at("absent");
    let error = lab.pack("unpack", &["--tensor", "output.weight", "--out", text(&absent)]).fails(2, "no-tensor");
    assert!(string(&error["message"]).contains("output.weight"), "{error}");
    lab.pack("unpack", &["--tensor", name, "--out", text(&absent.join("deeper"))]).exits(2);
    lab.pack("unpack", &["--tensor", name, "--out", "/"]).exits(1);
    let other = "0".repeat(64);
    lab.pack("unpack", &["--set-key", &other, "--tensor", name, "--out", text(&absent)]).fails(2, "no-set");
    assert!(!absent.exists());
    // A damaged payload gives nothing rather than wrong bytes.
    let manifest =
        json_file(&lab.root.join(string(&lab.pack("list", &[]).json()["sets"][0]["set_key"])).join("manifest.json"));
    let set = lab.root.join(string(&manifest["key"]));
    flip(&payload(&set, 0), 100);
    lab.pack("unpack", &["--tensor", name, "--out", text(&absent)]).fails(1, "sha256");
    assert!(!absent.exists());
    let left: Vec<_> = fs::read_dir(lab.folder.path()).expect("the folder").collect();
    assert_eq!(left.len(), 5, "model, plan, cache, kept, dangling: {left:?}");
}

/// The documents' example spec, for this lab's model.
fn spec(lab: &Lab, change: impl FnOnce(&mut Value)) -> String {
    let mut spec = json_file(&b70_testkit::fixture("documents/lab/model-pack-manifest.json"));
    spec["source"]["path"] = json!(text(&lab.model));
    spec["source"]["sha256"] = json!(lab.sha256);
    spec["source"]["size_bytes"] = json!(fs::metadata(&lab.model).expect("the model").len());
    change(&mut spec);
    let path = lab.at("spec.json");
    write_json(&path, &spec);
    text(&path).to_owned()
}

#[test]
fn a_wrong_model_hash_publishes_nothing() {
    let lab = Lab::new();
    let wrong = "ab".repeat(32);
    let plan = ["--model", text(&lab.model), "--plan", text(&lab.plan)];
    let by_spec = spec(&lab, |spec| spec["source"]["sha256"] = json!(wrong));
    for jobs in ["1", "4"] {
        for more in [["--sha256", &wrong], ["--spec", &by_spec]] {
            let error = lab.pack("prepare", &[&plan[..], &more, &["--jobs", jobs]].concat()).fails(1, "model-sha256");
            assert_eq!(error["found"], lab.sha256);
            assert_eq!(error["expected"], wrong);
            assert!(error["hint"].is_string());
            assert!(lab.files().is_empty(), "{:?}", lab.files());
            let folders: Vec<_> = fs::read_dir(&lab.root).expect("the root").flatten().map(|e| e.file_name()).collect();
            assert_eq!(folders, [".locks"]);
        }
    }
    // Where nothing was, a dry failure leaves an empty list, and the right hash then works.
    assert_eq!(lab.pack("list", &[]).exits(0).json()["sets"], json!([]));
    assert_eq!(counts(&lab.prepare()), [4, 0, 0]);
    // With a ready set beside it, a wrong hash touches nothing either.
    let before = walk(&lab.set());
    lab.pack("prepare", &[&plan[..], &["--sha256", &wrong]].concat()).fails(1, "model-sha256");
    assert_eq!(walk(&lab.set()), before);
}

#[test]
fn who_vouches_for_the_model_is_said_and_recorded() {
    let lab = Lab::new();
    let plan = ["--model", text(&lab.model), "--plan", text(&lab.plan)];
    let recorded = || json_file(&lab.set().join("manifest.json"))["source_model"].clone();
    let skip = [&plan[..], &["--skip-source-hash"]].concat();
    // No record: refused, and nothing is made.
    lab.pack("prepare", &skip).fails(1, "recorded-hash");
    lab.pack("prepare", &[&skip[..], &["--sha256", &lab.sha256]].concat()).fails(1, "recorded-hash");
    let no_size = spec(&lab, |spec| {
        spec["source"].as_object_mut().expect("an object").remove("size_bytes");
    });
    lab.pack("prepare", &[&skip[..], &["--spec", &no_size]].concat()).fails(1, "recorded-hash");
    let elsewhere = spec(&lab, |spec| spec["source"]["path"] = json!("/nowhere/model.gguf"));
    lab.pack("prepare", &[&skip[..], &["--spec", &elsewhere]].concat()).fails(1, "recorded-hash");
    assert!(!lab.root.exists());
    // A spec that names path and size is a record.
    let good = spec(&lab, |_| ());
    let prepared = lab.pack("prepare", &[&skip[..], &["--spec", &good]].concat()).exits(0).json();
    assert_eq!((&prepared["hash_validated"], &prepared["vouched_by"]), (&json!(false), &json!("spec")));
    assert_eq!(recorded()["hash_validated"], false);
    // What was only trusted is not a record for the next one.
    lab.pack("prepare", &skip).fails(1, "recorded-hash");
    // Hashing it later makes the set a validated one, and that is a record.
    let prepared = lab.pack("prepare", &plan).exits(0).json();
    assert_eq!((counts(&prepared), &prepared["vouched_by"]), ([0, 4, 0], &json!("nothing")));
    assert_eq!(recorded()["hash_validated"], true);
    let prepared = lab.pack("prepare", &skip).exits(0).json();
    assert_eq!(prepared["hash_validated"], false);
    assert_eq!(recorded()["hash_validated"], true, "a validated set stays one");
    // Another size is another file.
    let mut bytes = fs::read(&lab.model).expect("the model");
    bytes.push(0);
    overwrite(&lab.model, &bytes);
    lab.pack("prepare", &skip).fails(1, "recorded-hash");
    // Flags that contradict each other.
    lab.pack("prepare", &[&plan[..], &["--spec", &good, "--sha256", &lab.sha256]].concat()).fails(2, "usage");
    lab.pack("prepare", &[&skip[..], &["--rehash"]].concat()).fails(2, "usage");
}

#[test]
fn a_spec_is_enforced_or_said_to_be_uncheckable() {
    let lab = Lab::new();
    lab.prepare();
    let good = spec(&lab, |_| ());
    let document = lab.pack("verify", &["--spec", &good, "--deep"]).json();
    let outcomes: Vec<(String, String)> = document["requirements"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|requirement| (string(&requirement["name"]), string(&requirement["outcome"])))
        .collect();
    assert!(outcomes.contains(&("source_sha256_matches".to_owned(), "met".to_owned())), "{outcomes:?}");
    assert!(outcomes.contains(&("all_tensor_checksums_pass".to_owned(), "met".to_owned())), "{outcomes:?}");
    let other = spec(&lab, |spec| {
        spec["source"]["sha256"] = json!("cd".repeat(32));
        spec["target_architecture"] = json!("bmg-g21");
        spec["admission_requirements"] =
            json!(["source_sha256_matches", "target_architecture_is_bmg-g21", "unheard_of"]);
    });
    let codes = lab.verify(&["--spec", &other]);
    let expected = [
        "spec-requirement:source_sha256_matches",
        "spec-requirement:target_architecture_is_bmg-g21",
        "target-architecture",
        "target-model-sha256",
    ];
    assert_eq!(codes, expected);
    overwrite(Path::new(&good), b"[]");
    lab.pack("verify", &["--spec", &good]).fails(1, "document");
    overwrite(Path::new(&good), b"nonsense");
    lab.pack("verify", &["--spec", &good]).fails(2, "document");
}

#[test]
fn the_newest_set_is_the_default_and_no_set_is_an_error() {
    let lab = Lab::new();
    for root in [lab.root.clone(), lab.folder.path().to_path_buf()] {
        run(["verify", "--json", "--cache-root", text(&root)]).fails(2, "no-set");
    }
    lab.pack("verify", &["--set-key", &"1".repeat(64)]).fails(2, "no-set");
    lab.pack("verify", &["--set-key", "../../etc"]).fails(2, "usage");
    write_model(&lab.at("other.gguf"), &STANDARD[..5]);
    lab.prepare();
    edit(&lab.set().join("manifest.json"), |manifest| manifest["created_unix"] = json!(1));
    let newer = lab.pack("prepare", &["--model", text(&lab.at("other.gguf"))]).exits(0).json();
    let verified = lab.pack("verify", &[]).exits(0).json();
    assert_eq!(verified["set_key"], newer["set_key"]);
}

#[test]
fn a_failed_verification_names_every_code_for_people_too() {
    let lab = Lab::new();
    lab.prepare();
    flip(&payload(&lab.set(), 0), 5);
    overwrite(&payload(&lab.set(), 3).with_extension("json"), b"");
    let codes = lab.verify(&["--deep"]);
    assert_eq!(codes, ["payload-sha256:blk.0.ffn_up.weight", "tensor-contract:blk.1.ffn_down.weight"]);
    let people = run(["verify", "--deep", "--cache-root", text(&lab.root)]).exits(1);
    assert!(codes.iter().all(|code| people.stdout.contains(code)), "{people:#?}");
    assert_eq!(lab.pack("gc", &["--execute"]).exits(0).json()["actions"], json!([]));
    overwrite(&lab.set().join("manifest.json"), b"not JSON");
    lab.pack("verify", &["--set-key", &lab.set_key()]).fails(2, "document");
    assert_eq!(lab.pack("list", &[]).exits(0).json()["sets"][0]["status"], "unreadable");
    assert_eq!(lab.prepare()["repaired_documents"], json!(["manifest.json"]));
}
