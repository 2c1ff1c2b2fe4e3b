//! The real executable: exit codes, JSON, bad input.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch folder"))
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("artifacts")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_b70-golden"))
            .args(arguments)
            .env("B70_ARTIFACT_ROOT", self.root())
            .env("NO_COLOR", "1")
            .output()
            .expect("the executable was built")
    }

    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {text}"))
    }
}

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/documents/lab/golden-corpus-manifest.json");

#[test]
fn prepare_gives_the_nine_published_digests_and_verify_agrees() {
    let scratch = Scratch::new();
    let vectors: Value = serde_json::from_str(include_str!("../../../fixtures/vectors/golden-contract.json"))
        .expect("a committed document");
    let made = scratch.json(&["prepare"], 0);
    assert_eq!(made["status"], "created");
    assert_eq!(made["promotion_eligible"], false);
    let tensors = made["tensors"].as_array().expect("a list");
    assert_eq!(tensors.len(), 9);
    for tensor in tensors {
        assert_eq!(tensor["sha256"], vectors["sha256"][tensor["name"].as_str().expect("a name")]);
    }
    assert_eq!(scratch.json(&["prepare"], 0)["status"], "kept");
    let checked = scratch.json(&["verify", "--recompute"], 0);
    assert_eq!((checked["status"].as_str(), checked["recomputed"].as_bool()), (Some("valid"), Some(true)));
}

#[test]
fn verify_refuses_a_flipped_bit_and_names_the_tensor() {
    let scratch = Scratch::new();
    scratch.json(&["prepare", "--k", "64", "--n", "16", "--widths", "1,2", "--packed"], 0);
    let path = scratch.root().join("mmvq-q4_0-q8_1-v1/input-m2.q8_1.bin");
    let mut bytes = fs::read(&path).expect("the tensor");
    bytes[40] ^= 1;
    fs::remove_file(&path).expect("it is ours");
    fs::write(&path, &bytes).expect("it is ours");
    let checked = scratch.json(&["verify"], 1);
    let failures = checked["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), 1);
    assert!(failures[0].as_str().expect("text").starts_with("input-m2.q8_1.bin has SHA-256"));
    let text = scratch.run(&["verify"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("FAILED"));
    fs::remove_file(&path).expect("it is ours");
    let checked = scratch.json(&["verify"], 1);
    assert!(checked["failures"][0].as_str().expect("text").contains("input-m2.q8_1.bin"), "{checked}");
    assert_eq!(
        scratch.json(&["prepare", "--k", "64", "--n", "16", "--widths", "1,2", "--packed"], 0)["status"],
        "replaced"
    );
}

#[test]
fn bad_parameters_are_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    for (arguments, message) in [
        (&["--k", "100"][..], "k is 100, expected a positive multiple of 32"),
        (&["--k", "0"], "k is 0"),
        (&["--n", "0"], "n is 0"),
        (&["--widths", "0"], "widths is 0"),
        (&["--widths", "1,0,4"], "widths is 0"),
        (&["--n", "24", "--packed"], "n is 24, expected a multiple of 16"),
    ] {
        let error = scratch.json(&[&["prepare"], arguments].concat(), 2);
        assert!(error["error"]["message"].as_str().expect("text").starts_with(message), "{error}");
    }
    for arguments in
        [&["prepare", "--widths", ""][..], &["prepare", "--seed", "-1"], &["prepare", "--rule", "x"], &["focused"]]
    {
        scratch.json(arguments, 2);
    }
    assert!(!scratch.root().exists());
    assert_eq!(scratch.json(&["verify"], 2)["error"]["kind"], "missing");
}

#[test]
fn another_sound_set_stays_unless_told() {
    let scratch = Scratch::new();
    scratch.json(&["prepare", "--k", "32", "--n", "4", "--widths", "1"], 0);
    let other = &["prepare", "--k", "32", "--n", "4", "--widths", "1", "--seed", "9"];
    let error = scratch.json(other, 1);
    assert_eq!(error["error"]["kind"], "other-set");
    assert!(error["error"]["hint"].as_str().expect("a hint").contains("--force"));
    assert_eq!(scratch.json(&[&other[..], &["--force"]].concat(), 0)["status"], "replaced");
}

#[test]
fn a_set_of_the_lab_is_named_and_stays() {
    let scratch = Scratch::new();
    let sizes = ["prepare", "--k", "32", "--n", "4", "--widths", "1"];
    scratch.json(&sizes, 0);
    let path = scratch.root().join("mmvq-q4_0-q8_1-v1/manifest.json");
    let ours = fs::read_to_string(&path).expect("a manifest");
    let theirs = ours.replace("\"path\": \"b70-golden\"", "\"path\": \"/srv/lab/golden.py\"");
    assert_ne!(theirs, ours);
    fs::remove_file(&path).expect("it is ours");
    fs::write(&path, &theirs).expect("it is ours");
    assert_eq!(scratch.json(&["verify"], 0)["written_by"], "/srv/lab/golden.py revision 2");
    let kept = scratch.json(&sizes, 0);
    assert_eq!(
        (kept["status"].as_str(), kept["written_by"].as_str()),
        (Some("kept"), Some("/srv/lab/golden.py revision 2"))
    );
    let other = [&sizes[..], &["--seed", "9"]].concat();
    let error = scratch.json(&other, 1);
    assert_eq!(
        (error["error"]["kind"].as_str(), error["error"]["found"].as_str()),
        (Some("foreign-set"), Some("/srv/lab/golden.py revision 2"))
    );
    assert!(error["error"]["hint"].as_str().expect("a hint").contains("--force"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("a manifest"), theirs);
    assert_eq!(scratch.json(&[&other[..], &["--force"]].concat(), 0)["status"], "replaced");
}

#[test]
fn a_root_in_a_repository_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.root().join(".git")).expect("a scratch folder");
    assert_eq!(scratch.json(&["prepare"], 2)["error"]["kind"], "root-in-git");
    scratch.json(&["prepare", "--k", "32", "--n", "1", "--widths", "1", "--allow-in-repo"], 0);
}

