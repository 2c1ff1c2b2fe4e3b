//! The executable on recorded hosts and with files alone.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use b70_testkit::{conforms, fixture, recorded_host};
use serde_json::{Value, json};

fn worker(dir: &Path, args: &[&str]) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
    command.current_dir(dir).arg("--json").args(args).env_remove("B70_WORKERS").stdin(Stdio::null());
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
    let schema = match args[0] {
        _ if document.get("error").is_some() => "error",
        "start" | "stop" | "restart" => "worker-plan",
        "init" | "assign" => "worker-config",
        "validate" => "worker-validate",
        "status" => "worker-status",
        "render" => "worker-render",
        other => panic!("no schema is known for {other}"),
    };
    conforms(schema, &document);
    (document, out.status.code().unwrap())
}

#[test]
fn the_labs_file_is_read_unchanged_and_assigned() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("documents/lab/workers.json"), dir.path().join("workers.json")).unwrap();
    let host = recorded_host("four-b70-idle");
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
fn a_document_error_does_not_hide_missing_files() {
    let dir = tempfile::tempdir().unwrap();
    let sample = fs::read_to_string(fixture("documents/lab/workers.json")).unwrap();
    let mut document: Value = serde_json::from_str(&sample).unwrap();
    document["workers"][1]["port"] = document["workers"][0]["port"].clone();
    fs::write(dir.path().join("workers.json"), document.to_string()).unwrap();
    let (found, code) = worker(dir.path(), &["validate", "--no-gpu"]);
    let codes: Vec<&str> = found["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect();
    assert_eq!(code, 1, "{found:#}");
    for expected in ["unique-port", "no-binary", "no-launcher", "no-model", "no-draft-model"] {
        assert!(codes.contains(&expected), "{expected}: {codes:?}");
    }
    let (error, code) = worker(dir.path(), &["start", "--no-gpu"]);
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(code, 1, "{error:#}");
    for field in ["binary", "launcher", "target_model", "draft_model"] {
        let path = document[field].as_str().unwrap();
        assert!(message.contains(path), "{path}: {message}");
    }
    assert!(message.contains("port"), "{message}");
}

#[test]
fn a_target_that_is_no_model_or_a_later_shard_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, says) in [
        ("m-00002-of-00003.gguf", &b"GGUF"[..], "the first, m-00001-of-00003.gguf"),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:4\n", "git lfs pull"),
        ("page.gguf", b"<!doctype html>", "/resolve/"),
        ("error.gguf", b"{\"error\":\"Repository not found\"}", "download again"),
        ("old.gguf", b"tjgg\x03\0\0\0", "GGJT"),
        ("other.gguf", b"\x00\x01\x02\x03", "expected 'GGUF'"),
        ("empty.gguf", b"", "expected 'GGUF'"),
    ] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let _ = fs::remove_file(dir.path().join("workers.json"));
        assert_eq!(worker(dir.path(), &["init", "--gpus", "0", "--model", name, "--binary", "/bin/true"]).1, 0);
        for command in ["validate", "start"] {
            let (found, code) = worker(dir.path(), &[command, "--no-gpu"]);
            assert!(code == 1 && found.to_string().contains(says), "{command} {name}: {found:#}");
        }
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
        if format == "json" {
            let resolved = serde_json::from_str(rendered["files"][0]["text"].as_str().unwrap()).unwrap();
            conforms("worker-resolved", &resolved);
        }
        let text: String = rendered["files"].as_array().unwrap().iter().map(|f| f["text"].as_str().unwrap()).collect();
        for word in words {
            assert!(text.contains(word), "{format}: no {word} in\n{text}");
        }
    }
}

#[test]
fn refusals_have_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("documents/lab/workers.json"), dir.path().join("workers.json")).unwrap();
    let host = recorded_host("mask-two-cards");
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

#[test]
fn one_card_under_two_names_is_refused_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let lab = fs::read_to_string(fixture("documents/lab/workers.json")).unwrap();
    let mut document: Value = serde_json::from_str(&lab).unwrap();
    document["workers"][1]["gpu"] = json!("0000:03:00.0");
    fs::write(dir.path().join("workers.json"), document.to_string()).unwrap();
    let host = recorded_host("four-b70-idle");
    let host = host.to_str().unwrap();
    for command in ["validate", "start"] {
        let (found, code) = worker(dir.path(), &[command, "--host-root", host]);
        let text = found.to_string();
        assert!(code == 1 && text.contains("is the card 0000:03:00.0, which gpu0-baseline has already"), "{found:#}");
    }
}

