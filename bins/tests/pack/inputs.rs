//! What goes in: keys without a model, plans, models of every kind, and every malformed GGUF of the fixtures.

use std::fs;

use crate::common::models::{MINI_NAMES, STANDARD, Tensor, any_plan, mini_plan, write_json, write_model, write_split};
use crate::common::{Lab, run, string, text};
use b70_gguf::GgmlType;
use serde_json::{Value, json};

#[test]
fn a_missing_last_padding_is_a_remark() {
    let lab = Lab::new();
    let tensors = [(&b"blk.0.ffn_up.weight"[..], b70_gguf::GgmlType::Q4_0, &[64_u64, 17][..])];
    fs::remove_file(&lab.model).expect("removed");
    write_model(&lab.model, &tensors);
    let bytes = std::fs::read(&lab.model).expect("a model");
    std::fs::write(&lab.model, &bytes[..bytes.len() - 1]).expect("cut");
    let inspected = run(["inspect", "--json", "--model", text(&lab.model)]).exits(0).json();
    assert!(
        inspected["remarks"][0].as_str().is_some_and(|remark| remark.contains("1 bytes of padding")),
        "{inspected}"
    );
    std::fs::write(&lab.model, &bytes[..bytes.len() - 32]).expect("cut");
    run(["inspect", "--json", "--model", text(&lab.model)]).exits(2);
}

#[test]
fn the_lab_plan_gives_the_published_keys() {
    let known: Value =
        serde_json::from_slice(&fs::read(b70_testkit::fixture("vectors/qwen27-keys.json")).expect("a fixture"))
            .expect("JSON");
    let model = string(&known["target_model_sha256"]);
    let table = run(["keys", "--plan", "qwen27-xe2-m6", "--sha256", &model, "--json"]).exits(0).json();
    assert_eq!(table["set_key"], known["set_key"]);
    assert_eq!(table["set_key"], "7fb8a0192d10819de692735c398e01037c89023fac3f9ac54e17bb6633c321c3");
    assert_eq!(table["tensor_count"], known["tensor_count"]);
    let rows = table["tensors"].as_array().expect("rows");
    assert_eq!(rows.len(), 187);
    let keys = known["tensor_keys"].as_object().expect("a table");
    assert_eq!(keys.len(), 4);
    for (name, key) in keys {
        let row = rows.iter().find(|row| row["name"] == *name).expect("a row of that name");
        assert_eq!(row["key"], *key, "{name}");
    }
    for (slot, row) in rows.iter().enumerate() {
        assert_eq!(row["slot"], slot);
    }
    let people = run(["keys", "--plan", "qwen27-xe2-m6", "--sha256", &model]).exits(0);
    assert!(people.stdout.contains(&string(&known["set_key"])));
    assert!(serde_json::from_str::<Value>(&people.stdout).is_err());
}

#[test]
fn keys_need_exact_shapes() {
    let lab = Lab::new();
    write_json(&lab.at("any.json"), &any_plan());
    for plan in ["all-q4_0", text(&lab.at("any.json"))] {
        run(["keys", "--json", "--plan", plan, "--sha256", &lab.sha256]).fails(1, "plan-not-exact");
    }
    // The keys of an exact plan are those that the set gets.
    assert_eq!(lab.prepare()["set_key"], lab.set_key());
}

#[test]
fn a_malformed_hash_is_a_usage_error() {
    for hash in ["", "20c9", &"g".repeat(64), &"A".repeat(65)] {
        run(["keys", "--json", "--plan", "qwen27-xe2-m6", "--sha256", hash]).fails(2, "usage");
    }
}

#[test]
fn every_gguf_case_gets_its_verdict() {
    let folder = b70_testkit::fixture("gguf-cases");
    let verdicts: Value =
        serde_json::from_slice(&fs::read(folder.join("verdicts.json")).expect("a fixture")).expect("JSON");
    let cases = verdicts["cases"].as_object().expect("a table");
    assert!(cases.len() >= 50, "{} cases", cases.len());
    for (name, verdict) in cases {
        let path = folder.join(name);
        let ran = run(["inspect", "--json", "--model", text(&path)]);
        if verdict["ours"] == "accept" {
            let document = ran.exits(0).json();
            assert!(["ready", "nothing-to-pack"].contains(&document["status"].as_str().expect("a status")), "{name}");
        } else {
            let error = ran.fails(2, "not-a-valid-gguf");
            assert_eq!(error["path"], text(&path), "{name}");
        }
    }
}