#[test]
fn status_lists_all_nine_as_outstanding_and_says_what_nothing_here_is() {
    let scratch = Scratch::new();
    for arguments in [&["status"][..], &["status", "--corpus", CORPUS]] {
        let status = scratch.json(arguments, 0);
        assert_eq!((status["present"].as_u64(), status["outstanding"].as_u64()), (Some(0), Some(9)));
        assert!(
            status["note"].as_str().expect("text").contains("never promotion-eligible")
                || status["note"].as_str().expect("text").contains("ever promotion-eligible")
        );
    }
    let corpus = fs::read_to_string(CORPUS).expect("a committed document").replace("\"headline-throughput\"", "\"x\"");
    let path = scratch.0.path().join("corpus.json");
    fs::write(&path, corpus).expect("a scratch file");
    let error = scratch.json(&["status", "--corpus", &path.to_string_lossy()], 1);
    assert!(error["error"]["message"].as_str().expect("text").contains("headline-throughput"), "{error}");
}

fn import(scratch: &Scratch, meta: &Path, tensor: &Path, code: i32) -> Value {
    let (meta, tensor) = (meta.to_string_lossy(), tensor.to_string_lossy());
    scratch.json(&["import", "--case", "lm_head", "--tensor", &tensor, "--meta", &meta], code)
}

#[test]
fn import_refuses_a_shape_that_disagrees_with_the_bytes() {
    let scratch = Scratch::new();
    let (meta, tensor) = (scratch.0.path().join("meta.json"), scratch.0.path().join("x.safetensors"));
    let header = r#"{"logits":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]}}"#;
    let data = [7_u8; 16];
    fs::write(&tensor, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).expect("a file");
    let digest = b70_manifest::Sha256Hex::of(&data).to_string();
    let document = |shape: &str| {
        format!(
            r#"{{"schema_version":1,"format":"b70-golden-capture-v1","evidence_class":"diagnostic-only",
            "promotion_eligible":false,"case":"lm_head","role":"output","width":1,"layer":null,"token_positions":[5],
            "tensor":{{"name":"logits","shape":{shape},"dtype":"f32","stride_bytes":[16,4],"sha256":"{digest}"}},
            "input_sha256":"{digest}","output_sha256":"{digest}","source_model_sha256":"{digest}",
            "runtime":{{"commit":null,"dirty_patch_sha256":null,"build_fingerprint_sha256":"{digest}"}},
            "kernel":{{"name":"k","revision":"1","device":"CPU"}}}}"#
        )
    };
    fs::write(&meta, document("[1,5]")).expect("a file");
    let error = import(&scratch, &meta, &tensor, 1);
    let message = error["error"]["message"].as_str().expect("text");
    assert!(message.contains("[1, 5] of f32 needs 20 bytes, the file has 16"), "{message}");
    assert!(!scratch.root().exists());
    fs::write(&meta, "{}").expect("a file");
    import(&scratch, &meta, &tensor, 1);
    fs::write(&meta, document("[1,4]")).expect("a file");
    let made = import(&scratch, &meta, &tensor, 0);
    assert_eq!((made["status"].as_str(), made["promotion_eligible"].as_bool()), (Some("admitted"), Some(false)));
    fs::write(&tensor, b"\x10").expect("a file");
    import(&scratch, &meta, &tensor, 2);
}

#[test]
fn documents_name_the_folder_where_nothing_else_does() {
    let scratch = Scratch::new();
    let root = scratch.0.path().join("iteration-v1");
    let document = |name: &str, from: &str, pointer: &str, value: &Path| {
        let mut document: Value = serde_json::from_slice(&fs::read(from).expect("a fixture")).expect("JSON");
        *document.pointer_mut(pointer).expect("a member") = value.to_str().expect("UTF-8").into();
        let path = scratch.0.path().join(name);
        fs::write(&path, serde_json::to_vec(&document).expect("values print")).expect("ours");
        path.to_str().expect("UTF-8").to_owned()
    };
    let corpus = document("corpus.json", CORPUS, "/storage_root", &root.join("golden"));
    let lab_spec = CORPUS.replace("golden-corpus-manifest", "model-pack-manifest");
    let spec = document("spec.json", &lab_spec, "/pack/registry_root", &root.join("packs"));
    let call = |arguments: &[&str], code: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_b70-golden"));
        command.args(arguments).arg("--json").env_remove("B70_ARTIFACT_ROOT");
        let output = command.env("XDG_STATE_HOME", scratch.0.path().join("state")).output().expect("it was built");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let small = ["prepare", "--k", "64", "--n", "16", "--widths", "1"];
    call(&[&small[..], &["--spec", &spec]].concat(), 0);
    assert!(root.join("golden/mmvq-q4_0-q8_1-v1/manifest.json").is_file(), "beside the registry's packs");
    assert_eq!(call(&[&small[..], &["--corpus", &corpus, "--spec", &spec]].concat(), 0)["status"], "kept");
    assert_eq!(call(&["verify", "--corpus", &corpus], 0)["status"], "valid");
    assert_eq!(call(&["status", "--corpus", &corpus], 0)["synthetic_set"], "valid");
    // One artifact root serves golden/ and packs/; a flag goes before the document.
    let root = root.to_str().expect("UTF-8");
    assert_eq!(call(&["verify", "--artifact-root", root], 0)["status"], "valid");
    call(&["verify", "--artifact-root", "/nowhere/at/all", "--corpus", &corpus], 2);
}
