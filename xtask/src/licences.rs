//! `cargo xtask licences`: every package of the dependency graph has a licence that `deny.toml` allows, and comes from
//! crates.io or from this workspace. It needs nothing but cargo; `cargo deny check` says more where it is installed.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::Value;

use crate::failure::{AtPath as _, Failure};
use crate::process;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let root = process::workspace_root();
    let policy = root.join("deny.toml");
    let allowed = allowed(&std::fs::read_to_string(&policy).at("read", &policy)?);
    if allowed.is_empty() {
        return Err(Failure::new("deny.toml allows no licence", "restore its list [licenses] allow"));
    }
    let mut command = process::cargo();
    command.current_dir(&root).args(["metadata", "--format-version", "1", "--locked"]);
    let graph = process::answer(&mut command).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let graph = graph.ok_or_else(|| Failure::new("cargo metadata gave no graph", "run it by hand to see why"))?;
    let packages = graph["packages"].as_array().map(Vec::as_slice).unwrap_or_default();

    let (mut refused, mut names) = (Vec::new(), BTreeMap::<&str, u32>::new());
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        *names.entry(name).or_default() += 1;
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licence, &allowed) {
            refused.push(format!("{name}: licence {licence:?}"));
        }
        if !package["source"].is_null() && package["source"] != CRATES_IO {
            refused.push(format!("{name}: from {}", package["source"]));
        }
    }
    let twice: Vec<&str> = names.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name).collect();
    println!(
        "licences: {} packages, {} refused; in several versions: {}",
        packages.len(),
        refused.len(),
        if twice.is_empty() { "none".to_owned() } else { twice.join(", ") }
    );
    if refused.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::check(
        refused.join("\n"),
        "choose another dependency, or add the licence to deny.toml with good reason",
    ))
}

/// The identifiers of the list `allow` under `[licenses]`.
fn allowed(policy: &str) -> Vec<String> {
    let lines = policy.lines().map(str::trim).skip_while(|line| *line != "[licenses]");
    let list = lines.skip_while(|line| *line != "allow = [").skip(1).take_while(|line| *line != "]");
    list.map(|line| line.trim_end_matches(',').trim_matches('"').to_owned()).collect()
}

/// Whether an SPDX expression can be met with allowed licences only. The old separator `/` means OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_ascii_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, allowed).is_some_and(|met| met && rest.is_empty())
}

fn either(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = both(rest, allowed)?;
    while let Some(after) = rest.strip_prefix(&["OR"]) {
        *rest = after;
        met |= both(rest, allowed)?;
    }
    Some(met)
}

fn both(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = one(rest, allowed)?;
    while let Some(after) = rest.strip_prefix(&["AND"]) {
        *rest = after;
        met &= one(rest, allowed)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    if *first == "(" {
        let met = either(rest, allowed)?;
        *rest = rest.strip_prefix(&[")"])?;
        return Some(met);
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, after @ ..] = *rest {
        name = format!("{name} WITH {exception}");
        *rest = after;
    }
    Some(allowed.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        let allowed = allowed("[licenses]\nallow = [\n    \"MIT\",\n    \"Unicode-3.0\",\n    \"Zlib\",\n]\n[bans]\n");
        assert_eq!(allowed, ["MIT", "Unicode-3.0", "Zlib"]);
        for good in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "MIT AND Zlib"] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT OR", "MIT WITH x", "(MIT", "MIT)", "MIT Zlib", "OR"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }
}
