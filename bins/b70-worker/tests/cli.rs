//! The executable on recorded hosts and with files alone.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn worker(dir: &Path, args: &[&str]) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
    command.current_dir(dir).arg("--json").args(args).env_remove("B70_WORKERS").stdin(Stdio::null());
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let document = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
    (document, out.status.code().unwrap())
}

#[test]
fn the_labs_file_is_read_unchanged_and_assigned() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join("documents/lab/workers.json"), dir.path().join("workers.json")).unwrap();
    let host = fixtures().join("hosts/four-b70-idle");
    let host = host.to_str().unwrap();
    let (found, code) = worker(dir.path(), &["validate", "--host-root", host]);
    assert_eq!(code, 0, "{found:#}");
    let (status, code) = worker(dir.path(), &["status", "--host-root", host]);
    assert_eq!((code, status["workers"].as_array().unwrap().len()), (0, 4));
    for key in [
        "name",
        "role",
        "profile",
        "gpu",
        "port",
        "pid",
        "pid_state",
        "port_open",
        "foreign_llama_pids",
        "evidence_class",
    ] {
        assert!(status["workers"][0].get(key).is_some(), "{key}");
    }
    let assign = ["assign", "--profile", "dflash5-screen", "--workers", "gpu2-candidate,gpu3-validation", "--out"];
    for (swap, file, expected) in [
        (false, "one.json", ["control", "control", "candidate", "candidate"]),
        (true, "two.json", ["candidate", "candidate", "control", "control"]),
    ] {
        let mut args = [&assign[..], &[file]].concat();
        if swap {
            args.push("--swap");
        }
        let (document, code) = worker(dir.path(), &args);
        assert_eq!(code, 0, "{document:#}");
        let arms: Vec<&str> =
            document["workers"].as_array().unwrap().iter().map(|w| w["arm"].as_str().unwrap()).collect();
        assert_eq!(arms, expected);
        let (found, code) = worker(dir.path(), &["validate", "--config", file, "--host-root", host]);
        assert_eq!(code, 0, "{found:#}");
        assert_eq!(worker(dir.path(), &args).1, 2, "a file that is there is not replaced");
    }
    // Files and the executable are missing on this machine: every one is named, and rendering needs none of them.
    let (found, code) = worker(dir.path(), &["validate", "--no-gpu"]);
    let codes: Vec<&str> = found["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect();
    assert_eq!(code, 1);
    for expected in ["no-binary", "no-model", "no-launcher", "cards"] {
        assert!(codes.contains(&expected), "{codes:?}");
    }
}

#[test]
fn a_starter_file_is_valid_and_renders_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.gguf"), "GGUF").unwrap();
    let (document, code) =
        worker(dir.path(), &["init", "--gpus", "0,0000:07:00.0", "--model", "m.gguf", "--binary", "/bin/true"]);
    assert_eq!((code, &document["workers"][1]["gpu"]), (0, &json!("0000:07:00.0")), "{document:#}");
    assert_eq!(worker(dir.path(), &["init", "--gpus", "0", "--model", "m.gguf"]).1, 2, "not replaced");
    let (found, code) = worker(dir.path(), &["validate", "--no-gpu"]);
    assert_eq!(code, 0, "{found:#}");
    for (format, words) in [
        (
            "shell",
            &["exec /bin/true --host 127.0.0.1", "export ZE_AFFINITY_MASK=1", "unset NEO_L0_ZE_AFFINITY_MASK"][..],
        ),
        ("json", &["\"ONEAPI_DEVICE_SELECTOR\""]),
        ("systemd", &["run gpu0 --config", "LimitMEMLOCK=infinity", "KillMode=mixed"]),
        ("llama-preset", &["version = 1", "[gpu1]", "ctx-size = 4096", "cache-ram = 0"]),
    ] {
        let (rendered, code) = worker(dir.path(), &["render", "--no-gpu", "--format", format]);
        assert_eq!(code, 0, "{rendered:#}");
        let text: String = rendered["files"].as_array().unwrap().iter().map(|f| f["text"].as_str().unwrap()).collect();
        for word in words {
            assert!(text.contains(word), "{format}: no {word} in\n{text}");
        }
    }
}

#[test]
fn refusals_have_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join("documents/lab/workers.json"), dir.path().join("workers.json")).unwrap();
    let host = fixtures().join("hosts/mask-two-cards");
    let host = host.to_str().unwrap();
    for (args, code) in [
        (&["start", "--host-root", host][..], 1),
        (&["start", "--execute", "--host-root", host], 2),
        (&["start", "--worker", "nobody", "--no-gpu"], 2),
        (&["status", "--config", "none.json"], 2),
        (&["stop"], 0),
        (&["stop", "--execute", "--wait", "-1"], 2),
        (&["logs", "gpu0-baseline"], 2),
    ] {
        let (document, found) = worker(dir.path(), args);
        assert_eq!(found, code, "{args:?}: {document:#}");
    }
}
