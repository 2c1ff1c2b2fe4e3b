//! Python's `jsonschema` as referee: the schemas are valid draft-07, it accepts every sample, and it rejects every
//! mutated document that `validate` rejects for reasons of the schema.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use b70_manifest::document::Kind;
use b70_manifest::schema;
use b70_manifest::validate::check_text;
use serde_json::{Value, json};

const SCRIPT: &str = r#"
import json, sys
from jsonschema import Draft7Validator
job = json.load(sys.stdin)
for schema in job["schemas"].values():
    Draft7Validator.check_schema(schema)
validators = {kind: Draft7Validator(schema) for kind, schema in job["schemas"].items()}
json.dump([validators[one["kind"]].is_valid(one["document"]) for one in job["documents"]], sys.stdout)
"#;

fn samples() -> PathBuf {
    b70_testkit::fixture("documents/samples")
}

fn sample(kind: Kind) -> Value {
    let path = samples().join(format!("{kind}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("a sample of every kind")).expect("JSON")
}

/// Asks Python about each document; true is accepted.
fn ask(documents: &[(Kind, Value)]) -> Vec<bool> {
    let schemas: serde_json::Map<String, Value> =
        Kind::ALL.iter().map(|kind| (kind.to_string(), schema::of(*kind).clone())).collect();
    let documents: Vec<Value> =
        documents.iter().map(|(kind, document)| json!({"kind": kind, "document": document})).collect();
    let mut child = b70_testkit::python()
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("B70_TEST_PYTHON can be started");
    let job = json!({"schemas": schemas, "documents": documents}).to_string();
    child.stdin.take().expect("piped").write_all(job.as_bytes()).expect("Python reads");
    let output = child.wait_with_output().expect("Python ends");
    assert!(output.status.success(), "Python failed; it needs the package jsonschema");
    serde_json::from_slice(&output.stdout).expect("Python answers in JSON")
}

enum Edit {
    Set(Value),
    Remove,
}
use Edit::{Remove, Set};

fn table() -> Vec<(Kind, &'static str, Edit)> {
    use Kind::*;
    let upper = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";
    vec![
        (Workers, "/schema_version", Set(json!(3))),
        (Workers, "/schema_version", Set(json!("1"))),
        (Workers, "/lane", Remove),
        (Workers, "/lane", Set(json!(""))),
        (Workers, "/lanes", Set(json!("x"))),
        (Workers, "/target_model_sha256", Set(json!(upper))),
        (Workers, "/target_model_sha256", Set(json!("abc"))),
        (Workers, "/common/n_parallel", Set(json!(2))),
        (Workers, "/common/ctx_size", Set(json!(0))),
        (Workers, "/common/ctx_size", Set(json!("4096"))),
        (Workers, "/common/flash_attn", Set(json!("yes"))),
        (Workers, "/common/flash_attn", Set(json!(true))),
        (Workers, "/common/cache_type_k", Set(json!("q8"))),
        (Workers, "/common/environment", Set(json!({"A": 1}))),
        (Workers, "/common/environment", Set(json!({"1A": "x"}))),
        (Workers, "/common/extra_llama_args", Set(json!(5))),
        (Workers, "/common/extra_llama_args", Set(json!([1]))),
        (Workers, "/common/prefer_ram_model_cache", Set(json!("true"))),
        (Workers, "/profiles", Set(json!({}))),
        (Workers, "/profiles/mtp3-control/spec_type", Set(json!("mtp"))),
        (Workers, "/profiles/mtp3-control/mtp_p_min", Set(json!(1.5))),
        (Workers, "/profiles/mtp3-control/mtp_n_max", Set(json!(-1))),
        (Workers, "/profiles/mtp3-control/mtp_nmax", Set(json!(3))),
        (Workers, "/workers", Set(json!([]))),
        (Workers, "/workers/0/port", Set(json!(0))),
        (Workers, "/workers/0/port", Set(json!(65536))),
        (Workers, "/workers/0/port", Set(json!(1.5))),
        (Workers, "/workers/0/name", Set(json!("a/b"))),
        (Workers, "/workers/0/gpu", Set(json!("0"))),
        (Workers, "/workers/0/gpu", Set(json!(-1))),
        (Workers, "/workers/0/arm", Set(json!("test"))),
        (Workers, "/workers/0/profile", Remove),
        (Workers, "/pack_set/variable", Set(json!("A-B"))),
        (ModelPackManifest, "/source/sha256", Set(json!(null))),
        (ModelPackManifest, "/source/path", Remove),
        (ModelPackManifest, "/pack/alignment_bytes", Set(json!(0))),
        (ModelPackManifest, "/packing_tool/revision", Set(json!(-1))),
        (ModelPackManifest, "/kernel_abi/layout_version", Set(json!("1"))),
        (ModelPackManifest, "/ram_cach", Set(json!({}))),
        (ModelPackManifest, "/admission_requirements", Set(json!("all"))),
        (GoldenCorpusManifest, "/promotion_eligible", Set(json!(true))),
        (GoldenCorpusManifest, "/evidence_class", Set(json!("promotion-grade-fresh-response"))),
        (GoldenCorpusManifest, "/required_widths", Set(json!([1, 1]))),
        (GoldenCorpusManifest, "/required_widths/0", Set(json!(0))),
        (GoldenCorpusManifest, "/required_cases", Set(json!([]))),
        (GoldenCorpusManifest, "/reset_policy", Remove),
        (GoldenCorpusManifest, "/reset_policy/forbidden_for", Set(json!(null))),
        (GoldenCorpusManifest, "/source_identity/draft_model_sha256", Set(json!("x"))),
        (PackPlan, "/format_prefix", Set(json!("Upper"))),
        (PackPlan, "/rules", Set(json!("all"))),
        (PackPlan, "/rules/0/pattern", Set(json!("blk.ffn"))),
        (PackPlan, "/rules/0/shape", Set(json!([640]))),
        (PackPlan, "/rules/0/slot_stride", Set(json!(0))),
        (PackPlan, "/rules/0/layers/frist", Set(json!(0))),
        (CalibrationSuite, "/prompts", Set(json!([]))),
        (CalibrationSuite, "/prompts/0/prompt", Remove),
        (CalibrationSuite, "/prompts/0/class", Set(json!("x"))),
        (CalibrationSuite, "/version", Set(json!(true))),
        (PackSet, "/key", Set(json!(upper))),
        (PackSet, "/promotion_eligible", Set(json!(true))),
        (PackSet, "/format", Set(json!("x-pack-set-v1"))),
        (PackSet, "/tensors/0/payload/path", Set(json!("../x.bin"))),
        (PackSet, "/gguf/version", Set(json!(1))),
        (TensorPack, "/identity/tensor_shape", Set(json!([1, 2, 3]))),
        (TensorPack, "/pack_seconds", Set(json!(-1.0))),
        (RamStage, "/set_key", Remove),
        (CacheEntry, "/format", Set(json!("other"))),
        (CacheEntry, "/admission/mtime_ns", Set(json!("now"))),
        (RegistryRecord, "/evidence_class", Set(json!("diagnostic-only"))),
        (Receipt, "/boot/boot_id", Set(json!("boot"))),
        (Receipt, "/files/0/evidence", Set(json!("held"))),
        (DeepValidation, "/schema_version", Set(json!(2))),
        (Fingerprint, "/cmake_cache_sha256", Set(json!("none"))),
        (GoldenSet, "/k", Set(json!(33))),
        (FocusedResult, "/status", Set(json!("ok"))),
        (CalibrationResult, "/settings/api", Set(json!("chats"))),
        (CalibrationResult, "/settings/top_p", Set(json!(1.5))),
        (CalibrationRun, "/endpoints", Set(json!([]))),
        (LabCalibrationResult, "/rows", Remove),
        (Comparison, "/verdict", Set(json!("wins"))),
        (Comparison, "/equal_outputs", Set(json!(2.0))),
        (WorkerIdentity, "/command", Set(json!([]))),
        (WorkerStatus, "/workers/0/port_open", Set(json!(1))),
    ]
}

fn apply(document: &mut Value, pointer: &str, edit: &Edit) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer below the root");
    let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}: the sample has no such place"));
    match (edit, parent) {
        (Set(value), Value::Array(items)) => items[key.parse::<usize>().expect("an index")] = value.clone(),
        (Set(value), parent) => parent[key] = value.clone(),
        (Remove, parent) => {
            let removed = parent.as_object_mut().and_then(|object| object.shift_remove(key));
            assert!(removed.is_some(), "{pointer}: the sample has no such field");
        }
    }
}

