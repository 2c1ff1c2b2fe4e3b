//! The command lines of all binaries, from which man pages and completions are made.

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

/// One entry a binary, by name. A new binary adds a line here and to the dependencies.
pub(crate) fn all() -> Vec<Command> {
    vec![
        b70kit_bins::bench::Cli::command(),
        b70kit_bins::cache::Cli::command(),
        b70kit_bins::golden::Cli::command(),
        b70kit_bins::gpu::Cli::command(),
        b70kit_bins::manifest::Cli::command(),
        b70kit_bins::pack::Cli::command(),
        b70kit_bins::registry::Cli::command(),
        b70kit_bins::tour::Cli::command(),
        b70kit_bins::worker::Cli::command(),
    ]
}

/// Man pages, section 1: one for each binary and one for each of its commands; name and roff text.
pub(crate) fn man_pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for command in all() {
        let mut command = command.disable_help_subcommand(true);
        // Hands global flags down and gives subcommands their full names.
        command.build();
        add_pages(&command, &mut pages);
    }
    pages
}

fn add_pages(command: &Command, pages: &mut Vec<(String, String)>) {
    let page = clap_mangen::Man::new(command.clone()).source(concat!("b70kit ", env!("CARGO_PKG_VERSION")));
    let name = page.get_filename();
    let mut text = Vec::new();
    page.render(&mut text).expect("a vector takes everything");
    pages.push((name, String::from_utf8_lossy(&text).into_owned()));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, pages);
    }
}

/// Completion scripts: path within `share`, where a shell looks for them, and text.
pub(crate) fn completions() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for mut command in all() {
        let binary = command.get_name().to_owned();
        for (shell, path) in [
            (Shell::Bash, format!("bash-completion/completions/{binary}")),
            (Shell::Zsh, format!("zsh/vendor-completions/_{binary}")),
            (Shell::Fish, format!("fish/vendor_completions.d/{binary}.fish")),
        ] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, &binary, &mut text);
            files.push((path, text));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_binary_of_the_workspace_is_listed() {
        let mut found: Vec<String> = std::fs::read_dir(crate::process::workspace_root().join("bins/src/bin"))
            .expect("the folder bins/src/bin")
            .map(|entry| entry.expect("an entry").path())
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        found.sort();
        let listed: Vec<String> = all().iter().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(listed, found, "commands::all() lists each binary once, in order");
    }

    #[test]
    fn pages_name_their_commands_and_no_machine() {
        let pages = man_pages();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"b70-pack.1") && names.contains(&"b70-pack-prepare.1"), "{names:?}");
        for (name, text) in &pages {
            assert!(text.contains(".SH SYNOPSIS"), "{name} has a synopsis");
            let home = std::env::var("HOME").unwrap_or_default();
            assert!(home.len() < 2 || !text.contains(&home), "{name} does not depend on who made it");
        }
    }

    #[test]
    fn completions_are_accepted_by_bash() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in completions().into_iter().filter(|(path, _)| path.starts_with("bash")) {
            let file = folder.path().join("script");
            std::fs::write(&file, text).expect("written");
            let status = std::process::Command::new("bash").arg("-n").arg(&file).status().expect("bash");
            assert!(status.success(), "{path} is valid bash");
        }
    }
}