#[test]
fn what_cannot_be_opened_is_told_from_what_is_no_gguf() {
    let lab = Lab::new();
    let inspect = |path: &str| run(["inspect", "--json", "--model", path]);
    inspect(text(&lab.at("absent.gguf"))).fails(2, "io");
    inspect(text(lab.folder.path())).fails(2, "file-kind");
    inspect("/dev/null").fails(2, "file-kind");
    inspect(text(&lab.plan)).fails(2, "not-a-valid-gguf");
    let fifo = lab.at("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo of coreutils").success());
    inspect(text(&fifo)).fails(2, "file-kind");
    // Neither a plan nor a spec may make the command wait for a writer.
    run(["inspect", "--json", "--model", text(&lab.model), "--plan", text(&fifo)]).fails(2, "file-kind");
    lab.pack("prepare", &["--model", text(&lab.model), "--spec", text(&fifo)]).fails(2, "file-kind");
    assert!(!lab.root.exists());
}

#[test]
fn inspect_says_what_is_packed_and_why_the_rest_is_not() {
    let lab = Lab::new();
    let document = run(["inspect", "--json", "--model", text(&lab.model)]).exits(0).json();
    assert_eq!(document["status"], "ready");
    let names: Vec<String> = rows(&document, "tensors").iter().map(|row| string(&row["name"])).collect();
    // Slots in file order.
    let expected = [
        "token_embd.weight",
        "blk.0.ffn_down.weight",
        "blk.0.ffn_up.weight",
        "blk.1.ffn_up.weight",
        "blk.1.ffn_down.weight",
    ];
    assert_eq!(names, expected);
    let reason = |name: &str| {
        let skipped = rows(&document, "skipped");
        string(&skipped.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name} is listed"))["reason"])
    };
    assert!(reason("rows_17.weight").contains("16"), "{}", reason("rows_17.weight"));
    assert!(reason("blk.1.ffn_exps.weight").contains("3 dimensions"));
    assert!(reason("vector.weight").contains("1 dimension"));
    assert!(reason("other.weight").contains("Q8_0"));
    assert!(reason("output.weight").contains("F16"));
    assert!(reason("blk.0.attn_norm.weight").contains("F32"));
    assert_eq!(rows(&document, "skipped").len() + names.len(), STANDARD.len());
    // Under a listed plan, only what could have been packed is worth a word.
    let listed = run(["inspect", "--json", "--model", text(&lab.model), "--plan", text(&lab.plan)]).exits(0).json();
    let names: Vec<String> = rows(&listed, "tensors").iter().map(|row| string(&row["name"])).collect();
    assert_eq!(names, MINI_NAMES);
    assert!(rows(&listed, "skipped").iter().all(|row| row["type"] == "Q4_0"));
}

fn rows<'a>(document: &'a Value, name: &str) -> &'a [Value] {
    document[name].as_array().expect("a list")
}

#[test]
fn a_model_without_tensors_is_valid_and_has_nothing_to_pack() {
    let lab = Lab::with(&[]);
    let document = run(["inspect", "--json", "--model", text(&lab.model)]).exits(0).json();
    assert_eq!(document["status"], "nothing-to-pack");
    lab.pack("prepare", &["--model", text(&lab.model)]).fails(1, "nothing-selected");
    assert!(!lab.root.exists(), "nothing may be left behind");
}