#[test]
fn python_accepts_the_schemas_and_every_sample() {
    let documents: Vec<(Kind, Value)> = Kind::ALL.iter().map(|kind| (*kind, sample(*kind))).collect();
    let verdicts = ask(&documents);
    for ((kind, _), accepted) in documents.iter().zip(&verdicts) {
        assert!(accepted, "Python rejects the sample of {kind}");
    }
    println!("{} schemas are valid draft-07; {} samples accepted", Kind::ALL.len(), verdicts.len());
}

#[test]
fn python_and_validate_reject_every_mutated_document() {
    // Codes of everything but the schema.
    let from_schema = |code: &str| {
        matches!(
            code,
            "type"
                | "enum"
                | "const"
                | "minimum"
                | "maximum"
                | "pattern"
                | "required"
                | "unknown-key"
                | "minLength"
                | "minItems"
                | "maxItems"
                | "uniqueItems"
                | "multipleOf"
                | "minProperties"
                | "propertyNames"
                | "anyOf"
        )
    };
    let table = table();
    assert!(table.len() >= 60);
    let mutated: Vec<(Kind, Value)> = table
        .iter()
        .map(|(kind, pointer, edit)| {
            let mut document = sample(*kind);
            apply(&mut document, pointer, edit);
            (*kind, document)
        })
        .collect();
    let verdicts = ask(&mutated);
    let mut rejected = 0;
    let mut wrong = Vec::new();
    for (((kind, pointer, _), (_, document)), accepted) in table.iter().zip(&mutated).zip(verdicts) {
        let report = check_text("document.json".as_ref(), &document.to_string(), Some(*kind));
        let ours = report.errors.iter().any(|problem| from_schema(&problem.code));
        // The place must be right too: the value itself, or the object that lacks it.
        let parent = pointer.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        let placed = report.errors.iter().any(|problem| problem.pointer.starts_with(parent));
        if accepted || !ours || !placed {
            wrong.push(format!("{kind} {pointer}: Python accepts {accepted}, we say {:?}", report.errors));
        } else {
            rejected += 1;
        }
    }
    println!("{rejected} of {} mutated documents rejected by both for schema reasons", table.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
