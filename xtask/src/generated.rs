//! Committed files that the crates generate: written by one command, compared by the same command with `--check`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::failure::{AtPath, Failure};
use crate::{commands, process};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail when a committed file differs, is missing, or is no longer generated.
    #[arg(long)]
    check: bool,
}

/// One source of generated files: a folder of the repository and the function that says what belongs into it.
pub(crate) struct Generator {
    /// Folder of the files, from the root of the repository.
    folder: &'static str,
    /// Whether the folder holds nothing else: files directly in it that are generated no more are stale then.
    alone: bool,
    /// All files: name within the folder, and text.
    files: fn() -> Vec<(String, String)>,
}

/// Known-answer vectors. A crate that has some adds a line: the folder and its function.
pub(crate) const VECTORS: &[Generator] = &[Generator {
    folder: "fixtures/vectors",
    alone: false,
    files: || vec![document("xe2-dpas-v2.json", &b70_xe2pack::vectors())],
}];

/// JSON Schemas of the documents and of the commands' outputs.
pub(crate) const SCHEMAS: &[Generator] = &[Generator { folder: "docs/schemas", alone: true, files: schemas }];

/// Man pages of the binaries.
pub(crate) const MAN: &[Generator] = &[Generator { folder: "docs/man", alone: true, files: commands::man_pages }];

/// All texts of some generators, by name within their folders.
pub(crate) fn texts(generators: &[Generator]) -> Vec<(String, String)> {
    generators.iter().flat_map(|generator| (generator.files)()).collect()
}

fn schemas() -> Vec<(String, String)> {
    let mut entries = b70_manifest::schema::all();
    entries.extend(b70_packset::output_schemas());
    entries.extend(b70_xe2pack::output_schemas());
    entries.extend(b70_procguard::output_schemas());
    entries.extend(b70_golden::output_schemas());
    entries.extend(b70_bench::output_schemas());
    entries.extend(b70_admission::output_schemas());
    entries.extend(b70_worker::output_schemas());
    entries.into_iter().map(|(name, schema)| (name, b70_manifest::schema::text(&schema))).collect()
}

/// A JSON document as it is committed: indented, with a final newline.
fn document(name: &str, value: &serde_json::Value) -> (String, String) {
    (name.to_owned(), format!("{value:#}\n"))
}

pub(crate) fn run(kind: &str, generators: &[Generator], args: &Args) -> Result<ExitCode, Failure> {
    let root = process::workspace_root();
    let mut count = 0;
    let mut stale = Vec::new();
    for generator in generators {
        let folder = root.join(generator.folder);
        let files = (generator.files)();
        count += files.len();
        if args.check {
            stale.extend(
                differences(&folder, &files, generator.alone)?
                    .into_iter()
                    .map(|text| format!("{}/{text}", generator.folder)),
            );
        } else {
            write(&folder, &files, generator.alone)?;
        }
    }
    if stale.is_empty() {
        println!("{kind}: {count} files {}", if args.check { "are fresh" } else { "written" });
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::check(
        format!("{kind}: {} of {count} generated files are stale:\n    {}", stale.len(), stale.join("\n    ")),
        format!("run `cargo xtask {kind}`, look at the difference, commit it"),
    ))
}

fn write(folder: &Path, files: &[(String, String)], alone: bool) -> Result<(), Failure> {
    fs::create_dir_all(folder).at("create", folder)?;
    for (name, text) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).at("create", parent)?;
        }
        let partial = path.with_extension("part");
        fs::write(&partial, text).at("write", &partial)?;
        fs::rename(&partial, &path).at("write", &path)?;
    }
    for name in left_over(folder, files, alone)? {
        let path = folder.join(name);
        fs::remove_file(&path).at("remove", &path)?;
    }
    Ok(())
}

fn differences(folder: &Path, files: &[(String, String)], alone: bool) -> Result<Vec<String>, Failure> {
    let mut stale = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        match fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            Ok(found) => stale.push(format!("{name} differs from line {}", first_difference(&found, text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => stale.push(format!("{name} is missing")),
            Err(error) => return Err(error).at("read", &path),
        }
    }
    stale.extend(left_over(folder, files, alone)?.into_iter().map(|name| format!("{name} is generated no more")));
    Ok(stale)
}

/// Files directly in a generator's own folder that it does not name.
fn left_over(folder: &Path, files: &[(String, String)], alone: bool) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    if !alone || !folder.is_dir() {
        return Ok(names);
    }
    for entry in fs::read_dir(folder).at("list", folder)? {
        let entry = entry.at("list", folder)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() && !files.iter().any(|(known, _)| *known == name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Number of the first line that differs.
fn first_difference(found: &[u8], expected: &str) -> usize {
    let equal = found.iter().zip(expected.as_bytes()).take_while(|(a, b)| a == b).count();
    expected.as_bytes()[..equal].split(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn what_was_written_is_fresh_until_something_changes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path().join("made/on/demand");
        let first = files(&[("a.json", "1\n2\n"), ("output/b.json", "{}\n")]);
        assert_eq!(differences(&folder, &first, true).expect("compared").len(), 2, "all missing at first");
        write(&folder, &first, true).expect("written");
        assert_eq!(differences(&folder, &first, true).expect("compared"), Vec::<String>::new());

        let changed = files(&[("a.json", "1\n3\n"), ("output/b.json", "{}\n")]);
        assert_eq!(differences(&folder, &changed, true).expect("compared"), ["a.json differs from line 2"]);
        let fewer = files(&[("output/b.json", "{}\n")]);
        assert_eq!(differences(&folder, &fewer, false).expect("compared"), Vec::<String>::new(), "another's file");
        assert_eq!(differences(&folder, &fewer, true).expect("compared"), ["a.json is generated no more"]);
        write(&folder, &fewer, true).expect("written");
        assert_eq!(differences(&folder, &fewer, true).expect("compared"), Vec::<String>::new());
        assert!(!folder.join("a.json").exists());
    }

    #[test]
    fn a_folder_of_ones_own_is_shared_with_no_other_generator() {
        let all: Vec<_> = VECTORS.iter().chain(SCHEMAS).chain(MAN).collect();
        for generator in all.iter().filter(|generator| generator.alone) {
            let users = all.iter().filter(|other| other.folder == generator.folder).count();
            assert_eq!(users, 1, "{}: each would remove the other's files", generator.folder);
        }
    }
}