#[test]
fn the_kernels_log_of_a_recorded_host_is_joined_to_the_workers_card() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("documents/lab/workers.json"), dir.path().join("workers.json")).unwrap();
    let host = recorded_host("wedged-card");
    let host = host.to_str().unwrap();
    let (status, code) = worker(dir.path(), &["status", "--host-root", host]);
    assert_eq!(code, 0, "{status:#}");
    let kinds = |n: usize| -> Vec<&str> {
        let events = status["workers"][n]["kernel"]["events"].as_array().unwrap();
        events.iter().map(|e| e["kind"].as_str().unwrap()).collect()
    };
    assert_eq!(kinds(1), ["memory-fault", "coredump", "wedged"], "the second card's lines");
    assert!(kinds(0).is_empty() && kinds(2).is_empty(), "and no other's");
    let mut text = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
    let text =
        text.current_dir(dir.path()).args(["status", "--host-root", host]).env_remove("B70_WORKERS").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("kernel, last of its card:") && text.contains("as wedged"), "{text}");

    // Another log and a waiting dump: the same tree as its owner would record it a moment later.
    let tree = dir.path().join("host");
    assert!(Command::new("cp").args(["-a", host]).arg(&tree).status().unwrap().success());
    let log = "3,1,83000000,-;xe 0000:43:00.0: [drm] GT0: Engine reset: engine_class=ccs\n\
               3,2,83000001,-;xe 0000:43:00.0: [drm] GT0: reset started\n\
               3,3,83000002,-;xe 0000:43:00.0: [drm] device lost\n";
    fs::write(tree.join("kmsg.txt"), log).unwrap();
    fs::create_dir(tree.join("sys/bus/pci/devices/0000:43:00.0").canonicalize().unwrap().join("devcoredump")).unwrap();
    let (status, _) = worker(dir.path(), &["status", "--host-root", tree.to_str().unwrap()]);
    let row = &status["workers"][2]["kernel"];
    let kinds: Vec<&str> = row["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["engine-reset", "gt-reset", "device-lost"]);
    assert_eq!((&row["devcoredump"], &status["workers"][0]["kernel"]["devcoredump"]), (&json!(true), &json!(false)));
}

#[test]
fn secrets_are_in_no_output() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.gguf"), "GGUF").unwrap();
    assert_eq!(worker(dir.path(), &["init", "--gpus", "0,1", "--model", "m.gguf", "--binary", "/bin/true"]).1, 0);
    let path = dir.path().join("workers.json");
    let mut document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    document["common"]["extra_llama_args"] = json!("--cache-ram 0 --api-key hunter2-argument --hf-token=hunter2-hub");
    document["common"]["environment"] = json!({"HF_TOKEN": "hunter2-variable", "LLAMA_API_KEY": "hunter2-key"});
    document["profiles"]["other"] = document["profiles"]["control"].clone();
    document["profiles"]["other"]["environment"] = json!({"MY_PASSPHRASE": "hunter2-profile"});
    fs::write(&path, document.to_string()).unwrap();
    for args in [
        &["validate", "--no-gpu"][..],
        &["start", "--no-gpu"],
        &["restart", "--no-gpu"],
        &["status", "--no-gpu"],
        &["render", "--no-gpu", "--format", "shell"],
        &["render", "--no-gpu", "--format", "json"],
        &["render", "--no-gpu", "--format", "llama-preset"],
        &["render", "--no-gpu", "--format", "systemd"],
        &["assign", "--profile", "other", "--workers", "gpu1", "--out", "two.json"],
    ] {
        let (document, _) = worker(dir.path(), args);
        assert!(!document.to_string().contains("hunter2"), "{args:?}: {document:#}");
        let mut text = Command::new(env!("CARGO_BIN_EXE_b70-worker"));
        let out = text.current_dir(dir.path()).args(args).env_remove("B70_WORKERS").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(!text.contains("hunter2"), "{args:?}: {text}");
    }
    assert!(
        fs::read_to_string(dir.path().join("two.json")).unwrap().contains("hunter2-argument"),
        "a file that serves"
    );
    // A rendered script asks for what it does not hold, and runs when it is given.
    let (rendered, _) = worker(dir.path(), &["render", "--no-gpu", "--format", "shell", "--worker", "gpu0"]);
    let script = dir.path().join("gpu0.sh");
    fs::write(&script, rendered["files"][0]["text"].as_str().unwrap().replace("exec /bin/true", "exec echo")).unwrap();
    let run = |secrets: &[(&str, &str)]| {
        let mut shell = Command::new("sh");
        let secrets = secrets.iter().copied();
        shell
            .arg(&script)
            .env_remove("HF_TOKEN")
            .env_remove("LLAMA_API_KEY")
            .env_remove("API_KEY")
            .envs(secrets)
            .output()
            .unwrap()
    };
    assert!(!run(&[]).status.success());
    let out = run(&[("HF_TOKEN", "a"), ("LLAMA_API_KEY", "b"), ("API_KEY", "c")]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("--api-key c --hf-token=a"), "{text}");
}
