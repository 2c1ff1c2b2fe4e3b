//! The command line: one JSON document on standard output, exit codes, the error envelope, roots that are refused.

use std::fs;
use std::process::Command as Process;

use crate::common::{Lab, Ran, command, run, run_with, string, text};
use serde_json::Value;

/// Arguments of every command in a state in which it succeeds.
fn every_command(lab: &Lab) -> Vec<Vec<String>> {
    let root = text(&lab.root);
    let out = lab.at("out.bin");
    let _ = fs::remove_file(&out);
    let (model, plan, sha256, tensor) = (text(&lab.model), text(&lab.plan), &*lab.sha256, "blk.0.ffn_up.weight");
    [
        &["inspect", "--model", model][..],
        &["keys", "--plan", plan, "--sha256", sha256],
        &["self-test", "--kernel", "scalar"],
        &["prepare", "--model", model, "--plan", plan, "--cache-root", root],
        &["verify", "--cache-root", root],
        &["unpack", "--cache-root", root, "--tensor", tensor, "--out", text(&out)],
        &["list", "--cache-root", root],
        &["gc", "--cache-root", root],
    ]
    .iter()
    .map(|arguments| arguments.iter().map(|argument| (*argument).to_owned()).collect())
    .collect()
}

#[test]
fn json_is_one_document_and_nothing_else() {
    let lab = Lab::new();
    for mut arguments in every_command(&lab) {
        arguments.push("--json".to_owned());
        let ran = run(&arguments).exits(0);
        let document = ran.json();
        assert!(document.is_object() && document.get("error").is_none(), "{arguments:?}");
        assert!(ran.stdout.ends_with("}\n"), "{arguments:?}");
        if arguments[0] == "prepare" {
            assert_eq!(document["evidence_class"], "development-initialization-cache-only");
            assert_eq!(document["promotion_eligible"], false);
        }
        // The flag is global: its place does not matter.
        if arguments[0] != "unpack" {
            let mut first = vec!["--json".to_owned(), "--quiet".to_owned()];
            first.extend(arguments[..arguments.len() - 1].iter().cloned());
            let ran = run(&first).exits(0);
            ran.json();
            assert_eq!(ran.stderr, "", "{arguments:?}: --quiet");
        }
    }
}

#[test]
fn without_json_people_get_text() {
    let lab = Lab::new();
    for arguments in every_command(&lab) {
        let ran = run(&arguments).exits(0);
        assert!(!ran.stdout.trim().is_empty(), "{arguments:?}");
        assert!(serde_json::from_str::<Value>(&ran.stdout).is_err(), "{arguments:?}");
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{arguments:?}: no colour in a pipe");
    }
    let failed = run(["inspect", "--model", text(&lab.at("absent"))]).exits(2);
    assert_eq!(failed.stdout, "");
    assert!(failed.stderr.starts_with("error: ") && failed.stderr.contains("absent"), "{failed:?}");
    let coloured = run(["list", "--color", "always", "--cache-root", text(&lab.root)]).exits(0);
    assert!(coloured.stdout.contains('\u{1b}'));
}

#[test]
fn usage_errors_are_2_and_have_an_envelope() {
    let lab = Lab::new();
    for arguments in [
        &["--no-such-flag"][..],
        &["no-such-command"],
        &["prepare"],
        &["prepare", "--model"],
        &["inspect", "--model", "x", "--deep"],
        &["verify", "--set-key", "short"],
        &["prepare", "--model", "x", "--jobs", "-1"],
        &["prepare", "--model", "x", "--jobs", "many"],
        &["list", "--color", "sometimes"],
        &[],
    ] {
        let ran = run(arguments.iter().copied().chain(["--json"]));
        ran.exits(2).fails_as_usage();
        let people = run(arguments).exits(2);
        assert_eq!(people.stdout, "", "{arguments:?}");
        assert!(!people.stderr.is_empty());
    }
    assert!(!lab.root.exists());
}

trait Usage {
    fn fails_as_usage(self);
}

