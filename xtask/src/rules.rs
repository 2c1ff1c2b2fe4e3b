//! Rules of the code that no compiler checks, as tests over the sources.

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
            if path.is_dir() && !matches!(name.as_str(), "tests" | "benches" | "examples" | "target") {
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

fn relative(path: &Path) -> String {
    path.strip_prefix(process::workspace_root()).unwrap_or(path).display().to_string()
}
