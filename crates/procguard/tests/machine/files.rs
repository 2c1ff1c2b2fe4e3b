//! Files in use, and records of this machine.

use std::{fs, process::Command, time::Duration};

use b70_procguard::{Cards, FileUse, Host, Usage, UsageOptions, directory_in_use, path_in_use, record};

use crate::support::{Helper, python, wait_for};

#[test]
fn a_mapping_counts_after_its_descriptor_was_closed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    fs::write(&file, vec![1; 8192]).unwrap();
    let ready = dir.path().join("ready");
    let script = "import mmap,sys,time,os
f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); f.close()
open(sys.argv[2],'w').close(); time.sleep(300)";
    let mut helper = python(script, &[file.to_str().unwrap(), ready.to_str().unwrap()]);
    wait_for("the mapping", || ready.exists());
    let host = Host::real();
    for found in [path_in_use(&host, &file).unwrap(), directory_in_use(&host, dir.path()).unwrap()] {
        let user = found.users.iter().find(|u| u.pid == helper.pid()).expect("found");
        // CPython's mmap keeps a duplicate of the descriptor; the mapping is what must be seen.
        assert!(user.uses.contains(&FileUse::Mapped), "{user:?}");
        assert!(!found.certainly_unused());
    }
    helper.0.kill().unwrap();
    helper.0.wait().unwrap();
    let found = directory_in_use(&host, dir.path()).unwrap();
    assert!(found.users.is_empty(), "{found:?}");
}

#[test]
fn a_working_directory_counts() {
    let dir = tempfile::tempdir().unwrap();
    let helper = Helper(Command::new("sleep").arg("60").current_dir(dir.path()).spawn().unwrap());
    let found = directory_in_use(&Host::real(), dir.path()).unwrap();
    assert!(found.users.iter().any(|u| u.pid == helper.pid() && u.uses == [FileUse::WorkingDirectory]), "{found:?}");
}

#[test]
fn a_record_of_this_machine_replays_and_holds_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("llama-server");
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let config = dir.path().join("config/llama.cpp");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.ini"), "device = SYCL0\napi-key = hunter3\n").unwrap();
    let child = Command::new(&program)
        .args(["-c", "sleep 60; true", "--api-key", "hunter2", "--port", "1234"])
        .envs([
            ("LLAMA_API_KEY", "hunter2"),
            ("GGML_VK_SECRET", "hunter2"),
            ("EDITOR", "hunter4"),
            ("ZE_AFFINITY_MASK", "1"),
        ])
        .env("XDG_CONFIG_HOME", dir.path().join("config"))
        .spawn()
        .unwrap();
    let helper = Helper(child);
    let host = Host::real();
    wait_for("the exec", || {
        host.read_text(&format!("/proc/{}/comm", helper.pid())).is_ok_and(|c| c.trim() == "llama-server")
    });
    let out = dir.path().join("record");
    let summary = record(&host, &out, Duration::ZERO).unwrap();
    assert!(summary.processes > 1, "{summary:?}");
    let found = Command::new("grep").args(["-rlE", "hunter[234]"]).arg(&out).output().unwrap();
    assert!(found.stdout.is_empty(), "secrets in {}", String::from_utf8_lossy(&found.stdout));

    let replay = Host::recorded(&out).unwrap();
    let cards = Cards::assumed(&["0000:03:00.0", "0000:07:00.0"].map(|a| a.parse().unwrap()));
    let usage = Usage::scan(&replay, &cards, &UsageOptions::default());
    let owned: Vec<bool> = usage.cards.iter().map(|c| c.owners.iter().any(|o| o.pid == helper.pid())).collect();
    // The mask leaves card 1, the configuration file's SYCL0 is the first of what is left.
    assert_eq!(owned, [false, true], "{usage:#?}");
    let config =
        fs::read_to_string(out.join(dir.path().strip_prefix("/").unwrap()).join("config/llama.cpp/config.ini"))
            .unwrap();
    assert_eq!(config, "device = SYCL0\n");
}