#[test]
fn the_lab_plan_names_everything_that_is_wrong_with_a_model() {
    // Q4_0 of the right K but few rows would be the wrong shape; the right shape in a small type is the wrong type.
    let lab = Lab::with(&[
        (b"blk.0.ffn_gate.weight", GgmlType::Q4_0, &[5120, 16]),
        (b"blk.0.ffn_up.weight", GgmlType::Q8_0, &[5120, 16]),
    ]);
    let arguments = ["--model", text(&lab.model), "--plan", "qwen27-xe2-m6"];
    let document = run(["inspect", "--json"].iter().chain(&arguments)).exits(1).json();
    assert_eq!(document["status"], "plan-mismatch");
    let problems: Vec<String> = rows(&document, "problems").iter().map(string).collect();
    assert_eq!(problems.len(), 187, "one problem a slot");
    let has = |needle: &str| problems.iter().any(|problem| problem.contains(needle));
    assert!(has("blk.0.ffn_gate.weight has shape (5120, 16), expected (5120, 17408)"));
    assert!(has("blk.0.ffn_up.weight has type Q8_0, expected Q4_0"));
    assert!(has("blk.64.ffn_down.weight (slot 186) is missing"));
    let error = lab.pack("prepare", &arguments).fails(1, "plan-mismatch");
    assert!(string(&error["found"]).contains("blk.63.ffn_up.weight (slot 127) is missing"));
    assert!(!lab.root.exists());
}

#[test]
fn a_listed_plan_refuses_a_model_that_lacks_or_changes_a_tensor() {
    let without = |name: &str| STANDARD.iter().copied().filter(|t| t.0 != name.as_bytes()).collect::<Vec<_>>();
    let changed = |name: &str, ggml_type, shape: &'static [u64]| {
        let change = |t: Tensor<'static>| if t.0 == name.as_bytes() { (t.0, ggml_type, shape) } else { t };
        STANDARD.iter().copied().map(change).collect::<Vec<_>>()
    };
    let name = "blk.1.ffn_up.weight";
    for (tensors, expected) in [
        (without(name), "is missing"),
        (changed(name, GgmlType::Q4_0, &[64, 48]), "has shape (64, 48)"),
        (changed(name, GgmlType::Q4_0, &[64, 33]), "has shape (64, 33)"),
        (changed(name, GgmlType::Q8_0, &[64, 32]), "has type Q8_0"),
        (changed(name, GgmlType::Q4_0, &[64, 16, 2]), "has shape (64, 16, 2)"),
    ] {
        let lab = Lab::with(&tensors);
        let error = lab.pack("prepare", &lab.mini()).fails(1, "plan-mismatch");
        let message = string(&error["message"]);
        assert!(message.contains(name) && message.contains(expected), "{message}");
        assert!(!lab.root.exists());
        // With free shapes the same holds for what the layout cannot take.
        write_json(&lab.plan, &any_plan());
        let code = i32::from(!expected.contains("48"));
        run(["inspect", "--json", "--model", text(&lab.model), "--plan", text(&lab.plan)]).exits(code);
    }
}

