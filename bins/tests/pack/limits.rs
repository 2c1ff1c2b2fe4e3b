//! What the system refuses: threads, descriptors, the size of a file. They need root, for a user of its own.
#![allow(clippy::print_stdout, reason = "counts for whoever runs with --nocapture")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Lab, text, walk};

/// A user with no other process, so that limits of processes count ours alone.
const USER: u32 = 65_533;

/// Runs one command under one limit; its exit code. Whatever the limit, it must end by itself, in success or in one clear error.
fn under(limit: &str, value: u64, folder: &Path, program: &str, arguments: &[&str]) -> i32 {
    let what = || format!("{program} {} under --{limit}={value}", arguments[0]);
    let mut command = Command::new("prlimit");
    command.arg(format!("--{limit}={value}:{value}")).arg(folder.join(program)).args(arguments).arg("--json");
    command.uid(USER).gid(USER).current_dir("/").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("prlimit of util-linux");
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("it is ours").is_none() {
        if Instant::now() > until {
            child.kill().expect("it is ours");
            panic!("{}: it hangs", what());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), None, "{}: {said}", what());
    assert!(!said.contains("panicked"), "{}: {said}", what());
    let code = output.status.code().expect("no signal");
    // 127: not even the loader could open what the program needs.
    assert!(matches!(code, 0..=2 | 127), "{}: {code}: {said}", what());
    code
}

#[test]
#[ignore = "needs root: cargo xtask test --all"]
fn what_the_system_refuses_is_one_clear_error() {
    let lab = Lab::new();
    let folder = tempfile::Builder::new().prefix("b70-test-").tempdir_in("/dev/shm").expect("a folder on /dev/shm");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our folder");
    for (program, path) in [
        ("b70-pack", env!("CARGO_BIN_EXE_b70-pack")),
        ("b70-cache", env!("CARGO_BIN_EXE_b70-cache")),
        ("b70-golden", env!("CARGO_BIN_EXE_b70-golden")),
    ] {
        fs::copy(path, folder.path().join(program)).expect("room for a copy");
    }
    let model = folder.path().join("model.gguf");
    fs::copy(&lab.model, &model).expect("room for a copy");
    fs::set_permissions(&model, fs::Permissions::from_mode(0o444)).expect("our file");
    let work = folder.path().join("work");
    let root = work.join("root");
    let sizes = ["--k", "256", "--n", "32", "--widths", "1"];
    let commands: [(&str, Vec<&str>); 4] = [
        ("b70-pack", vec!["prepare", "--model", text(&model), "--cache-root", text(&root)]),
        ("b70-pack", vec!["prepare", "--jobs", "8", "--model", text(&model), "--cache-root", text(&root)]),
        ("b70-cache", vec!["prepare", "--model", text(&model), "--cache-root", text(&root), "--min-free", "1"]),
        ("b70-golden", [&["prepare", "--artifact-root", text(&root)], &sizes[..]].concat()),
    ];
    let (mut ended, mut refused) = (0, 0);
    for (program, arguments) in &commands {
        for (limit, values) in [
            ("nproc", (1..20).collect::<Vec<u64>>()),
            ("nofile", (3..60).step_by(3).collect()),
            ("fsize", vec![0, 1, 100, 4096, 20_000, 1 << 20]),
        ] {
            let mut succeeded = false;
            for value in values {
                let _ = fs::remove_dir_all(&work);
                fs::create_dir(&work).expect("our folder");
                chown(&work, Some(USER), Some(USER)).expect("given away");
                let code = under(limit, value, folder.path(), program, arguments);
                ended += 1;
                refused += u32::from(code != 0);
                succeeded |= code == 0;
                let names = walk(&work);
                // Without descriptors a folder cannot even be opened to be emptied; the next run sweeps it.
                let left = names.keys().filter(|name| name.contains(".b70-tmp-")).count();
                assert!(left == 0 || limit == "nofile", "{program} under --{limit}={value}: {names:?}");
                assert!(code == 0 || names.keys().all(|name| !name.ends_with("manifest.json")), "{names:?}");
            }
            assert!(succeeded, "{program} {arguments:?}: never under --{limit}");
        }
    }
    println!("{ended} runs under a limit: {refused} refused, 0 hung, 0 panicked");
}
