//! Rules of the code that no compiler checks, as tests over the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::process;

/// Every Rust source that is shipped: libraries and binaries without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let root = process::workspace_root();
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = ["crates", "bins"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).expect("a complete checkout") {
            let path = entry.expect("a complete checkout").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() && !matches!(name.as_str(), "tests" | "testkit" | "benches" | "examples" | "target") {
                pending.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a readable source");
                found.push((path, shipped(&text).to_owned()));
            }
        }
    }
    assert!(found.len() > 100, "the sources are where they are expected: {}", found.len());
    found
}

/// A source without its unit tests, which stand at its end.
fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[test]
fn nothing_is_started_through_a_shell() {
    let shells = ["\"sh\"", "\"bash\"", "\"dash\"", "\"zsh\"", "/bin/sh", "/bin/bash", "libc::system", "popen("];
    let uses = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !is_comment(line) && shells.iter().any(|shell| line.contains(shell)));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    // Shells that completions and scripts are written for are named, and none is started.
    let named = |line: &String| line.contains("Shell::") || line.contains("#!/") || line.contains("format!(");
    for (path, text) in sources() {
        let found: Vec<String> = uses(&text).into_iter().filter(|line| !named(line)).collect();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
    assert_eq!(uses("let _ = Command::new(\"sh\").arg(\"-c\");").len(), 1, "the check can fail");
}

#[test]
fn programs_are_started_by_a_plain_command_in_few_places() {
    let mut starters: Vec<String> = Vec::new();
    for (path, text) in sources() {
        if text.lines().any(|line| !is_comment(line) && line.contains("Command::new(")) {
            starters.push(relative(&path));
        }
    }
    starters.sort();
    // Whoever adds a place that starts programs adds it here, and looks at what it passes on.
    assert!(starters.len() <= 8, "{starters:#?}");
}

/// The table of floors in ARCHITECTURE.md: of each crate, without `b70-`, its floor and what it may use.
fn floors() -> BTreeMap<String, (u32, Vec<String>)> {
    let page = fs::read_to_string(process::workspace_root().join("ARCHITECTURE.md")).expect("a complete checkout");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [floor, name, uses] = cells[..] else { return None };
        Some((name.to_owned(), (floor.parse().ok()?, uses.split(", ").map(str::to_owned).collect())))
    });
    let floors: BTreeMap<_, _> = rows.collect();
    assert!(floors.len() > 10, "the table of floors is where it is expected: {floors:?}");
    floors
}

/// Why the crate `name` must not use the crate `other`, both without `b70-`; a crate that is in no row is a binary.
fn breach(floors: &BTreeMap<String, (u32, Vec<String>)>, name: &str, other: &str) -> Option<String> {
    let (top, all) = (u32::MAX, Vec::new());
    let floor = |name: &str| floors.get(name).map_or((top, &all), |(floor, uses)| (*floor, uses));
    let ((own, uses), (below, _)) = (floor(name), floor(other));
    if own == top {
        return None;
    }
    if below >= own {
        return Some(format!("{name} (floor {own}) uses {other} (floor {below}), which is not below it"));
    }
    let named = other == "manifest" || uses.iter().any(|use_| use_ == other);
    (!named).then(|| format!("{name} uses {other}, which its row does not name"))
}

#[test]
fn crates_use_what_stands_on_floors_below_them() {
    let floors = floors();
    let mut command = process::cargo();
    command.current_dir(process::workspace_root()).args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata: serde_json::Value =
        serde_json::from_str(&process::answer(&mut command).expect("cargo metadata")).expect("JSON");
    let ours = |name: &str| name.strip_prefix("b70-").map(str::to_owned);
    let mut found = Vec::new();
    let mut edges = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let Some(name) = package["name"].as_str().and_then(ours) else { continue };
        let path = package["manifest_path"].as_str().expect("a path");
        assert!(floors.contains_key(&name) || !path.contains("/crates/"), "{name} is in no row of the table of floors");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            // What tests use is not shipped.
            let shipped = dependency["kind"] != "dev";
            if let (true, Some(other)) = (shipped, dependency["name"].as_str().and_then(ours)) {
                edges += 1;
                found.extend(breach(&floors, &name, &other));
            }
        }
    }
    assert!(edges > 20 && found.is_empty(), "{edges} edges, {found:#?}");
    assert!(breach(&floors, "store", "procguard").is_some(), "the check can fail");
    assert!(breach(&floors, "packset", "admission").is_some(), "the check can fail");
}

#[test]
fn no_source_names_a_crate_above_its_own() {
    let floors = floors();
    let mut found = Vec::new();
    for (path, text) in sources() {
        let place = relative(&path);
        let Some(name) = place.strip_prefix("crates/").and_then(|rest| rest.split('/').next()) else { continue };
        let code = text.lines().filter(|line| !is_comment(line));
        for other in code.flat_map(|line| line.split("b70_").skip(1)) {
            let other: String = other.chars().take_while(char::is_ascii_alphanumeric).collect();
            if other != name && floors.contains_key(&other) {
                found.extend(breach(&floors, name, &other).map(|why| format!("{place}: {why}")));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

fn relative(path: &Path) -> String {
    path.strip_prefix(process::workspace_root()).unwrap_or(path).display().to_string()
}