#[test]
fn names_with_control_characters_are_refused_and_never_reach_a_terminal() {
    for name in [&b"tab\there"[..], b"line\nbreak", b"\x1b[2Jclear", "c1\u{9b}2J".as_bytes(), b"not utf-8 \xff"] {
        let lab = Lab::with(&[(name, GgmlType::Q4_0, &[32, 16])]);
        let all = ["--model", text(&lab.model)];
        let error = lab.pack("prepare", &all).fails(1, "plan-mismatch");
        assert!(string(&error["message"]).contains("control character") || name.contains(&0xff), "{error}");
        assert!(!lab.root.exists());
        let people = run(["inspect", "--model", text(&lab.model)]).exits(1);
        assert!(people.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", people.stdout);
        // The same name on a tensor that is left out anyway harms nothing but must not reach the terminal either.
        let lab = Lab::with(&[(name, GgmlType::F32, &[32]), (b"good", GgmlType::Q4_0, &[32, 16])]);
        let people = run(["inspect", "--model", text(&lab.model)]).exits(0);
        assert!(people.stdout.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", people.stdout);
        assert_eq!(lab.pack("prepare", &["--model", text(&lab.model)]).exits(0).json()["packed"], 1);
    }
}

#[test]
fn names_of_any_printable_text_survive_the_round_trip() {
    let names = ["größe.β→𝄞", "quote\"s'\\back", "space s", "../../up", "/abs", "%s{layer}$HOME`", "\u{202e}rtl"];
    let tensors: Vec<Tensor<'_>> =
        names.iter().map(|name| (name.as_bytes(), GgmlType::Q4_0, &[32_u64, 16][..])).collect();
    let lab = Lab::with(&tensors);
    let prepared = lab.pack("prepare", &["--model", text(&lab.model)]).exits(0).json();
    assert_eq!(prepared["packed"], names.len());
    assert!(lab.verify(&["--deep", "--against", text(&lab.model)]).is_empty());
    for (index, name) in names.iter().enumerate() {
        let out = lab.at(&format!("out{index}"));
        lab.pack("unpack", &["--tensor", name, "--out", text(&out)]).exits(0);
        let expected = crate::common::models::tensor_bytes((name.as_bytes(), GgmlType::Q4_0, &[32, 16]));
        assert_eq!(fs::read(&out).expect("unpacked"), expected, "{name}");
    }
    // Names are data: none of them made a path.
    assert!(!lab.at("up").exists());
    assert!(lab.files().iter().all(|file| file.len() < 200 && file.is_ascii()));
}

#[test]
fn a_split_model_is_one_model_from_any_of_its_shards() {
    let lab = Lab::new();
    let shards = write_split(lab.folder.path(), &STANDARD, 3);
    assert_eq!(shards.len(), 4);
    let mut keys = Vec::new();
    for shard in &shards {
        let prepared = lab.pack("prepare", &["--model", text(shard), "--plan", text(&lab.plan)]).exits(0).json();
        keys.push(string(&prepared["set_key"]));
        assert_eq!(prepared["tensor_count"], 4);
    }
    keys.dedup();
    assert_eq!(keys.len(), 1, "the set depends on the model, not on the shard that was named");
    let set_key = keys.remove(0);
    let set = ["--set-key", &set_key];
    assert!(lab.verify(&[&set[..], &["--deep", "--against", text(&shards[2])]].concat()).is_empty());
    // Split and whole have the same tensors but not the same files: another model, another set.
    assert_ne!(lab.prepare()["set_key"], set_key);
    fs::remove_file(&shards[1]).expect("a shard");
    let error = run(["inspect", "--json", "--model", text(&shards[0])]).fails(2, "not-a-valid-gguf");
    assert!(string(&error["message"]).contains("missing"), "{error}");
}

#[test]
fn broken_plan_files_are_refused_by_name() {
    let lab = Lab::new();
    let inspect = |plan: &str| run(["inspect", "--json", "--model", text(&lab.model), "--plan", plan]);
    inspect("no-such-plan").fails(2, "unknown-plan");
    let path = lab.at("broken.json");
    let refuse = |change: &dyn Fn(&mut Value), code, kind: &str| {
        let mut plan = mini_plan("mini");
        change(&mut plan);
        write_json(&path, &plan);
        let error = inspect(text(&path)).fails(code, kind);
        assert!(kind == "plan-layout" || error["path"] == text(&path), "{error}");
    };
    refuse(&|plan| plan["format_prefix"] = json!("qwen27-xe2-m6"), 2, "plan-file");
    refuse(&|plan| plan["format_prefix"] = json!("../up"), 2, "plan-file");
    refuse(&|plan| plan["name"] = json!("a/b"), 2, "plan-file");
    refuse(&|plan| plan["schema_version"] = json!(2), 2, "plan-file");
    refuse(&|plan| plan["rules"][0]["slot_base"] = json!(4), 2, "plan-file");
    refuse(&|plan| plan["rules"][0]["slot_stride"] = json!(1), 2, "plan-file");
    refuse(&|plan| plan["rules"] = json!([]), 2, "plan-file");
    refuse(&|plan| plan["rules"][0]["layers"]["last"] = json!(u64::MAX), 2, "plan-file");
    refuse(&|plan| plan["rules"][0]["colour"] = json!("blue"), 1, "document");
    refuse(&|plan| plan["rules"][0]["slot_base"] = json!(-1), 1, "document");
    refuse(&|plan| plan["layout"]["version"] = json!(3), 2, "plan-layout");
    fs::write(&path, "{ not json").expect("a file");
    inspect(text(&path)).fails(2, "document");
    fs::write(&path, b"\xff\xfe").expect("a file");
    inspect(text(&path)).fails(2, "io");
    fs::write(&path, vec![b' '; (1 << 20) + 2]).expect("a file");
    inspect(text(&path)).fails(1, "document");
    write_model(&lab.at("second.gguf"), &[]);
    inspect(text(&lab.at("second.gguf"))).exits(2);
}