impl Usage for Ran {
    fn fails_as_usage(self) {
        let error = self.json()["error"].clone();
        assert_eq!(error["kind"], "usage", "{self:#?}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
}

#[test]
fn help_states_the_exit_codes() {
    let help = run(["--help"]).exits(0).stdout;
    for code in ["0", "1", "2", "124", "130"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code}\n{help}");
    }
    assert!(run(["--version"]).exits(0).stdout.starts_with("b70-pack "));
    for name in ["inspect", "keys", "self-test", "prepare", "verify", "unpack", "list", "gc"] {
        assert!(help.contains(name));
        assert!(run([name, "--help"]).exits(0).stdout.contains("Usage:"));
    }
}

#[test]
fn a_root_in_a_git_work_tree_is_refused() {
    let lab = Lab::new();
    fs::create_dir(lab.at(".git")).expect("a folder");
    let inside = lab.at("a/b/cache");
    let arguments = |command: &'static str, more: &[&'static str]| {
        let mut arguments = vec![command.to_owned(), "--json".to_owned(), "--cache-root".to_owned()];
        arguments.push(text(&inside).to_owned());
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        if command == "prepare" {
            arguments.extend(["--model".to_owned(), text(&lab.model).to_owned()]);
        }
        arguments
    };
    for command in ["prepare", "verify", "list", "gc"] {
        let error = run(arguments(command, &[])).fails(2, "root-in-git");
        assert!(string(&error["message"]).contains(text(&inside)), "{error}");
    }
    assert!(!lab.at("a").exists());
    // The environment is no way around it, and neither is a link.
    let by_environment = ["prepare", "--json", "--model", text(&lab.model)];
    run_with(by_environment, &[("B70_CACHE_ROOT", text(&inside))]).fails(2, "root-in-git");
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(lab.folder.path(), elsewhere.path().join("link")).expect("a link");
    run_with(by_environment, &[("B70_CACHE_ROOT", text(&elsewhere.path().join("link/cache")))]).fails(2, "root-in-git");
    run(arguments("prepare", &["--allow-in-repo"])).exits(0);
    run(arguments("verify", &["--allow-in-repo"])).exits(0);
}

#[test]
fn the_root_comes_from_flag_environment_and_home_in_this_order() {
    let lab = Lab::new();
    let (by_flag, by_environment, xdg, home) = (lab.at("flag"), lab.at("environment"), lab.at("xdg"), lab.at("home"));
    let root = |flag: bool, names: &[&str]| {
        let mut list = command();
        list.args(["list", "--json"]).env_remove("HOME");
        if flag {
            list.args(["--cache-root", text(&by_flag)]);
        }
        for (name, value) in [("B70_CACHE_ROOT", &by_environment), ("XDG_CACHE_HOME", &xdg), ("HOME", &home)] {
            if names.contains(&name) {
                list.env(name, value);
            }
        }
        Ran::from(list.output().expect("the executable was built with the tests"))
    };
    let at = |ran: Ran| string(&ran.exits(0).json()["cache_root"]);
    let all = ["B70_CACHE_ROOT", "XDG_CACHE_HOME", "HOME"];
    assert_eq!(at(root(true, &all)), text(&by_flag));
    assert_eq!(at(root(false, &all)), text(&by_environment));
    assert_eq!(at(root(false, &all[1..])), text(&xdg.join("b70kit")));
    assert_eq!(at(root(false, &all[2..])), text(&home.join(".cache/b70kit")));
    root(false, &[]).exits(2).json();
}

#[test]
fn a_root_that_is_a_file_is_refused() {
    let lab = Lab::new();
    fs::write(&lab.root, "mine").expect("a file");
    lab.pack("prepare", &lab.mini()).exits(2).json();
    for command in ["verify", "list", "gc"] {
        lab.pack(command, &[]).exits(2).json();
    }
    assert_eq!(fs::read(&lab.root).expect("kept"), b"mine");
    let below = lab.root.join("below");
    run(["prepare", "--json", "--model", text(&lab.model), "--cache-root", text(&below)]).exits(2).json();
}

#[test]
fn a_closed_pipe_is_the_readers_choice() {
    let lab = Lab::new();
    let shell = Process::new("sh")
        .args(["-c", r#""$0" inspect --model "$1" 2>err | true; test ! -s err"#, env!("CARGO_BIN_EXE_b70-pack")])
        .arg(&lab.model)
        .current_dir(lab.folder.path())
        .status()
        .expect("a shell");
    assert!(shell.success());
}
